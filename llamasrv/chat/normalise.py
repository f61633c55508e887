"""Conversations made acceptable to one template.

`examine` finds out with trial conversations what a template accepts and shows (`Traits`), once per template.
`prepare` turns a ChatPrompt into the messages that this template gets: system turns gathered, turns merged where
roles must alternate, arguments as object or text, results in the order of their calls. Nothing a template can show
is dropped; what it cannot show (tools, calls, results) is written out as text. Knows no template language.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llamasrv.chat.formats import GENERIC_CALLS, Calls, write_calls
from llamasrv.domain.request import ChatPrompt, Message, TextPart, Tool
from llamasrv.errors import InvalidRequest

Dict = dict[str, Any]


class Renders(Protocol):
    """What `examine` needs of a template."""

    @property
    def variables(self) -> frozenset[str]: ...
    @property
    def source(self) -> str: ...
    def render_plain(
        self,
        messages: list[Dict],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        *,
        work: int = ...,
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Traits:
    """What one template accepts and shows."""

    parts: bool = False  # content must be a list of parts
    system: bool = True
    late_system: bool = True  # several system messages, anywhere
    developer: bool = False
    repeated_roles: bool = True  # user after user, assistant after assistant
    assistant_first: bool = True
    tools: bool = False
    tools_variable: str = "tools"
    calls: bool = False
    parallel_calls: bool = False
    content_with_calls: bool = True
    empty_answer: bool = True
    full_schemas: bool = False  # every parameter of a tool needs a type and a description
    results: bool = False
    arguments: str = "object"  # or "text"
    no_content: str = "null"  # how "no content" beside a call is said: null, empty, absent
    user_after_result: bool = True
    short_ids: bool = False  # call ids must be nine letters and digits
    reasoning: str | None = None  # the key that earlier reasoning goes under; "block" for a part of the content
    reasoning_or_content: bool = False  # a message with calls may have one of the two only


@dataclass(slots=True)
class Conversation:
    """What a template is given."""

    messages: list[Dict]
    tools: list[Dict] | None
    add_generation_prompt: bool
    continues: str | None = None  # "content" or "reasoning": the last message goes on there
    held: str = ""  # what it holds there already


# ---------------------------------------------------------------- finding out

_TOOL = {
    "type": "function",
    "function": {
        "name": "zqtool",
        "description": "zqdescription",
        "parameters": {
            "type": "object",
            "properties": {"zqkey": {"type": "string", "description": "zqparameter"}},
            "required": ["zqkey"],
        },
    },
}
_ODD_FUNCTIONS = (
    {
        "name": "zqodd",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {"zqany": {}, "zqmaybe": {"type": ["string", "null"]}, "zqobject": {"type": "object"}},
        },
    },
    {"name": "zqeven", "description": "", "parameters": {"type": "object"}},
)  # schemas as clients send them, which some templates stumble over
_USER = {"role": "user", "content": "zquser"}
_USER2 = {"role": "user", "content": "zqagain"}
_SYSTEM = {"role": "system", "content": "zqsystem"}
_SYSTEM2 = {"role": "system", "content": "zqlate"}
_ANSWER = {"role": "assistant", "content": "zqanswer"}
_ANSWER2 = {"role": "assistant", "content": "zqmore"}
_TRIAL_WORK = 1 << 24  # nanoseconds or so: a template that needs more for a short chat is hostile
_NO_CONTENT: dict[str, Dict] = {"null": {"content": None}, "empty": {"content": ""}, "absent": {}}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def _call(value: str, arguments: str, id: str = "zqcall001") -> Dict:
    given: Any = {"zqkey": value} if arguments == "object" else json.dumps({"zqkey": value})
    return {"id": id, "type": "function", "function": {"name": "zqtool", "arguments": given}}


def _result(content: str, id: str = "zqcall001") -> Dict:
    return {"role": "tool", "tool_call_id": id, "name": "zqtool", "content": content}


def examine(template: Renders) -> Traits:
    """What this template accepts. Renders some thirty trial conversations: a few milliseconds."""

    always: Dict = {}

    def show(messages: list[Dict], tools: list[Dict] | None = None, prompt: bool = True, **variables: Any) -> str:
        try:
            copies = [dict(m) for m in messages]
            return template.render_plain(copies, tools, prompt, {**always, **variables}, work=_TRIAL_WORK)
        except InvalidRequest:
            return ""

    def shows(messages: list[Dict], *words: str, **kwargs: Any) -> bool:
        text = show(messages, **kwargs)
        return all(word in text for word in words)

    tools_variable = _find_tools_variable(template, show)
    given: Dict = {"tools": [_TOOL]}
    if tools_variable not in (None, "tools"):
        given = tools_elsewhere([_TOOL], Traits(tools_variable=tools_variable))
        always |= tools_elsewhere(None, Traits(tools_variable=tools_variable))
    if not shows([_USER], "zquser") and shows([{**_USER, "content": [{"type": "text", "text": "zquser"}]}], "zquser"):
        return Traits(parts=True, tools=tools_variable is not None, tools_variable=tools_variable or "tools")
    found: Dict = {
        "system": shows([_SYSTEM, _USER], "zqsystem"),
        "late_system": shows([_SYSTEM, _SYSTEM2, _USER], "zqsystem", "zqlate")
        and shows([_USER, _ANSWER, _SYSTEM2, _USER2], "zquser", "zqlate", "zqagain")
        and shows([_USER, _ANSWER, _USER2, _SYSTEM2], "zqagain", "zqlate"),
        "developer": "developer" in template.source and shows([{**_SYSTEM, "role": "developer"}, _USER], "zqsystem"),
        "repeated_roles": shows([_USER, _USER2], "zquser", "zqagain")
        and shows([_USER, _ANSWER, _ANSWER2, _USER2], "zqanswer", "zqmore"),
        "assistant_first": shows([_ANSWER, _USER], "zqanswer", "zquser"),
        "empty_answer": shows([_USER, {**_ANSWER, "content": ""}, _USER2], "zqagain"),
        "tools": tools_variable is not None,
        "tools_variable": tools_variable or "tools",
    }
    if tools_variable == "tools":
        odd = [{"type": "function", "function": function} for function in _ODD_FUNCTIONS]
        found["full_schemas"] = not shows([_USER], "zqodd", tools=odd)
    found.update(_examine_calls(show, given, show([_USER], **given).count("None")))
    found["reasoning"] = _find_reasoning(show, found, given)
    if found["reasoning"] and found["calls"]:
        both = {**_ANSWER, found["reasoning"]: "zqthought", "tool_calls": [_call("zqvalue", found["arguments"])]}
        found["reasoning_or_content"] = show([_USER, both, _result("zqresult")], **given) == ""
    return Traits(**found)


def _find_tools_variable(template: Renders, show: Callable[..., str]) -> str | None:
    if "zqtool" in show([_USER], [_TOOL]) or "zqtool" in show([_SYSTEM, _USER], [_TOOL]):
        return "tools"
    for name in ("functions", "xml_tools", "custom_tools"):
        if name in template.variables:
            given = tools_elsewhere([_TOOL], Traits(tools_variable=name))
            if "zqtool" in show([_USER], **given):
                return name
    return None


def _examine_calls(show: Callable[..., str], given: Dict, nones: int) -> Dict:
    """The first combination of arguments and empty content that a call comes through with, unbroken."""
    for arguments in ("object", "text"):
        for no_content, content in _NO_CONTENT.items():

            def turn(*calls: Dict, content: Dict = content) -> Dict:
                return {"role": "assistant", **content, "tool_calls": list(calls)}

            call = _call("zqvalue", arguments)
            text = show([_USER, turn(call), _result("zqresult")], **given)
            if "zqvalue" not in text or "zqkey" not in text or text.count("None") > nones:
                continue
            if re.search(
                r"""'zqkey': *'zqvalue|\\"zqkey\\": *\\"zqvalue""", text
            ):  # Python's notation, or JSON in JSON
                continue
            other = _call("zqother", arguments, "zqcall002")
            both = show([_USER, turn(call, other), _result("zqresult"), _result("zqsecond", "zqcall002")], **given)
            long_id = _call("zqvalue", arguments, "call_zq_0123456789")
            return {
                "calls": True,
                "arguments": arguments,
                "no_content": no_content,
                "results": "zqresult" in text,
                "content_with_calls": all(
                    word in show([_USER, turn(call, content=_ANSWER), _result("zqresult")], **given)
                    for word in ("zqanswer", "zqvalue")
                ),
                "parallel_calls": all(word in both for word in ("zqvalue", "zqother", "zqresult", "zqsecond")),
                "user_after_result": "zqagain" in show([_USER, turn(call), _result("zqresult"), _USER2], **given),
                "short_ids": show([_USER, turn(long_id), _result("zqresult", "call_zq_0123456789")], **given) == "",
            }
    return {"calls": False, "no_content": "empty"}


