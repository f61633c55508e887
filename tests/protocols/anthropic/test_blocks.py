"""Turns and blocks of every kind, read into neutral messages; what cannot be shown is refused by name."""

from __future__ import annotations

import base64

import pytest

from llamasrv.domain.request import ChatPrompt, MediaPart, Message, TextPart, ToolCall
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.anthropic.turns import BILLING, sealed
from llamasrv.protocols.limits import Limits

ENDPOINT = MessagesEndpoint(Limits(messages=100, parts=20, tools=5))
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}


def prompt(messages, **body) -> ChatPrompt:
    request, _ = ENDPOINT.parse({"max_tokens": 5, "messages": messages, **body})
    return request.prompts[0]


def read(*messages, **body):
    return prompt(list(messages), **body).messages


def refused(*messages, **body):
    with pytest.raises(InvalidRequest) as error:
        read(*messages, **body)
    return error.value.param


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(words):
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def test_texts_and_text_blocks_are_the_same():
    assert read({"role": "user", "content": "Hi"}) == read(user(text("Hi"))) == (Message("user", "Hi"),)


def test_several_text_blocks_stay_several():
    assert read(user(text("a"), text("b"))) == (Message("user", (TextPart("a"), TextPart("b"))),)


def test_empty_text_blocks_are_tolerated():
    assert read(user(text(""), text("b"))) == (Message("user", "b"),)
    assert read(user()) == (Message("user", ""),)


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_the_system_prompt_comes_first(system):
    assert read(user(text("Hi")), system=system)[0] == Message("system", "Be brief.")


@pytest.mark.parametrize(
    "system",
    [
        f"{BILLING} cc_version=2.1; cch=a1b2c;\nBe brief.",
        [text(f"{BILLING} cc_version=2.1; cch=a1b2c;"), text("Be brief.")],
    ],
)
def test_a_billing_line_is_left_out(system):
    """It differs in each request, so with it nothing of a long prompt would be found in the cache."""
    assert read(user(text("Hi")), system=system) == (Message("system", "Be brief."), Message("user", "Hi"))


def test_a_system_prompt_of_nothing_but_billing_is_none():
    assert read(user(text("Hi")), system=[text(f"{BILLING} cch=1;")]) == (Message("user", "Hi"),)


@pytest.mark.parametrize("role, neutral", [("system", "system"), ("ctx", "system"), ("msg", "user")])
def test_roles_that_agents_write_amid_a_conversation_are_read(role, neutral):
    messages = read(user(text("a")), {"role": role, "content": "b"}, user(text("c")))
    assert messages[1] == Message(neutral, "b")


def test_an_answer_has_thinking_text_and_calls():
    message = assistant(
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "..."},
        text("Let me look."),
        CALL,
    )
    result = user({"type": "tool_result", "tool_use_id": "toolu_1", "content": "5 degrees"})
    assert read(user(text("?")), message, result)[1] == Message(
        "assistant",
        "Let me look.",
        reasoning="Hm.",
        tool_calls=(ToolCall("toolu_1", "get_weather", '{"city":"Oslo"}'),),
    )


def test_thinking_that_was_not_shown_comes_back_from_its_signature():
    hidden = {"type": "thinking", "thinking": "", "signature": sealed("Hm, ü.")}
    messages = read(user(text("a")), assistant(hidden, text("b")), user(text("c")))
    assert messages[1] == Message("assistant", "b", reasoning="Hm, ü.")


def test_results_come_before_the_text_beside_them():
    second = {**CALL, "id": "toolu_2"}
    results = user(
        text("And now?"),
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("5"), text("degrees")]},
        {"type": "tool_result", "tool_use_id": "toolu_2"},
    )
    assert read(user(text("?")), assistant(CALL, second), results)[2:] == (
        Message("tool", (TextPart("5"), TextPart("degrees")), name="get_weather", tool_call_id="toolu_1"),
        Message("tool", "", name="get_weather", tool_call_id="toolu_2"),
        Message("user", "And now?"),
    )


@pytest.mark.parametrize(
    "content, shown",
    [("no such city", "Error: no such city"), ("Error: 404", "Error: 404"), (None, "Error: the tool failed")],
)
def test_a_result_that_is_an_error_says_so(content, shown):
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": True}
    assert read(user(text("?")), assistant(CALL), user(result))[2].content == shown


def test_images_in_a_result_move_behind_it():
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"png").decode()}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [text("a map"), {"type": "image", "source": source}],
    }
    messages = read(user(text("?")), assistant(CALL), user(result))
    assert messages[2].content == "a map"
    assert messages[3] == Message("user", (MediaPart("image", b"png"),))


