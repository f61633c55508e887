"""POST /v1/audio/speech on the fake speech model: each character is a frame of its own loudness."""

from __future__ import annotations

import base64
import io
import json
import wave

import numpy as np
import pytest
from fake_speech import FRAME, FakeSpeech
from samples import wav
from serving import RunningService, wait_until

from llamasrv.domain.key import Key
from llamasrv.engine.base.interface import DecodeFailed
from llamasrv.media import spoken
from llamasrv.pipeline.media import MediaOptions
from llamasrv.pipeline.voices import STANDARD
from llamasrv.web.service import WebOptions

ROUTE = "/v1/audio/speech"


def text_in(pcm):
    samples = np.frombuffer(pcm, "<i2")
    assert not len(samples) % FRAME
    return "".join(chr(round(code * 256 / 32767)) for code in samples[::FRAME].tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voices")
    (folder / "mia.wav").write_bytes(wav(1.5))
    (folder / "short.wav").write_bytes(wav(0.2))
    (folder / "worn.wav").write_bytes(b"RIFF....WAVE")
    return folder


@pytest.fixture(scope="module")
def speaking(folder):
    service = RunningService(speech=FakeSpeech(), web=WebOptions(media=MediaOptions(voices=folder)))
    yield service
    service.service.pipeline.media.close()
    service.close()


@pytest.fixture
def speak(speaking):
    def speak(status=200, **body):
        answer = speaking.client.post(ROUTE, json={"input": "Hello.", "response_format": "pcm", **body})
        answer.get_data()
        assert answer.status_code == status, answer.text
        return answer if status == 200 else answer.json["error"]

    yield speak
    speaking.check_at_rest()
    wait_until(lambda: speaking.engine.num_open == 0)


def spec(speaking):
    return speaking.backend.speech.specs[-1]


def test_a_text_is_spoken(speaking, speak):
    answer = speak(model="fake", voice="alloy")
    assert text_in(answer.data) == "Hello." and answer.content_type == "audio/pcm"
    answer = speaking.client.post("/audio/speech", json={"input": "Hi", "response_format": "wav"})
    assert answer.content_type == "audio/wav"
    with wave.open(io.BytesIO(answer.data)) as file:
        assert file.getframerate() == 24_000 and text_in(file.readframes(1 << 20)) == "Hi"


def test_events_bring_pieces_of_the_file_and_the_usage_last(speak):
    for asked in ({"stream_format": "sse"}, {"stream": True}):
        answer = speak(**asked)
        assert answer.content_type.startswith("text/event-stream")
        *deltas, last = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
        assert {event["type"] for event in deltas} == {"speech.audio.delta"}
        assert text_in(b"".join(base64.b64decode(event["audio"]) for event in deltas)) == "Hello."
        rows = len(deltas) and last["usage"]["input_tokens"]
        assert last == {
            "type": "speech.audio.done",
            "usage": {"input_tokens": rows, "output_tokens": 6, "total_tokens": rows + 6},
        }


def test_the_voice_is_a_clip_or_one_of_the_models_own_or_the_default(speaking, speak):
    speak(voice="mia")
    assert spec(speaking).voice.shape == (1, 4) and spec(speaking).speaker is None
    encoded = speaking.backend.speech.num_encoded
    speak(voice={"id": "mia"})
    assert speaking.backend.speech.num_encoded == encoded
    speak(voice="Vivian")
    assert (spec(speaking).voice, spec(speaking).speaker) == (None, "vivian")


def test_a_clip_that_cannot_be_read_is_no_default_voice(speaking, speak, folder, caplog):
    (folder / "a.wav").write_bytes(b"RIFF....WAVE")
    (folder / "b.wav").write_bytes(wav(0.2))
    try:
        for voice in ("alloy", None):
            speak(**({"voice": voice} if voice else {}))
            assert spec(speaking).voice is not None
        assert speak(400, voice="a")["param"] == "voice"
        assert caplog.text.count("It is no default voice.") == 2
    finally:
        for name in "ab":
            (folder / f"{name}.wav").unlink()


def test_the_seed_belongs_to_the_voice_unless_it_is_given(speaking, speak):
    seeds = []
    for body in ({"voice": "mia"}, {"voice": "mia", "input": "Bye."}, {"voice": "vivian"}, {"seed": 5}):
        speak(**body)
        seeds.append(spec(speaking).seed)
    assert seeds[0] == seeds[1] != seeds[2] and seeds[3] == 5


def test_what_goes_to_the_model(speaking, speak):
    speak(voice="mia", language="de-AT", instructions="Whisper.", temperature=0.5, top_k=7, top_p=0.9, max_new_tokens=3)
    found = spec(speaking)
    assert (found.language, found.instructions, found.temperature) == ("german", "Whisper.", 0.5)
    assert (found.top_k, found.top_p, found.most_frames) == (7, 0.9, 3)
    assert text_in(speak(voice="mia", max_new_tokens=3).data) == "Hel"
    speak(voice="mia", language="auto")
    assert spec(speaking).language is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": " \n ... "}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"voice": "zoe"}, "voice"),
        ({"voice": {"name": "mia"}}, "voice"),
        ({"voice": "short"}, "voice"),
        ({"voice": "worn"}, "voice"),
        ({"voice": "mia", "language": "klingon"}, "language"),
        ({"response_format": "midi"}, "response_format"),
        ({"stream_format": "raw"}, "stream_format"),
        ({"speed": 5}, "speed"),
        ({"speed": 0.2}, "speed"),
        ({"ref_audio": "data:audio/wav;base64,AA=="}, "ref_audio"),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_field(speak, body, param):
    error = speak(400, **body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error"), error


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"model": "fake", "input": "Hi.", "voice": "alloy"}, "audio/mpeg"),  # Open WebUI
        ({"model": "fake", "input": "Hi.", "voice": "mia", "response_format": "mp3", "speed": 1}, "audio/mpeg"),
        ({"input": "Hi.", "model": "fake", "voice": "nova", "response_format": "pcm", "instructions": ""}, "audio/pcm"),
        ({"input": "Hi.", "model": "fake", "voice": "ash", "response_format": "mp3", "speed": 1.2,
          "instructions": "Whisper."}, "audio/mpeg"),
        ({"input": "Hi.", "model": "fake", "voice": "coral", "response_format": "wav", "stream_format": "audio"},
         "audio/wav"),
    ],
    ids=["Open WebUI", "SillyTavern", "pipecat", "LiveKit", "wyoming_openai"],
)  # fmt: skip
def test_what_programs_send_is_spoken(speak, body, kind):
    if kind == "audio/mpeg":
        pytest.importorskip("av")
    answer = speak(**body, **({} if "response_format" in body else {"response_format": None}))
    assert answer.content_type == kind and answer.data


