"""Normalises conversations to what one template accepts.

`prepare` turns a ChatPrompt into the messages that this template gets: system turns at their place, turns merged where
roles must alternate, arguments as object or text, results in the order of their calls. Nothing a template can show
is dropped; what it cannot show (tools, calls, results) is written out as text. Knows no template language.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any

from llamasrv.chat.families import GENERIC_CALLS
from llamasrv.chat.formats import Calls
from llamasrv.chat.guard import Guard, Guarded
from llamasrv.chat.traits import NO_CONTENT, Traits
from llamasrv.chat.written import late_tools, operator_block, tool_of, unmarked, write_result, write_tools
from llamasrv.domain.request import ChatPrompt, Message, TextPart
from llamasrv.errors import InvalidRequest

Dict = dict[str, Any]
MOST_LEVELS = 100  # max depth of arguments passed to a template as an object; deeper ones stay text
_SYSTEM_ROLES = ("system", "developer")


@dataclass(slots=True)
class Conversation:
    """What a template receives."""

    messages: list[Dict]
    tools: list[Dict] | None
    add_generation_prompt: bool
    continues: str | None = None  # "content" or "reasoning": the last message goes on there
    held: str = ""  # the text that it already has there


def prepare(prompt: ChatPrompt, traits: Traits, calls: Calls | None = None, guard: Guard | None = None) -> Conversation:
    """The messages and tools for a template with these traits. `calls`: how the model writes calls; `guard`: replaces
    special tokens in what is written into a text together with marks of ours."""
    calls, guard = calls or GENERIC_CALLS, guard or Guard()
    if traits.calls_need_tools and not prompt.tools:
        traits = replace(traits, calls=False, results=False, spoilt_arguments=False)
    source: Sequence[Message] = late_tools(prompt.messages)
    continues = _continues(prompt)
    simple = all(m.role in ("user", "assistant", "system") and not m.tool_calls for m in source)
    if not simple:
        source = _ordered_results(source)
    if traits.names_in_ids:
        source = _with_names_in_ids(source, calls)
    names = {} if simple else _call_names(source)
    messages = [_plain_message(m, traits, names) for m in source]
    if not traits.developer:
        for message in messages:
            if message["role"] == "developer":
                message["role"] = "system"
    if prompt.tools and traits.tools_need_system and not (messages and messages[0]["role"] in _SYSTEM_ROLES):
        messages.insert(0, {"role": "system", "content": ""})
    if prompt.tools and not traits.tools:
        messages.insert(0, {"role": "system", "content": write_tools(prompt.tools, calls)})
    if not simple:
        _settle_calls(messages, traits, calls, guard)
    if not traits.says_all_system:
        _settle_system(messages, traits)
    if traits.results_in_list:
        messages = _gathered(messages)
    if not traits.repeated_roles:
        messages = _merged(messages, guard)
    if not simple and not traits.user_after_result:
        messages = _answered(messages)
    if not traits.empty_answer:
        for message in messages:
            if message["role"] == "assistant" and not message.get("content") and not message.get("tool_calls"):
                message["content"] = " "
    if not traits.assistant_first and messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": ""})
    if traits.needs_user and not any(message["role"] == "user" for message in messages):
        head = next((n for n, m in enumerate(messages) if m["role"] not in _SYSTEM_ROLES), len(messages))
        messages.insert(head, {"role": "user", "content": ""})
    if traits.result_is_list:
        for message in messages:
            if message["role"] == "tool":
                message["content"] = [message["content"]]
    if traits.parts:
        for message in messages:
            if isinstance(message.get("content"), str):
                message["content"] = [{"type": "text", "text": message["content"]}]
    tools = [tool_of(tool, traits.schemas) for tool in prompt.tools] if prompt.tools and traits.tools else None
    conversation = Conversation(messages, tools, prompt.add_generation_prompt and continues is None, continues)
    if continues is not None:
        last = source[-1]
        conversation.held = (last.reasoning or "") if continues == "reasoning" else _text(last.content)
    return conversation


def _continues(prompt: ChatPrompt) -> str | None:
    """Which part of the last message the answer continues, if the request wants that."""
    if not prompt.continue_final_message:
        return None
    last = prompt.messages[-1] if prompt.messages else None
    if last is None or last.role != "assistant" or last.tool_calls:
        raise InvalidRequest(
            "'continue_final_message' needs the last message to be the assistant's, without tool calls.",
            param="continue_final_message",
        )
    finished = not isinstance(last.content, str) and bool(
        last.content
    )  # an empty part of text stands behind the thought
    return "reasoning" if last.reasoning and not _text(last.content) and not finished else "content"


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
            plain.update(NO_CONTENT[traits.no_content])
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
    both = plain.get("tool_calls") and plain.get("content")
    if traits.reasoning_or_content and traits.keeps_content_with_calls and both:
        reasoning = f"{reasoning}\n\n{plain['content']}"
        plain["content"] = ""
    plain[traits.reasoning or "reasoning_content"] = reasoning


def _call_id(id: str, traits: Traits) -> str:
    if not traits.short_ids or (len(id) == 9 and id.isalnum()):
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:9]


def _arguments(text: str, traits: Traits) -> Any:
    """Arguments in the form that the template takes. Malformed ones (cut off, or no object) stay as they are, or become
    the only member of an object where the template would fail or leave them out."""
    if traits.arguments != "object":
        return text
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):  # RecursionError: of about a thousand levels
        value = text
    # What hides marks and what templates write by recursion would fail at some 400 levels.
    if isinstance(value, dict) and not _is_deeper(value, MOST_LEVELS):
        return value
    return text if traits.spoilt_arguments else {"arguments": text}


def _is_deeper(value: Any, levels: int) -> bool:
    here = [value]
    while here and levels:
        inner = chain.from_iterable(one.values() if type(one) is dict else one for one in here)
        here, levels = [one for one in inner if type(one) in (dict, list)], levels - 1
    return bool(here)


def _call_names(messages: Sequence[Message]) -> dict[str, str]:
    return {call.id: call.name for message in messages for call in message.tool_calls}


_ID_FORM = "functions.{name}:{index}"


def _with_names_in_ids(messages: Sequence[Message], calls: Calls) -> list[Message]:
    """Ids in the form in which the model writes them, counted through the conversation."""
    form = calls.notation.names_in_ids or _ID_FORM
    ids: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        for call in message.tool_calls:
            own = re.escape(form).replace(r"\{index\}", "[0-9]+").replace(r"\{name\}", re.escape(call.name))
            whole = form.replace("{name}", call.name).replace("{index}", str(len(ids)))
            ids[call.id] = call.id if re.fullmatch(own, call.id) else whole
        made = tuple(replace(call, id=ids[call.id]) for call in message.tool_calls)
        answered = ids.get(message.tool_call_id or "", message.tool_call_id)
        named.append(replace(message, tool_calls=made, tool_call_id=answered))
    return named


def _ordered_results(messages: Sequence[Message]) -> list[Message]:
    """Results moved behind the calls they answer, in the order of the calls."""
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


def _settle_calls(messages: list[Dict], traits: Traits, format: Calls, guard: Guard) -> None:
    """Calls and results in a form that this template can show. Calls that are written out keep their marks: in the
    prompts of later turns they are the tokens that the model wrote."""
    settled: list[Dict] = []
    for place, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and not traits.calls:
            said = guard.value([(c["function"]["name"], _as_text(c["function"]["arguments"])) for c in calls])
            written = Guarded(format.write([(name, arguments) for name, arguments in said]))
            content = message.get("content") or ""
            if isinstance(content, str):
                message["content"] = guard.joined([content, written], "\n") if content else written
            else:
                message["content"] = [*content, {"type": "text", "text": written}]
            del message["tool_calls"]
            settled.append(message)
            continue
        if calls and not traits.keeps_content_with_calls and _has_text(message.get("content")):
            settled.append({"role": "assistant", "content": message["content"]})
            if not traits.repeated_roles:
                settled.append({"role": "user", "content": ""})
            del message["content"]
            message.update({key: said for key, said in NO_CONTENT[traits.no_content].items() if not message.get(key)})
        if (
            calls
            and len(calls) > 1
            and not (traits.parallel_calls and _may_stay(message, messages[place + 1 :], traits))
        ):
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


def _may_stay(message: Dict, later: list[Dict], traits: Traits) -> bool:
    """Whether a turn of several calls can be shown as one. Where results go into a list there is one for each call,
    or none yet."""
    if not traits.results_in_list:
        return True
    return not later or len(_results(later)) == len(message["tool_calls"])


def _results(later: Sequence[Dict]) -> list[Dict]:
    """The results that a list of messages begins with."""
    return list(takewhile(lambda message: message["role"] == "tool", later))


def _gathered(messages: list[Dict]) -> list[Dict]:
    """The results of a turn of several calls as one message, whose content is a list."""
    gathered: list[Dict] = []
    for place, message in enumerate(messages):
        before = gathered[-1] if gathered else {}
        if message["role"] == "tool" and isinstance(before.get("content"), list):
            continue
        if len(before.get("tool_calls") or ()) > 1:
            message = {**message, "content": [result["content"] for result in _results(messages[place:])]}
        gathered.append(message)
    return gathered


def _one_by_one(message: Dict, messages: list[Dict], place: int) -> list[Dict]:
    """One call per message, each followed by its result: for templates without parallel calls."""
    turns: list[Dict] = []
    for number, call in enumerate(message["tool_calls"]):
        turns.append(
            {**message, "tool_calls": [call]}
            if number == 0
            else {
                "role": "assistant",
                "content": "" if message.get("content") else message.get("content"),
                "tool_calls": [call],
            }
        )
        for result in messages[place + 1 :]:
            if result["role"] != "tool":
                break
            if result["tool_call_id"] == call["id"] and not result.get("_placed"):
                turns.append(dict(result))
                result["_placed"] = True
    return turns


def _has_text(content: Any) -> bool:
    return isinstance(content, str) and bool(content.strip())  # a blank alone stands for no content


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _settle_system(messages: list[Dict], traits: Traits) -> None:
    """System turns where this template shows them: those of the head, and what is said later at its place.

    How a turn is written depends on what stands before it, never on what follows: prompts of later turns begin alike.
    """
    size = next((n for n, m in enumerate(messages) if m["role"] not in _SYSTEM_ROLES), len(messages))
    head, rest = messages[:size], messages[size:]
    if not traits.late_system:
        rest = _with_blocks(rest)
    if head and not traits.system:
        text = _joined_texts(head)
        if text and rest and rest[0]["role"] == "user":
            rest[0]["content"] = f"{text}\n\n{rest[0]['content']}"
        else:
            rest.insert(0, {"role": "user", "content": text})
        head = []
    elif len(head) > 1 and not traits.several_system:
        head = [{"role": head[0]["role"], "content": _joined_texts(head)}]
    if head and traits.system_needs_user_end and rest and rest[-1]["role"] != "user":
        newest = next((m for m in reversed(rest) if m["role"] == "user"), None)
        if newest is not None:  # where the template wrote it when this turn was the newest
            newest["content"] = f"{_joined_texts(head)}\n\n{newest['content']}"
            head = []
    messages[:] = head + rest


def _joined_texts(messages: Sequence[Dict]) -> str:
    return "\n\n".join(m["content"] for m in messages if m["content"])


def _with_blocks(messages: Sequence[Dict]) -> list[Dict]:
    """What the operator says late, as a marked block: of the user or tool turn before it, or of a user turn that
    follows the assistant's. Others cannot write the mark."""
    placed: list[Dict] = []
    opened = False  # the last turn is one that is made of blocks alone
    for message in messages:
        last = placed[-1] if placed else None
        if message["role"] not in _SYSTEM_ROLES:
            if message["role"] in ("user", "tool"):
                message["content"] = unmarked(message["content"])
                if "name" in message:
                    message["name"] = unmarked(message["name"])
            if opened and last is not None and message["role"] == "user":
                placed[-1] = {**message, "content": f"{last['content']}\n\n{message['content']}"}
            else:
                placed.append(message)
            opened = False
        elif message["content"]:
            block = operator_block(message["content"])
            if last is not None and last["role"] in ("user", "tool"):
                last["content"] = f"{last['content']}\n\n{block}" if last["content"] else block
            else:
                placed.append({"role": "user", "content": block})
                opened = True
    return placed


