"""A conversation by voice in a real worker process: OpenAI's SDK over its WebSocket, and a bare client."""

from __future__ import annotations

import base64
import json

import numpy as np
import openai
import pytest
from clients.speaking import speaking_server

pytest.importorskip("websockets")

from websockets.sync.client import connect

RATE = 24_000


def tone(seconds, level=0.3):
    samples = np.sin(np.arange(int(seconds * RATE)) * (2 * np.pi * 300 / RATE)) * level * 32767
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with speaking_server(tmp_path_factory.mktemp("realtime")) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def talk(client):
    with client.realtime.connect(model="words") as connection:
        assert connection.recv().type == "session.created"
        yield connection


def until(connection, kind):
    events = []
    while not events or events[-1].type != kind:
        events.append(connection.recv())
        assert events[-1].type != "error" or kind == "error", events[-1]
    return events


def say(connection, text):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    connection.conversation.item.create(item=item)
    until(connection, "conversation.item.done")


def test_a_text_is_answered_by_sound_in_the_order_of_events(talk):
    talk.session.update(
        session={
            "type": "realtime",
            "instructions": "Be short.",
            "max_output_tokens": 24,
            "audio": {"input": {"turn_detection": None}, "output": {"voice": "mia"}},
        }
    )
    session = until(talk, "session.updated")[-1].session
    assert session.audio.output.voice == "mia" and session.audio.input.turn_detection is None
    say(talk, "Tell me a story.")
    talk.response.create()
    events = until(talk, "response.done")
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
    ]
    assert kinds[-6:] == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    sound = b"".join(base64.b64decode(e.delta) for e in events if e.type == "response.output_audio.delta")
    said = "".join(e.delta for e in events if e.type == "response.output_audio_transcript.delta")
    response = events[-1].response
    assert len(sound) % 3840 == 0 and sound and response.output[0].content[0].transcript == said
    assert response.usage.output_token_details.audio_tokens == len(sound) // 3840
    item, heard = response.output[0].id, 40
    talk.conversation.item.truncate(item_id=item, content_index=1, audio_end_ms=heard)
    assert until(talk, "error")[-1].error.param == "content_index"
    talk.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=heard)
    assert until(talk, "conversation.item.truncated")[-1].audio_end_ms == heard
    talk.conversation.item.retrieve(item_id=item)
    left = until(talk, "conversation.item.retrieved")[-1].item.content[0].transcript
    assert said.startswith(left) and len(left) < len(said)
    talk.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=10**6)
    assert "already shorter" in until(talk, "error")[-1].error.message


def test_a_telephone_hears_the_same_answer(talk):
    update = {"type": "realtime", "max_output_tokens": 16, "audio": {"input": {"turn_detection": None}}}
    lengths = {}
    for kind in ("audio/pcm", "audio/pcmu", "audio/pcma"):
        update["audio"]["output"] = {"voice": "mia", "format": {"type": kind}}
        talk.session.update(session=update)
        assert until(talk, "session.updated")[-1].session.audio.output.format.type == kind
        talk.response.create(
            response={
                "conversation": "none",
                "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}],
            }
        )
        events = until(talk, "response.done")
        sound = b"".join(base64.b64decode(e.delta) for e in events if e.type == "response.output_audio.delta")
        frames = events[-1].response.usage.output_token_details.audio_tokens
        lengths[kind] = len(sound) - frames * (3840 if kind == "audio/pcm" else 640)
        assert len(set(sound)) > 10
    assert lengths == {"audio/pcm": 0, "audio/pcmu": 20, "audio/pcma": 20}


def test_text_only_and_what_is_said_next_follows_from_it(talk):
    talk.session.update(session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 8})
    until(talk, "session.updated")
    used = []
    for text in ("One.", "Two."):
        say(talk, text)
        talk.response.create()
        events = until(talk, "response.done")
        used.append(events[-1].response.usage.input_tokens)
        assert events[-1].response.output[0].content[0].text and "response.output_text.done" in [e.type for e in events]
    assert used[1] > used[0]


