"""The official openai SDK on the Responses API, sync and async, against real server processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Literal

import openai
import pytest
from clients.conftest import wait_until_ready
from clients.talk import wait_for
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import (
    CompactedResponse,
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
)
from pydantic import BaseModel
from store.conftest import postgres_url, redis_url  # noqa: F401  (fixtures)

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


def sdk(server, key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=30)


@pytest.fixture
def client(server):
    with sdk(server) as client:
        yield client


def create(client, input="Hello", **options):
    return client.responses.create(model="fake", input=input, **options)


# ---------------------------------------------------------------- replies


def test_a_response_is_made(client):
    response = create(client)
    assert type(response) is Response and response.output_text == "You said: Hello"
    assert response.status == "completed" and response.usage.output_tokens == 16
    assert response.error is None and response.incomplete_details is None and response._request_id


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_logprobs": 2},
        {"tools": [ADD], "reasoning": {"effort": "low"}, "metadata": {"a": "b"}},
        {"max_output_tokens": 3},
        {"instructions": "x", "truncation": "auto", "user": "u"},
        {"background": True},
    ],
)
def test_it_is_strictly_of_its_type(client, options):
    response = create(client, **options)
    Response.model_validate_json(response.model_dump_json(), strict=True)
    assert response.created_at > 1e9


def test_cut_off_is_incomplete(client):
    response = create(client, max_output_tokens=3)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"


def test_log_probabilities_come_with_the_text(client):
    response = create(client, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = response.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries) == response.output_text
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


# ---------------------------------------------------------------- streams


def test_a_stream_has_typed_events(client):
    events = list(create(client, stream=True))
    assert type(events[0]) is ResponseCreatedEvent and type(events[-1]) is ResponseCompletedEvent
    assert "".join(e.delta for e in events if type(e) is ResponseTextDeltaEvent) == "You said: Hello"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for event in events:
        type(event).model_validate_json(event.model_dump_json(), strict=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_logprobs": 1},
        {"background": True},
        {"reasoning": {"summary": "auto"}},
        {"tools": [ADD]},
        {"extra_body": {"return_progress": True}},
    ],
)
def test_the_helper_adds_a_stream_up(client, options):
    with client.responses.stream(model="fake", input="Hellö 🎈", **options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert final.output_text == "You said: Hellö 🎈"
    assert client.responses.retrieve(final.id).output_text == final.output_text


def test_a_stream_can_be_taken_up_again(client):
    """Through `retrieve`, and through the helper, which reads all of it and shows what comes after."""
    events = list(create(client, stream=True, background=True))
    id, middle = events[0].response.id, len(events) // 2
    rest = list(client.responses.retrieve(id, stream=True, starting_after=middle))
    assert [event.to_dict() for event in rest] == [event.to_dict() for event in events[middle + 1 :]]
    with client.responses.stream(response_id=id, starting_after=middle) as stream:
        shown = [event.sequence_number for event in stream]
        assert stream.get_final_response().output_text == "You said: Hello"
    assert shown == list(range(middle + 1, len(events)))


@pytest.mark.parametrize("name", ["plain", "reasoning", "calls", "logprobs", "compaction", "empty"])
def test_the_helper_understands_every_transcript(name):
    """Reasoning, calls of all kinds and the rest, as the protocol's own tests write them."""
    path = Path(__file__).parents[1] / f"protocols/openai/data/responses_{name}.txt"
    state = ResponseStreamState(input_tools=openai.omit, text_format=openai.omit)
    for line in path.read_text("utf-8").splitlines():
        wire = json.loads(line)
        event = construct_type(type_=ResponseStreamEvent, value=wire)
        type(event).model_validate_json(json.dumps(wire))
        state.handle_event(event)
    assert state._completed_response.status == "completed"


# ---------------------------------------------------------------- tools and forms


class City(BaseModel):
    kind: Literal["town", "city"]
    large: bool


def test_a_parsed_answer_has_its_form(client):
    response = client.responses.parse(model="fake", input="A city, please.", text_format=City)
    assert type(response.output_parsed) is City
    with client.responses.stream(model="fake", input="A city, please.", text_format=City) as stream:
        assert type(stream.get_final_response().output_parsed) is City


def test_a_forced_tool_is_called(client):
    response = create(client, tools=[ADD], tool_choice={"type": "function", "name": "add"}, max_output_tokens=100)
    (call,) = [item for item in response.output if type(item) is ResponseFunctionToolCall]
    assert call.name == "add" and set(json.loads(call.arguments)) == {"a"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    after = create(client, [output], previous_response_id=response.id)
    assert after.status == "completed"
    items = list(client.responses.input_items.list(after.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output"]


def test_a_call_is_streamed(client):
    with client.responses.stream(model="fake", input="x", tools=[ADD], tool_choice="required") as stream:
        kinds = {event.type for event in stream}
        call = stream.get_final_response().output[-1]
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    assert type(call.parsed_arguments["a"]) is int


def test_custom_and_namespaced_tools_are_called_by_their_own_names(client):
    custom = {
        "type": "custom",
        "name": "write",
        "format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"},
    }
    space = {"type": "namespace", "name": "files", "description": "d", "tools": [ADD]}
    for choice, name in (
        ({"type": "custom", "name": "write"}, "write"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "files__add"}]}, "add"),
    ):
        response = create(client, tools=[custom, space], tool_choice=choice, max_output_tokens=100)
        call = response.output[-1]
        assert call.name == name
        if name == "write":
            assert call.type == "custom_tool_call" and set(call.input) <= set("abc")
        else:
            assert call.type == "function_call" and call.namespace == "files"


