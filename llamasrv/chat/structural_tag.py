"""Partly constrained answers: free text in which an opened tag must hold what its schema says, and similar layouts.

The layout is a tree of dicts as `protocols` have checked it, each with a `type`: const_string, any_text, json_schema,
regex, sequence, or, tag, triggered_tags, tags_with_separator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llamasrv.chat.client_grammars import check_pattern
from llamasrv.chat.rules import TEXT, RuleWriter, escaped

Layout = Mapping[str, Any]


def rule(rules: RuleWriter, layout: Layout) -> str:
    """The body of a rule for a layout."""
    return _RULES[layout["type"]](rules, layout)


def _const(rules: RuleWriter, layout: Layout) -> str:
    return rules.constant(layout["value"])


def _schema(rules: RuleWriter, layout: Layout) -> str:
    return rules.schema(layout["json_schema"], lenient=False)


def _regex(rules: RuleWriter, layout: Layout) -> str:
    check_pattern(layout["pattern"])
    return rules.rule(f"/{escaped(layout['pattern'])}/")


def _sequence(rules: RuleWriter, layout: Layout) -> str:
    return " ".join(rules.rule(rule(rules, element)) for element in layout["elements"])


def _choice(rules: RuleWriter, layout: Layout) -> str:
    return rules.rule(" | ".join(rules.rule(rule(rules, element)) for element in layout["elements"]))


def _tag(rules: RuleWriter, tag: Layout, begun: str = "") -> str:
    """A tag whose part `begun` is already written."""
    begin = rules.constant(tag["begin"][len(begun) :]) if len(tag["begin"]) > len(begun) else ""
    content, end = tag["content"], tag["end"]
    if content["type"] == "any_text":
        return f"{begin} {rules.until(end)}"
    return f"{begin} {rules.rule(rule(rules, content))} {rules.constant(end)}"


def _triggered(rules: RuleWriter, layout: Layout) -> str:
    """Free text; a trigger must be followed by one of the tags that begin with it."""
    parts = []
    for trigger in layout["triggers"]:
        tags = [rules.rule(_tag(rules, tag, trigger)) for tag in layout["tags"] if tag["begin"].startswith(trigger)]
        if tags:
            parts.append(f"{rules.until(trigger)} ({' | '.join(tags)})")
    one = rules.rule(" | ".join(parts))
    if layout["stop_after_first"]:
        return one if layout["at_least_one"] else f"{one} | {TEXT}"
    return f"{one}{'+' if layout['at_least_one'] else '*'} {TEXT}"


def _separated(rules: RuleWriter, layout: Layout) -> str:
    one = rules.rule(" | ".join(rules.rule(_tag(rules, tag)) for tag in layout["tags"]))
    tags = one if layout["stop_after_first"] else f"{one} ({rules.literal(layout['separator'])} {one})*"
    return tags if layout["at_least_one"] else f"({tags})?"


_RULES: Mapping[str, Callable[[RuleWriter, Layout], str]] = {
    "const_string": _const,
    "any_text": lambda rules, layout: TEXT,
    "json_schema": _schema,
    "regex": _regex,
    "sequence": _sequence,
    "or": _choice,
    "tag": _tag,
    "triggered_tags": _triggered,
    "tags_with_separator": _separated,
}
