"""A speech model with its projector, in the real worker process, asked by OpenAI's SDK."""

from __future__ import annotations

import base64
import io
import json
import wave

import numpy as np
import openai
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess
from model import tiny_speech
from samples import wav


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speaking")
    model = tiny_speech.model(folder / "tiny.gguf", "pockettts")
    projector = tiny_speech.projector(folder / "mmproj-tiny.gguf", "pockettts")
    (folder / "mia.wav").write_bytes(wav(1.5))
    server = wait_until_ready(
        ServerProcess(
            ["--port", "0", "--model", model, "--mmproj", projector, "--voices", folder, "--voice-uploads", 3, "-t", 1]
        )
    )
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client
    server.end()


def test_a_text_is_heard_as_a_file_as_a_stream_and_as_events(client):
    speech = client.audio.speech
    file = speech.create(model="tts-1", voice="mia", input="Hello.", response_format="wav").read()
    with wave.open(io.BytesIO(file)) as opened:
        assert (opened.getframerate(), opened.getnchannels()) == (24_000, 1)
        samples = opened.readframes(1 << 24)
    assert any(samples) and not len(samples) % 3840
    asked = {"model": "tiny", "voice": "alloy", "input": "Hello.", "response_format": "pcm"}
    with speech.with_streaming_response.create(**asked) as reply:
        assert b"".join(reply.iter_bytes()) == samples
    with speech.with_streaming_response.create(**asked, stream_format="sse") as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line]
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == samples
    assert events[-1]["usage"]["output_tokens"] == len(samples) // 3840


def test_googles_example_of_speech_is_heard(client):
    genai = pytest.importorskip("google.genai")
    google = genai.Client(api_key="none", http_options={"base_url": str(client.base_url).removesuffix("v1/")})
    types = genai.types
    prebuilt = types.PrebuiltVoiceConfig(voice_name="Kore")
    config = types.GenerateContentConfig(
        response_modalities=["AUDIO"],
        speech_config=types.SpeechConfig(voice_config=types.VoiceConfig(prebuilt_voice_config=prebuilt)),
    )
    asked = {"model": "gemini-2.5-flash-preview-tts", "contents": "Say cheerfully: Have a wonderful day!"}
    answer = google.models.generate_content(**asked, config=config)
    (part,) = answer.candidates[0].content.parts
    assert part.inline_data.mime_type == "audio/L16;codec=pcm;rate=24000"
    direct = client.audio.speech.create(
        model="tiny", voice="alloy", input=asked["contents"], response_format="pcm", extra_body={"seed": 7}
    ).read()
    config.seed = 7
    pieces = [
        part.inline_data.data
        for chunk in google.models.generate_content_stream(**asked, config=config)
        for part in chunk.candidates[0].content.parts
        if part.inline_data
    ]
    assert len(pieces) > 1 and b"".join(pieces) == direct


def test_a_client_may_leave_in_the_middle(client):
    asked = {"model": "tiny", "voice": "alloy", "response_format": "pcm"}
    before = np.frombuffer(client.audio.speech.create(**asked, input="Hello.").read(), "<i2")
    for _ in range(3):
        with client.audio.speech.with_streaming_response.create(**asked, input="Hello there. " * 300) as reply:
            next(reply.iter_bytes(1))
    after = np.frombuffer(client.audio.speech.create(**asked, input="Hello.").read(), "<i2")
    assert len(after) == len(before)
    assert np.abs(after.astype(int) - before).max() < 400  # rounding, should one of them not have left yet


def test_it_is_known_as_a_model_that_speaks_and_writes_nothing(client):
    (entry,) = client.models.list().data
    assert entry.meta["capabilities"] == ["speech"]
    assert client.get("/audio/voices", cast_to=object)["voices"][0] == {"id": "mia", "name": "mia"}
    with pytest.raises(openai.BadRequestError, match="cannot generate text"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])


def test_a_voice_is_uploaded_used_and_deleted(client):
    made = client.audio.voices.create(name="Zoe", consent="She agreed on 1 May.", audio_sample=("zoe.wav", wav(1.5)))
    assert made.object == "audio.voice" and made.name == "Zoe"
    asked = {"model": "tiny", "input": "Hello.", "response_format": "pcm", "voice": {"id": made.id}}
    assert client.audio.speech.create(**asked).read()
    assert client.audio.voices.delete(made.id).deleted
    with pytest.raises(openai.BadRequestError, match="Unknown voice"):
        client.audio.speech.create(**asked)
