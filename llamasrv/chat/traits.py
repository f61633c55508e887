"""What one template accepts and renders, determined with trial conversations once per template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from llamasrv.chat.renderer import Renderer
from llamasrv.errors import InvalidRequest

Dict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Traits:
    """What one template accepts and shows."""

    parts: bool = False  # content must be a list of parts
    system: bool = True
    several_system: bool = True  # several system messages at the head
    late_system: bool = True  # system messages anywhere, each shown at its place
    system_needs_user_end: bool = False  # the system text is shown only while the newest turn is the user's
    developer: bool = False
    repeated_roles: bool = True  # user after user, assistant after assistant
    assistant_first: bool = True
    needs_user: bool = False  # a conversation without a user turn is refused
    tools: bool = False
    tools_variable: str = "tools"
    tools_need_system: bool = False  # tools are shown only beside a system message, which may be empty
    calls: bool = False
    calls_need_tools: bool = False  # calls are shown only beside tools
    parallel_calls: bool = False
    content_with_calls: bool = True
    content_stays: bool = True  # content beside calls is still shown behind a later answer
    empty_answer: bool = True
    schemas: str = "given"  # of tools; "listed": they need properties, "full": each also one type and a description
    results: bool = False
    results_in_list: bool = False  # results of several calls are one message, whose content is a list of texts
    result_is_list: bool = False  # of one text: the template goes through its content
    arguments: str = "object"  # or "text"
    prints_arguments: bool = False  # an object would be written as Python prints it
    spoilt_arguments: bool = True  # if arguments are objects: malformed text is shown, too
    no_content: str = "null"  # how "no content" beside a call is said, a key of NO_CONTENT
    user_after_result: bool = True
    short_ids: bool = False  # call ids must be nine letters and digits
    names_in_ids: bool = False  # a call shows its id and no name: the name must be a part of it
    reasoning: str | None = None  # the key that earlier reasoning goes under; "block" for a part of the content
    reasoning_or_content: bool = False  # a message with calls may have one of the two only

    @property
    def keeps_content_with_calls(self) -> bool:
        """Whether what is said before a call needs no turn of its own. Where the template takes it for a thought, it
        goes when thoughts go: a turn of its own would be an answer, behind which earlier thoughts are left out."""
        return self.content_with_calls and (self.content_stays or self.reasoning_or_content)

    @property
    def says_all_system(self) -> bool:
        """Whether system messages need no other place."""
        return self.system and self.several_system and self.late_system and not self.system_needs_user_end


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
_ODD_FUNCTIONS: tuple[Dict, ...] = (
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


def _with_properties(function: Dict) -> Dict:
    return {**function, "parameters": {"properties": {}, **function["parameters"]}}


_USER = {"role": "user", "content": "zquser"}
_USER2 = {"role": "user", "content": "zqagain"}
_SYSTEM = {"role": "system", "content": "zqsystem"}
_SYSTEM2 = {"role": "system", "content": "zqlate"}
_ANSWER = {"role": "assistant", "content": "zqanswer"}
_ANSWER2 = {"role": "assistant", "content": "zqmore"}
NO_CONTENT: dict[str, Dict] = {
    "null": {"content": None},
    "empty": {"content": ""},
    "absent": {},
    "blank": {"content": " "},  # this and the next for templates that refuse a call without any words
    "thought": {"content": "", "reasoning_content": " "},
    "plan": {"content": "", "tool_plan": " "},
}
_BLANKS = ("blank", "thought", "plan")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def _call(value: str, arguments: str, id: str = "zqcall001") -> Dict:
    given: Any = {"zqkey": value} if arguments == "object" else json.dumps({"zqkey": value})
    return {"id": id, "type": "function", "function": {"name": "zqtool", "arguments": given}}


def _result(content: str, id: str = "zqcall001", in_list: bool = False) -> Dict:
    return {"role": "tool", "tool_call_id": id, "name": "zqtool", "content": [content] if in_list else content}


def examine(template: Renderer) -> Traits:
    """What this template accepts. Renders some thirty trial conversations: a few milliseconds."""

    always: Dict = {}

    def show(messages: list[Dict], tools: list[Dict] | None = None, prompt: bool = True, **variables: Any) -> str:
        try:
            copies = [dict(m) for m in messages]
            return template.render(copies, tools, prompt, {**always, **variables})
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
        "developer": "developer" in template.source and shows([{**_SYSTEM, "role": "developer"}, _USER], "zqsystem"),
        "repeated_roles": shows([_USER, _USER2], "zquser", "zqagain")
        and shows([_USER, _ANSWER, _ANSWER2, _USER2], "zqanswer", "zqmore"),
        "assistant_first": shows([_ANSWER, _USER], "zqanswer", "zquser"),
        "needs_user": not shows([_SYSTEM], "zqsystem") and shows([_SYSTEM, {**_USER, "content": ""}], "zqsystem"),
        "empty_answer": shows([_USER, {**_ANSWER, "content": ""}, _USER2], "zqagain"),
        "tools": tools_variable is not None,
        "tools_variable": tools_variable or "tools",
    }
    if tools_variable == "tools":
        found["tools_need_system"] = not shows([_USER], "zqtool", **given)
        odd = [{"type": "function", "function": function} for function in _ODD_FUNCTIONS]
        head = [{"role": "system", "content": ""}] if found["tools_need_system"] else []
        listed = [{"type": "function", "function": _with_properties(function)} for function in _ODD_FUNCTIONS]
        forms = {"given": odd, "listed": listed}
        found["schemas"] = next((form for form in forms if shows([*head, _USER], "zqodd", tools=forms[form])), "full")
    found.update(_examine_calls(show, given, show([_USER], **given).count("None")))
    if found["tools"] and not found["calls"]:  # such a template may show results all the same
        results = [_result("zqresult"), _result("zqsecond", "zqcall002")]
        found["results"] = shows(
            [_USER, _ANSWER, *results, _ANSWER2, _USER2], "zqanswer", "zqresult", "zqsecond", "zqagain", **given
        )
    found.update(_examine_system(show, found, given))
    found["reasoning"] = _find_reasoning(show, found, given)
    if found["reasoning"] and found["calls"]:
        both = {**_ANSWER, found["reasoning"]: "zqthought", "tool_calls": [_call("zqvalue", found["arguments"])]}
        found["reasoning_or_content"] = show([_USER, both, _result("zqresult")], **given) == ""
    return Traits(**found)


def _examine_system(show: Callable[..., str], found: Dict, given: Dict) -> Dict:
    """Where system messages are shown. One that the template gathers at its head, or leaves out, has no place."""
    calls: list[Dict] = []
    if found["calls"]:
        call = {"role": "assistant", **NO_CONTENT[found["no_content"]]}
        calls.append({**call, "tool_calls": [_call("zqvalue", found["arguments"])]})
        if found["results"]:
            calls.append(_result("zqresult", in_list=found["result_is_list"]))

    def is_late(late: Dict) -> bool:
        turns = [[_USER, late, _ANSWER, _USER2], [_USER, _ANSWER, late, _USER2], [_USER, _ANSWER, _USER2, late]]
        if len(calls) == 2:
            turns.append([_USER, *calls, late, _ANSWER])
        return all(_is_in_place(show, [*head, *turn], given) for turn in turns for head in ((_SYSTEM,), ()))

    roles = ("system", "developer") if found["developer"] else ("system",)
    ends = [show([_SYSTEM, _USER, *turns], **given) for turns in ([_ANSWER], calls[:1], calls)]
    several = (show([_SYSTEM, {**_SYSTEM2, "role": role}, _USER]) for role in roles)
    return {
        "several_system": all(-1 < text.find("zqsystem") < text.find("zqlate") for text in several),
        "late_system": all(is_late({**_SYSTEM2, "role": role}) for role in roles),
        "system_needs_user_end": found["system"] and any(text and "zqsystem" not in text for text in ends),
    }


def _is_in_place(show: Callable[..., str], messages: list[Dict], given: Dict) -> bool:
    """Whether all texts are shown in their order, and the late one leaves what stands before it as it was."""
    text, at = show(messages, **given), -1
    for message in messages:
        if _words_of(message):
            at = text.find(_words_of(message), at + 1)
            if at < 0:
                return False
    number = next(n for n, message in enumerate(messages) if message.get("content") == _SYSTEM2["content"])
    before = show(messages[:number], prompt=False, **given)
    last = _words_of(messages[number - 1]) or "zqvalue"
    return text.startswith(before[: before.rfind(last) + len(last)]) if last in before else False


def _words_of(message: Dict) -> str:
    content = message.get("content") or ""
    return content[0] if isinstance(content, list) else content


def _find_tools_variable(template: Renderer, show: Callable[..., str]) -> str | None:
    if "zqtool" in show([_USER], [_TOOL]) or "zqtool" in show([{"role": "system", "content": ""}, _USER], [_TOOL]):
        return "tools"
    for name in ("functions", "xml_tools", "custom_tools"):
        if name in template.variables:
            given = tools_elsewhere([_TOOL], Traits(tools_variable=name))
            if "zqtool" in show([_USER], **given):
                return name
    return None


def _examine_calls(show: Callable[..., str], given: Dict, nones: int) -> Dict:
    """The first combination of argument form and empty content with which a call is rendered intact. Words that say
    nothing come last, and only where they cost no result."""
    usual = tuple(name for name in NO_CONTENT if name not in _BLANKS)
    in_text, printed = False, ""  # the template writes arguments as a text of JSON, or as Python does
    for names, plain in ((usual, True), (_BLANKS, True), (usual, False)):
        if not plain and not in_text:
            break
        for arguments, no_content in product(("object", "text"), names):
            content = NO_CONTENT[no_content]

            def turn(*calls: Dict, content: Dict = content) -> Dict:
                return {"role": "assistant", **content, "tool_calls": list(calls)}

            call = _call("zqvalue", arguments)
            text = show([_USER, turn(call), _result("zqresult")], **given)
            if "zqvalue" not in text or "zqkey" not in text or text.count("None") > nones:
                continue
            if _PRINTED in text:
                printed = printed or text
            if plain and (_IN_TEXT.search(text) or _is_printed_text(text, printed)):
                in_text = True
                continue
            listed = "" if "zqresult" in text else show([_USER, turn(call), _result("zqresult", in_list=True)], **given)
            text, as_list = (listed, True) if "zqresult" in listed else (text, False)
            result, second = _result("zqresult", in_list=as_list), _result("zqsecond", "zqcall002", as_list)
            other = _call("zqother", arguments, "zqcall002")
            both = show([_USER, turn(call, other), result, second], **given)
            words = ("zqvalue", "zqother", "zqresult", "zqsecond")
            several = all(word in both for word in words)
            gathered = {**_result(""), "content": ["zqresult", "zqsecond"]}
            listed = "" if several else show([_USER, turn(call, other), gathered], **given)
            in_list = all(word in listed for word in words) and not re.search("zqresult.{1,4}zqsecond", listed)
            if names is _BLANKS and not ("zqresult" in text and (several or in_list)):
                continue  # with such words it loses a result
            spoilt = {**call, "function": {**call["function"], "arguments": "zqspoilt"}}
            long_id = _call("zqvalue", arguments, "call_zq_0123456789")
            spoken = [_USER, turn(call, content=_ANSWER), result]

            def said(*later: Dict) -> bool:
                there = show([*spoken, *later], **given)  # noqa: B023
                return "zqanswer" in there and "zqvalue" in there

            return {
                "calls": True,
                "calls_need_tools": "zqvalue" not in show([_USER, turn(call), result]),
                "arguments": arguments,
                "prints_arguments": bool(printed),
                "spoilt_arguments": "zqspoilt" in show([_USER, turn(spoilt), result], **given),
                "no_content": no_content,
                "results": "zqresult" in text,
                "content_with_calls": said(),
                "content_stays": said(_ANSWER2),
                "names_in_ids": "zqcall001" in text and _names_are_hidden(show, turn(call), given),
                "parallel_calls": several or in_list,
                "results_in_list": in_list,
                "result_is_list": as_list,
                "user_after_result": "zqagain" in show([_USER, turn(call), result, _USER2], **given),
                "short_ids": show([_USER, turn(long_id), _result("zqresult", "call_zq_0123456789")], **given) == "",
            }
    return {"calls": False, "no_content": "empty", "spoilt_arguments": False}


_PRINTED = "{'zqkey': 'zqvalue"
_IN_TEXT = re.compile(r"""'zqkey': *'zqvalue|(\\+)"zqkey\1": *\1"zqvalue""")


def _is_printed_text(text: str, printed: str) -> bool:
    """Whether arguments given as a text stand in quotes that those given as an object do not have."""
    return bool(printed) and "'" + '{"zqkey"' in text and "'" + _PRINTED not in printed


def _names_are_hidden(show: Callable[..., str], turn: Dict, given: Dict) -> bool:
    """Whether a call shows its id, and another name of its function leaves it as it is."""
    (call,) = turn["tool_calls"]
    renamed = {**turn, "tool_calls": [{**call, "function": {**call["function"], "name": "zqrenamed"}}]}
    return show([_USER, renamed], **given) == show([_USER, turn], **given)


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


def tools_elsewhere(tools: Sequence[Any] | None, traits: Traits) -> Dict:
    """Tools for a template that reads them under another name. `functions` is a JSON text."""
    if traits.tools_variable == "functions":
        return {"functions": json.dumps([t["function"] for t in tools or ()], ensure_ascii=False, indent=4)}
    return {traits.tools_variable: list(tools)} if tools else {}
