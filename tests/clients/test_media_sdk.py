"""Images and sounds from the official SDKs, against the real worker process, whose decoders are processes of their own."""

from __future__ import annotations

import base64
import io

import anthropic
import ollama
import openai
import pytest
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent, TranscriptionVerbose
from samples import png, wav

IMAGE = png(300, 200)
URL = "data:image/png;base64," + base64.b64encode(IMAGE).decode()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def recording(seconds=2.0):
    return ("talk.wav", io.BytesIO(wav(seconds)), "audio/wav")


def test_chat_and_responses_take_an_image(client):
    parts = [{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": {"url": URL}}]
    reply = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": parts}])
    assert reply.choices[0].message.content == "You said: Look: [image]"
    items = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look: "},
                {"type": "input_image", "image_url": URL, "detail": "auto"},
            ],
        }
    ]
    response = client.responses.create(model="fake", input=items)
    assert response.output_text == "You said: Look: [image]"
    assert response.usage.input_tokens == reply.usage.prompt_tokens


def test_chat_takes_a_sound(client):
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav()).decode(), "format": "wav"}}
    reply = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": [part]}])
    assert reply.choices[0].message.content == "You said: [audio]"


def test_anthropics_client_takes_an_image(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(IMAGE).decode()}
        messages = [{"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "?"}]}]
        reply = client.messages.create(model="fake", max_tokens=100, messages=messages)
        assert reply.content[0].text == "You said: [image]?"
        usage = reply.usage
        counted = client.messages.count_tokens(model="fake", messages=messages).input_tokens
        assert counted == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_ollamas_client_takes_an_image(server):
    reply = ollama.Client(server.url).chat("fake", [{"role": "user", "content": "?", "images": [IMAGE]}])
    assert reply.message.content == "You said: ?[image]"
    assert "vision" in ollama.Client(server.url).show("fake").capabilities


def test_recordings_are_transcribed(client):
    create = client.audio.transcriptions.create
    assert create(model="fake", file=recording()).text == "You said: Transcribe audio to text[audio]"
    whole = create(model="fake", file=recording(), response_format="verbose_json")
    assert type(whole) is TranscriptionVerbose and whole.duration == 2 and whole.segments[0].end == 2
    assert create(model="fake", file=recording(), response_format="srt").startswith("1\n00:00:00,000 --> ")
    events = list(create(model="fake", file=recording(), stream=True))
    assert {type(event) for event in events[:-1]} == {TranscriptionTextDeltaEvent}
    assert type(events[-1]) is TranscriptionTextDoneEvent and events[-1].usage.total_tokens > 0
    assert "".join(event.delta for event in events[:-1]) == events[-1].text


def test_what_is_no_image_is_a_400(client):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": [part]}])
    assert caught.value.param == "messages[0].content[0].image_url.url" and caught.value.code == "invalid_media"
