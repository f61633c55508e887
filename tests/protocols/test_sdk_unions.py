"""The unions inside requests: every member that the installed SDKs can send is read, named in a header or refused with its
path. A member that an SDK learns and these tables do not know fails."""

from __future__ import annotations

import pytest
from protocols.test_sdk_members import CALLED, IMAGE, SCHEMA, TEXT, anthropic_body, types_of

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.openai.responses import Responses

pytest.importorskip("openai")
pytest.importorskip("anthropic")

HELLO = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}]
ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}
FORM = {"name": "x", "schema": SCHEMA}


def message(**fields):
    return {**anthropic_body(), **fields}


def block(kind, source):
    return message(messages=[{"role": "user", "content": [{"type": kind, "source": source}]}])


def change(kind, tool):
    return anthropic_body({"role": "system", "content": [{"type": kind, "tool": tool}]})


def cited(kind):
    said = {**TEXT, "citations": [{"type": kind, "cited_text": "x"}]}
    return anthropic_body({"role": "assistant", "content": [said]}, HELLO)


def chat(*turns, **fields):
    return {"messages": [HELLO, *turns], **fields}


def returned(part):
    return {"input": [CALLED, {"type": "function_call_output", "call_id": "c1", "output": [part]}]}


SOURCES = {
    "base64": IMAGE,
    "url": {"type": "url", "url": "https://a.example/b.png"},
    "file": {"type": "file", "file_id": "file_1"},
}
DOCUMENTS = {
    **SOURCES,
    "base64": {"type": "base64", "media_type": "application/pdf", "data": "aGVsbG8="},
    "text": {"type": "text", "media_type": "text/plain", "data": "x"},
    "content": {"type": "content", "content": [TEXT]},
}
REFERENCES = {
    "tool_reference": {"type": "tool_reference", "name": "later"},
    "mcp_tool_reference": {"type": "mcp_tool_reference", "server_name": "s", "name": "n"},
    "mcp_toolset_reference": {"type": "mcp_toolset_reference", "server_name": "s"},
}
DEFINED = {"tool_definition": {"type": "tool_definition", "definition": {"name": "map", "input_schema": SCHEMA}}}
CITATIONS = (
    "char_location",
    "page_location",
    "content_block_location",
    "search_result_location",
    "web_search_result_location",
)
BETA = "anthropic.types.beta."
ANTHROPIC = {
    f"{BETA}beta_thinking_config_param.BetaThinkingConfigParam": {
        "enabled": message(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048),
        **{kind: message(thinking={"type": kind}) for kind in ("adaptive", "between_tools", "disabled")},
    },
    f"{BETA}beta_tool_choice_param.BetaToolChoiceParam": {
        "tool": message(tool_choice={"type": "tool", "name": "f"}),
        **{kind: message(tool_choice={"type": kind}) for kind in ("auto", "any", "none")},
    },
    f"{BETA}beta_image_block_param.Source": {kind: block("image", one) for kind, one in SOURCES.items()},
    f"{BETA}beta_request_document_block_param.Source": {
        kind: block("document", one) for kind, one in DOCUMENTS.items()
    },
    f"{BETA}beta_context_management_config_param.Edit": {
        kind: message(context_management={"edits": [{"type": kind}]})
        for kind in ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
    },
    f"{BETA}beta_request_tool_addition_block_param.Tool": {
        kind: change("tool_addition", one) for kind, one in {**REFERENCES, **DEFINED}.items()
    },
    f"{BETA}beta_request_tool_removal_block_param.Tool": {
        kind: change("tool_removal", one) for kind, one in REFERENCES.items()
    },
    f"{BETA}beta_text_citation_param.BetaTextCitationParam": {kind: cited(kind) for kind in CITATIONS},
}
CHAT = {
    "openai.types.chat.chat_completion_tool_choice_option_param.ChatCompletionToolChoiceOptionParam": {
        "function": chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}),
        "custom": chat(tools=TOOLS, tool_choice={"type": "custom", "custom": {"name": "c"}}),
        "allowed_tools": chat(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": ALLOWED}),
    },
    "openai.types.chat.completion_create_params.ResponseFormat": {
        "json_schema": chat(response_format={"type": "json_schema", "json_schema": FORM}),
        **{kind: chat(response_format={"type": kind}) for kind in ("text", "json_object")},
    },
    "openai.types.chat.chat_completion_message_param.ChatCompletionMessageParam": {
        "ChatCompletionDeveloperMessageParam": chat({"role": "developer", "content": "d"}, HELLO),
        "ChatCompletionSystemMessageParam": chat({"role": "system", "content": "s"}, HELLO),
        "ChatCompletionUserMessageParam": chat(HELLO),
        "ChatCompletionAssistantMessageParam": chat({"role": "assistant", "content": "a"}, HELLO),
        "ChatCompletionToolMessageParam": chat(
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "id": "a", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ),
        "ChatCompletionFunctionMessageParam": chat(
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "r"},
        ),
    },
    "openai.types.chat.chat_completion_assistant_message_param.ContentArrayOfContentPart": {
        "text": chat({"role": "assistant", "content": [TEXT]}, HELLO),
        "refusal": chat({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, HELLO),
    },
}
RESPONSES = {
    "openai.types.responses.response_format_text_config_param.ResponseFormatTextConfigParam": {
        "json_schema": {"input": "Hi", "text": {"format": {"type": "json_schema", **FORM}}},
        **{kind: {"input": "Hi", "text": {"format": {"type": kind}}} for kind in ("text", "json_object")},
    },
    "openai.types.responses.response_function_call_output_item_list_param.ResponseFunctionCallOutputItemParam": {
        "input_text": returned({"type": "input_text", "text": "x"}),
        "input_image": returned({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}),
        "input_file": returned({"type": "input_file", "file_id": "file_1"}),
    },
    "openai.types.responses.namespace_tool_param.Tool": {
        kind: {"input": "Hi", "tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [one]}]}
        for kind, one in {
            "function": {"type": "function", "name": "a", "parameters": SCHEMA},
            "custom": {"type": "custom", "name": "a"},
        }.items()
    },
}
TABLES = [(MessagesEndpoint, ANTHROPIC), (ChatCompletions, CHAT), (Responses, RESPONSES)]
UNIONS = [(endpoint, path, members) for endpoint, table in TABLES for path, members in table.items()]
MEMBERS = [(endpoint, kind, body) for endpoint, _, members in UNIONS for kind, body in members.items()]


@pytest.mark.parametrize("endpoint, path, members", UNIONS, ids=lambda part: part if isinstance(part, str) else "")
def test_tables_have_every_member_of_the_sdk(endpoint, path, members):
    module, _, name = path.rpartition(".")
    assert types_of(getattr(pytest.importorskip(module), name)) - set(members) == set()


@pytest.mark.parametrize("endpoint, kind, body", MEMBERS, ids=lambda part: part if isinstance(part, str) else "")
def test_each_member_is_read_or_named(endpoint, kind, body):
    _, options = endpoint(Limits()).parse(body)
    named = {name.rpartition(".")[2] for name in getattr(options, "ignored", ())}
    assert (kind in named) == kind.startswith("mcp_")


def test_another_member_is_refused_with_its_path():
    for endpoint, body, path in (
        (MessagesEndpoint, message(thinking={"type": "dreaming"}), "thinking.type"),
        (MessagesEndpoint, block("image", {"type": "film"}), "messages[0].content[0].source.type"),
        (MessagesEndpoint, change("tool_removal", DEFINED["tool_definition"]), "messages[1].content[0].tool.type"),
        (ChatCompletions, chat(response_format={"type": "yaml"}), "response_format.type"),
        (Responses, {"input": "Hi", "text": {"format": {"type": "yaml"}}}, "text.format.type"),
        (Responses, returned({"type": "input_film"}), "input[1].output[0].type"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            endpoint(Limits()).parse(body)
        assert caught.value.param == path
