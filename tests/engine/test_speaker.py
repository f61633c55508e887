"""The speaker, turned by hand on a fake speech model: lanes, turns, pauses, ends."""

from __future__ import annotations

import random

import numpy as np
import pytest
from fake_speech import FRAME, FakeSpeech

from llamasrv.domain.events import FinishReason
from llamasrv.domain.speech import SAMPLE_RATE, UtteranceSpec
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.engine.base.sound_track import SoundPiece
from llamasrv.engine.speaker import LONGEST_PAUSE, LOOK_SECONDS, MAX_VOICES, Speaker
from llamasrv.engine.vocoder import SpeechEnd
from llamasrv.errors import DeadlineExceeded, EngineFailure, InvalidRequest, QueueFull, Unavailable


class Driver:
    def __init__(self, *, queue_limit=100, unread=1000, **backend):
        self.now = 0.0
        self.backend = FakeSpeech(**backend)
        self.speaker = Speaker(queue_limit=queue_limit, unread=unread, clock=lambda: self.now)
        self.speaker.open(self.backend)

    def say(self, text, *, owner="", deadline=None, **fields):
        utterance = self.backend.utterance(UtteranceSpec(text, 7, **fields))
        return self.speaker.submit(utterance, owner=owner, deadline=deadline)

    def turn(self):
        worked = self.speaker.turn()
        if self.backend.has_own_vocoder:
            worked |= self.speaker.vocoder.turn()
        self.speaker.check()
        return worked

    def finish(self):
        for _ in range(10_000):
            if not self.turn():
                return
        raise AssertionError("the speaker does not come to an end")


@pytest.fixture
def driver():
    made = []

    def make(**options):
        made.append(Driver(**options))
        return made[-1]

    yield make
    for one in made:
        assert one.speaker.num_open == 0 and sorted(one.speaker._free) == list(range(one.backend.num_lanes))
        assert not any(one.backend.lengths)


def result(stream):
    """The text that was said, and how it ended."""
    *sounds, end = stream.take()
    assert type(end) is SpeechEnd and not any(type(item) is SpeechEnd for item in sounds)
    return spoken(sounds), end


def spoken(sounds):
    pcm = np.frombuffer(b"".join(sound.pcm for sound in sounds), "<i2")
    assert not len(pcm) % FRAME
    return "".join(chr(round(code * 256 / 32767)) for code in pcm[::FRAME].tolist())


def test_a_text_becomes_sound_and_ends_once(driver):
    d = driver()
    stream = d.say("Hello there.")
    d.finish()
    text, end = result(stream)
    assert text == "Hello there."
    assert (end.reason, end.error, end.num_prompt, end.num_frames) == (FinishReason.STOP, None, 12, 12)


def test_several_speak_in_the_same_steps_and_the_rest_wait_for_a_lane(driver):
    d = driver(num_lanes=2)
    streams = [d.say(text) for text in ("aaaa", "bbbb", "cccc")]
    d.turn()
    assert d.backend.steps == [[(1, 4), (0, 4)]] and len(d.speaker.waiting) == 1
    d.finish()
    assert [result(stream)[0] for stream in streams] == ["aaaa", "bbbb", "cccc"]
    assert len(d.backend.steps) == 8


def test_frames_go_before_long_prompts(driver):
    d = driver(num_lanes=2, max_rows=8)
    first = d.say("abc")
    d.turn()
    second = d.say("x" * 20)
    d.turn()
    assert [sorted(rows for _, rows in step) for step in d.backend.steps] == [[3], [1, 7]]
    d.finish()
    assert (result(first)[0], result(second)[0]) == ("abc", "x" * 20)


def test_the_owner_who_speaks_least_is_next(driver):
    d = driver(num_lanes=2)
    streams = [d.say(text, owner="busy") for text in ("aaaaaa", "bb", "cc")]
    streams.append(d.say("dd", owner="other"))
    d.turn()
    assert [speech.owner for speech in d.speaker.running] == ["busy", "other"]
    d.finish()
    assert [result(stream)[0] for stream in streams] == ["aaaaaa", "bb", "cc", "dd"]


