"""Bounds on the JSON schemas of one grammar: a schema that would take too long to compile is refused up front."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llamasrv.errors import InvalidRequest

MAX_PARTS = 200_000  # max objects, arrays and values of all schemas together
MAX_PROPERTIES = 1_500  # max properties in total: compile time is quadratic in their number
MAX_OPTIONAL = 600  # optional properties of one object: time per property written is quadratic in it, 5 ms for 640
MAX_PATTERN_NAMES = 64  # max names in `patternProperties`, in total: each pair is intersected, about 30 ms for 30
MAX_CHOICES = 30_000  # max values of `enum`, together
MAX_CHOICE_TEXT = 512 * 1024  # characters of these values in total: 1.3 million take 0.1 s of a core
MAX_NESTED = 4_000  # arrays and objects in values of `enum` and `const`, in total: 0.05 ms each
MAX_CONSTANTS = 64 * 1024  # characters of `const`, and of names and values of `enum` that are long, together
MAX_PATTERNS = 128 * 1024  # max characters of `pattern`, together
_LONG = 256  # characters from which a value counts as long
_VALUES = frozenset(("enum", "const"))
MAX_MULTIPLE = 10_000  # max `multipleOf` of an integer: one state per remainder
MAX_MULTIPLES = 20_000  # max sum of all `multipleOf`


class SchemaBounds:
    """Adds up the cost of the schemas in one grammar."""

    def __init__(self) -> None:
        self._parts = self._properties = self._choices = self._multiples = self._constants = 0
        self._patterns = self._choice_text = self._pattern_names = self._nested = 0

    def add(self, schema: Any, param: str) -> None:
        """Raises InvalidRequest, naming the keyword, if the total becomes too much."""
        left = [(schema, "")]  # and the keyword whose value it is in: `enum`, `const` or ""
        while left:
            part, within = left.pop()
            if isinstance(part, Mapping):
                self._parts += len(part)
                self._count(part, param)
                left.extend((value, within or (key if key in _VALUES else "")) for key, value in part.items())
            elif isinstance(part, (list, tuple)):
                self._parts += len(part)
                left.extend((item, within) for item in part)
            else:
                continue
            if within:
                self._nested += 1
                if self._nested > MAX_NESTED:
                    message = f"The values of the schema's '{within}' have more than {MAX_NESTED} arrays and objects."
                    raise InvalidRequest(message, param=param)
            if self._parts > MAX_PARTS:
                raise InvalidRequest("The schema is too large.", param=param)

    def _count(self, part: Mapping[str, Any], param: str) -> None:
        properties, choices, multiple = part.get("properties"), part.get("enum"), part.get("multipleOf")
        if isinstance(properties, Mapping):
            self._properties += len(properties)
            _check("properties", self._properties, MAX_PROPERTIES, param)
            self._count_long(properties, "properties", param)
            _check_optional(properties, part.get("required"), param)
        if isinstance(patterns := part.get("patternProperties"), Mapping):
            self._pattern_names += len(patterns)
            _check("patternProperties", self._pattern_names, MAX_PATTERN_NAMES, param)
        if isinstance(choices, (list, tuple)):
            self._choices += len(choices)
            _check("enum", self._choices, MAX_CHOICES, param)
            self._choice_text += sum(len(choice) for choice in choices if isinstance(choice, str))
            if self._choice_text > MAX_CHOICE_TEXT:
                message = f"The values of the schema's 'enum' have more than {MAX_CHOICE_TEXT} characters."
                raise InvalidRequest(message, param=param)
            self._count_long(choices, "enum", param)
        if "const" in part:
            self._count_constant(part["const"], param)
        if isinstance(pattern := part.get("pattern"), str):
            self._patterns += len(pattern)
            _check("pattern", self._patterns, MAX_PATTERNS, param)
        if isinstance(multiple, (int, float)):
            _check("multipleOf", int(abs(multiple)), MAX_MULTIPLE, param)
            self._multiples += int(abs(multiple))
            _check("multipleOf", self._multiples, MAX_MULTIPLES, param)

    def _count_long(self, texts: Iterable[Any], keyword: str, param: str) -> None:
        self._constants += sum(len(text) for text in texts if isinstance(text, str) and len(text) > _LONG)
        _check(keyword, self._constants, MAX_CONSTANTS, param)

    def _count_constant(self, value: Any, param: str) -> None:
        left = [value]
        while left:
            one = left.pop()
            if isinstance(one, str):
                self._constants += len(one)
            elif isinstance(one, Mapping):
                left += one
                left += one.values()
            elif isinstance(one, (list, tuple)):
                left += one
        _check("const", self._constants, MAX_CONSTANTS, param)


def _check_optional(properties: Mapping[str, Any], required: Any, param: str) -> None:
    if len(properties) <= MAX_OPTIONAL:
        return
    named = {name for name in required if isinstance(name, str)} if isinstance(required, (list, tuple)) else set()
    optional = len(properties) - len(named.intersection(properties))
    if optional > MAX_OPTIONAL:
        message = (
            f"The schema has an object with {optional} properties that are not in 'required'; at most {MAX_OPTIONAL} "
            "are allowed."
        )
        raise InvalidRequest(message, param=param)


def _check(keyword: str, found: int, most: int, param: str) -> None:
    if found > most:
        message = f"The schema's '{keyword}' is too large: {found}; at most {most} is allowed."
        raise InvalidRequest(message, param=param)
