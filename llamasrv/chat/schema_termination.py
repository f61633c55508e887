"""Tells whether a JSON schema has a finite value; one that refers to itself on every path has none.

A compiled grammar would follow such a schema until nothing can come next, amid an answer. Everything else that cannot
be satisfied is found when the grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_an_end(schema: Any) -> bool:
    """Whether some finite value satisfies the schema. Takes one pass over the schema and one over its references,
    whatever they are."""
    return _Graph(schema).holds()


class _Graph:
    """Parts of a schema that need all of some other parts, or one of them. A part that needs nothing has an end."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._numbers: dict[int, int] = {}  # number of each part, by its identity
        self._left: list[Any] = []  # parts whose needs are not known yet
        self._missing: list[int] = []  # by number: how many of its needs are not met
        self._users: list[list[int]] = []  # by number: the parts that need it
        self._met: list[int] = []
        self._start = self._number(root)
        while self._left:
            self._needs_of(self._left.pop())

    def holds(self) -> bool:
        missing, done = self._missing, set()
        while self._met:
            number = self._met.pop()
            if number in done:
                continue
            done.add(number)
            for user in self._users[number]:
                missing[user] -= 1
                if missing[user] == 0:
                    self._met.append(user)
        return self._start in done

    def _number(self, part: Any) -> int:
        number = self._numbers.get(id(part)) if isinstance(part, Mapping) else None
        if number is None:
            number = self._new()
            if isinstance(part, Mapping):
                self._numbers[id(part)] = number
                self._left.append(part)
            else:
                self._met.append(number)  # what is false here is found by others
        return number

    def _new(self) -> int:
        self._missing.append(0)
        self._users.append([])
        return len(self._missing) - 1

    def _needs_of(self, part: Mapping[str, Any]) -> None:
        number = self._numbers[id(part)]
        needs = [self._number(one) for one in _all_of(part)]
        target = target_of(self._root, part.get("$ref"))
        if target is not None:
            needs.append(self._number(target))
        for name in ("anyOf", "oneOf"):
            branches = part.get(name)
            if isinstance(branches, (list, tuple)) and branches:
                needs.append(self._one_of(branches))
        self._missing[number] = len(needs)
        for need in needs:
            self._users[need].append(number)
        if not needs:
            self._met.append(number)

    def _one_of(self, branches: Any) -> int:
        choice = self._new()
        self._missing[choice] = 1
        for branch in branches:
            self._users[self._number(branch)].append(choice)
        return choice


def target_of(root: Any, reference: Any) -> Any:
    """The target of a reference within the schema; None if it is not one."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    place = root
    for step in reference.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and step in place:
            place = place[step]
        elif isinstance(place, (list, tuple)) and step.isdecimal() and int(step) < len(place):
            place = place[int(step)]
        else:
            return None
    return place


def _all_of(part: Mapping[str, Any]) -> list[Any]:
    """The parts of a schema that every value must satisfy."""
    found: list[Any] = []
    branches = part.get("allOf")
    if isinstance(branches, (list, tuple)):
        found += branches
    kind = part.get("type")
    kind = kind[0] if isinstance(kind, (list, tuple)) and len(kind) == 1 else kind
    properties, required = part.get("properties"), part.get("required")
    if kind == "object" and isinstance(properties, Mapping) and isinstance(required, (list, tuple)):
        found += [properties[name] for name in required if isinstance(name, str) and name in properties]
    least = part.get("minItems")
    if kind == "array" and isinstance(least, int) and least > 0:
        first = part.get("prefixItems")
        first = list(first[:least]) if isinstance(first, (list, tuple)) else []
        found += first
        if least > len(first) and "items" in part:
            found.append(part["items"])
    return found
