"""Speech pairs: which files are one, and the rows of the token table."""

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_speech

from llamasrv.domain.events import FinishReason
from llamasrv.domain.speech import SAMPLE_RATE, UtteranceSpec
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.backend.gguf_file import opened
from llamasrv.engine.backend.speech import speech_kind
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.base.sound_track import SoundTrack
from llamasrv.engine.speaker import Speaker
from llamasrv.engine.vocoder import SpeechEnd
from llamasrv.models import trial


@pytest.fixture
def pocket_projector(tmp_path):
    path = tmp_path / "mmproj-pocket.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.gen.audio.projector_type", "pockettts_gen")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_speech_projector_is_recognised_by_its_generator(pocket_projector, tmp_path):
    (tmp_path / "text").write_text("no GGUF file")
    assert speech_kind(pocket_projector) == "pockettts"
    assert speech_kind(tmp_path / "text") == speech_kind(None) == ""


@pytest.fixture(scope="module", params=tiny_speech.KINDS)
def pair(request, model_path):
    """A loaded pair, the one backend that its tests share."""
    kind = request.param
    options = EngineOptions(mmproj=Path(model_path(f"mmproj-{kind}")), gpu_layers=0, threads=1, parallel=3)
    backend = open_model(model_path(f"text-{kind}"), options, lambda share: True)
    yield backend
    backend.close()


@pytest.fixture
def says(pair):
    """`says(text, seed)`: the utterance of a text in the voice of a tone."""
    clip = np.sin(np.arange(SAMPLE_RATE) / 20).astype(np.float32)
    voice = pair.speech.encode_voice(clip)
    return lambda text="Hi.", seed=1, **more: pair.speech.utterance(UtteranceSpec(text, seed, voice=voice, **more))


def test_a_pair_is_loaded_to_speak_and_nothing_else(pair):
    assert (pair.generates, pair.projector, pair.embeddings) == (False, None, None)
    assert pair.speech.kind == pair.info.architecture and pair.speech.num_lanes == 3


def by_hand(speech, utterance):
    """The samples of an utterance that has the model to itself."""
    sounds, track = [], SoundTrack()
    while not utterance.is_done:
        rows = utterance.pending[:32]
        (place,) = speech.decode([(0, utterance.position, rows)])
        utterance.mark_computed(len(rows))
        if len(utterance.pending):
            continue
        if utterance.advance(place):
            speech.release(0, utterance.kept)
        sounds += [track.sound(speech.vocoder, piece) for piece in utterance.take_pieces()]
    speech.release(0)
    return np.concatenate(sounds)


def test_an_utterance_that_left_its_lane_goes_on_where_it_was(pair, says):
    """In another lane, all its rows computed again."""
    speech = pair.speech

    def hidden_of_sixth(lane, leaves):
        utterance = says()
        while True:
            rows = utterance.pending[:32]
            (place,) = speech.decode([(lane, utterance.position, rows)])
            utterance.mark_computed(len(rows))
            if len(utterance.pending):
                continue
            if utterance.num_frames == 5:
                speech.release(lane)
                return speech.hidden(place)
            assert not utterance.advance(place)
            if leaves and utterance.num_frames == 5:
                utterance.release_lane()
                speech.release(lane)
                lane += 1

    kept, again = hidden_of_sixth(0, False), hidden_of_sixth(0, True)
    assert np.abs(kept - again).max() < 0.02 * np.abs(kept).max()


def turn_out(speaker):
    """Turn it, and the vocoder that would have a thread, until nothing is left to do."""
    while speaker.turn() or speaker.vocoder.turn():
        speaker.check()


def heard(stream):
    *sounds, end = stream.take()
    assert end.reason in (FinishReason.STOP, FinishReason.LENGTH) and end.error is None
    return np.frombuffer(b"".join(sound.pcm for sound in sounds), "<i2")


def test_the_speaker_says_what_the_calls_alone_say(pair, says):
    samples = by_hand(pair.speech, utterance := says())
    assert len(samples) == utterance.num_frames * 1920 and np.abs(samples).max() > 0.001
    speaker = Speaker()
    speaker.open(pair.speech)
    alone = speaker.submit(says())
    turn_out(speaker)
    wanted = (np.clip(samples, -1, 1) * 32767).astype("<i2")
    assert heard(alone).tolist() == wanted.tolist()
    first, *_ = [speaker.submit(says(seed=seed, most_frames=4)) for seed in (1, 2, 3)]
    turn_out(speaker)
    beside = heard(first)
    assert np.abs(beside.astype(int) - wanted[: len(beside)]).max() < 400  # rounding