def codex_patch():
    """The tool of Codex, with its grammar."""
    from test_lark import APPLY_PATCH

    form = {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH}
    return {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files. Do not wrap it in JSON.",
        "format": form,
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_patch_of_codex_follows_its_grammar(client, stream):
    """The body as Codex sends it. A patch may be cut off by the bound, but no character of it is wrong."""
    from test_lark import begins_a_patch, parses

    asked = {
        "model": "fake",
        "instructions": "Be brief.",
        "input": [{"type": "message", "role": "user", "content": "Edit it."}],
        "tools": [codex_patch(), {"type": "web_search"}],
        "tool_choice": {"type": "custom", "name": "apply_patch"},
        "parallel_tool_calls": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "max_output_tokens": 300,
    }
    if stream:
        events = list(client.responses.create(**asked, stream=True))
        response = events[-1].response
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    else:
        response, deltas = client.responses.create(**asked), None
    (call,) = [item for item in response.output if item.type == "custom_tool_call"]
    assert call.name == "apply_patch" and (deltas is None or "".join(deltas) == call.input)
    if response.status == "completed":
        assert parses(call.input)
    else:
        assert response.incomplete_details.reason == "max_output_tokens" and begins_a_patch(call.input)


def test_a_grammar_that_cannot_be_enforced_is_refused_by_name(client):
    tool = codex_patch()
    tool["format"]["definition"] = 'start: "a" %json {"type": "string"}'
    with pytest.raises(openai.BadRequestError, match="apply_patch.*line 1.*%json"):
        create(client, tools=[tool])


# ---------------------------------------------------------------- memory


def test_a_conversation_is_continued_listed_and_deleted(client):
    first = create(client, "One", instructions="Be brief.")
    second = create(client, "Two", previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in items] == ["One", "You said: One", "Two"]
    assert client.responses.delete(first.id) is None
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, "Three", previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"


def test_a_background_response_is_polled_and_cancelled(client):
    response = create(client, background=True)
    assert response.status == "queued"
    final = wait_for(lambda: (r := client.responses.retrieve(response.id)).status == "completed" and r)
    assert final.output_text == "You said: Hello"
    assert client.responses.cancel(response.id).status == "completed"
    long = create(client, "x" * 1000, background=True)
    assert client.responses.cancel(long.id).status in ("cancelled", "completed")


@pytest.mark.processes
def test_it_survives_a_restart(serve, tmp_path):
    flags = ("--fake", "--store", f"sqlite:///{tmp_path}/responses.db")
    server = wait_until_ready(serve(*flags))
    with sdk(server) as client:
        first = create(client, "One")
    server.signal()
    assert server.exit_code() == 0
    with sdk(wait_until_ready(serve(*flags))) as client:
        assert client.responses.retrieve(first.id).output_text == "You said: One"
        assert create(client, "Two", previous_response_id=first.id).output_text == "You said: Two"


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["redis_url", "postgres_url"])
def test_servers_share_a_store(serve, request, kind):
    """In real workers, whose sockets and locks are gevent's; many requests at once."""
    url = request.getfixturevalue(kind)
    servers = [wait_until_ready(serve("--fake", "--store", url)) for _ in range(2)]
    with sdk(servers[0]) as one, sdk(servers[1]) as other:
        id = None
        for n, client in enumerate((one, other) * 3):
            id = create(client, f"{n}", previous_response_id=id).id
        assert len(list(other.responses.input_items.list(id, limit=2))) == 11

    async def crowd():
        clients = [openai.AsyncOpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) for s in servers]
        made = await asyncio.gather(*(clients[n % 2].responses.create(model="fake", input=f"{n}") for n in range(40)))
        read = await asyncio.gather(*(clients[n % 2 - 1].responses.retrieve(r.id) for n, r in enumerate(made)))
        assert [r.output_text for r in read] == [f"You said: {n}" for n in range(40)]
        for client in clients:
            await client.close()

    asyncio.run(crowd())
    assert not [line for server in servers for line in server.lines if "Traceback" in line or "not stored" in line]