def _find_reasoning(show: Callable[..., str], found: Dict, given: Dict) -> str | None:
    for key in _REASONING_KEYS:
        thought = {"role": "assistant", "content": "zqanswer", key: "zqthought"}
        if "zqthought" in show([_USER, thought], prompt=False):
            return key
        if found["calls"]:
            calls = {"content": "", key: "zqthought", "tool_calls": [_call("zqvalue", found["arguments"])]}
            if "zqthought" in show([_USER, {"role": "assistant", **calls}, _result("zqresult")], **given):
                return key
    block = [{"type": "thinking", "thinking": "zqthought"}, {"type": "text", "text": "zqanswer"}]
    text = show([_USER, {"role": "assistant", "content": block}], prompt=False)
    return "block" if "zqthought" in text and "'thinking'" not in text and '"thinking"' not in text else None


# ---------------------------------------------------------------- making acceptable


def prepare(prompt: ChatPrompt, traits: Traits, calls: Calls | None = None) -> Conversation:
    """The messages and tools that a template with these traits gets. `calls` is how the model writes them."""
    calls = calls or GENERIC_CALLS
    source: Sequence[Message] = prompt.messages
    continues = _continues(prompt)
    simple = all(m.role in ("user", "assistant", "system") and not m.tool_calls for m in source)
    if not simple:
        source = _ordered_results(source)
    names = {} if simple else _call_names(source)
    messages = [_plain_message(m, traits, names) for m in source]
    if not traits.developer:
        for message in messages:
            if message["role"] == "developer":
                message["role"] = "system"
    if prompt.tools and not traits.tools:
        messages.insert(0, {"role": "system", "content": write_tools(prompt.tools, calls)})
    if not simple:
        _settle_calls(messages, traits, calls)
    if not (traits.system and traits.late_system):
        _gather_system(messages, traits)
    if not traits.repeated_roles:
        messages = _merged(messages)
    if not simple and not traits.user_after_result:
        messages = _answered(messages)
    if not traits.empty_answer:
        for message in messages:
            if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
                message["content"] = " "
    if not traits.assistant_first and messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": ""})
    if traits.parts:
        for message in messages:
            if isinstance(message.get("content"), str):
                message["content"] = [{"type": "text", "text": message["content"]}]
    tools = [_tool(tool, traits.full_schemas) for tool in prompt.tools] if prompt.tools and traits.tools else None
    conversation = Conversation(messages, tools, prompt.add_generation_prompt and continues is None, continues)
    if continues is not None:
        last = source[-1]
        conversation.held = (last.reasoning or "") if continues == "reasoning" else _text(last.content)
    return conversation


