"""Realtime sessions on the fake server, whose model hears: turns by server VAD, transcription, live transcription."""

from __future__ import annotations

import base64
import json

import numpy as np
import openai
import pytest

pytest.importorskip("websockets")

from websockets.sync.client import connect

from llamasrv.media.telephony import TelephoneEncoder

RATE = 24_000


def sound(seconds, level=0.3):
    samples = np.sin(np.arange(int(seconds * RATE)) * (2 * np.pi * 300 / RATE)) * level * 32767
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


class Session:
    def __init__(self, socket):
        self.socket = socket
        self.seen = [self.next()]

    def next(self):
        return json.loads(self.socket.recv(timeout=30))

    def send(self, kind, **fields):
        self.socket.send(json.dumps({"type": kind, **fields}))

    def until(self, kind):
        events = []
        while not events or events[-1]["type"] != kind:
            events.append(self.next())
            assert events[-1]["type"] != "error" or kind == "error", events[-1]
        self.seen += events
        return events

    def hear(self, *sounds):
        for one in sounds:
            self.send("input_audio_buffer.append", audio=one)


@pytest.fixture
def session(server, request):
    query = getattr(request, "param", "model=fake")
    with connect(server.url.replace("http", "ws") + "/v1/realtime?" + query) as socket:
        yield Session(socket)


def test_a_turn_is_heard_written_down_and_answered(session):
    assert session.seen[0]["session"]["output_modalities"] == ["text"]  # nothing speaks here
    session.send(
        "session.update",
        session={
            "type": "realtime",
            "audio": {
                "input": {
                    "transcription": {"model": "fake"},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 300},
                }
            },
        },
    )
    session.until("session.updated")
    session.hear(sound(0.4, 0), sound(0.7), sound(0.2, 0), sound(0.5), sound(0.6, 0))
    events = session.until("response.done")
    kinds = [event["type"] for event in events if not event["type"].endswith("delta")]
    assert kinds == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
        "conversation.item.added", "conversation.item.done", "conversation.item.input_audio_transcription.completed",
        "response.created", "response.output_item.added", "conversation.item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "conversation.item.done", "response.done",
    ]  # fmt: skip
    started, stopped, committed = events[:3]
    assert started["item_id"] == stopped["item_id"] == committed["item_id"] and started["audio_start_ms"] == 100
    assert 2000 <= stopped["audio_end_ms"] <= 2200
    completed = next(event for event in events if event["type"].endswith("completed"))
    assert completed["usage"]["type"] == "tokens" and completed["transcript"]
    done = events[-1]["response"]
    assert done["status"] == "completed" and done["usage"]["output_token_details"]["audio_tokens"] == 0
    assert completed["transcript"] in done["output"][0]["content"][0]["text"]


def test_a_model_that_hears_needs_nothing_written_down(session):
    session.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    session.until("session.updated")
    session.hear(sound(0.5), sound(0.5))
    session.send("input_audio_buffer.commit")
    (committed,) = [e for e in session.until("conversation.item.done") if e["type"] == "input_audio_buffer.committed"]
    assert committed["previous_item_id"] is None
    session.send("response.create")
    response = session.until("response.done")[-1]["response"]
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "You said: [audio]"}]


@pytest.mark.parametrize("law", ["mu", "a"])
def test_a_turn_on_a_telephone_is_heard(session, law):
    session.send(
        "session.update",
        session={
            "type": "realtime",
            "audio": {
                "input": {
                    "format": {"type": f"audio/pcm{law[0].replace('m', 'u')}"},
                    "transcription": {"model": "fake"},
                }
            },
        },
    )
    session.until("session.updated")
    encoder = TelephoneEncoder(law)
    for one in (sound(0.4, 0), sound(0.7), sound(0.8, 0)):
        octets = encoder.encode(base64.b64decode(one))
        session.hear(base64.b64encode(octets).decode())
    events = session.until("response.done")
    started, stopped = (event for event in events if event["type"].startswith("input_audio_buffer.speech"))
    assert started["audio_start_ms"] == 100 and 1560 <= stopped["audio_end_ms"] <= 1700
    assert any(event["type"].endswith("transcription.completed") and event["transcript"] for event in events)


@pytest.mark.parametrize("session", ["intent=transcription&model=fake"], indirect=True)
def test_what_is_said_is_written_down_live(session):
    assert session.seen[0]["session"]["type"] == "transcription"
    session.hear(sound(0.4, 0), sound(0.7), sound(0.8, 0))
    events = session.until("conversation.item.input_audio_transcription.completed")
    text = "".join(event["delta"] for event in events if event["type"].endswith("transcription.delta"))
    assert text.strip() == events[-1]["transcript"] != ""
    session.send("response.create")
    assert session.until("error")[-1]["error"]["param"] == "type"


def test_what_cannot_be_written_down_is_reported_and_the_session_goes_on(session):
    session.send(
        "session.update",
        session={
            "type": "realtime",
            "audio": {"input": {"transcription": {"model": "unknown"}, "turn_detection": None}},
        },
    )
    session.until("session.updated")
    session.hear(sound(0.5))
    session.send("input_audio_buffer.commit")
    failed = session.until("conversation.item.input_audio_transcription.failed")[-1]
    assert failed["error"]["code"] == "model_not_found"
    session.send("response.create")
    assert session.until("response.done")[-1]["response"]["status"] == "completed"


def test_a_turn_interrupts_the_answer(session):
    session.send(
        "session.update",
        session={
            "type": "realtime",
            "audio": {
                "input": {"turn_detection": {"type": "semantic_vad", "eagerness": "high", "create_response": False}}
            },
        },
    )
    session.until("session.updated")
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "word " * 600}]}
    session.send("conversation.item.create", item=item)
    session.send("response.create")
    session.until("response.output_text.delta")
    session.hear(sound(0.2, 0), sound(0.5))
    done = session.until("response.done")[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done["output"][0]["status"] == "incomplete"


def test_an_answer_may_be_apart_from_the_conversation(session):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Apart."}]}
    session.send("response.create", response={"conversation": "none", "input": [item], "metadata": {"topic": "x"}})
    events = session.until("response.done")
    assert not any(event["type"].startswith("conversation.") for event in events)
    response = events[-1]["response"]
    assert response["metadata"] == {"topic": "x"} and response["conversation_id"] is None
    assert response["output"][0]["content"][0]["text"] == "You said: Apart."


def test_a_refused_answer_is_a_failed_response(session):
    session.send("session.update", session={"type": "realtime", "output_modalities": ["audio"]})
    session.until("session.updated")
    session.send("response.create")
    events = session.until("error")
    assert "speaks" in events[-1]["error"]["message"] or events[-1]["error"]["param"]
    done = session.until("response.done")[-1]["response"]
    assert done["status"] == "failed" and done["status_details"]["error"]["message"]


def test_the_asynchronous_sdk_talks_over_it(server):
    import asyncio

    async def talk():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            async with client.realtime.connect(model="fake") as connection:
                await connection.conversation.item.create(
                    item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
                )
                await connection.response.create()
                async for event in connection:
                    if event.type == "response.output_text.done":
                        return event.text

    assert asyncio.run(talk()) == "You said: Hello"
