"""Anthropic's `context_management`: edits that keep a long conversation small, and how the reply reports them.

    clear_thinking_20251015     thoughts of older turns are not shown to the model
    clear_tool_uses_20250919    old results of tools become a short notice once a limit is passed
    compact_20260112            a summary takes the place of the older turns once a limit is passed; the reply begins
                                with it, as a block that the client sends back

Edits of other types have no effect and are named in the header `x-llamasrv-ignored`: agents send them with every
request, and do not repeat one that was refused for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llamasrv.domain.context_edits import AppliedEdit, ClearResults, Compact, ContextEdits
from llamasrv.protocols.common.schema import Invalid, Object, check_length, expect, expect_or_none

THINKING = "clear_thinking_20251015"
TOOL_USES = "clear_tool_uses_20250919"
COMPACT = "compact_20260112"

_TRIGGER_TOKENS = 100_000
_COMPACT_TOKENS = 150_000
MAX_INSTRUCTIONS = 16_384  # max characters
_MAX_EDITS = 16
_MAX_NAMES = 1_000
_MAX_VALUE = 2**31 - 1


class ContextManagement(Object):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ContextEdits:
        edits = value.get("edits")
        if edits is None:
            return ContextEdits()
        expect(list, edits, "edits")
        check_length(edits, _MAX_EDITS, "edits", "edits")
        results: ClearResults | None = None
        thoughts: int | None = None
        compact: Compact | None = None
        seen: set[str] = set()
        for at, edit in enumerate(edits):
            kind = _type_of(edit, "edits", at)
            if kind in seen:
                raise Invalid(f"'{kind[:40]}' is given twice.", "edits", at, "type")
            seen.add(kind)
            if kind == THINKING:
                if at:
                    raise Invalid(f"'{THINKING}' must be the first edit.", "edits", at, "type")
                thoughts = _kept_thoughts(edit.get("keep"), "edits", at, "keep")
            elif kind == TOOL_USES:
                results = _cleared_results(edit, "edits", at)
            elif kind == COMPACT:
                compact = _compacted(edit, "edits", at)
        return ContextEdits(results, thoughts, compact)

    def unheard_in(self, value: Any) -> Iterable[str]:
        """The edits that have no effect, as `edits.TYPE`."""
        edits = value.get("edits") if type(value) is dict else None
        kinds = (edit["type"] for edit in edits or () if edit["type"] not in (THINKING, TOOL_USES, COMPACT))
        return [f"edits.{kind[:64]}" for kind in kinds]


def applied_body(applied: Iterable[AppliedEdit]) -> dict[str, Any]:
    """A summary is reported by its block instead."""
    return {"applied_edits": [_applied(edit) for edit in applied if edit.kind != "summary"]}


def _applied(edit: AppliedEdit) -> dict[str, Any]:
    if edit.kind == "thoughts":
        return {
            "type": THINKING,
            "cleared_thinking_turns": edit.number,
            "cleared_input_tokens": edit.num_tokens,
        }
    return {"type": TOOL_USES, "cleared_tool_uses": edit.number, "cleared_input_tokens": edit.num_tokens}


def _type_of(edit: Any, *path: int | str) -> str:
    expect(dict, edit, *path)
    kind = edit.get("type")
    return expect(str, kind, *path, "type")


def _kept_thoughts(keep: Any, *path: int | str) -> int | None:
    """Number of newest turns whose thoughts are kept; None: all. By default one, as at Anthropic."""
    if keep is None:
        return 1
    if keep == "all":
        return None
    kind = _type_of(keep, *path)
    if kind == "all":
        return None
    if kind != "thinking_turns":
        raise Invalid("expected 'all' or 'thinking_turns'.", *path, "type")
    return _count(keep, 1, *path)


def _cleared_results(edit: Mapping[str, Any], *path: int | str) -> ClearResults:
    trigger, keep, least = edit.get("trigger"), edit.get("keep"), edit.get("clear_at_least")
    max_tokens: int | None = _TRIGGER_TOKENS
    max_results: int | None = None
    if trigger is not None:
        kind, value = _measured(trigger, ("input_tokens", "tool_uses"), 1, *path, "trigger")
        max_tokens, max_results = (value, None) if kind == "input_tokens" else (None, value)
    return ClearResults(
        max_tokens,
        max_results,
        keep=3 if keep is None else _measured(keep, ("tool_uses",), 0, *path, "keep")[1],
        min_tokens=0 if least is None else _measured(least, ("input_tokens",), 0, *path, "clear_at_least")[1],
        excluded=_names(edit.get("exclude_tools"), *path, "exclude_tools"),
        arguments=_inputs(edit.get("clear_tool_inputs"), *path, "clear_tool_inputs"),
    )


def _compacted(edit: Mapping[str, Any], *path: int | str) -> Compact:
    trigger, pause, order = edit.get("trigger"), edit.get("pause_after_compaction"), edit.get("instructions")
    expect_or_none(bool, pause, *path, "pause_after_compaction")
    limit = _COMPACT_TOKENS if trigger is None else _measured(trigger, ("input_tokens",), 1, *path, "trigger")[1]
    return Compact(limit, "" if order is None else instructions_of(order, *path, "instructions"), bool(pause))


def instructions_of(text: Any, *path: int | str) -> str:
    """The client's instructions for the summary. Raises Invalid."""
    asked = expect(str, text, *path)
    if not asked.strip() or len(asked) > MAX_INSTRUCTIONS:
        raise Invalid(f"expected 1 to {MAX_INSTRUCTIONS} characters.", *path)
    return asked


def _inputs(value: Any, *path: int | str) -> bool | frozenset[str]:
    if value is None or type(value) is bool:
        return bool(value)
    expect(list, value, *path, what="a boolean or an array of names")
    return _names(value, *path)


def _names(value: Any, *path: int | str) -> frozenset[str]:
    if value is None:
        return frozenset()
    expect(list, value, *path, what="an array of names")
    check_length(value, _MAX_NAMES, "names", *path)
    for at, name in enumerate(value):
        expect(str, name, *path, at)
    return frozenset(value)


def _measured(value: Any, kinds: tuple[str, ...], least: int, *path: int | str) -> tuple[str, int]:
    kind = _type_of(value, *path)
    if kind not in kinds:
        raise Invalid(f"expected {' or '.join(map(repr, kinds))}.", *path, "type")
    return kind, _count(value, least, *path)


def _count(value: Mapping[str, Any], least: int, *path: int | str) -> int:
    number = expect(int, value.get("value"), *path, "value")
    if not least <= number <= _MAX_VALUE:
        raise Invalid(f"integer out of range, got {number}.", *path, "value")
    return number