@pytest.mark.processes
def test_a_key_sees_only_its_own(serve, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("key-of-ada\nkey-of-bob\n")
    keys.chmod(0o600)
    server = serve("--fake", "--api-key-file", keys)
    server.wait_for(" serves ")
    with sdk(server, "key-of-ada") as ada, sdk(server, "key-of-bob") as bob:
        wait_for(lambda: _answers(ada))
        response = create(ada)
        for call in (bob.responses.retrieve, bob.responses.delete, bob.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
        assert ada.responses.retrieve(response.id).id == response.id


def _answers(client):
    try:
        return client.models.list().data and create(client)
    except openai.InternalServerError:
        return None


@pytest.mark.processes
def test_what_runs_in_the_background_is_finished_before_the_server_ends(serve, tmp_path):
    flags = ("--fake", "--store", f"sqlite:///{tmp_path}/responses.db")
    server = wait_until_ready(serve(*flags))
    with sdk(server) as client:
        ids = [create(client, "x" * 300, background=True).id for _ in range(4)]
    server.signal()
    assert server.exit_code() == 0
    with sdk(wait_until_ready(serve(*flags))) as client:
        assert [client.responses.retrieve(id).status for id in ids] == ["completed"] * 4


@pytest.mark.processes
def test_one_that_was_interrupted_has_failed(serve, tmp_path, monkeypatch):
    """A second signal ends the server at once: what ran gets the time to say so."""
    flags = ("--fake", "--store", f"sqlite:///{tmp_path}/responses.db")
    server = wait_until_ready(serve(*flags))
    with sdk(server) as client:
        ids = [create(client, "x" * 1000, background=True).id for _ in range(12)]
    server.signal(2)
    assert server.exit_code() == 0
    with sdk(wait_until_ready(serve(*flags))) as client:
        made = [client.responses.retrieve(id) for id in ids]
    assert {response.status for response in made} <= {"failed", "completed"}
    assert all(response.error.code == "server_error" for response in made if response.status == "failed")


# ---------------------------------------------------------------- the rest


def test_tokens_are_counted(client):
    counted = client.responses.input_tokens.count(model="fake", input="Hello", instructions="Be brief.")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == create(client, instructions="Be brief.").usage.input_tokens


def test_a_conversation_is_compacted(client):
    compacted = client.responses.compact(model="fake", input=[{"role": "user", "content": "One"}])
    assert type(compacted) is CompactedResponse and compacted.usage.total_tokens > 0
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    items = [item.to_dict() for item in compacted.output]
    assert create(client, [*items, {"role": "user", "content": "Two"}]).output_text == "You said: Two"


def test_output_can_be_sent_back_as_it_came(client):
    first = create(client, "One", store=False, include=["reasoning.encrypted_content"])
    items = [{"role": "user", "content": "One"}, *(item.to_dict() for item in first.output)]
    again = create(client, [*items, {"role": "user", "content": "Two"}], store=False)
    assert again.output_text == "You said: Two"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"conversation": {"name": "x"}}, "conversation"),
        ({"input": "x" * 20_000}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_a_bad_request(client, options, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, **{"input": "Hello", **options}, stream=stream)
    assert caught.value.param == param


# ---------------------------------------------------------------- conversations


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_gone_on_with_and_added_to(client, stream):
    """It was a bare 404, and agents' sessions with it."""
    conversation = client.conversations.create(metadata={"topic": "x"}, items=[{"role": "user", "content": "One"}])
    assert type(conversation).__name__ == "Conversation" and conversation.metadata == {"topic": "x"}
    first = create(client, "Two", conversation=conversation.id, stream=stream)
    if stream:
        first = [event for event in first if event.type == "response.completed"][0].response
    assert first.conversation.id == conversation.id and first.output_text == "You said: Two"
    second = create(client, "Three", conversation={"id": conversation.id}, store=False)
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))  # in three pages
    texts = [item.content[0].text for item in items]
    assert texts == ["One", "Two", "You said: Two", "Three", "You said: Three"]
    whole = create(client, [{"role": item.role, "content": text} for item, text in zip(items, texts[:-1])], store=False)
    assert second.usage.input_tokens == whole.usage.input_tokens


def test_a_conversation_is_changed_and_forgotten(client):
    conversation = client.conversations.create()
    added = client.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}]
    )
    assert [item.role for item in added.data] == ["user", "assistant"] and not added.has_more
    one, two = (item.id for item in added.data)
    assert client.conversations.items.retrieve(two, conversation_id=conversation.id).content[0].text == "Two"
    left = client.conversations.items.delete(one, conversation_id=conversation.id)
    assert left.id == conversation.id
    assert [item.id for item in client.conversations.items.list(conversation.id)] == [two]
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(conversation.id).metadata == {"a": "b"}
    gone = client.conversations.delete(conversation.id)
    assert (gone.id, gone.deleted, gone.object) == (conversation.id, True, "conversation.deleted")
    for ask in (
        lambda: client.conversations.retrieve(conversation.id),
        lambda: client.conversations.delete(conversation.id),
        lambda: create(client, conversation=conversation.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()


def test_a_call_and_its_output_are_items_of_a_conversation(client):
    conversation = client.conversations.create(items=[{"role": "user", "content": "1 + 1?"}])
    call = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
    client.conversations.items.create(conversation.id, items=[call])
    output = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    response = create(client, [output], conversation=conversation.id)
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output", "message"] and response.output_text


def test_an_asynchronous_client_streams(server):
    async def talk():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            async with client.responses.stream(model="fake", input="Hello") as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert kinds[-1] == "response.completed" and final.output_text == "You said: Hello"
            again = await client.responses.create(model="fake", input="More", previous_response_id=final.id)
            return again.output_text

    assert asyncio.run(talk()) == "You said: More"