def test_an_image_may_be_a_url():
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    assert read(user(image))[0].content == (MediaPart("image", url="https://x/y.png"),)


@pytest.mark.parametrize(
    "source",
    [
        {"type": "text", "media_type": "text/plain", "data": "Once."},
        {"type": "content", "content": "Once."},
        {"type": "content", "content": [text("Once.")]},
    ],
)
def test_documents_of_text_are_read_with_their_title(source):
    document = {"type": "document", "source": source, "title": "Tale", "context": "for children"}
    assert read(user(document))[0].content == (TextPart("Tale\nfor children\n\n"), TextPart("Once."))


def test_search_results_are_read_as_text():
    block = {"type": "search_result", "title": "T", "source": "https://x", "content": [text("found")]}
    assert read(user(block))[0].content == (TextPart("T\nhttps://x\n\n"), TextPart("found"))


def test_what_anthropics_servers_ran_is_reported_as_a_call_and_its_result():
    used = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    call, result, answer = read(user(text("a")), assistant(used, found, text("b")), user(text("c")))[1:4]
    assert call.tool_calls[0].name == "web_search" and result.role == "tool" and answer == Message("assistant", "b")


def test_an_assistant_message_at_the_end_is_gone_on_with():
    found = prompt([user(text("a")), {"role": "assistant", "content": "The answer is"}])
    assert found.continue_final_message and not found.add_generation_prompt
    found = prompt([user(text("a")), {"role": "assistant", "content": []}])
    assert found.add_generation_prompt and found.messages == (Message("user", "a"),)


@pytest.mark.parametrize(
    "message, param",
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": 3, "content": "x"}, "messages[0].role"),
        ({"role": [], "content": "x"}, "messages[0].role"),  # a 500: it cannot be looked up in a table
        ({"role": {}, "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        (user("x"), "messages[0].content[0]"),
        (user({}), "messages[0].content[0].type"),
        (user({"type": "poem"}), "messages[0].content[0].type"),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user(*[text("x")] * 21), "messages[0].content"),
        (user({"type": "tool_result", "tool_use_id": "toolu_9"}), "messages[0].content[0].tool_use_id"),
        (user({"type": "image", "source": {"type": "base64", "data": "?"}}), "messages[0].content[0].source.data"),
        (user({"type": "image"}), "messages[0].content[0].source"),
        (assistant({"type": "image"}), "messages[0].content[0].type"),
        (assistant({**CALL, "input": "x"}), "messages[0].content[0].input"),
        (assistant({"type": "tool_use", "input": {}}), "messages[0].content[0].id"),
        (
            assistant({"type": "thinking", "thinking": "", "signature": "thinking:?"}),
            "messages[0].content[0].signature",
        ),
        (assistant(CALL), "messages"),  # a call without its result
    ],
)
def test_what_is_wrong_is_named(message, param):
    assert refused(message) == param


def test_wrong_lists_of_messages_are_named():
    assert refused() == "messages"
    assert refused(*[user(text("x"))] * 101) == "messages"
    assert refused(user(text("x")), system=[{"type": "image"}]) == "system[0].type"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}},
        {"type": "search_result", "title": "T", "source": "S", "content": [], "citations": {"enabled": True}},
    ],
)
def test_what_cannot_be_done_is_refused_and_never_dropped(block):
    with pytest.raises(Unsupported) as error:
        read(user(block))
    assert error.value.param.startswith("messages[0].content[0].")


@pytest.mark.parametrize("citations", [None, {}, {"enabled": False}])
def test_a_document_without_citations_is_read(citations):
    block = {"type": "document", "source": {"type": "text", "data": "x"}, "citations": citations}
    assert read(user(block))


def test_a_tool_that_is_defined_later_keeps_the_type_of_its_name():
    """It took the place of a tool of another type."""

    def late(**definition):
        tool = {"type": "tool_definition", "definition": definition}
        return {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}

    own = {"name": "bash", "input_schema": {"type": "object"}}
    again = {**own, "description": "runs"}
    ask = {"role": "user", "content": "Hi"}
    (added,) = read(ask, late(**again), tools=[own])[-1].added_tools
    assert added.description == "runs"
    shell = {"type": "bash_20250124", "name": "bash"}
    for turns, tools in (((ask, late(**shell)), [own]), ((ask, late(**own), late(**shell)), [CLOCK])):
        with pytest.raises(InvalidRequest) as error:
            read(*turns, tools=tools)
        assert error.value.param.endswith("content[0].tool.definition.name")
        assert error.value.details == {"error_code": "tool_name_conflict"}
