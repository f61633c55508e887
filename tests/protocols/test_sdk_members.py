"""Every type of block, item and tool that the installed SDKs can send is honoured, named as ignored or left out in a
response header, or refused with its path. A type that an SDK learns and this table does not know fails."""

from __future__ import annotations

import typing

import pytest
import typing_extensions

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.responses import Responses

pytest.importorskip("openai")
pytest.importorskip("anthropic")

HONOURED, NAMED, REFUSED = "honoured", "named in a header", "refused with its path"

TEXT = {"type": "text", "text": "words"}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}
SCHEMA = {"type": "object", "properties": {}}
FUNCTION = {"name": "f", "input_schema": SCHEMA}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
LATER = {**FUNCTION, "name": "later", "defer_loading": True}


def hosted(name, result, content):
    """A call of a hosted tool, and its result behind it."""
    return [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": name, "input": {}},
        {"type": result, "tool_use_id": "srvtoolu_1", "content": content},
    ]


# ---------------------------------------------------------------- Anthropic: by type, a sample and what becomes of it

FOUND = {
    "type": "tool_search_tool_search_result",
    "tool_references": [{"type": "tool_reference", "tool_name": "later"}],
}
IN_USER_TURNS = {
    "text": (TEXT, HONOURED),
    "image": ({"type": "image", "source": IMAGE}, HONOURED),
    "document": ({"type": "document", "source": {"type": "text", "data": "x", "media_type": "text/plain"}}, HONOURED),
    "search_result": ({"type": "search_result", "title": "t", "source": "s", "content": [TEXT]}, HONOURED),
    "container_upload": ({"type": "container_upload", "file_id": "file_1"}, NAMED),
    "tool_addition": ({"type": "tool_addition", "tool": {"type": "tool_reference", "name": "later"}}, HONOURED),
    "tool_removal": ({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}, HONOURED),
}
IN_ASSISTANT_TURNS = {
    "thinking": ([{"type": "thinking", "thinking": "hm", "signature": "s"}, TEXT], HONOURED),
    "redacted_thinking": ([{"type": "redacted_thinking", "data": "x"}, TEXT], NAMED),
    "tool_use": ([CALL], HONOURED),
    "server_tool_use": (hosted("web_search", "web_search_tool_result", []), HONOURED),
    "web_search_tool_result": (hosted("web_search", "web_search_tool_result", []), HONOURED),
    "web_fetch_tool_result": (hosted("web_fetch", "web_fetch_tool_result", {"type": "web_fetch_result"}), HONOURED),
    "advisor_tool_result": (hosted("advisor", "advisor_tool_result", {"type": "advisor_result"}), HONOURED),
    "code_execution_tool_result": (hosted("code_execution", "code_execution_tool_result", {}), HONOURED),
    "bash_code_execution_tool_result": (hosted("bash", "bash_code_execution_tool_result", {}), HONOURED),
    "text_editor_code_execution_tool_result": (hosted("e", "text_editor_code_execution_tool_result", {}), HONOURED),
    "tool_search_tool_result": (hosted("tool_search_tool_bm25", "tool_search_tool_result", FOUND), HONOURED),
    "mcp_tool_use": (
        [
            {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "n", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [TEXT]},
        ],
        HONOURED,
    ),
    "mcp_tool_result": ([{"type": "mcp_tool_result", "tool_use_id": "gone", "content": [TEXT]}, TEXT], NAMED),
    "compaction": ([{"type": "compaction", "content": "summary"}, TEXT], HONOURED),
    "mcp_tool_listing": ([{"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []}, TEXT], NAMED),
    "fallback": ([{"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, TEXT], NAMED),
}
IN_RESULTS = {
    **{kind: IN_USER_TURNS[kind] for kind in ("text", "image", "document", "search_result")},
    "tool_reference": ({"type": "tool_reference", "tool_name": "later"}, HONOURED),
    "browser_state": ({"type": "browser_state", "tabs": []}, HONOURED),
}
IN_SYSTEM_TURNS = {kind: IN_USER_TURNS[kind] for kind in ("text", "tool_addition", "tool_removal")}
SCREEN = {"name": "computer", "display_width_px": 800, "display_height_px": 600}
TOOLS = {
    "custom": ({**FUNCTION, "name": "g", "type": "custom"}, HONOURED),
    **{kind: ({"name": "bash"}, HONOURED) for kind in ("bash_20241022", "bash_20250124")},
    **{
        f"text_editor_{date}": ({"name": "editor"}, HONOURED)
        for date in ("20241022", "20250124", "20250429", "20250728")
    },
    "memory_20250818": ({"name": "memory"}, HONOURED),
    **{f"computer_{date}": (SCREEN, HONOURED) for date in ("20241022", "20250124", "20251124")},
    "computer_toolset_20260801": ({}, HONOURED),
    "browser_toolset_20260801": ({"configs": {"javascript_exec": {"enabled": True}}}, HONOURED),
    **{
        f"tool_search_tool_{kind}{date}": ({"name": f"tool_search_tool_{kind}"}, HONOURED)
        for kind in ("bm25", "regex")
        for date in ("", "_20251119")
    },
    **{f"code_execution_{date}": ({"name": "c"}, NAMED) for date in ("20250522", "20250825", "20260120", "20260521")},
    **{f"web_search_{date}": ({"name": "web_search"}, NAMED) for date in ("20250305", "20260209", "20260318")},
    **{f"web_fetch_{date}": ({"name": "w"}, NAMED) for date in ("20250910", "20260209", "20260309", "20260318")},
    "advisor_20260301": ({"name": "advisor", "model": "m"}, NAMED),
    "mcp_toolset": ({"mcp_server_name": "s"}, NAMED),
}


def types_of(union):
    """The values of `type` in a union's members; members without one by their names."""
    found = set()
    for member in typing_extensions.get_args(union) or (union,):
        if typing_extensions.get_origin(member) in (typing.Union, typing.Annotated):
            found |= types_of(member)
        elif hasattr(member, "model_fields"):
            found |= literals_of(member.model_fields["type"].annotation)
        elif hasattr(member, "__total__"):  # a TypedDict
            found |= literals_of(typing_extensions.get_type_hints(member).get("type")) or {member.__name__}
    return found


def literals_of(hint):
    values = typing_extensions.get_args(hint)
    return set().union(*({value} if type(value) is str else literals_of(value) for value in values))


def test_tables_have_every_block_of_the_sdk():
    from anthropic.types import content_block_param, tool_result_block_param
    from anthropic.types.beta import beta_content_block_param, beta_system_message_param, beta_tool_result_block_param

    blocks = types_of(beta_content_block_param.BetaContentBlockParam) | types_of(content_block_param.ContentBlockParam)
    assert len(blocks) > 20 and blocks - {*IN_USER_TURNS, *IN_ASSISTANT_TURNS, "tool_result"} == set()
    inside = types_of(beta_tool_result_block_param.Content) | types_of(tool_result_block_param.Content)
    assert inside - set(IN_RESULTS) == set()
    assert types_of(beta_system_message_param.ContentBlock) - set(IN_SYSTEM_TURNS) == set()


def test_the_table_has_every_tool_of_the_sdk():
    from anthropic.types import tool_union_param
    from anthropic.types.beta import beta_tool_union_param

    tools = types_of(beta_tool_union_param.BetaToolUnionParam) | types_of(tool_union_param.ToolUnionParam)
    assert len(tools) > 20 and tools - set(TOOLS) == set()


def anthropic_body(*turns, tools=()):
    first = {"role": "user", "content": "Hi"}
    return {"max_tokens": 5, "tools": [FUNCTION, LATER, SEARCH, *tools], "messages": [first, *turns]}


def check_messages(body, kind, verdict):
    request, options = MessagesEndpoint(Limits()).parse(body)
    assert (f"messages.{kind}" in options.ignored) == (verdict is NAMED), options
    return request


@pytest.mark.parametrize("kind", IN_USER_TURNS)
def test_blocks_of_a_user_turn(kind):
    sample, verdict = IN_USER_TURNS[kind]
    check_messages(anthropic_body({"role": "user", "content": [sample]}), kind, verdict)


@pytest.mark.parametrize("kind", IN_ASSISTANT_TURNS)
def test_blocks_of_an_assistant_turn(kind):
    sample, verdict = IN_ASSISTANT_TURNS[kind]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
    next_turn = {"role": "user", "content": [result] if CALL in sample else "Go on"}
    check_messages(anthropic_body({"role": "assistant", "content": sample}, next_turn), kind, verdict)


@pytest.mark.parametrize("kind", IN_RESULTS)
def test_blocks_of_a_result(kind):
    sample, verdict = IN_RESULTS[kind]
    turns = (
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [sample]}]},
    )
    check_messages(anthropic_body(*turns), kind, verdict)


@pytest.mark.parametrize("kind", IN_SYSTEM_TURNS)
def test_blocks_of_a_system_turn(kind):
    sample, verdict = IN_SYSTEM_TURNS[kind]
    check_messages(anthropic_body({"role": "system", "content": [sample]}), kind, verdict)


@pytest.mark.parametrize("kind", TOOLS)
def test_anthropics_tools_are_taken_refused_or_named(kind):
    sample, verdict = TOOLS[kind]
    body = anthropic_body(tools=[{"type": kind, **sample}])
    if sample.get("name") == SEARCH["name"]:
        body["tools"].remove(SEARCH)
    request, options = MessagesEndpoint(Limits()).parse(body)
    assert (kind in options.left_out) == (verdict is NAMED)
    names = {tool.name for tool in request.prompts[0].tools}
    assert len(names) >= len(body["tools"]) - 1 or verdict is NAMED


# ---------------------------------------------------------------- OpenAI Responses

NO_SHELL = {"type": "container_auto"}
RESPONSES_TOOLS = {
    "function": ({"name": "g", "parameters": SCHEMA}, HONOURED),
    "custom": ({"name": "c"}, HONOURED),
    "namespace": ({"name": "n", "tools": [{"type": "function", "name": "a"}], "description": "d"}, HONOURED),
    "tool_search": ({"execution": "client"}, HONOURED),
    "shell": ({"environment": {"type": "local"}}, HONOURED),
    "local_shell": ({}, HONOURED),
    "apply_patch": ({}, HONOURED),
    "file_search": ({"vector_store_ids": []}, NAMED),
    "computer": ({}, NAMED),
    "computer_use_preview": ({"display_width": 1, "display_height": 1, "environment": "linux"}, NAMED),
    "mcp": ({"server_label": "s"}, NAMED),
    "code_interpreter": ({"container": "c"}, NAMED),
    "programmatic_tool_calling": ({}, NAMED),
    "image_generation": ({}, NAMED),
    **{
        kind: ({}, NAMED)
        for kind in (
            "web_search",
            "web_search_2025_08_26",
            "web_search_preview",
            "web_search_preview_2025_03_11",
        )
    },
}
CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
SHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,aGVsbG8="}
LOOKED = {"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {}, "status": "completed"}
ITEMS = {
    "EasyInputMessageParam": ([{"role": "user", "content": "x"}], HONOURED),
    "message": ([{"type": "message", "role": "user", "content": "x"}], HONOURED),
    "file_search_call": (
        [{"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed"}],
        HONOURED,
    ),
    "computer_call": ([{"type": "computer_call", "call_id": "c", "id": "cu", "actions": []}], HONOURED),
    "computer_call_output": (
        [
            {"type": "computer_call", "call_id": "c", "id": "cu", "actions": []},
            {"type": "computer_call_output", "call_id": "c", "output": SHOT},
        ],
        HONOURED,
    ),
    "web_search_call": ([{"type": "web_search_call", "id": "ws_1", "status": "completed"}], NAMED),
    "function_call": ([CALLED], HONOURED),
    "function_call_output": ([CALLED, {"type": "function_call_output", "call_id": "c1", "output": "x"}], HONOURED),
    "tool_search_call": ([LOOKED], HONOURED),
    "tool_search_output": ([LOOKED, {"type": "tool_search_output", "call_id": "s1", "tools": []}], HONOURED),
    "additional_tools": (
        [
            {"role": "user", "content": "x"},
            {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]},
        ],
        HONOURED,
    ),
    "configuration_update": ([{"type": "configuration_update", "reasoning": {"effort": "low"}}], HONOURED),
    "reasoning": ([{"type": "reasoning", "id": "rs_1", "summary": []}], HONOURED),
    "compaction": ([{"type": "compaction", "encrypted_content": "of another server"}], REFUSED),
    "image_generation_call": ([{"type": "image_generation_call", "id": "ig_1", "status": "completed"}], NAMED),
    "code_interpreter_call": ([{"type": "code_interpreter_call", "id": "ci_1", "code": "1"}], HONOURED),
    "local_shell_call": ([{"type": "local_shell_call", "id": "l", "call_id": "l", "action": {}}], HONOURED),
    "local_shell_call_output": (
        [
            {"type": "local_shell_call", "id": "l", "call_id": "l", "action": {}},
            {"type": "local_shell_call_output", "id": "l", "output": "x"},
        ],
        HONOURED,
    ),
    "shell_call": ([{"type": "shell_call", "call_id": "s", "action": {"commands": []}}], HONOURED),
    "shell_call_output": (
        [
            {"type": "shell_call", "call_id": "s", "action": {"commands": []}},
            {"type": "shell_call_output", "call_id": "s", "output": []},
        ],
        HONOURED,
    ),
    "apply_patch_call": ([{"type": "apply_patch_call", "call_id": "a", "operation": {}}], HONOURED),
    "apply_patch_call_output": (
        [
            {"type": "apply_patch_call", "call_id": "a", "operation": {}},
            {"type": "apply_patch_call_output", "call_id": "a", "status": "completed"},
        ],
        HONOURED,
    ),
    "mcp_list_tools": ([{"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}], NAMED),
    "mcp_approval_request": ([{"type": "mcp_approval_request", "id": "m", "name": "n", "arguments": ""}], NAMED),
    "mcp_approval_response": ([{"type": "mcp_approval_response", "approval_request_id": "m", "approve": True}], NAMED),
    "mcp_call": ([{"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}"}], HONOURED),
    "custom_tool_call": ([{"type": "custom_tool_call", "call_id": "c", "name": "c", "input": "x"}], HONOURED),
    "custom_tool_call_output": (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "c", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
        ],
        HONOURED,
    ),
    "compaction_trigger": ([{"type": "compaction_trigger"}], HONOURED),
    "item_reference": ([{"type": "item_reference", "id": "msg_1"}], REFUSED),  # of nothing that is stored
    "program": ([{"type": "program", "id": "p", "call_id": "p", "code": "1"}], NAMED),
    "program_output": ([{"type": "program_output", "id": "p", "call_id": "p", "result": "1"}], NAMED),
}
CHOICES = {
    "function": ({"name": "f"}, HONOURED),
    "custom": ({"name": "c"}, HONOURED),
    "allowed_tools": ({"mode": "auto", "tools": [{"type": "function", "name": "f"}]}, HONOURED),
    "shell": ({}, HONOURED),
    "apply_patch": ({}, HONOURED),
    **{
        kind: ({}, REFUSED)
        for kind in (
            "mcp", "programmatic_tool_calling", "file_search", "computer", "computer_use", "computer_use_preview",
            "web_search_preview", "web_search_preview_2025_03_11", "image_generation", "code_interpreter",
        )
    },
}  # fmt: skip
PARTS = {
    "input_text": ({"text": "x"}, HONOURED),
    "input_image": ({"file_id": "file_1"}, HONOURED),
    "input_file": ({"file_id": "file_1"}, HONOURED),
}


def test_tables_have_every_item_tool_and_part_of_the_sdk():
    from openai.types.responses import (
        response_create_params,
        response_input_content_param,
        response_input_item_param,
        tool_param,
    )

    items = types_of(response_input_item_param.ResponseInputItemParam)
    assert len(items) > 20 and items - set(ITEMS) == set()
    assert types_of(tool_param.ToolParam) - set(RESPONSES_TOOLS) == set()
    assert types_of(response_create_params.ToolChoice) - set(CHOICES) == set()
    assert types_of(response_input_content_param.ResponseInputContentParam) - set(PARTS) == set()


def respond(**body):
    return Responses(Limits()).parse(body)


def refusal(**body):
    with pytest.raises(InvalidRequest) as caught:
        respond(**body)
    return caught.value.param


@pytest.mark.parametrize("kind", ITEMS)
def test_items_of_responses_are_taken_refused_or_named(kind):
    sample, verdict = ITEMS[kind]
    if verdict is REFUSED:
        assert refusal(input=sample).startswith("input[0].")
        return
    _, options = respond(input=[*sample, {"role": "user", "content": "Go on"}])
    assert (f"input.{kind}" in options.ignored) == (verdict is NAMED)


@pytest.mark.parametrize("kind", RESPONSES_TOOLS)
def test_tools_of_responses_are_taken_refused_or_named(kind):
    sample, verdict = RESPONSES_TOOLS[kind]
    request, options = respond(input="Hi", tools=[{"type": kind, **sample}])
    assert (kind in options.tools.left_out) == (verdict is NAMED)
    assert bool(request.prompts[0].tools) == (verdict is HONOURED)


@pytest.mark.parametrize("kind", CHOICES)
def test_choices_of_a_tool(kind):
    sample, verdict = CHOICES[kind]
    tools = [
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "c"},
        {"type": "shell"},
        {"type": "apply_patch"},
    ]
    body = {"input": "Hi", "tools": tools, "tool_choice": {"type": kind, **sample}}
    if verdict is REFUSED:
        assert refusal(**body) == "tool_choice.type"
    else:
        respond(**body)


@pytest.mark.parametrize("kind", PARTS)
def test_parts_of_responses_are_taken(kind):
    sample, _ = PARTS[kind]
    respond(input=[{"role": "user", "content": [{"type": kind, **sample}]}])


# ---------------------------------------------------------------- chat completions

CHAT_PARTS = {
    "text": {"text": "x"},
    "image_url": {"image_url": {"url": "data:image/png;base64,aGVsbG8="}},
    "input_audio": {"input_audio": {"data": "aGVsbG8=", "format": "wav"}},
    "file": {"file": {"file_id": "file_1"}},
}
CHAT_TOOLS = {"function": {"function": {"name": "f"}}, "custom": {"custom": {"name": "c"}}}


def test_tables_have_every_part_and_tool_of_a_chat():
    from openai.types.chat import chat_completion_content_part_param as part
    from openai.types.chat import chat_completion_tool_union_param as tool

    assert types_of(part.ChatCompletionContentPartParam) - set(CHAT_PARTS) == set()
    assert types_of(tool.ChatCompletionToolUnionParam) - set(CHAT_TOOLS) == set()


@pytest.mark.parametrize("kind", CHAT_PARTS)
def test_parts_of_a_chat(kind):
    content = [{"type": kind, **CHAT_PARTS[kind]}]
    ChatCompletions(Limits()).parse({"messages": [{"role": "user", "content": content}]})


@pytest.mark.parametrize("kind", CHAT_TOOLS)
def test_tools_of_a_chat(kind):
    messages = [{"role": "user", "content": "Hi"}]
    request, _ = ChatCompletions(Limits()).parse({"messages": messages, "tools": [{"type": kind, **CHAT_TOOLS[kind]}]})
    assert len(request.prompts[0].tools) == 1
