"""Keeps a long conversation small: clears old thoughts and old results of tools from what the model is shown.

Which results are cleared follows from the conversation alone. It is walked from turn to turn as it grew; whenever it
passes the limit, all results but the newest are cleared at once. So the requests of one conversation clear the same
results until it passes the limit again, and each finds the prefix of the one before in the cache.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from llamasrv.domain.context_edits import AppliedEdit, ClearResults, ContextEdits
from llamasrv.domain.request import ChatPrompt, MediaPart, Message, Part, TextPart, ToolCall

CLEARED = "[This tool result was cleared to keep the conversation short.]"
CLEARED_ARGUMENTS = '{"cleared":true}'
WINDOW_SHARE = 0.75
"""A limit is at most this share of the context: clients choose it for the sizes of hosted models, and beyond the
context the request would be refused."""


def edited(
    prompt: ChatPrompt,
    edits: ContextEdits,
    *,
    count: Callable[[ChatPrompt], int],
    weigh: Callable[[str], int],
    context: int,
) -> tuple[ChatPrompt, tuple[AppliedEdit, ...]]:
    """The prompt after the edits, and what they did. `count` returns the number of tokens in a prompt, `weigh` in a
    text; `context` is the model's context length."""
    applied: list[AppliedEdit] = []
    total: int | None = None
    if edits.thoughts is not None:
        messages, number = _without_thoughts(prompt.messages, edits.thoughts)
        if number:
            total, shorter = count(prompt), replace(prompt, messages=messages)
            left = count(shorter)
            applied.append(AppliedEdit("thoughts", number, max(0, total - left)))
            prompt, total = shorter, left
    rule = edits.results
    results = [] if rule is None else _clearable(prompt.messages, rule)
    if rule is not None and _may_clear(rule, len(results)):
        total = count(prompt) if total is None else total
        messages, number = _without_results(prompt, rule, results, total, weigh, context)
        if number:
            prompt = replace(prompt, messages=messages)
            applied.append(AppliedEdit("results", number, max(0, total - count(prompt))))
    return prompt, tuple(applied)


def _without_thoughts(messages: Sequence[Message], keep: int) -> tuple[tuple[Message, ...], int]:
    thinking = [at for at, message in enumerate(messages) if message.role == "assistant" and message.reasoning]
    old = frozenset(thinking[: max(0, len(thinking) - keep)])
    return tuple(replace(m, reasoning=None) if at in old else m for at, m in enumerate(messages)), len(old)


def _clearable(messages: Sequence[Message], rule: ClearResults) -> list[int]:
    """The places of the results that the rule is about."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        at
        for at, message in enumerate(messages)
        if message.role == "tool" and _tool_of(message, names) not in rule.excluded
    ]


def _may_clear(rule: ClearResults, num_results: int) -> bool:
    """Whether this number of results may need clearing. Usually not, and then no prompt is counted."""
    least = rule.keep if rule.max_tokens is not None or rule.max_results is None else max(rule.keep, rule.max_results)
    return num_results > least


def _without_results(
    prompt: ChatPrompt,
    rule: ClearResults,
    results: Sequence[int],
    total: int,
    weigh: Callable[[str], int],
    context: int,
) -> tuple[tuple[Message, ...], int]:
    messages = prompt.messages
    limit = None if rule.max_tokens is None else min(rule.max_tokens, int(WINDOW_SHARE * context))
    # The conversation has never been longer than it is now.
    fits = limit is None or total <= limit
    if fits and (rule.max_results is None or len(results) <= rule.max_results):
        return messages, 0
    number = _num_cleared(prompt, rule, results, total, weigh, limit)
    old = {messages[at].tool_call_id for at in results[:number]}
    after = list(messages)
    for at in results[:number]:
        after[at] = _cleared(messages[at])
    for at, message in enumerate(after):
        after[at] = _without_arguments(_without_media(message, old), old, rule.arguments)
    return tuple(after), number


def _num_cleared(
    prompt: ChatPrompt,
    rule: ClearResults,
    results: Sequence[int],
    total: int,
    weigh: Callable[[str], int],
    limit: int | None,
) -> int:
    """How many of the oldest results are cleared by the end of the conversation."""
    messages = prompt.messages
    weights = [weigh(_text_of(message)) for message in messages]
    head = weigh(json.dumps([[tool.name, tool.description, tool.parameters] for tool in prompt.tools], default=dict))
    # What the template adds, spread over the turns; so the whole weighs what it has in tokens.
    share = (total - head - sum(weights)) / len(messages)
    calls = {call.id: at for at, message in enumerate(messages) for call in message.tool_calls}
    cleared = weigh(CLEARED)
    saved = [0]  # by clearing the first n results
    for at in results:
        saving = weights[at] - cleared
        call = calls.get(messages[at].tool_call_id or "")
        if call is not None and rule.arguments:
            ids = {messages[at].tool_call_id}
            saving += weights[call] - weigh(_text_of(_without_arguments(messages[call], ids, rule.arguments)))
        saved.append(saved[-1] + saving)
    number, seen, size = 0, 0, float(head)
    for at, message in enumerate(messages):
        size += weights[at] + share
        seen += seen < len(results) and results[seen] == at
        is_request = message.role != "assistant" and (at + 1 == len(messages) or messages[at + 1].role == "assistant")
        if not is_request:
            continue
        passes = (limit is not None and size - saved[number] > limit) or (
            rule.max_results is not None and seen - number > rule.max_results
        )
        more = seen - rule.keep
        if passes and more > number and saved[more] - saved[number] >= rule.min_tokens:
            number = more
    return number


def _cleared(message: Message) -> Message:
    return replace(message, content=CLEARED)


def _without_arguments(message: Message, old: set[str | None], which: bool | frozenset[str]) -> Message:
    """The message with the arguments of these calls cleared, where that was asked for."""

    def clears(call: ToolCall) -> bool:
        return call.id in old and (which if isinstance(which, bool) else call.name in which)

    if not any(map(clears, message.tool_calls)):
        return message
    calls = (replace(call, arguments=CLEARED_ARGUMENTS) if clears(call) else call for call in message.tool_calls)
    return replace(message, tool_calls=tuple(calls))


def _tool_of(message: Message, names: dict[str, str]) -> str:
    return message.name or names.get(message.tool_call_id or "", "")


def _without_media(message: Message, old: set[str | None]) -> Message:
    """Without the images of cleared results, which stand in the turn behind them."""
    content = message.content
    if not isinstance(content, tuple) or not any(_belongs(part, old) for part in content):
        return message
    left = tuple(part for part in content if not _belongs(part, old))
    return replace(message, content=left or CLEARED)


def _belongs(part: Part, old: set[str | None]) -> bool:
    return isinstance(part, MediaPart) and part.result_of is not None and part.result_of in old


def _text_of(message: Message) -> str:
    content = message.content
    texts = [content] if isinstance(content, str) else [p.text for p in content or () if isinstance(p, TextPart)]
    calls = [f"{call.name}{call.arguments}" for call in message.tool_calls]
    return "\n".join([*texts, message.reasoning or "", *calls])