def _continues(prompt: ChatPrompt) -> str | None:
    """Where the last message goes on, if the request wants that."""
    if not prompt.continue_final_message:
        return None
    last = prompt.messages[-1] if prompt.messages else None
    if last is None or last.role != "assistant" or last.tool_calls:
        raise InvalidRequest(
            "continue_final_message needs a last message of the assistant, without tool calls.",
            param="continue_final_message",
        )
    return "reasoning" if last.reasoning and not _text(last.content) else "content"


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def _plain_message(message: Message, traits: Traits, names: Mapping[str, str]) -> Dict:
    role = "tool" if message.role == "function" else message.role
    plain: Dict = {"role": role, "content": _text(message.content)}
    if role == "tool":
        plain["tool_call_id"] = _call_id(message.tool_call_id or "", traits)
        plain["name"] = message.name or names.get(message.tool_call_id or "", "")
        return plain
    if message.name:
        plain["name"] = message.name
    if message.tool_calls:
        if not plain["content"]:
            del plain["content"]
            plain.update(_NO_CONTENT[traits.no_content])
        plain["tool_calls"] = [
            {
                "id": _call_id(call.id, traits),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments, traits)},
            }
            for call in message.tool_calls
        ]
    if message.reasoning and traits.reasoning:
        _give_reasoning(plain, message.reasoning, traits)
    return plain


