"""How deep a schema's references lead, and how long a text it fixes: bounds on what the grammar library does in one go.

It calls itself for each reference that it follows and for each level inside a definition. A text that leaves no choice
is written out and tokenised in one piece, however often an array repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from llamasrv.chat.client_grammars import check_fixed, check_pattern
from llamasrv.chat.references import MAX_REFERENCES, longest_chain
from llamasrv.chat.schema_termination import target_of
from llamasrv.errors import InvalidRequest

MAX_LEVELS = 4_000  # max levels of JSON along a chain of references
MAX_VISITS = 400_000  # max parts visited: definitions may be nested
_LONG_PATTERN = 64  # characters that a pattern fixes; shorter ones mostly leave a choice
_APART = ("$defs", "definitions")  # read only if something refers to them


def check_references(schema: Any, param: str) -> None:
    """Raises InvalidRequest."""
    if not isinstance(schema, Mapping):
        return
    graph, levels = _graph(schema, param)
    if longest_chain(graph, id(schema)) > MAX_REFERENCES:
        message = f"The schema's references lead more than {MAX_REFERENCES} levels deep."
        raise InvalidRequest(message, param=param)
    if longest_chain(levels, id(schema)) > MAX_LEVELS:
        raise InvalidRequest("The schema is nested too deeply.", param=param)
    _check_fixed(schema, param)


def _graph(schema: Mapping[str, Any], param: str) -> tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]:
    """What refers to what, by identity: each reference once, and the levels that it stands at."""
    references: dict[int, dict[int, int]] = {}
    levels: dict[int, dict[int, int]] = {}
    left: list[Mapping[str, Any]] = [schema]
    num_visits = 0
    while left:
        whole = left.pop()
        if id(whole) in references:
            continue
        one = references[id(whole)] = {}
        at = levels[id(whole)] = {}
        inner: list[tuple[Any, int]] = [(whole, 1)]
        while inner:
            part, level = inner.pop()
            num_visits += 1
            if isinstance(part, Mapping):
                target = target_of(schema, part.get("$ref"))
                if isinstance(target, Mapping):
                    one[id(target)] = 1
                    at[id(target)] = max(level, at.get(id(target), 0))
                    left.append(target)
                inner.extend((value, level + 1) for key, value in part.items() if key not in _APART)
            elif isinstance(part, (list, tuple)):
                inner.extend((value, level + 1) for value in part)
        if num_visits > MAX_VISITS:
            raise InvalidRequest("The schema is too large.", param=param)
    return references, levels


class _Fixed(NamedTuple):
    """The length of the longest text that a part fixes, and whether it leaves no choice at all."""

    size: int = 0
    whole: bool = False


_FREE = _Fixed()


def _check_fixed(schema: Mapping[str, Any], param: str) -> None:
    known: dict[int, _Fixed] = {}
    for part in _behind_their_parts(schema):
        known[id(part)] = found = _fixed(part, known, schema, param)
        check_fixed(found.size, param)


def _behind_their_parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All objects in the schema, each behind those inside and those that it refers to, but for circles."""
    seen = {id(schema)}
    path: list[tuple[Any, Iterator[Any]]] = [(schema, _inside(schema, schema))]
    while path:
        part, inner = path[-1]
        below = next((one for one in inner if id(one) not in seen), None)
        if below is not None:
            seen.add(id(below))
            path.append((below, _inside(below, schema)))
            continue
        path.pop()
        if isinstance(part, Mapping):
            yield part


def _inside(part: Any, schema: Any) -> Iterator[Any]:
    for value in part.values() if isinstance(part, Mapping) else part:
        if isinstance(value, (Mapping, list, tuple)):
            yield value
    if isinstance(part, Mapping) and (target := target_of(schema, part.get("$ref"))) is not None:
        if isinstance(target, Mapping):
            yield target


def _fixed(part: Mapping[str, Any], known: Mapping[int, _Fixed], schema: Any, param: str) -> _Fixed:
    def of(inner: Any) -> _Fixed:
        return known.get(id(inner), _FREE) if isinstance(inner, Mapping) else _FREE

    found = [_own(part, param), _object(part, of), _array(part, of)]
    if "$ref" in part:
        found.append(of(target_of(schema, part["$ref"])))
    for name in ("anyOf", "oneOf", "allOf"):
        branches = part.get(name)
        if isinstance(branches, (list, tuple)) and branches:
            inner = [of(branch) for branch in branches]
            whole = any(one.whole for one in inner) if name == "allOf" else len(inner) == 1 and inner[0].whole
            found.append(_Fixed(max(one.size for one in inner), whole))
    return _Fixed(max(one.size for one in found), any(one.whole for one in found))


def _own(part: Mapping[str, Any], param: str) -> _Fixed:
    values = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(values, (list, tuple)) and values:
        longest = max(len(value) if isinstance(value, str) else _json_length(value) for value in values)
        return _Fixed(longest + 2, len(values) == 1)
    pattern = part.get("pattern")
    if isinstance(pattern, str):
        size = check_pattern(pattern, param)
        return _Fixed(size, size > _LONG_PATTERN)
    return _Fixed(4, True) if part.get("type") == "null" else _FREE


def _json_length(value: Any) -> int:
    return len(json.dumps(value, default=dict)) if isinstance(value, (Mapping, list, tuple)) else 8


def _object(part: Mapping[str, Any], of: Any) -> _Fixed:
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, Mapping) or not isinstance(required, (list, tuple)):
        return _FREE
    names = {name for name in required if isinstance(name, str)}
    needed = [name for name in properties if name in names]
    runs = [(len(name) + 4, of(properties[name])) for name in needed]
    whole = len(needed) == len(properties) and part.get("additionalProperties") is False
    return _in_a_row(runs, whole)


def _array(part: Mapping[str, Any], of: Any) -> _Fixed:
    least, most = part.get("minItems"), part.get("maxItems")
    if not isinstance(least, int) or least < 1:
        return _FREE
    first = part.get("prefixItems")
    runs = [(2, of(item)) for item in (first[:least] if isinstance(first, (list, tuple)) else ())]
    rest = of(part.get("items"))
    if (more := least - len(runs)) > 0:
        runs.append((2, _Fixed((rest.size + 2) * more, True) if rest.whole else _Fixed(2 * rest.size)))
    return _in_a_row(runs, least == most)


def _in_a_row(runs: list[tuple[int, _Fixed]], whole: bool) -> _Fixed:
    """Parts one after another, each behind that many fixed characters."""
    longest = current = 0
    for before, part in runs:
        current += before + part.size
        longest = max(longest, current)
        if not part.whole:
            current, whole = part.size, False
    return _Fixed(longest, whole)