def test_a_response_is_cancelled_and_another_follows(talk):
    say(talk, "Tell me a long story about a ship.")
    talk.response.create(response={"output_modalities": ["text"]})
    until(talk, "response.output_text.delta")
    talk.response.create()
    assert until(talk, "error")[-1].error.code == "conversation_already_has_active_response"
    talk.response.cancel(response_id="resp_of_before")
    assert until(talk, "error")[-1].error.code == "response_cancel_not_active"
    talk.response.cancel()
    response = until(talk, "response.done")[-1].response
    assert response.status in ("cancelled", "completed")
    talk.response.cancel()
    assert until(talk, "error")[-1].error.code == "response_cancel_not_active"
    talk.response.create(response={"output_modalities": ["text"], "max_output_tokens": 4})
    assert until(talk, "response.done")[-1].response.status in ("incomplete", "completed")


def test_functions_are_called(talk):
    tool = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    say(talk, "Look.")
    talk.response.create(response={"tools": [tool], "tool_choice": "required"})
    events = until(talk, "response.done")
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert done.name == "look" and isinstance(json.loads(done.arguments), dict)
    assert not any(event.type == "response.output_audio.delta" for event in events)
    talk.conversation.item.create(item={"type": "function_call_output", "call_id": done.call_id, "output": "A cat."})
    until(talk, "conversation.item.done")
    talk.response.create(response={"output_modalities": ["text"], "max_output_tokens": 8})
    assert until(talk, "response.done")[-1].response.output


def test_turns_are_heard_and_interrupt(talk):
    talk.session.update(
        session={
            "type": "realtime",
            "audio": {
                "input": {
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 200, "create_response": False}
                }
            },
        }
    )
    until(talk, "session.updated")
    say(talk, "Tell me a long story about a ship.")
    talk.response.create(response={"output_modalities": ["text"]})
    until(talk, "response.created")
    for sound in (tone(0.5, 0), tone(0.6), tone(0.5, 0)):
        talk.input_audio_buffer.append(audio=sound)
    seen = [talk.recv()]
    while {"input_audio_buffer.committed", "response.done"} - {event.type for event in seen}:
        seen.append(talk.recv())
    by_kind = {event.type: event for event in seen}
    started = by_kind["input_audio_buffer.speech_started"]
    assert 100 <= started.audio_start_ms <= 500
    assert 1100 <= by_kind["input_audio_buffer.speech_stopped"].audio_end_ms <= 1400
    assert by_kind["input_audio_buffer.committed"].item_id == started.item_id
    assert by_kind["response.done"].response.status in ("cancelled", "completed")


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("{", "invalid_json"),
        ({"type": "session.close"}, "unknown_event_type"),
        (
            {"type": "session.update", "session": {"type": "realtime", "tools": [{"type": "mcp"}]}},
            "unsupported_parameter",
        ),
        ({"type": "session.update", "session": 5}, "invalid_type"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "invalid_value"),
        ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty"),
        ({"type": "conversation.item.delete", "item_id": "item_x"}, "item_not_found"),
        (
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": []}},
            "invalid_value",
        ),
        ({"type": "response.cancel"}, "response_cancel_not_active"),
        ({"type": "response.create", "response": {"prompt": {"id": "pmpt_1"}}}, "unsupported_parameter"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "function_call", "name": "a", "arguments": "{}", "call_id": 5},
            },
            "invalid_value",
        ),
    ],
)
def test_what_is_wrong_is_reported_and_the_session_goes_on(server, event, code):
    with connect(server.url.replace("http", "ws") + "/v1/realtime?model=words", subprotocols=["realtime"]) as socket:
        assert json.loads(socket.recv(timeout=30))["type"] == "session.created" and socket.subprotocol == "realtime"
        socket.send(event if isinstance(event, str) else json.dumps({**event, "event_id": "mine"}))
        told = json.loads(socket.recv(timeout=30))
        assert told["type"] == "error" and told["error"]["code"] == code
        assert isinstance(event, str) or told["error"]["event_id"] == "mine"
        socket.send(json.dumps({"type": "input_audio_buffer.clear"}))
        assert json.loads(socket.recv(timeout=30))["type"] == "input_audio_buffer.cleared"


def test_a_model_that_only_speaks_is_refused(server):
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as caught:
        connect(server.url.replace("http", "ws") + "/v1/realtime?model=voice")
    assert caught.value.response.status_code == 400