def test_a_long_text_gives_way_between_two_chunks(driver):
    """Who waited for a lane waited for the whole of a text of minutes."""
    d = driver(num_lanes=1)
    voice = np.ones((3, 4), np.float32)
    long = d.say("aa\nbb\ncc", voice=voice)
    d.turn()
    short = d.say("x")
    ended = []
    while len(ended) < 2:
        d.turn()
        ended += [one for one in (short, long) if one not in ended and len(one) and not one.open_choices]
    assert ended == [short, long]
    assert (result(long)[0], result(short)[0]) == ("aa\nbb\ncc", "x")
    # Nobody waits between the second and third chunk, so the rows of the voice stay.
    assert [rows for step in d.backend.steps for _, rows in step if rows > 1] == [11, 8, 2]


def test_it_keeps_its_lane_where_the_other_owner_speaks_more(driver):
    d = driver(num_lanes=3)
    first, *more = [d.say(text, owner=who) for text, who in (("a\nb", "few"), ("xxxx", "many"), ("yyyy", "many"))]
    more.append(d.say("zzzz", owner="many"))
    d.turn()
    d.turn()
    assert len(first) == 2  # its first chunk
    assert [speech.owner for speech in d.speaker.waiting] == ["many"]
    assert "few" in [speech.owner for speech in d.speaker.running]
    d.finish()
    assert [result(one)[0] for one in (first, *more)] == ["a\nb", "xxxx", "yyyy", "zzzz"]


def test_a_reader_that_falls_behind_pauses_its_own_utterance_only(driver):
    d = driver(unread=3)
    slow, fast = d.say("x" * 10), d.say("y" * 10)
    said = []
    for _ in range(30):
        d.turn()
        said += fast.take()
    assert type(said[-1]) is SpeechEnd and len(slow) == 3
    taken = []
    while not taken or type(taken[-1]) is not SpeechEnd:
        taken += slow.take()
        d.turn()
    assert len(taken) == 11


def test_a_reader_that_stops_reading_loses_its_lane_to_one_who_waits_and_is_heard_whole_later(driver):
    """Clients that did not read kept all lanes, and no other utterance could start."""
    d = driver(num_lanes=1, unread=4)
    stopped = d.say("abcdefgh", voice=np.ones((3, 4), np.float32))
    for _ in range(6):
        d.turn()
    other = d.say("xy")
    d.turn()
    assert len(stopped) == 4 and not len(other)
    d.now += LONGEST_PAUSE
    d.finish()
    assert result(other)[0] == "xy" and len(stopped) == 4
    assert d.speaker.waiting  # its reader has not read yet, so it does not sit in the lane that is free
    sounds = stopped.take()
    d.finish()
    rest, end = result(stopped)
    assert spoken(sounds) + rest == "abcdefgh" and end.num_frames == 8
    assert max(rows for step in d.backend.steps[1:] for _, rows in step) == 3 + 8 + 4  # computed again


def test_a_paused_utterance_keeps_its_lane_while_no_other_needs_one(driver):
    d = driver(num_lanes=1, unread=2)
    stream = d.say("abcd")
    for _ in range(4):
        d.turn()
        d.now += LONGEST_PAUSE
    assert [speech.stream for speech in d.speaker.running] == [stream]
    sounds = stream.take()
    d.finish()
    assert spoken(sounds) + result(stream)[0] == "abcd"
    assert [rows for step in d.backend.steps for _, rows in step] == [4, 1, 1, 1]


def test_what_is_cancelled_ends_at_once_wherever_it_is(driver):
    d = driver(num_lanes=1)
    running, waiting = d.say("aaaa"), d.say("bbbb")
    d.turn()
    d.speaker.cancel(running)
    d.speaker.cancel(waiting)
    d.speaker.cancel(waiting)
    d.finish()
    assert [result(stream)[1].reason for stream in (running, waiting)] == [FinishReason.CANCELLED] * 2


def test_a_deadline_ends_an_utterance_with_an_error(driver):
    d = driver()
    stream = d.say("abc", deadline=5.0)
    d.turn()
    d.now = 5.0
    d.finish()
    _, end = result(stream)
    assert end.reason is FinishReason.DEADLINE and isinstance(end.error, DeadlineExceeded)


def test_a_failed_step_fails_all_that_speak_and_the_next_one_is_heard(driver):
    d = driver()
    streams = [d.say("abc"), d.say("def")]
    d.turn()
    d.backend.decode, decode = failing, d.backend.decode
    d.turn()
    d.backend.decode = decode
    assert d.backend.num_resets == 1
    for stream in streams:
        assert isinstance(result(stream)[1].error, EngineFailure)
    later = d.say("ghi")
    d.finish()
    assert result(later)[0] == "ghi"


