"""Reads input items, a client's part of a conversation, into turns.

Lenient where clients differ (they send output items back without ids, status or annotations), exact where it names
what is wrong. Reasoning, text and calls that follow one another are one turn of the assistant. What tools of another
service found is shown as calls and results; items that say nothing a model could use (`CARRIED`) are not shown, and
the client sees their types in a header.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import orjson

from llamasrv.domain.found_tools import found_message
from llamasrv.domain.request import Message, Part, TextPart, ToolCall
from llamasrv.domain.summary import SUMMARY
from llamasrv.protocols.common.documents import document_file, file_part
from llamasrv.protocols.common.kept import unseal_turns
from llamasrv.protocols.common.media import audio_part, from_url
from llamasrv.protocols.common.schema import (
    Invalid,
    Refusal,
    check_length,
    expect,
    expect_given,
    expect_or_none,
    wrong_type,
)
from llamasrv.protocols.common.thinking import EFFORTS
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.custom import custom_arguments
from llamasrv.protocols.openai.messages import arguments_of
from llamasrv.protocols.openai.responses.client_tools import CALLS
from llamasrv.protocols.openai.responses.ids import input_id, unseal
from llamasrv.protocols.openai.responses.tools import ToolSet, prompt_name_of

_ROLES = frozenset(("user", "assistant", "system", "developer"))
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
    "output_audio": "transcript",
}
_UNREAD = {"input_video": "video"}

_CLIENT_OUTPUTS = {
    "local_shell_call_output": "id",  # there the item's own id is the call's
    "shell_call_output": "call_id",
    "apply_patch_call_output": "call_id",
}
# Tools of another service: the name that a model sees, where the arguments are, and where the result is.
_HOSTED = {
    "file_search_call": ("file_search", "queries", "results"),
    "mcp_call": ("", "arguments", "output"),
    "code_interpreter_call": ("code_interpreter", "code", "outputs"),
}
CARRIED = frozenset(
    (
        "web_search_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "program",
        "program_output",
        "exec",
    )
)

_ID_PREFIX = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco", "compaction": "cmp", "configuration_update": "cu",
    "tool_search_call": "tsc", "tool_search_output": "tso", "additional_tools": "at", "shell_call": "sh",
    "shell_call_output": "sho", "apply_patch_call": "apc", "apply_patch_call_output": "apco", "local_shell_call": "lsh",
}  # fmt: skip


class Turns:
    """Builds messages item by item."""

    def __init__(self, tools: ToolSet, limits: Limits) -> None:
        self.tools = tools
        self.limits = limits
        self.compact = False  # the conversation shall be made shorter instead of answered
        self.users: list[dict[str, Any]] = []  # the messages of the user, as they were written
        self.carried: dict[str, None] = {}  # types of items that are not shown
        self.effort: str | None = None  # set by the latest configuration_update
        self.format: dict[str, Any] | None = None  # likewise
        self.format_path: tuple[int | str, ...] = ()
        self._searching: list[str] = []  # calls of a search that have no output yet
        self._messages: list[Message] = []
        self._calls: dict[str, str] = {}  # id of a call -> name of the tool
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._made: list[ToolCall] = []
        self._said = False

    @property
    def messages(self) -> tuple[Message, ...]:
        self._end_turn()
        return tuple(self._messages)

    def add(self, item: dict[str, Any], *path: int | str) -> None:
        """Raises Invalid or Refusal, with `path` as the place of the error."""
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        kind = expect(str, kind, *path, "type")
        read = READERS.get(kind)
        if read is not None:
            read(self, item, *path)
        elif kind in CALLS:
            name, key = CALLS[kind]
            self._call(_string(item, "call_id", *path), name, _json(item.get(key)))
        elif kind in _HOSTED:
            self._hosted(item, kind, *path)
        elif kind in _CLIENT_OUTPUTS:
            self._client_output(item, _CLIENT_OUTPUTS[kind], *path)
        elif kind in CARRIED:
            self.carried[kind] = None
        else:
            raise Invalid(f"unknown type of item '{kind[:60]}'.", *path, "type")

    # ------------------------------------------------------------ kinds of items

    def _message(self, item: dict[str, Any], *path: int | str) -> None:
        role = item.get("role")
        if type(role) is not str or role not in _ROLES:
            if type(role) is not str and role is not None:
                raise wrong_type("a string", role, *path, "role")
            raise Invalid("expected 'user', 'assistant', 'system' or 'developer'.", *path, "role")
        content = self._content(item.get("content"), role == "assistant", *path, "content")
        if role == "assistant":
            self._assistant(content if isinstance(content, str) else "".join(_texts(content)))
            return
        self._end_turn()
        if role == "user":
            self.users.append(item)
        self._messages.append(Message(role, content))

    def _assistant(self, text: str) -> None:
        if self._texts and not self._made:
            self._end_turn()
        self._texts.append(text)
        self._said = True

    def _think(self, item: dict[str, Any], *path: int | str) -> None:
        text = _trace(item, *path)
        if self._said:
            self._end_turn()
        if text:
            self._reasoning.append(text)

    def _function_call(self, item: dict[str, Any], *path: int | str) -> None:
        arguments = arguments_of(item.get("arguments"), *path, "arguments")
        self._call(_string(item, "call_id", *path), _called(item, *path), arguments)

    def _custom_call(self, item: dict[str, Any], *path: int | str) -> None:
        text = _string(item, "input", *path, empty=True)
        self._call(_string(item, "call_id", *path), _called(item, *path), custom_arguments(text))

    def _call(self, id: str, name: str, arguments: str) -> None:
        self._calls[id] = name
        self._made.append(ToolCall(id, name, arguments))
        self._said = True

    def _output(self, item: dict[str, Any], *path: int | str) -> None:
        output = item.get("output")
        if output is None:
            raise Invalid("missing.", *path, "output", code="missing_required_parameter")
        content = self._content(output, False, *path, "output")
        if item.get("call_id") is None and type(item.get("name")) is str:  # a notice, without a call
            self._end_turn()
            parts = (TextPart(content),) if isinstance(content, str) else content
            self._messages.append(Message("user", (TextPart(f"[{_called(item, *path)}]\n"), *parts)))
            return
        self._tool(_string(item, "call_id", *path), content, *path, "call_id")

    def _hosted(self, item: dict[str, Any], kind: str, *path: int | str) -> None:
        """A call of another service's tool with its result, in one item."""
        name, asked, found = _HOSTED[kind]
        id = _string(item, "id", *path)
        if not name:
            label = item.get("server_label")
            name = prompt_name_of(_string(item, "name", *path), label if type(label) is str else None)
        given = item.get(asked)
        self._call(id, name, given if kind == "mcp_call" and type(given) is str else _json({asked: given}))
        result = item.get("error") or item.get(found)
        self._tool(id, result if type(result) is str else "" if result is None else _json(result), *path, "id")

    def _computer_call(self, item: dict[str, Any], *path: int | str) -> None:
        actions = item.get("actions") or item.get("action")
        self._call(_string(item, "call_id", *path), "computer", _json({"actions": actions}))

    def _computer_output(self, item: dict[str, Any], *path: int | str) -> None:
        output = expect(dict, item.get("output"), *path, "output")
        call = _string(item, "call_id", *path)
        self._tool(call, (_image(output, *path, "output"),), *path, "call_id")

    def _search_call(self, item: dict[str, Any], *path: int | str) -> None:
        id = expect(str, item.get("call_id") or item.get("id"), *path, "call_id")
        self._call(id, "tool_search", _json(item.get("arguments") or {}))
        self._searching.append(id)

    def _search_output(self, item: dict[str, Any], *path: int | str) -> None:
        """Tools that a search found can be called from here on. The server's own outputs name no call."""
        found = self.tools.add_late(item.get("tools"), *path, "tools")
        call = item.get("call_id")
        if call is None and self._searching:
            call = self._searching[-1]
        if type(call) is not str or call not in self._searching:
            raise Invalid("no earlier 'tool_search_call' has this call_id.", *path, "call_id")
        self._searching.remove(call)
        self._end_turn()
        self._messages.append(found_message("tool_search", call, found))

    def _configure(self, item: dict[str, Any], *path: int | str) -> None:
        """Settings that apply from here on; nothing is shown. They override the request's own."""
        reasoning, text = item.get("reasoning"), item.get("text")
        for name, value in (("reasoning", reasoning), ("text", text)):
            expect_or_none(dict, value, *path, name)
        if reasoning is None and text is None:
            raise Invalid("expected 'reasoning' or 'text'.", *path)
        if reasoning is not None and (effort := reasoning.get("effort")) is not None:
            if effort not in EFFORTS:
                raise Invalid(f"expected one of {', '.join(EFFORTS)}.", *path, "reasoning", "effort")
            self.effort = effort
        if text is not None:
            self.format, self.format_path = text, (*path, "text")

    def _client_output(self, item: dict[str, Any], key: str, *path: int | str) -> None:
        call = expect(str, item.get("call_id") or item.get(key), *path, key)
        output = item.get("output")
        self._tool(call, output if type(output) is str else _json(output), *path, key)

    def _tool(self, call: str, content: str | tuple[Part, ...], *path: int | str) -> None:
        if call not in self._calls:
            raise Invalid(f"No tool call found for function call output with call_id {call[:80]}.", *path)
        self._end_turn()
        self._messages.append(Message("tool", content, name=self._calls[call], tool_call_id=call))

    def _tools(self, item: dict[str, Any], *path: int | str) -> None:
        """Tools offered from here on; before the first message they belong to the conversation's head."""
        self._end_turn()
        if not self._messages:
            self.tools.add(item.get("tools"), *path, "tools")
            return
        added = self.tools.add_late(item.get("tools"), *path, "tools")
        if added:
            self._messages.append(Message("developer", None, added_tools=added))

    def _compaction(self, item: dict[str, Any], *path: int | str) -> None:
        sealed = _string(item, "encrypted_content", *path)
        turns = unseal_turns(sealed, self.limits)
        if turns is not None:  # they replace everything before
            self._end_turn()
            self._messages = list(turns)
            self._calls.update((call.id, call.name) for turn in turns for call in turn.tool_calls)
            return
        text = unseal(sealed)
        if text is None:
            raise Invalid("not issued by this server.", *path, "encrypted_content")
        self._end_turn()
        self._messages.append(Message("user", SUMMARY + text))

    def _trigger(self, item: dict[str, Any], *path: int | str) -> None:
        self.compact = True

    # ------------------------------------------------------------ inside

    def _end_turn(self) -> None:
        if self._said:
            self._messages.append(
                Message(
                    "assistant",
                    "".join(self._texts) if self._texts else None,
                    reasoning="\n\n".join(self._reasoning) or None,
                    tool_calls=tuple(self._made),
                )
            )
        self._reasoning, self._texts, self._made, self._said = [], [], [], False

    def _content(self, content: Any, may_lack: bool, *path: int | str) -> str | tuple[Part, ...]:
        if type(content) is str:
            return content
        if content is None and may_lack:
            return ""
        expect(list, content, *path, what="a string or an array of content parts")
        check_length(content, self.limits.parts, "parts", *path)
        said = {"text" if type(part) is dict and part.get("type") == "output_text" else "" for part in content}
        parts = tuple(
            _part(part, *path, at)
            for at, part in enumerate(content)
            if "text" not in said or type(part) is not dict or part.get("type") != "output_audio"  # the text, spoken
        )
        if not parts:
            return ""
        return parts[0].text if len(parts) == 1 and isinstance(parts[0], TextPart) else parts


