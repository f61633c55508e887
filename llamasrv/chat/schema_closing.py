"""Closes a JSON schema's objects: names that an object does not declare may not be written.

JSON Schema lets an object have any further property; who writes a schema by hand or with Pydantic means those that are
declared, and a small model keeps inventing names until its tokens run out. So an object that declares properties and
says nothing of `additionalProperties` (or `unevaluatedProperties`) is closed; one that declares none stays free. Where
the type is missing, who declares properties means an object.

    properties, required, patternProperties    what is declared; beside `allOf`, `anyOf`, `oneOf` and `$ref` the names
                                               of all branches count together, and no branch is closed by itself
    a branch that says `additionalProperties`, `if`, `dependentSchemas`, or refers elsewhere: nothing is closed there

Annotations are left out: they bind nothing, and would be most of a grammar's text. In patterns `.` and `\\S` match
no control characters, and negated classes none but tabs and line breaks: in texts with a pattern the grammar library
has no other escape `\\uXXXX`, so that a model that began `\\u00e9` would be led to `\\u0019`. And it takes a class with
all of them for one that has the quote and the backslash, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llamasrv.chat.schema_termination import target_of
from llamasrv.errors import InvalidRequest

MAX_DEPTH = 400  # max depth of a schema: each level is one of the interpreter's calls
_ANNOTATIONS = frozenset((
    "title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly",
))  # fmt: skip
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\.", re.DOTALL)
_PRINTABLE = {".": r"\P{Cc}", r"\S": r"[^\s\p{Cc}]"}
_RARE = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f"  # control characters that are in no text
_ALL_CHARACTERS = re.compile(r"\(\?[a-zA-Z]*s")  # the flag that lets `.` match line feeds, too
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "propertyNames")
_BRANCHES = ("allOf", "anyOf", "oneOf")
_SAYS = frozenset(
    (
        "additionalProperties",
        "unevaluatedProperties",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "$dynamicRef",
    )
)
_SAYS_WHAT = frozenset(("type", "enum", "const"))


def closed(schema: Any, param: str) -> Any:
    """The schema with its objects closed. Raises InvalidRequest if it is nested too deeply."""
    if not isinstance(schema, Mapping):
        return schema
    return _Closing(schema, param).whole()


def printable(pattern: str) -> str:
    """The pattern where `.` and `\\S` match no control characters, and negated classes no rare ones."""
    has_flag = _ALL_CHARACTERS.search(pattern) is not None

    def changed(found: re.Match[str]) -> str:
        atom = found[0]
        if atom.startswith("[^") and atom != "[^]":
            first = "\\" if atom[2] in "]-" else ""  # there they are literal
            return f"[^{_RARE}{first}{atom[2:]}"
        return atom if has_flag else _PRINTABLE.get(atom, atom)

    return _ATOM.sub(changed, pattern)


class _Closing:
    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root, self._param = root, param
        self._open: dict[int, str] = {}  # names of definitions that are not closed by themselves, by identity
        self._added: dict[str, Any] = {}  # by name: those definitions

    def whole(self) -> dict[str, Any]:
        made = self._part(self._root, 0)
        assert isinstance(made, dict)
        if self._added:
            definitions = made.get("$defs")
            made["$defs"] = {**(definitions if isinstance(definitions, Mapping) else {}), **self._added}
        return made

    def _part(self, part: Any, depth: int, *, is_branch: bool = False) -> Any:
        """A part of the schema. A branch is not closed by itself: its object has other names, too."""
        if not isinstance(part, Mapping):
            return part
        if depth > MAX_DEPTH:
            raise InvalidRequest("The schema is nested too deeply.", param=self._param)
        names = None if is_branch else self._names_of(part)
        joined = is_branch or _is_joined(part)
        made: dict[str, Any] = {}
        for key, value in part.items():
            if key in _ANNOTATIONS or (key == "unevaluatedProperties" and value is True):
                continue
            if key in _MAPS and isinstance(value, Mapping):
                patterns = key == "patternProperties"
                value = {
                    printable(name) if patterns else name: self._part(inner, depth + 1) for name, inner in value.items()
                }
            elif key in _LISTS and isinstance(value, (list, tuple)):
                within = joined and key in _BRANCHES
                value = [self._part(inner, depth + 1, is_branch=within) for inner in value]
            elif key in _SINGLE:
                value = self._part(value, depth + 1)
            elif key == "pattern" and isinstance(value, str):
                value = printable(value)
            elif key == "$ref" and joined:
                value = self._open_reference(value, depth)
            made[key] = value
        if names is not None:
            self._close(made, *names)
            if not joined and not _SAYS_WHAT & made.keys():
                made["type"] = "object"
        return made

    @staticmethod
    def _close(made: dict[str, Any], names: dict[str, None], patterns: dict[str, None]) -> None:
        made.pop("unevaluatedProperties", None)
        declared = made.get("properties")
        declared = declared if isinstance(declared, dict) else {}
        made["properties"] = {**declared, **{name: True for name in names if name not in declared}}
        known = made.get("patternProperties")
        known = known if isinstance(known, dict) else {}
        if patterns or known:
            made["patternProperties"] = {**known, **{name: True for name in patterns if name not in known}}
        made["additionalProperties"] = False

    def _open_reference(self, reference: Any, depth: int) -> Any:
        """The reference to a definition that is not closed by itself."""
        target = target_of(self._root, reference)
        if not isinstance(target, Mapping):
            return reference
        name = self._open.get(id(target))
        if name is None:
            name = self._open[id(target)] = f"llamasrv-open-{len(self._open)}"
            self._added[name] = self._part(target, depth + 1, is_branch=True)
        return f"#/$defs/{name}"

    def _names_of(self, part: Mapping[str, Any]) -> tuple[dict[str, None], dict[str, None]] | None:
        """The names, and patterns of names, that an object declares together with its branches; None if it is not to
        be closed."""
        if not (part.get("properties") or _is_joined(part)) or not _is_closable(part):
            return None
        names: dict[str, None] = {}
        patterns: dict[str, None] = {}
        declares = False
        seen: set[int] = set()
        left = [part]
        while left:
            branch = left.pop()
            if id(branch) in seen:
                continue
            seen.add(id(branch))
            if branch is not part and (_SAYS & branch.keys() or not _is_closable(branch)):
                return None
            declared, required = branch.get("properties"), branch.get("required")
            if isinstance(declared, Mapping):
                declares = declares or bool(declared)
                names.update(dict.fromkeys(declared))
            if isinstance(required, (list, tuple)):  # a name without a schema of its own can be anything
                names.update(dict.fromkeys(name for name in required if isinstance(name, str)))
            if isinstance(found := branch.get("patternProperties"), Mapping):
                patterns.update(dict.fromkeys(map(printable, found)))
            left += reversed(list(_branches(branch)))
            if "$ref" in branch:
                target = target_of(self._root, branch["$ref"])
                if not isinstance(target, Mapping):
                    return None
                left.append(target)
        return (names, patterns) if declares else None


def _is_joined(part: Mapping[str, Any]) -> bool:
    """Whether a value has to satisfy several parts of it at once; a single `anyOf` or `$ref` stands for itself."""
    return bool(part.get("allOf")) or sum(bool(part.get(key)) for key in ("properties", "anyOf", "oneOf", "$ref")) > 1


def _is_closable(part: Mapping[str, Any]) -> bool:
    """Whether it does not mention further names, or excludes them."""
    return not (_SAYS - {"unevaluatedProperties"}) & part.keys() and part.get("unevaluatedProperties") in (None, False)


def _branches(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in _BRANCHES:
        value = part.get(key)
        if isinstance(value, (list, tuple)):
            yield from (one for one in value if isinstance(one, Mapping))