def failing(parts):
    raise DecodeFailed("NaN")


def test_a_chunk_that_cannot_be_said_fails_its_own_utterance_only(driver):
    d = driver()
    bad, good = d.say("abc"), d.say("def")
    d.turn()
    utterance = d.speaker.running[0].utterance

    def refuse(place):
        raise InvalidRequest("The instructions are too long.", param="instructions")

    utterance.advance = refuse
    d.finish()
    assert result(bad)[1].error.param == "instructions" and result(good)[0] == "def"


def test_more_than_the_queue_holds_is_refused(driver):
    d = driver(queue_limit=2)
    streams = [d.say("a"), d.say("b")]
    with pytest.raises(QueueFull):
        d.say("c")
    d.finish()
    assert [result(stream)[0] for stream in streams] == ["a", "b"]


def test_what_is_open_when_the_model_is_unloaded_fails(driver):
    d = driver(num_lanes=1)
    streams = [d.say("abc"), d.say("def")]
    d.turn()
    late = d.say("ghi")
    d.speaker.close()
    for stream in [*streams, late]:
        assert isinstance(result(stream)[1].error, Unavailable)
    with pytest.raises(Unavailable):
        d.say("jkl")


def test_a_thread_of_its_own_speaks():
    d = Driver()
    d.speaker.start()
    stream, items = d.say("Hello."), []
    while not items or type(items[-1]) is not SpeechEnd:
        assert stream.wait(10)
        items += stream.take()
    d.speaker.close()
    assert len(items) == 7


def test_random_cancels_leave_lanes_as_they_were(driver):
    d, rng = driver(num_lanes=3), random.Random(3)
    streams = []
    for _ in range(300):
        if rng.random() < 0.5 and not d.speaker.is_full:
            streams.append(d.say("x" * rng.randint(1, 40), deadline=d.now + rng.choice((3, 1000))))
        if streams and rng.random() < 0.4:
            d.speaker.cancel(rng.choice(streams))
        d.now += rng.random()
        d.turn()
    d.finish()
    assert len(streams) > 50
    for stream in streams:
        result(stream)


@pytest.fixture
def apart(driver):
    """A driver whose vocoder has a thread of its own, which tests turn."""
    return driver(has_own_vocoder=True, unread=3, num_lanes=2)


def test_frames_are_made_while_the_vocoder_is_busy(apart):
    stream = apart.say("ab")
    apart.speaker.turn()
    apart.speaker.turn()
    assert len(apart.backend.steps) == 2 and not len(stream) and not apart.speaker.running
    assert apart.speaker.num_open == 1
    apart.finish()
    assert result(stream)[0] == "ab"


def test_frames_wait_for_a_vocoder_that_falls_behind(apart):
    stream = apart.say("abcdef")
    while apart.speaker.turn():
        pass
    assert len(apart.backend.steps) == 3 and not len(stream)
    said = []
    while not said or type(said[-1]) is not SpeechEnd:
        apart.turn()
        said += stream.take()
    assert len(said) == 7


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_sound_without_a_listener_is_not_made(apart, how):
    stream = apart.say("ab", deadline=5.0 if how == "deadline" else None)
    apart.speaker.turn()
    apart.speaker.turn()
    if how == "cancel":
        apart.speaker.cancel(stream)
    apart.now = 5.0
    apart.finish()
    text, end = result(stream)
    assert text == "" and end.num_frames == 2
    assert end.reason is (FinishReason.CANCELLED if how == "cancel" else FinishReason.DEADLINE)
    apart.turn()
    assert not apart.speaker.ending


def test_a_failure_of_the_vocoder_fails_its_own_utterance_only(apart):
    bad, good = apart.say("ab"), apart.say("cd")
    apart.speaker.turn()
    whole = apart.backend.vocoder.sound
    apart.backend.vocoder.sound = lambda numbers, state: failing(numbers) if numbers == [97] else whole(numbers, state)
    apart.finish()
    assert isinstance(result(bad)[1].error, EngineFailure) and result(good)[0] == "cd"


