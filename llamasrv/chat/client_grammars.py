"""Bounds on the grammars that clients write, in Lark or in llama.cpp's notation (GBNF).

Extracts only what the bounds need: rules, their references, and how much text they fix. The grammar library recurses
for each reference and parenthesis, and expands text without alternatives in one piece, however often it is repeated.
Whether a grammar is valid is not checked here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from llamasrv.chat.references import MAX_REFERENCES, longest_chain
from llamasrv.errors import InvalidRequest

MAX_LENGTH = 256 * 1024  # max characters of a grammar
MAX_PATTERN = 64 * 1024  # max characters of one regular expression
MAX_RULES = 2_000
FEW_RULES = 200  # up to this many are converted quickly in any order
MAX_NESTING = 200  # max depth of parentheses
MAX_FIXED = 32 * 1024  # characters of text without alternatives: about 50 ms of the engine's thread
MAX_OPTIONAL = 2_000  # parts in a row that may be left out: the parser follows all of them at once
# Else \u allows control characters alone: a model that begins \u00e9 is led to another character.
ESCAPES = {"json_allow_general_unicode_escapes": True}  # an option of the grammar library's JSON
MAX_AMBIGUITY = 20_000  # alternatives that may match nothing times places of their rule: 100,000 take 3 s for one token

_STRING = r'"(?:\\.|[^"\\\n])*"'
# In all of these an opening mark without its end is "bad" and stops reading: else the search would go on to the end of
# the text for each of them.
_COUNT = r"\{[ \t]{0,8}(?P<least>\d{1,12})?[ \t]{0,8}(?:,[ \t]{0,8}\d{0,12}[ \t]{0,8})?\}"
_LARK = re.compile(
    rf"""
      (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<json>%(?:json|regex)\s*(?=\{{))
    | (?P<string>{_STRING}i?)
    | (?P<regex>/(?:\\.|\[(?:\\.|[^\]\\\n])+\]|[^/\\\n\[])+/[a-z]*)
    | ^[ \t]*[?!]?(?P<head>\w+)[ \t]*(?:\[[^\]\n]*\])?(?:::\w+)?(?:\.\d+)?[ \t]*:(?!:)
    | {_COUNT} | ~\s*(?P<times>\d{{1,12}})
    | (?P<special><[^\n>]*>)
    | (?P<bad>["/<])
    | (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<or>\|) | (?P<word>%?\w+) | (?P<optional>[?*])
    """,
    re.VERBOSE | re.MULTILINE,
)
_GBNF = re.compile(
    rf"""
      (?P<comment>\#[^\n]*)
    | (?P<string>"(?:\\.|[^"\\])*")
    | (?P<special>\[(?:\\.|[^\]\\])*\]|\.|<[^\n>]*>)
    | (?P<bad>["\[<])
    | (?P<head>[\w-]+)\s*::=
    | {_COUNT}
    | (?P<open>\() | (?P<close>\)) | (?P<or>\|) | (?P<word>[\w-]+) | (?P<optional>[?*])
    """,
    re.VERBOSE,
)
_REGEX = re.compile(
    r"""
      (?P<special>\\(?:[pP](?:\{[^}]{0,64}\}|.)|[xu](?:\{[^}]{0,64}\}|[0-9a-fA-F]+)|.)|\[\^?\]?(?:\\.|[^\]\\])*\])
    | \{(?P<least>\d{1,12})(?:,\d*)?\}
    | (?P<open>\((?:\?(?:[a-zA-Z-]{0,16}:|P?<[^>]{0,64}>|[=!]|<[=!])?)?) | (?P<close>\)) | (?P<or>\|)
    | (?P<quantifier>[*+?])
    | (?P<bad>[\[\\])
    | (?P<char>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class _Op(NamedTuple):
    """A piece of a rule: text of a `size`, a reference to a rule (`name`), "(", ")", "|", "times" for a repetition, or
    "?" behind what may be left out."""

    kind: str
    size: int = 0
    name: str = ""


@dataclass(slots=True)
class _Rule:
    start: int  # its position in the text
    ops: list[_Op] = field(default_factory=list)


def check_lark(text: str) -> tuple[str, list[Any]]:
    """The same grammar, where the texts of its `%json` may hold any escape, and those JSON schemas, which have bounds
    of their own. Raises InvalidRequest."""
    rules, schemas = _read(text, _LARK)
    _check(rules, "start")
    _check_ambiguity({name: rule for name, rule in rules.items() if not name.isupper()})  # terminals are not parsed
    parts, end = [], 0
    for start, schema in schemas:
        if "x-guidance" not in schema:
            parts += [text[end : start + 1], f'"x-guidance": {json.dumps(ESCAPES)}', ", " if schema else ""]
            end = start + 1
    return "".join((*parts, text[end:])), [schema for _, schema in schemas]


def check_gbnf(text: str) -> str:
    """The same grammar with each rule after those it refers to, where possible: the converter passes over all rules
    again as long as one precedes its parts. Raises InvalidRequest."""
    rules, _ = _read(text, _GBNF)
    order = _check(rules, "root")
    _check_ambiguity(rules)
    by_place = sorted(rule.start for rule in rules.values())
    ends = dict(zip(by_place, [*by_place[1:], len(text)]))
    if len(rules) <= FEW_RULES:
        return text  # errors then refer to its own lines
    parts = [text[rules[name].start : ends[rules[name].start]].rstrip() for name in order if name in rules]
    return "\n".join(filter(None, [text[: by_place[0]].rstrip(), *parts])) + "\n"


def check_pattern(pattern: str, param: str = "content") -> int:
    """How much text a regular expression may fix. Raises InvalidRequest."""
    if len(pattern) > MAX_PATTERN:
        raise InvalidRequest(f"A pattern is longer than {MAX_PATTERN} characters.", param=param)
    return check_fixed(_fixed(_pattern_ops(pattern), {}), param)


def check_fixed(size: int, param: str = "content") -> int:
    if size > MAX_FIXED:
        message = f"The schema or grammar fixes a text of more than {MAX_FIXED} characters, repetitions included."
        raise InvalidRequest(message, param=param)
    return size


def _read(text: str, tokens: re.Pattern[str]) -> tuple[dict[str, _Rule], list[tuple[int, Any]]]:
    """The rules, and the JSON schemas with the place where each begins."""
    if len(text) > MAX_LENGTH:
        raise InvalidRequest(f"The grammar is longer than {MAX_LENGTH} characters.", param="content")
    rules: dict[str, _Rule] = {}
    schemas: list[tuple[int, Any]] = []
    ops: list[_Op] = []  # text before the first rule has no effect
    depth = position = 0
    while (found := tokens.search(text, position)) is not None:
        position = found.end()
        kind = found.lastgroup
        if kind == "head":
            name = found["head"]
            depth = 0
            rule = rules.setdefault(name, _Rule(found.start()))
            ops = rule.ops
            if len(rules) > MAX_RULES:
                raise InvalidRequest(f"The grammar has more than {MAX_RULES} rules.", param="content")
        elif kind == "string":
            ops.append(_Op("text", len(found[0]) - 2))
        elif kind == "special":
            if found[0] in ("[]", "[^]"):
                line = text.count("\n", 0, position) + 1
                raise InvalidRequest(f"The grammar cannot be read: line {line}: {found[0]} is empty.", param="content")
            ops.append(_Op("text", 1))
        elif kind == "regex":
            ops.append(_Op("text", _fixed(_pattern_ops(found[0][1:].rpartition("/")[0]), {})))
        elif kind == "json":
            start = position
            value, position = _json_at(text, start)
            if found[0].startswith("%json"):
                schemas.append((start, value))
            ops.append(_Op("text", 0))
        elif kind == "word":
            ops.append(_Op("name", name=found[0]))
        elif kind in ("open", "close", "or"):
            depth += (kind == "open") - (kind == "close")
            if depth > MAX_NESTING:
                raise InvalidRequest("The grammar is nested too deeply.", param="content")
            ops.append(_Op({"open": "(", "close": ")", "or": "|"}[kind]))
            if found[0] == "]":
                ops.append(_Op("?"))
        elif kind in ("least", "times"):
            ops.append(_Op("times", int(found[kind])))
        elif kind == "optional" or found[0].startswith("{"):
            ops.append(_Op("?"))
        elif kind == "bad":
            line = text.count("\n", 0, position) + 1
            raise InvalidRequest(f"The grammar cannot be read: line {line}: {found[0]} has no end.", param="content")
    return rules, schemas


def _json_at(text: str, position: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except ValueError:
        raise InvalidRequest("The grammar holds JSON that cannot be read.", param="content") from None
    except RecursionError:
        raise InvalidRequest("The grammar is nested too deeply.", param="content") from None


def _check(rules: dict[str, _Rule], start: str) -> list[str]:
    """Check depths and sizes. Returns the names of the rules, each after those it refers to, where possible."""
    graph = {name: {op.name: 1 for op in rule.ops if op.name in rules} for name, rule in rules.items()}
    graph[""] = dict.fromkeys(rules, 0)  # rules that `start` does not reach are read, too
    if longest_chain(graph, "") > MAX_REFERENCES:
        message = f"The grammar's rules refer to each other more than {MAX_REFERENCES} levels deep."
        raise InvalidRequest(message, param="content")
    order = list(_behind_their_parts(graph, start))
    sizes: dict[str, int] = {}
    for name in order:
        sizes[name] = check_fixed(_fixed(rules[name].ops, sizes)) if name in rules else 0
    for name, rule in rules.items():
        if _num_optional(rule.ops) > MAX_OPTIONAL:
            message = f"The rule '{name}' has more than {MAX_OPTIONAL} parts in a row that may be left out."
            raise InvalidRequest(message, param="content")
    return order


def _num_optional(ops: Sequence[_Op]) -> int:
    """The largest number of parts in a row that may be left out."""
    longest, runs = 0, [0]  # the current run of each open parenthesis
    for place, (kind, _, _) in enumerate(ops):
        if kind == "(":
            runs.append(0)
            continue
        if kind == "|":
            runs[-1] = 0
            continue
        if kind == ")" and len(runs) > 1:
            runs.pop()
        if kind in ("text", "name", ")"):
            behind = ops[place + 1] if place + 1 < len(ops) else None
            is_optional = behind is not None and (behind.kind == "?" or (behind.kind == "times" and not behind.size))
            runs[-1] = runs[-1] + 1 if is_optional else 0
            longest = max(longest, runs[-1])
    return longest


def _check_ambiguity(rules: dict[str, _Rule]) -> None:
    """Bound what the parser does between two tokens: each alternative of a rule that matches nothing brings on every
    place where the rule stands."""
    places = Counter(op.name for rule in rules.values() for op in rule.ops if op.kind == "name")
    total = 0
    for name, rule in rules.items():
        alternatives = _num_empty(rule.ops, rules)
        total += alternatives * places[name]
        if total > MAX_AMBIGUITY:
            message = (
                f"The grammar is too ambiguous: the rule '{name}' has {alternatives} alternatives that may match "
                f"nothing, and is used {places[name]} times."
            )
            raise InvalidRequest(message, param="content")


def _num_empty(ops: Sequence[_Op], rules: Container[str]) -> int:
    """The number of alternatives that match nothing if no rule matches anything."""
    frames: list[tuple[int, list[bool]]] = [(0, [])]  # per parenthesis: number of empty alternatives; parts with text
    for kind, size, name in (*ops, _Op("|")):
        num_empty, parts = frames[-1]
        if kind in ("text", "name"):
            parts.append(kind == "text" or name not in rules)
        elif kind == "(":
            frames.append((0, []))
        elif kind == "|":
            frames[-1] = num_empty + (not any(parts)), []
        elif kind == ")":
            if len(frames) > 1:
                frames.pop()
                frames[-1][1].append(any(parts) and not num_empty)
        elif parts and (kind == "?" or not size):
            parts[-1] = False
    return frames[0][0]


def _behind_their_parts(graph: dict[str, dict[str, int]], start: str) -> Iterator[str]:
    seen = {""}
    for first in (start, *graph):
        if first in seen or first not in graph:
            continue
        seen.add(first)
        path = [(first, iter(graph[first]))]
        while path:
            name, targets = path[-1]
            below = next((target for target in targets if target not in seen), None)
            if below is None:
                path.pop()
                yield name
            else:
                seen.add(below)
                path.append((below, iter(graph[below])))


def _pattern_ops(pattern: str) -> list[_Op]:
    ops: list[_Op] = []
    depth = 0
    for found in _REGEX.finditer(pattern):
        kind = found.lastgroup
        if kind == "least":
            ops.append(_Op("times", int(found["least"])))
        elif kind in ("special", "char"):
            ops.append(_Op("text", 1))
        elif kind == "bad":
            raise InvalidRequest(f"A pattern cannot be read: {found[0]} has no end.", param="content")
        elif kind in ("open", "close", "or"):
            depth += (kind == "open") - (kind == "close")
            if depth > MAX_NESTING:
                raise InvalidRequest("A pattern is nested too deeply.", param="content")
            ops.append(_Op({"open": "(", "close": ")", "or": "|"}[kind]))
    return ops


def _fixed(ops: Sequence[_Op], sizes: dict[str, int]) -> int:
    """The length of the longest text that this may fix. Rules in `sizes` are known; others are taken as empty, since
    what refers to itself leaves a choice. So does a part that may be left out: a text ends before it."""
    frames = [[0, 0, 0]]  # the longest branch, the current one, and its last part, for each open parenthesis
    for kind, size, name in ops:
        frame = frames[-1]
        if kind in ("text", "name"):
            frame[2] = size if kind == "text" else sizes.get(name, 0)
            frame[1] += frame[2]
        elif kind == "(":
            frames.append([0, 0, 0])
        elif kind == ")":
            if len(frames) > 1:
                frames.pop()
                frames[-1][2] = max(frame[0], frame[1])
                frames[-1][1] += frames[-1][2]
        elif kind == "|":
            frame[0], frame[1], frame[2] = max(frame[0], frame[1]), 0, 0
        elif kind == "times":
            frame[1] += frame[2] * (max(size, 1) - 1)
            frame[2] *= max(size, 1)
        elif kind == "?":
            frame[0], frame[1] = max(frame[0], frame[1] - frame[2]), frame[2]
    return max(frames[0][0], sum(frame[1] for frame in frames))