READERS: dict[str, Callable[..., None]] = {
    "message": Turns._message,
    "reasoning": Turns._think,
    "function_call": Turns._function_call,
    "custom_tool_call": Turns._custom_call,
    "function_call_output": Turns._output,
    "custom_tool_call_output": Turns._output,
    "additional_tools": Turns._tools,
    "tool_search_call": Turns._search_call,
    "tool_search_output": Turns._search_output,
    "configuration_update": Turns._configure,
    "computer_call": Turns._computer_call,
    "computer_call_output": Turns._computer_output,
    "compaction": Turns._compaction,
    "compaction_trigger": Turns._trigger,
}


def _part(part: Any, *path: int | str) -> Part:
    if type(part) is str:
        return TextPart(part)
    expect(dict, part, *path)
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if type(kind) is str else None
    if key is not None:
        return TextPart(_string(part, key, *path, empty=True))
    if kind == "input_image":
        return _image(part, *path)
    if kind == "input_audio":
        return audio_part(part.get("input_audio"), "input", *path, "input_audio")
    if kind == "input_file":
        return file_part(part, "input", *path)
    if type(kind) is str and kind in _UNREAD:
        raise Refusal(f"this server cannot read {_UNREAD[kind]}: a content part of type '{kind}' was given.", *path)
    expect(str, kind, *path, "type")
    raise Invalid(f"unknown type of content part '{kind[:60]}'.", *path, "type")