def test_a_part_is_left_out_where_more_has_come_meanwhile(apart):
    stream = apart.say("a")
    apart.speaker._take_mail(0)
    (speech,) = apart.speaker.waiting
    part, more, whole = (SoundPiece(np.arange(1, n), True, n == 4) for n in (2, 3, 4))
    apart.speaker.vocoder.give(speech, [part, more])
    while apart.speaker.vocoder.turn():
        pass
    apart.speaker.vocoder.give(speech, [whole])
    while apart.speaker.vocoder.turn():
        pass
    sounds = [sound.pcm for sound in stream.take()]
    assert [len(pcm) // 2 // FRAME for pcm in sounds] == [2, 1] and speech.num_given == speech.num_taken == 3
    apart.finish()


def test_the_next_sound_is_for_the_listener_who_runs_out_first(apart):
    """Pieces were taken as they came: who began to speak later was heard after all that the others had said before."""
    first = apart.say("abc")
    for _ in range(3):
        apart.speaker.turn()
    second = apart.say("d")
    apart.speaker.turn()
    apart.speaker.vocoder.turn()
    apart.speaker.vocoder.turn()
    assert (len(first), len(second)) == (1, 1)
    apart.finish()
    assert (result(first)[0], result(second)[0]) == ("abc", "d")


def test_an_end_waits_for_no_sound_of_others(apart):
    first, second = apart.say("a"), apart.say("bcd")
    while apart.speaker.turn():
        pass
    vocoder, seen = apart.speaker.vocoder, []
    while not seen or type(seen[-1]) is not SpeechEnd:
        vocoder.turn()
        seen += first.take()
    assert len(second) <= 1
    apart.finish()


def test_a_bug_in_the_vocoder_fails_what_it_had_and_it_goes_on(apart):
    stream = apart.say("a")
    apart.speaker.turn()
    apart.backend.vocoder.sound, whole = None, apart.backend.vocoder.sound
    with pytest.raises(TypeError):
        apart.speaker.vocoder.turn()
    assert apart.speaker.vocoder._recover()
    apart.backend.vocoder.sound = whole
    assert isinstance(result(stream)[1].error, EngineFailure)
    later = apart.say("b")
    apart.finish()
    assert result(later)[0] == "b"


def test_what_waits_for_the_vocoder_when_the_model_is_unloaded_fails(apart):
    stream = apart.say("ab")
    apart.speaker.turn()
    apart.speaker.turn()
    apart.speaker.close()
    text, end = result(stream)
    assert text == "" and isinstance(end.error, Unavailable)


def test_two_threads_speak_and_random_cancels_leave_nothing_behind():
    d, rng = Driver(has_own_vocoder=True, num_lanes=3), random.Random(4)
    d.speaker.start()
    streams = [d.say("x" * rng.randint(1, 30)) for _ in range(60)]
    for stream in rng.sample(streams, 30):
        d.speaker.cancel(stream)
    for stream in streams:
        items = []
        while not items or type(items[-1]) is not SpeechEnd:
            assert stream.wait(10)
            items += stream.take()
    d.speaker.close()
    d.speaker.check()
    assert d.speaker.num_open == 0 and not d.speaker.ending and not any(d.backend.lengths)


def test_deterministic_utterances_are_computed_one_by_one_in_turn(driver):
    d = driver(is_deterministic=True, max_rows=8)
    streams = [d.say("x" * 20), d.say("ab")]
    d.finish()
    assert [len(step) for step in d.backend.steps] == [1] * len(d.backend.steps)
    assert [step[0] for step in d.backend.steps[:6]] == [(1, 8), (0, 2), (1, 8), (0, 1), (1, 4), (1, 1)]
    assert [result(stream)[0] for stream in streams] == ["x" * 20, "ab"]


def test_it_sleeps_while_all_lanes_are_paused_though_more_texts_wait(driver):
    """It used to look again and again, on a whole core, until a reader took something."""
    d = driver(num_lanes=1, unread=1)
    streams = [d.say("ab"), d.say("c")]
    d.turn()
    slept, take = [], d.speaker._take_mail
    d.speaker._take_mail = lambda seconds: (slept.append(seconds), take(0))
    d.speaker.turn(wait=True)
    assert slept == [LOOK_SECONDS]
    for stream in streams:
        d.speaker.cancel(stream)
    d.finish()


def test_the_rows_of_a_limited_number_of_voices_are_kept(driver):
    d, clip = driver(), np.full(SAMPLE_RATE, 0.5, np.float32).tobytes()
    assert d.speaker.voice("a") is None
    assert d.speaker.add_voice("a", clip).tolist() == d.speaker.voice("a").tolist() == [[0.5] * 4]
    for i in range(MAX_VOICES):
        d.speaker.add_voice(str(i), clip)
    assert d.speaker.voice("a") is None and d.speaker.voice("0") is not None