def test_without_the_extra_there_are_wav_and_pcm(speak, monkeypatch):
    monkeypatch.setattr(spoken, "has_codecs", lambda: False)
    for body in ({"response_format": "mp3"}, {"speed": 2}):
        error = speak(400, voice="mia", **body)
        assert "pip install 'llamasrv[media]'" in error["message"]
    assert speak(voice="mia", response_format=None).content_type == "audio/wav"


def test_the_default_is_mp3(speak):
    pytest.importorskip("av")
    answer = speak(voice="mia", response_format=None)
    assert answer.content_type == "audio/mpeg" and answer.data[0] == 0xFF


def test_a_model_for_speech_writes_no_text_and_one_for_text_does_not_speak(speaking, client):
    answer = speaking.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert answer.status_code == 400 and "Use /v1/audio/speech." in answer.json["error"]["message"]
    answer = client.post(ROUTE, json={"input": "Hi"})
    assert answer.status_code == 400 and "'fake' cannot speak" in answer.json["error"]["message"]
    assert client.post(ROUTE, json={"input": "Hi", "model": "other"}).status_code == 404


def test_it_is_listed_as_a_model_that_speaks(speaking, client):
    (entry,) = speaking.client.get("/v1/models").json["data"]
    assert entry["meta"]["capabilities"] == ["speech"]
    assert entry["architecture"] == {"input_modalities": ["text"], "output_modalities": ["audio"]}
    assert [one["id"] for one in speaking.client.get("/v1/audio/models").json["models"]] == ["fake"]
    assert client.get("/v1/audio/models").json == {"models": []}


def test_voices_are_listed(speaking, client):
    found = speaking.client.get("/v1/audio/voices").json["voices"]
    names = [voice["id"] for voice in found]
    assert names == ["mia", "short", "worn", "vivian", *STANDARD]
    assert all(voice["name"] == voice["id"] for voice in found)
    assert [voice["id"] for voice in client.get("/audio/voices").json["voices"]] == list(STANDARD)
    assert speaking.client.get("/v1/audio/voices?model=other").status_code == 404


CONSENT = "She agreed in writing on 1 May."


@pytest.fixture
def uploads(tmp_path, start):
    (tmp_path / "mia.wav").write_bytes(wav(1.5))
    keys = (Key.of("ann", "ann"), Key.of("bob", "bob"), Key.of("eve", "eve", ["metrics"]))
    running = start(
        speech=FakeSpeech(), web=WebOptions(keys=keys, media=MediaOptions(voices=tmp_path, voice_uploads=2))
    )
    yield running
    running.service.pipeline.media.close()


