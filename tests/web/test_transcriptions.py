"""POST /v1/audio/transcriptions, on the fake model: it repeats what it is told, and hears "[audio]"."""

from __future__ import annotations

import io
import json
import struct
import wave

import pytest
from samples import png, wav
from serving import RunningService

from llamasrv.engine.backend.fake_projector import FakeProjector

SAID = "You said: Transcribe audio to text[audio]"
ROUTE = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def hearing():
    service = RunningService(projector=FakeProjector())
    yield service
    service.close()
    service.service.pipeline.media.close()


@pytest.fixture
def ask(hearing):
    def ask(recording=None, status=200, route=ROUTE, **fields):
        form = {"file": (io.BytesIO(wav(2.0) if recording is None else recording), "a.wav"), "model": "fake", **fields}
        answer = hearing.client.post(route, data=form, content_type="multipart/form-data")
        assert answer.status_code == status, answer.text
        return answer

    return ask


def talk(*seconds, pause=1.0, rate=16_000):
    """Tones of so many seconds, with silence between them."""
    out = io.BytesIO()
    samples = []
    for length in seconds:
        samples += [8000 if n % 40 < 20 else -8000 for n in range(int(length * rate))] + [0] * int(pause * rate)
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return out.getvalue()


def test_a_recording_becomes_text(ask):
    body = ask().json
    assert body["text"] == SAID
    usage = body["usage"]
    assert (
        usage["input_token_details"]["audio_tokens"] == 4
        and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    )
    assert ask(route="/audio/transcriptions").json["text"] == SAID


def test_language_and_prompt_are_passed_to_the_model(ask):
    assert ask(language="de").json["text"] == "You said: Transcribe audio to text (language: de)[audio]"
    assert ask(prompt="Names: Ann").json["text"] == "You said: Names: Ann[audio]"


def test_the_text_alone_is_sent_on_request(ask):
    answer = ask(response_format="text")
    assert answer.text == SAID + "\n" and answer.content_type.startswith("text/plain")


def test_a_long_recording_is_heard_in_windows_cut_where_it_is_quiet(ask):
    body = ask(talk(25, 27, 10), response_format="verbose_json").json
    assert body["duration"] == 65 and [s["id"] for s in body["segments"]] == [0, 1, 2]
    ends = [segment["end"] for segment in body["segments"]]
    assert 25 <= ends[0] <= 26 and 53 <= ends[1] <= 54 and ends[2] == 65
    assert [s["start"] for s in body["segments"][1:]] == ends[:2]
    assert body["text"] == " ".join([SAID] * 3) and body["segments"][0]["avg_logprob"] < 0.1
    assert body["usage"] == {"type": "duration", "seconds": 65}


@pytest.mark.parametrize(
    ("format", "begins", "kind"),
    [
        ("srt", "1\n00:00:00,000 --> 00:00:02,000\nYou said", "application/x-subrip"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nYou said", "text/vtt"),
    ],
)
def test_subtitles_have_a_block_per_part(ask, format, begins, kind):
    answer = ask(response_format=format)
    assert answer.text.startswith(begins) and answer.content_type.startswith(kind)
    two = ask(talk(25, 20), response_format=format, prompt="a --> b\n\nc").text
    assert two.count(" --> ") == 2 and "\n\n\n" not in two


def events(answer):
    assert answer.text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("seconds", [(2,), (25, 26, 20)])
def test_it_streams_windows_in_their_order(ask, seconds):
    *deltas, done = events(ask(talk(*seconds), stream="true"))
    assert {event["type"] for event in deltas} == {"transcript.text.delta"} and done["type"] == "transcript.text.done"
    assert "".join(event["delta"] for event in deltas) == done["text"] == " ".join([SAID] * len(seconds))
    assert done["usage"]["input_token_details"]["audio_tokens"] > 0


def test_log_probabilities_are_sent_on_request(ask):
    body = ask(**{"include[]": "logprobs"}).json
    assert "".join(entry["token"] for entry in body["logprobs"]) == SAID
    *deltas, done = events(ask(stream="true", **{"include[]": "logprobs"}))
    assert sum((event["logprobs"] for event in deltas), []) == done["logprobs"] and len(done["logprobs"]) == len(SAID)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[0]"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names"),
        ({"recording": b""}, "file"),
        ({"recording": b"no sound"}, "file"),
        ({"recording": png()}, "file"),
        ({"recording": wav(0.1)[:44]}, "file"),
    ],
)
def test_what_is_wrong_is_named(ask, fields, param):
    assert ask(status=400, **fields).json["error"]["param"] == param


def test_a_form_without_a_file_or_no_form_at_all(hearing):
    answer = hearing.client.post(ROUTE, data={"model": "fake"}, content_type="multipart/form-data")
    assert answer.status_code == 400 and answer.json["error"]["param"] == "file"
    assert hearing.client.post(ROUTE, json={"file": "x"}).status_code == 400


def test_a_model_that_does_not_hear_says_so(client):
    form = {"file": (io.BytesIO(wav()), "a.wav")}
    answer = client.post(ROUTE, data=form, content_type="multipart/form-data")
    assert answer.status_code == 400 and "no audio projector" in answer.json["error"]["message"]
