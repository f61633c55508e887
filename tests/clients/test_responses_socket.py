"""The Responses API over a WebSocket: the official SDK, and a bare client, against a real server process."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

openai = pytest.importorskip("openai")
pytest.importorskip("websockets")

from openai.types.responses.response_steer_accepted_event import ResponseSteerAcceptedEvent  # noqa: E402
from openai.types.responses.response_steer_failed_event import ResponseSteerFailedEvent  # noqa: E402
from openai.types.responses.response_steer_pending_event import ResponseSteerPendingEvent  # noqa: E402
from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync.client import connect  # noqa: E402

ENDED = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def socket(server):
    with connect(server.url.replace("http", "ws") + "/v1/responses", max_size=None) as socket:
        yield socket


def create(socket, **body):
    socket.send(json.dumps({"type": "response.create", "model": "fake", **body}))


def read(socket):
    """The events of one response."""
    events = []
    while not events or events[-1]["type"] not in ENDED:
        events.append(json.loads(socket.recv(timeout=30)))
    return events


def text_of(event):
    return event["response"]["output"][-1]["content"][0]["text"]


def test_the_sdk_talks_over_it(client):
    with client.responses.connect() as connection:
        connection.response.create(model="fake", input="Hello")
        for event in connection:
            if event.type == "response.completed":
                break
        assert event.response.output_text == "You said: Hello"
        connection.response.create(model="fake", input="Again", previous_response_id=event.response.id)
        events = []
        for event in connection:
            events.append(event.type)
            if event.type == "response.completed":
                break
        assert events[0] == "response.created" and event.response.output_text.endswith("Again")


def test_the_asynchronous_sdk_talks_over_it(server):
    async def talk():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            async with client.responses.connect() as connection:
                await connection.response.create(model="fake", input="Hello")
                async for event in connection:
                    if event.type == "response.completed":
                        return event.response.output_text

    assert asyncio.run(talk()) == "You said: Hello"


def test_a_chain_lives_with_the_connection_though_nothing_is_stored(socket, client):
    create(socket, input="one", store=False)
    first = read(socket)[-1]["response"]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first["id"])
    create(socket, input="two", store=False, previous_response_id=first["id"])
    second = read(socket)[-1]["response"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
    create(socket, input="three", previous_response_id=first["id"])  # no longer the latest
    assert read(socket)[-1]["error"]["code"] == "previous_response_not_found"


def test_nothing_is_generated_where_that_is_asked(socket):
    create(socket, input=[], instructions="A long prompt to begin with.", generate=False)
    warm = read(socket)[-1]
    assert warm["type"] == "response.completed" and warm["response"]["output"] == []
    create(
        socket, input="Hello", instructions="A long prompt to begin with.", previous_response_id=warm["response"]["id"]
    )
    assert text_of(read(socket)[-1]) == "You said: Hello"


@pytest.mark.parametrize(
    "event, code",
    [
        ("{", "invalid_json"),
        (json.dumps({"type": "response.append"}), "unknown_event_type"),
        (json.dumps({"type": "response.create", "input": "x", "stream_id": "a b"}), "invalid_stream_id"),
        (json.dumps({"type": "response.create", "input": 5}), "invalid_type"),
        (json.dumps({"type": "response.create", "input": "x", "background": True}), None),
        (
            json.dumps({"type": "response.create", "input": "x", "previous_response_id": "resp_x"}),
            "previous_response_not_found",
        ),
    ],
)
def test_what_is_wrong_is_reported_and_the_connection_goes_on(socket, event, code):
    socket.send(event)
    told = json.loads(socket.recv(timeout=30))
    assert told["type"] == "error" and 400 <= told["status"] < 500
    assert code is None or told["error"]["code"] == code
    create(socket, input="Hello")
    assert text_of(read(socket)[-1]) == "You said: Hello"


def test_lanes_have_their_name_in_each_event(socket):
    for lane in "ab":
        create(socket, input=f"to {lane}", stream_id=lane)
    ended = {}
    while len(ended) < 2:
        event = json.loads(socket.recv(timeout=30))
        assert event["stream_id"] in "ab"
        if event["type"] in ENDED:
            ended[event["stream_id"]] = text_of(event)
    assert ended == {"a": "You said: to a", "b": "You said: to b"}


def test_a_response_that_is_steered_ends_and_is_gone_on_from(socket):
    create(socket, input="word " * 600)
    created = json.loads(socket.recv(timeout=30))
    id = created["response"]["id"]
    while json.loads(socket.recv(timeout=30))["type"] != "response.output_text.delta":
        pass
    socket.send(json.dumps({"type": "response.steer", "previous_response_id": id, "input": "Stop"}))
    events = read(socket)
    assert "response.steer.accepted" in [event["type"] for event in events]
    assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
    following = read(socket)
    assert following[0]["type"] == "response.created"
    assert following[0]["response"]["previous_response_id"] == id
    assert text_of(following[-1]) == "You said: Stop"


def begin(socket, kind="response.output_text.delta", **body):
    """Start a long response; returns its id once there is an event of that kind."""
    create(socket, **{"input": "word " * 600, **body})
    event = json.loads(socket.recv(timeout=30))
    id = event["response"]["id"]
    while event["type"] != kind:
        event = json.loads(socket.recv(timeout=30))
    return id


def steer(socket, id, input):
    socket.send(json.dumps({"type": "response.steer", "previous_response_id": id, "input": input}))


def steers_of(events, kind):
    model = {"accepted": ResponseSteerAcceptedEvent, "pending": ResponseSteerPendingEvent}
    model = model.get(kind, ResponseSteerFailedEvent)
    return [model.model_validate(event) for event in events if event["type"] == f"response.steer.{kind}"]


@pytest.mark.parametrize("input", ["Stop", [{"type": "message", "role": "user", "content": "Stop"}]])
def test_steering_what_is_not_there_fails(socket, input):
    """The client did not get its input back, and the event had no number."""
    steer(socket, "resp_x", input)
    (failed,) = steers_of([json.loads(socket.recv(timeout=30))], "failed")
    assert failed.error.code == "response_not_found" and failed.steer.id is None
    assert failed.to_dict()["steer"]["input"] == input


def test_what_steers_one_response_together_goes_on_in_order(socket):
    """The second one was refused."""
    id = begin(socket)
    steer(socket, id, "Stop")
    steer(socket, id, [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say it"}]}])
    steer(socket, id, [{"type": "message", "role": "developer", "content": "No"}])
    steer(socket, id, [{"type": "message", "role": "user", "content": [{"type": "input_taste"}]}])
    events = read(socket)
    first, second = steers_of(events, "accepted")
    assert first.sequence_number > 0 and first.steer.id != second.steer.id
    messages = [event["error"]["message"] for event in events if event["type"] == "response.steer.failed"]
    assert ["input[0]" in message for message in messages] == [True, True]
    ended = read(socket)[-1]["response"]
    assert ended["previous_response_id"] == id and text_of({"response": ended}) == "You said: Say it"


def test_what_was_accepted_and_cannot_be_gone_on_with_is_given_back(socket):
    """An error said what was wrong with a request that the client had not made."""
    id = begin(socket)
    given = [{"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "file-none"}]}]
    steer(socket, id, given)
    (accepted,) = steers_of(read(socket), "accepted")
    (failed,) = steers_of([json.loads(socket.recv(timeout=30))], "failed")
    assert failed.error.code == "successor_creation_failed" and "file-none" in failed.error.message
    assert failed.steer.id == accepted.steer.id and failed.to_dict()["steer"]["input"] == given
    create(socket, input="Hello", previous_response_id=id)  # it can be continued all the same
    assert text_of(read(socket)[-1]) == "You said: Hello"


@pytest.mark.parametrize("is_continued", [True, False])
def test_what_steers_a_response_that_calls_a_tool_waits_for_the_result(socket, is_continued):
    text = {"type": "string", "minLength": 2000, "maxLength": 2000}
    parameters = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    tool = {"type": "function", "name": "write", "parameters": parameters, "strict": True}
    call = {"tools": [tool], "tool_choice": "required", "input": "Go"}
    id = begin(socket, "response.function_call_arguments.delta", **call)
    steer(socket, id, "Mind the river")
    steer(socket, id, "And the bridge")
    events = read(socket)
    assert events[-1]["type"] == "response.completed" and len(steers_of(events, "accepted")) == 2
    pending = steers_of([json.loads(socket.recv(timeout=30)) for _ in range(2)], "pending")
    (owed,) = pending[0].required_input
    assert owed == pending[1].required_input[0] and owed.name == "write"
    if not is_continued:
        create(socket, input="Something else")
        failed = steers_of([json.loads(socket.recv(timeout=30)) for _ in range(2)], "failed")
        assert [f.steer.id for f in failed] == [p.steer.id for p in pending]
        return
    output = {"type": "function_call_output", "call_id": owed.call_id, "output": "Done"}
    create(socket, input=[output], previous_response_id=id, tools=[tool])
    assert text_of(read(socket)[-1]) == "You said: And the bridge"


def test_closing_cancels(server, client):
    import urllib.request

    with connect(server.url.replace("http", "ws") + "/v1/responses") as socket:
        create(socket, input="word " * 600)
        while json.loads(socket.recv(timeout=30))["type"] != "response.output_text.delta":
            pass
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{server.url}/slots", timeout=5) as reply:
            if not any(slot["is_processing"] for slot in json.load(reply)):
                return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_binary_messages_close_it(socket):
    socket.send(b"x")
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=30)
    assert closed.value.rcvd.code == 1003