def upload(running, key="ann", sample=None, **fields):
    sample = wav(1.2) if sample is None else sample
    data = {"name": "Zoe", "consent": CONSENT, "audio_sample": (io.BytesIO(sample), "zoe.wav"), **fields}
    data = {name: value for name, value in data.items() if value is not None}
    return running.client.post("/v1/audio/voices", data=data, headers={"X-Api-Key": key})


def test_a_key_may_upload_voices_of_its_own(uploads, tmp_path):
    made = upload(uploads).json
    assert made.keys() == {"id", "object", "created_at", "name", "type"} and made["name"] == "Zoe"

    def heard(voice, key="ann"):
        body = {"input": "Hi", "response_format": "pcm", "voice": voice}
        answer = uploads.client.post(ROUTE, json=body, headers={"X-Api-Key": key})
        answer.get_data()
        return answer.status_code

    assert heard(made["id"]) == heard({"id": made["id"]}) == heard("Zoe") == heard("mia", "bob") == 200
    assert uploads.backend.speech.num_encoded == 2
    assert heard(made["id"], "bob") == heard("Zoe", "bob") == 400
    (text,) = tmp_path.rglob("voice_*.json")
    assert json.loads(text.read_text())["consent"] == CONSENT

    def listed(key):
        return uploads.client.get("/v1/audio/voices", headers={"X-Api-Key": key}).json["voices"]

    assert listed("ann")[0]["id"] == made["id"] and listed("bob")[0]["id"] == "mia"
    upload(uploads)
    assert upload(uploads).json["error"]["code"] == "too_many_voices" and upload(uploads, "bob").status_code == 200
    for key, status in (("bob", 404), ("ann", 200), ("ann", 404)):
        gone = uploads.client.delete(f"/v1/audio/voices/{made['id']}", headers={"X-Api-Key": key})
        assert gone.status_code == status
    assert len(list(tmp_path.rglob("voice_*"))) == 4
    assert upload(uploads, "eve").status_code == 403


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"consent": None}, "consent"),
        ({"consent": "x" * 4001}, "consent"),
        ({"name": None}, "name"),
        ({"name": "n" * 65}, "name"),
        ({"type": "prompt"}, "type"),
        ({"audio_sample": None, "sound": (io.BytesIO(b"x"), "x.wav")}, "audio_sample"),
        ({"sample": wav(0.3)}, "audio_sample"),
        ({"sample": b"no sound"}, "audio_sample"),
    ],
)
def test_what_is_no_voice_is_refused_by_field(uploads, tmp_path, fields, param):
    answer = upload(uploads, **fields)
    assert (answer.status_code, answer.json["error"]["param"]) == (400, param)
    assert not list(tmp_path.rglob("voice_*"))


def test_voices_are_taken_only_where_the_operator_allows_it(speaking):
    answer = upload(speaking)
    assert answer.status_code == 400 and "--voice-uploads" in answer.json["error"]["message"]


def test_a_model_that_needs_a_clip_says_where_to_put_one(start):
    running = start(speech=FakeSpeech(needs_voice=True))
    error = running.client.post(ROUTE, json={"input": "Hi", "response_format": "pcm"}).json["error"]
    assert error["param"] == "voice" and "--voices" in error["message"]


class FailingLater(FakeSpeech):
    """Fails in its fourth step."""

    def decode(self, parts):
        if len(self.steps) == 3:
            raise DecodeFailed("NaN")
        return super().decode(parts)


def test_a_failure_after_the_first_sound_does_not_look_like_an_end(start):
    running = start(speech=FailingLater())
    with pytest.raises(ConnectionAbortedError):
        running.client.post(ROUTE, json={"input": "Hello.", "response_format": "pcm"}).get_data()
    assert running.service.stats.counts["/v1/audio/speech", 499] == 1
    running = start(speech=FailingLater())
    answer = running.client.post(ROUTE, json={"input": "Hello.", "response_format": "pcm", "stream_format": "sse"})
    last = json.loads(answer.text.split("\n\n")[-2][6:])
    assert last["type"] == "speech.audio.error" and last["error"]["type"] == "server_error"


class FailingAtOnce(FakeSpeech):
    def decode(self, parts):
        raise DecodeFailed("NaN")


def test_a_failure_before_the_first_sound_is_an_error(start):
    running = start(speech=FailingAtOnce())
    answer = running.client.post(ROUTE, json={"input": "Hello.", "response_format": "pcm"})
    assert answer.status_code == 500 and answer.json["error"]["type"] == "server_error"


def test_the_request_is_counted_by_rows_and_frames(speaking, speak, caplog):
    with caplog.at_level("INFO", "llamasrv.request"):
        speak(voice="vivian", input="Count")
    fields = caplog.records[-1].fields
    assert (fields["model"], fields["prompt"], fields["completion"], fields["finish"]) == ("fake", 5, 5, "stop")