def _give_reasoning(plain: Dict, reasoning: str, traits: Traits) -> None:
    if traits.reasoning == "block":
        text = plain.get("content")
        plain["content"] = [{"type": "thinking", "thinking": reasoning}]
        if text:
            plain["content"].append({"type": "text", "text": text})
        return
    if traits.reasoning_or_content and plain.get("tool_calls") and plain.get("content"):
        reasoning = f"{reasoning}\n\n{plain['content']}"
        plain["content"] = ""
    plain[traits.reasoning or "reasoning_content"] = reasoning


def _call_id(id: str, traits: Traits) -> str:
    if not traits.short_ids or (len(id) == 9 and id.isalnum()):
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:9]


def _arguments(text: str, traits: Traits) -> Any:
    if traits.arguments != "object":
        return text
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def _tool(tool: Tool, full: bool = False) -> Dict:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    if full:
        parameters = {"properties": {}, **_filled(parameters)}
        parameters.pop("additionalProperties", None)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


_MAX_SCHEMA_DEPTH = 32


def _filled(schema: Any, depth: int = 0) -> Any:
    """A schema in which everything has one type and a description, for templates that rely on it."""
    if not isinstance(schema, Mapping) or depth > _MAX_SCHEMA_DEPTH:
        return {"type": "string", "description": ""}
    filled = {"description": "", **schema}
    kind = schema.get("type")
    if isinstance(kind, (list, tuple)):
        kind = next((item for item in kind if item != "null"), "string")
    if kind is None and not any(word in schema for word in ("anyOf", "oneOf", "allOf")):
        kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
    if kind is not None:
        filled["type"] = "string" if kind == "null" else kind
    if isinstance(schema.get("properties"), Mapping):
        filled["properties"] = {key: _filled(part, depth + 1) for key, part in schema["properties"].items()}
    elif kind == "object" and not isinstance(schema.get("additionalProperties"), Mapping):
        filled["additionalProperties"] = {"type": "string", "description": ""}
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), Mapping):
            filled[word] = _filled(schema[word], depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(word), (list, tuple)):
            filled[word] = [_filled(branch, depth + 1) for branch in schema[word]]
    return filled


def tools_elsewhere(tools: Sequence[Any] | None, traits: Traits) -> Dict:
    """Tools for a template that reads them under another name. Firefunction's is a JSON text."""
    if traits.tools_variable == "functions":
        return {"functions": json.dumps([t["function"] for t in tools or ()], ensure_ascii=False, indent=4)}
    return {traits.tools_variable: list(tools)} if tools else {}


def _call_names(messages: Sequence[Message]) -> dict[str, str]:
    return {call.id: call.name for message in messages for call in message.tool_calls}


def _ordered_results(messages: Sequence[Message]) -> list[Message]:
    """Results behind the calls that they answer, in the order of the calls."""
    ordered: list[Message] = []
    places: dict[str, int] = {}
    block: list[Message] = []

    def flush() -> None:
        block.sort(key=lambda m: places.get(m.tool_call_id or "", len(places)))
        ordered.extend(block)
        block.clear()

    for message in messages:
        if message.role in ("tool", "function"):
            block.append(message)
            continue
        flush()
        if message.tool_calls:
            places = {call.id: place for place, call in enumerate(message.tool_calls)}
        ordered.append(message)
    flush()
    return ordered


def _settle_calls(messages: list[Dict], traits: Traits, format: Calls) -> None:
    """Calls and results as this template can show them."""
    settled: list[Dict] = []
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and not traits.calls:
            made = [(c["function"]["name"], _as_text(c["function"]["arguments"])) for c in calls]
            written = write_calls(format, made)
            content = message.get("content") or ""
            if isinstance(content, str):
                message["content"] = f"{content}\n{written}" if content else written
            else:
                message["content"] = [*content, {"type": "text", "text": written}]
            del message["tool_calls"]
            settled.append(message)
            continue
        if calls and not traits.content_with_calls and traits.repeated_roles and _has_text(message.get("content")):
            settled.append({"role": "assistant", "content": message["content"]})
            del message["content"]
            message.update(_NO_CONTENT[traits.no_content])
        if calls and len(calls) > 1 and not traits.parallel_calls:
            settled.extend(_one_by_one(message, messages, place))
            continue
        if message["role"] == "tool":
            if message.get("_placed"):
                continue
            if not traits.results:
                message = {"role": "user", "content": write_result(message["content"])}
        settled.append(message)
    for message in settled:
        message.pop("_placed", None)
    messages[:] = settled


