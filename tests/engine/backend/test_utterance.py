"""One text being spoken, on a generator that counts: every frame is 10 samples of its number."""

from types import SimpleNamespace

import numpy as np
import pytest

from llamasrv.domain.speech import LANE_CELLS, UtteranceSpec
from llamasrv.engine.backend.utterance import PocketUtterance, QwenUtterance, chunks_of
from llamasrv.engine.base.sound_track import SoundTrack
from llamasrv.errors import InvalidRequest

NAMES = [
    "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<|codec_pad|>", "<|codec_bos|>", "<|codec_think|>",
    "<|codec_nothink|>", "<|codec_think_bos|>", "<|codec_think_eos|>", "<|codec_language_english|>", "<|audio_bos|>",
    "<|bos_before_voice|>", "<|codec_0|>",
]  # fmt: skip
CODE0, NUM_CODES = 256 + len(NAMES) - 1, 8
END = CODE0 + NUM_CODES


class CountingGenerator:
    """Tokens are bytes. It says `length` frames a chunk; `sound` shows which frames it was given."""

    languages, speakers, variant = ("english",), (), "english"
    pieces = [bytes([i]) for i in range(256)] + [b""] * (END + 1 - 256)

    def __init__(self, length=5):
        self.length, self.said, self.seeds, self.calls = length, 0, [], []
        self.ids = {name: 256 + i for i, name in enumerate(NAMES)} | {"<|codec_eos_token|>": END}
        self.suppressed = np.array([CODE0 + 3])
        self.vocab = SimpleNamespace(pieces=self.pieces, tokenize=self.tokenize)
        self.table = SimpleNamespace(row=lambda token: np.full(4, token, np.float32))

    def tokenize(self, text, *, parse_special=True):
        assert parse_special or "<|" not in text or all(byte < 256 for byte in text.encode())
        return list(text.encode())

    def hidden(self, place):
        return np.zeros(4, np.float32)

    def logits(self, place):
        logits = np.zeros(END + 1, np.float32)
        logits[CODE0 + 3] = 50  # suppressed: must never be drawn
        logits[END] = 100 if self.said >= self.length else -100
        return logits

    def next_frame(self, hidden, seed, **params):
        self.seeds.append(seed)
        self.said += 1
        is_end = self.said >= self.length
        assert params.get("code0") != 3
        numbers = np.full(1, len(self.seeds), np.int32)
        return SimpleNamespace(numbers=numbers, row=np.ones(4, np.float32), is_end=is_end)

    @property
    def generator(self):
        return self

    def sound(self, numbers, state):
        self.calls.append((len(numbers), state))
        return np.repeat(numbers.astype(np.float32), 10), numbers[-1]


def spoken(utterance, generator):
    """All of its sound, and the number of times that its lane started anew."""
    sounds, restarts, track = [], 0, SoundTrack()
    while not utterance.is_done:
        utterance.mark_computed(len(utterance.pending))
        assert utterance.position <= LANE_CELLS
        if utterance.advance(0):
            restarts += 1
            generator.said = 0
            assert utterance.position == utterance.kept
        sounds += [track.sound(generator, piece) for piece in utterance.take_pieces()]
    return np.concatenate(sounds), restarts


def qwen(generator, text="Hello.", **fields):
    return QwenUtterance(generator, UtteranceSpec(text, 7, **fields))


def pocket(generator, text="Hello there, you.", **fields):
    return PocketUtterance(generator, UtteranceSpec(text, 7, voice=np.zeros((3, 4), np.float32), **fields))


@pytest.mark.parametrize("length", [1, 4, 5, 71, 72, 73, 160])
def test_every_frame_of_qwen_sounds_once_whatever_windows_it_falls_into(length):
    generator = CountingGenerator(length)
    sound, _ = spoken(qwen(generator, "x" * 100), generator)
    assert sound.tolist() == np.repeat(np.arange(1, length + 1), 10).tolist()
    assert all(count <= 72 for count, _ in generator.calls)


def test_only_whole_windows_hand_their_state_on():
    generator = CountingGenerator(160)
    spoken(qwen(generator, "x" * 100), generator)
    assert {state for _, state in generator.calls} == {None, 72, 144}


def test_every_frame_of_pocket_sounds_once_and_the_first_calls_are_short():
    generator = CountingGenerator(30)
    utterance = pocket(generator)
    sound, _ = spoken(utterance, generator)
    assert sound.tolist() == np.repeat(np.arange(1, utterance.num_frames + 1), 10).tolist()
    assert [count for count, _ in generator.calls][:4] == [1, 2, 4, 8]
    assert utterance.num_frames == 29 + 3  # three more after the end was heard


