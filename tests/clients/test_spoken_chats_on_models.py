"""A model that writes and one that speaks in one real worker process, asked by OpenAI's SDK."""

from __future__ import annotations

import base64
import io
import wave

import openai
import pytest
from clients.speaking import speaking_server

ASKED = {
    "model": "words",
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "max_tokens": 40,
}
TURN = {"role": "user", "content": "Tell me a short story."}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with speaking_server(tmp_path_factory.mktemp("speaking")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_answer_is_heard_whole_and_named_in_the_next_turn(client):
    answer = client.chat.completions.create(messages=[TURN], **ASKED)
    message = answer.choices[0].message
    assert message.content is None and message.audio.transcript and message.audio.expires_at
    with wave.open(io.BytesIO(base64.b64decode(message.audio.data))) as file:
        assert file.getframerate() == 24_000 and any(file.readframes(1 << 24))
    assert answer.usage.completion_tokens_details.audio_tokens > 0
    turns = [TURN, {"role": "assistant", "audio": {"id": message.audio.id}}, {"role": "user", "content": "Go on."}]
    text = client.chat.completions.create(model="words", messages=turns, max_tokens=8)
    assert text.usage.prompt_tokens > answer.usage.prompt_tokens
    turns[1]["audio"]["id"] = "audio_of_another"
    with pytest.raises(openai.BadRequestError, match="audio.id"):
        client.chat.completions.create(model="words", messages=turns)


def test_an_answer_is_heard_while_it_is_written(client):
    chunks = client.chat.completions.create(
        messages=[TURN], stream=True, **{**ASKED, "audio": {"voice": "mia", "format": "pcm16"}}
    )
    transcript, sound, ids, last = "", b"", set(), None
    for chunk in chunks:
        (choice,) = chunk.choices
        if audio := choice.delta.audio:
            transcript += audio.transcript or ""
            sound += base64.b64decode(audio.data or "")
            ids.add(audio.id)
        last = choice.finish_reason or last
    assert transcript and sound and not len(sound) % 3840 and len(ids) == 1 and last in ("stop", "length")


def test_a_model_that_only_writes_does_not_speak(client):
    with pytest.raises(openai.BadRequestError, match="cannot speak") as caught:
        client.chat.completions.create(messages=[TURN], **{**ASKED, "audio": {"voice": "mia", "model": "words"}})
    assert caught.value.param == "audio.model"