def _image(part: dict[str, Any], *path: int | str) -> Part:
    url = part.get("image_url")
    if type(url) is dict:  # the form of chat completions
        url = url.get("url")
    if url is None and part.get("file_id") is not None:
        return document_file(part["file_id"], "input", *path, "file_id")
    return from_url(url, "image", "input", *path, "image_url", is_coarse=part.get("detail") == "low")


def _texts(parts: tuple[Part, ...]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextPart)]


def _trace(item: dict[str, Any], *path: int | str) -> str:
    """The reasoning: as text, as sealed by this server, or its summary. What another server sealed cannot be read."""
    for key in ("content", "encrypted_content", "summary"):
        value = item.get(key)
        if key == "encrypted_content" and type(value) is str:
            text = unseal(value)
        elif type(value) is list:
            text = "\n".join(_texts(tuple(_part(part, *path, key, at) for at, part in enumerate(value))))
        elif value is None:
            continue
        else:
            raise wrong_type("a string" if key == "encrypted_content" else "an array", value, *path, key)
        if text:
            return text
    return ""


def _called(item: dict[str, Any], *path: int | str) -> str:
    namespace = expect_or_none(str, item.get("namespace"), *path, "namespace")
    return prompt_name_of(_string(item, "name", *path), namespace)


def _string(item: dict[str, Any], key: str, *path: int | str, empty: bool = False) -> str:
    text = expect_given(str, item.get(key), *path, key)
    if not text and not empty:
        raise Invalid("must not be an empty string.", *path, key)
    return text


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


# Items as the server shows them


def shown(items: list[dict[str, Any]], response: str, taken: Set[str]) -> list[dict[str, Any]]:
    """Input items in their full form, each with an id that is unique in the conversation."""
    seen = set(taken)
    out = []
    for at, item in enumerate(items):
        kind = item.get("type") or "message"
        id = item.get("id")
        if type(id) is not str or not id or id in seen:
            id = input_id(_ID_PREFIX.get(kind, "item"), response, at)
        seen.add(id)
        full = {"id": id, "type": kind, **{k: v for k, v in item.items() if k not in ("id", "type")}}
        if kind == "message":
            full.setdefault("status", "completed")
            full["content"] = _shown_content(item.get("content"), item.get("role") == "assistant")
        out.append(full)
    return out


def _shown_content(content: Any, assistant: bool) -> list[Any]:
    if type(content) is str:
        content = [content]
    plain: Any = {"type": "output_text", "annotations": []} if assistant else {"type": "input_text"}
    return [{**plain, "text": part} if type(part) is str else part for part in content or ()]