def _merged(messages: list[Dict], guard: Guard) -> list[Dict]:
    """Consecutive turns of one role, merged."""
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
            joined = guard.joined([text for text in (last["content"], message.get("content")) if text], "\n\n")
            merged[-1] = {**last, **message, "content": joined}
        else:
            merged.append(message)
    return merged


def _answered(messages: list[Dict]) -> list[Dict]:
    """An answer of a single space between a tool result and a user turn, for templates that require one."""
    answered: list[Dict] = []
    for message in messages:
        if message["role"] == "user" and answered and answered[-1]["role"] == "tool":
            answered.append({"role": "assistant", "content": " "})
        answered.append(message)
    return answered


def mark_ending(conversation: Conversation, traits: Traits, mark: str) -> None:
    """Put `mark` where the answer continues the last message, if this template shows that place."""
    last = conversation.messages[-1]
    content = last.get("content")
    if conversation.continues == "content":
        if isinstance(content, list):
            if not content or content[-1]["type"] != "text":
                content.append({"type": "text", "text": ""})
            content[-1]["text"] += mark
        elif isinstance(content, str):
            last["content"] = content + mark
    elif isinstance(content, list):
        if content and content[0]["type"] == "thinking":
            content[0]["thinking"] += mark
    elif traits.reasoning in last:
        last[traits.reasoning] += mark