def _one_by_one(message: Dict, messages: list[Dict], place: int) -> list[Dict]:
    """One call a message, each followed by its result: for templates that know no parallel calls."""
    turns: list[Dict] = []
    for number, call in enumerate(message["tool_calls"]):
        turns.append({**message, "tool_calls": [call]} if number == 0 else {
            "role": "assistant", "content": "" if message.get("content") else message.get("content"),
            "tool_calls": [call],
        })  # fmt: skip
        for result in messages[place + 1 :]:
            if result["role"] != "tool":
                break
            if result["tool_call_id"] == call["id"] and not result.get("_placed"):
                turns.append(dict(result))
                result["_placed"] = True
    return turns


def _has_text(content: Any) -> bool:
    return isinstance(content, str) and bool(content)


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _gather_system(messages: list[Dict], traits: Traits) -> None:
    """One system message at the head; where a template has none, its text opens the first user turn."""
    texts = [m["content"] for m in messages if m["role"] == "system" and m["content"]]
    rest = [m for m in messages if m["role"] != "system"]
    if texts or len(rest) != len(messages):
        text = "\n\n".join(texts)
        if traits.system:
            rest.insert(0, {"role": "system", "content": text})
        elif text:
            first = next((m for m in rest if m["role"] == "user"), None)
            if first is None:
                rest.insert(0, {"role": "user", "content": text})
            else:
                first["content"] = f"{text}\n\n{first['content']}"
        elif not rest:
            rest.append({"role": "user", "content": ""})
    messages[:] = rest


def _merged(messages: list[Dict]) -> list[Dict]:
    """Turns of one role after another made one."""
    merged: list[Dict] = []
    for message in messages:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last["role"] == message["role"] in ("user", "assistant")
            and not last.get("tool_calls")
            and isinstance(last.get("content"), str)
            and isinstance(message.get("content") or "", str)
        ):
            joined = "\n\n".join(text for text in (last["content"], message.get("content")) if text)
            merged[-1] = {**last, **message, "content": joined}
        else:
            merged.append(message)
    return merged


def _answered(messages: list[Dict]) -> list[Dict]:
    """An answer of one space between a result and a user turn, for templates that insist on one."""
    answered: list[Dict] = []
    for message in messages:
        if message["role"] == "user" and answered and answered[-1]["role"] == "tool":
            answered.append({"role": "assistant", "content": " "})
        answered.append(message)
    return answered


# ---------------------------------------------------------------- written out as text


def write_tools(tools: Sequence[Tool], calls: Calls) -> str:
    """Tells a model about its tools where the template has no words for that."""
    lines = [json.dumps(_tool(tool)["function"], ensure_ascii=False, default=dict) for tool in tools]
    return (
        "You can call functions. These are available, one JSON description a line:\n<tools>\n"
        + "\n".join(lines)
        + "\n</tools>\nTo call functions, write this, with the names and arguments that you need, and then stop:\n"
        + write_calls(calls, [("function_name", '{"argument_name": "value"}')]).strip()
        + "\nYou will be given the results. Call functions only where they help; otherwise answer in plain words."
    )


def write_result(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"


# ---------------------------------------------------------------- going on with a message


def mark_ending(conversation: Conversation, traits: Traits, mark: str) -> None:
    """Puts `mark` where the last message goes on, if this template shows that place."""
    last = conversation.messages[-1]
    content = last.get("content")
    if conversation.continues == "content":
        if isinstance(content, list) and content and content[-1]["type"] == "text":
            content[-1]["text"] += mark
        elif isinstance(content, str):
            last["content"] = content + mark
    elif isinstance(content, list):
        if content and content[0]["type"] == "thinking":
            content[0]["thinking"] += mark
    elif traits.reasoning in last:
        last[traits.reasoning] += mark