def follow(speech, monkeypatch, utterance, others, frames):
    """The hidden rows of an utterance that decodes beside others and takes these frames whatever it samples. `frames`
    None: its own. Returns the rows and the frames."""
    hidden, taken, make = [], [], speech.generator.next_frame

    def next_frame(row, seed, **params):
        hidden.append(row)
        taken.append(make(row, seed, **params) if frames is None else frames[len(taken)])
        return taken[-1]

    speaking = {lane: one for lane, one in enumerate([utterance, *others])}
    while not utterance.is_done and (frames is None or len(taken) < len(frames)) and len(taken) < 10:
        parts = [(lane, one.position, one.pending[: 32 // len(speaking)]) for lane, one in speaking.items()]
        for (lane, _, rows), place in zip(parts, speech.decode(parts)):
            one = speaking[lane]
            one.mark_computed(len(rows))
            if len(one.pending):
                continue
            monkeypatch.setattr(speech.generator, "next_frame", next_frame if one is utterance else make)
            if one.advance(place):
                speech.release(lane, one.kept)
            if one.is_done:
                del speaking[lane]
    monkeypatch.undo()
    for lane in range(speech.num_lanes):
        speech.release(lane)
    return np.stack(hidden), taken


def test_beside_others_every_hidden_row_is_within_rounding_given_the_same_frames_before_it(pair, says, monkeypatch):
    """What is heard may differ more: where a code is sampled, rounding may turn it."""
    text = "Hello there, this is a sentence that goes on for a while."
    alone, frames = follow(pair.speech, monkeypatch, says(text), [], None)
    beside, _ = follow(
        pair.speech, monkeypatch, says(text), [says(text + " And more.", seed) for seed in (2, 3)], frames
    )
    count = min(len(alone), len(beside))
    assert count > 2
    assert np.abs(alone[:count] - beside[:count]).max() < 0.01 * np.abs(alone).max()


@pytest.mark.parametrize("kind", tiny_speech.KINDS)
def test_a_deterministic_voice_does_not_depend_on_who_else_speaks(kind, model_path):
    """In one batch a sampled code differs beside others, and with it all that follows."""
    options = EngineOptions(
        mmproj=Path(model_path(f"mmproj-{kind}")), gpu_layers=0, threads=1, parallel=4, deterministic=True
    )
    backend = open_model(model_path(f"text-{kind}"), options, lambda share: True)
    clip = np.sin(np.arange(SAMPLE_RATE) / 20).astype(np.float32)
    voice = backend.speech.encode_voice(clip)
    speaker = Speaker(unread=100)
    speaker.open(backend.speech)

    def say(text, seed):
        return speaker.submit(backend.speech.utterance(UtteranceSpec(text, seed, voice=voice)))

    alone = [say("Hello there.", 1)]
    turn_out(speaker)
    others = [say("Something else is said, and it is longer. " * 2, seed) for seed in (2, 3)]
    for _ in range(5):
        speaker.turn()
    beside = [say("Hello there.", 1), *others]
    turn_out(speaker)
    assert heard(alone[0]).tolist() == heard(beside[0]).tolist()
    backend.close()


def test_random_cancels_change_nothing_for_those_who_stay(pair, says):
    rng, speaker = random.Random(5), Speaker()
    speaker.open(pair.speech)
    before = by_hand(pair.speech, says())
    streams = []
    for _ in range(20):
        if len(streams) < 12:
            streams.append(speaker.submit(says(seed=len(streams))))
        speaker.cancel(rng.choice(streams))
        speaker.turn()
        speaker.vocoder.turn()
        speaker.check()
    for stream in streams:
        speaker.cancel(stream)
    turn_out(speaker)
    assert speaker.num_open == 0 and all(type(stream.take()[-1]) is SpeechEnd for stream in streams)
    assert by_hand(pair.speech, says()).tolist() == before.tolist()


def test_a_pair_is_tried_by_speaking(model_path):
    assert trial.main(model_path("text-pockettts"), model_path("mmproj-pockettts")) == 0


def test_a_speech_model_without_its_projector_says_what_it_needs(model_path):
    with pytest.raises(LoadFailed, match="it makes speech: give the projector that belongs to it with --mmproj"):
        open_model(model_path("text-qwen3tts"), EngineOptions(gpu_layers=0), lambda share: True)


def test_a_projector_without_what_the_library_aborts_for_is_refused(model_path, tmp_path):
    """The worker ended with SIGABRT, five times, and the server with it."""
    path = tmp_path / "mmproj.gguf"
    whole = Path(model_path("mmproj-qwen3tts")).read_bytes()
    path.write_bytes(whole.replace(b"gen.audio.attention.head_count_kv", b"gen.audio.attention.head_count_kx"))
    options = EngineOptions(mmproj=path, gpu_layers=0)
    with pytest.raises(LoadFailed, match="it has no clip.gen.audio.attention.head_count_kv"):
        open_model(model_path("text-qwen3tts"), options, lambda share: True)


def test_a_projector_that_speaks_is_no_ear_of_a_chat_model(model_path):
    options = EngineOptions(mmproj=Path(model_path("mmproj-qwen3tts")), gpu_layers=0)
    with pytest.raises(LoadFailed, match="generates speech for qwen3tts models and takes no images or audio"):
        open_model(model_path("swa"), options, lambda share: True)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_single_rows_of_a_table_are_dequantised(kind, tmp_path):
    path = tmp_path / "table.gguf"
    numbers = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    of_kind = gguf.GGMLQuantizationType[kind]
    raw = gguf.quants.quantize(numbers, of_kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("table", raw, raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with opened(path) as file:
        table = file.table("table", 64)
        assert file.table("table", 96) is None
        assert file.table("nothing", 64) is None
    wanted = gguf.quants.dequantize(raw, of_kind)
    assert [table.row(i).tolist() for i in range(5)] == wanted.tolist()