def test_a_long_text_is_spoken_in_chunks_after_one_voice():
    generator = CountingGenerator(10)
    utterance = pocket(generator, "This is a sentence of thirty. " * 4)
    voice = utterance.kept
    _, restarts = spoken(utterance, generator)
    assert voice == 4 and restarts == 3
    assert None in {state for _, state in generator.calls[1:]}  # the vocoder starts anew with each chunk


@pytest.mark.parametrize("kind", [QwenUtterance, PocketUtterance])
def test_a_lane_that_was_left_between_two_chunks_is_filled_again(kind):
    generator = CountingGenerator()
    voice = np.full((3, 4), 9, np.float32)
    utterance = kind(generator, UtteranceSpec("Hello there. " * 20, 7, voice=voice))
    first = utterance.pending
    utterance.mark_computed(len(first))
    while not utterance.advance(0):
        utterance.mark_computed(1)
    rows, kept = utterance.pending, utterance.kept
    count = utterance.num_prompt
    utterance.release_lane()
    assert utterance.position == 0 and utterance.num_prompt == count and utterance.kept == kept
    assert utterance.pending.tolist() == [*first[:kept].tolist(), *rows.tolist()]


@pytest.mark.parametrize("kind", [QwenUtterance, PocketUtterance])
def test_a_lane_that_was_left_in_the_middle_is_filled_again(kind):
    utterance = kind(CountingGenerator(), UtteranceSpec("Hello.", 7, voice=np.full((3, 4), 9, np.float32)))
    rows = [*utterance.pending.tolist()]
    utterance.mark_computed(2)
    utterance.mark_computed(len(rows) - 2)
    utterance.advance(0)
    rows += utterance.pending.tolist()
    utterance.release_lane()
    assert utterance.position == 0 and utterance.pending.tolist() == rows
    utterance.mark_computed(1)
    utterance.release_lane()
    assert utterance.position == 0 and utterance.pending.tolist() == rows


def test_a_speech_that_never_ends_is_cut_off():
    for utterance in (qwen(CountingGenerator(10**6)), pocket(CountingGenerator(10**6))):
        spoken(utterance, utterance._g)
        assert 0 < utterance.num_frames < LANE_CELLS


def test_the_request_may_bound_the_frames():
    generator = CountingGenerator(100)
    utterance = qwen(generator, "x" * 100, most_frames=3)
    spoken(utterance, generator)
    assert utterance.num_frames == 3


def test_seeds_depend_on_the_request_alone_and_differ_from_frame_to_frame():
    first, second, other = CountingGenerator(20), CountingGenerator(20), CountingGenerator(20)
    spoken(qwen(first), first)
    spoken(qwen(second), second)
    spoken(qwen(other, "Goodbye."), other)
    assert first.seeds == second.seeds and len(set(first.seeds)) == 20
    assert not set(first.seeds) & set(other.seeds)


def test_a_greedy_voice_draws_no_suppressed_code():
    generator = CountingGenerator(3)
    spoken(qwen(generator, temperature=0.0), generator)


def test_control_tokens_in_the_text_are_spoken_as_text():
    generator = CountingGenerator()
    plain, forged = qwen(generator, "a" * 10), qwen(generator, "<|im_end|>")
    assert len(plain.pending) == len(forged.pending)


@pytest.mark.parametrize(
    ("make", "fields", "param"),
    [
        (qwen, {"text": " \n "}, "input"),
        (pocket, {"text": " \n "}, "input"),
        (qwen, {"language": "klingon"}, "language"),
        (qwen, {"speaker": "nobody"}, "voice"),
        (pocket, {"language": "english"}, "language"),
        (pocket, {"instructions": "Whisper."}, "instructions"),
        (qwen, {"instructions": "a" * 600}, "instructions"),
    ],
)
def test_what_cannot_be_said_is_refused_by_field(make, fields, param):
    with pytest.raises(InvalidRequest) as caught:
        make(CountingGenerator(), **fields)
    assert caught.value.param == param


def test_pocket_needs_a_voice():
    with pytest.raises(InvalidRequest, match="needs the clip of a voice"):
        PocketUtterance(CountingGenerator(), UtteranceSpec("Hello", 7))


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("One. Two. Three.", ["One. Two.", " Three."]),
        ("One, two, three.", ["One, two,", " three."]),
        ("Twelvelettersandmore", ["Twelvelett", "ersandmore"]),
        ("Wait... No!", ["Wait...", " No!"]),
        ("Short.", ["Short."]),
    ],
)
def test_chunks_end_at_sentences_then_pauses_then_anywhere(text, chunks):
    found = chunks_of(list(text.encode()), CountingGenerator.pieces, 10)
    assert [bytes(chunk).decode() for chunk in found] == chunks
