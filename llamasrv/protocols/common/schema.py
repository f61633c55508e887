"""The base of every protocol's schema: strict field types, verdicts, complaints about values.

A schema declares every field that its endpoint knows, each with a verdict (it is honoured, ignored or refused) and,
where its value is a part of the request as it stands, with its place there: `Count(..., to="sampling.top_k")`. Knows no
endpoint and no HTTP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, NamedTuple, TypeVar

from marshmallow import EXCLUDE, Schema, ValidationError, fields, missing

from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.limits import Limits

HONOURED, IGNORED, REFUSED = "honoured", "ignored", "refused"

NOTHING: tuple[Any, ...] = (None, False, "", [], {})
"""Values that ask for nothing."""

_USUAL = Limits()


class Complaint(str):
    """What is wrong with a value, and the error for the client. `about`: further arguments of that error."""

    code: str | None
    error: type[InvalidRequest]
    about: tuple[Any, ...]

    def __new__(
        cls,
        text: str,
        *,
        code: str | None = "invalid_value",
        error: type[InvalidRequest] = InvalidRequest,
        about: tuple[Any, ...] = (),
    ) -> Complaint:
        self = super().__new__(cls, text)
        self.code = code
        self.error = error
        self.about = about
        return self


class Invalid(ValidationError):
    """One wrong value, perhaps deep inside the field: `Invalid("must not be empty", 3, "content")`."""

    def __init__(
        self, text: str, *path: int | str, code: str | None = "invalid_value", about: tuple[Any, ...] = ()
    ) -> None:
        self.complaint = Complaint(text, code=code, about=about)
        messages: Any = [self.complaint]
        for step in reversed(path):
            messages = {step: messages}
        super().__init__(messages)


class Refusal(ValidationError):
    """A known field that asks for something this server cannot do."""

    def __init__(self, text: str, *path: int | str) -> None:
        self.complaint = Complaint(text, code="unsupported_parameter", error=Unsupported)
        messages: Any = [self.complaint]
        for step in reversed(path):
            messages = {step: messages}
        super().__init__(messages)


_Value = TypeVar("_Value")

_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def wrong_type(expected: str, value: Any, *path: int | str) -> Invalid:
    got = _KINDS.get(type(value), "null")
    return Invalid(f"expected {expected}, but got {got} instead.", *path, code="invalid_type")


def expect(kind: type[_Value], value: Any, *path: int | str, what: str = "") -> _Value:
    """The value, which must be of exactly this type: a boolean is no integer. `what` names more than the type. Raises
    Invalid."""
    if type(value) is not kind:
        raise wrong_type(what or _KINDS[kind], value, *path)
    right: _Value = value
    return right


def expect_or_none(kind: type[_Value], value: Any, *path: int | str) -> _Value | None:
    """The same for a value that may be None."""
    return None if value is None else expect(kind, value, *path)


def expect_given(kind: type[_Value], value: Any, *path: int | str, what: str = "", absent: str = "missing.") -> _Value:
    """The same for a value that must be given; `absent`: what is said where it is None."""
    if value is None:
        raise Invalid(absent, *path, code="missing_required_parameter")
    return expect(kind, value, *path, what=what)


def string_of(wire: dict[str, Any], key: str, *path: int | str, required: bool = True) -> Any:
    """The text behind a key; None if it is missing and not `required`. Raises Invalid."""
    value = wire.get(key)
    if type(value) is not str and (required or value is not None):
        raise wrong_type("a string", value, *path, key)
    return value


def check_length(value: Sized, most: int, what: str, *path: int | str) -> None:
    """Raises if an array has more than `most` entries; `what` they are called."""
    if len(value) > most:
        raise Invalid(f"array too long. Expected at most {most} {what}, but got {len(value)}.", *path)


def check_messages(value: Any, limits: Limits, *, may_be_empty: bool = False) -> None:
    """Raises unless `value` is a list of no more messages than a conversation may have."""
    expect(list, value, what="an array of messages")
    if not value and not may_be_empty:
        raise Invalid("empty array. Expected an array with at least one message.", code="empty_array")
    check_length(value, limits.messages, "messages")


class WireSchema(Schema):
    """Base of all request schemas. Unknown fields are dropped: clients add some every month. However, an endpoint that
    generates an answer (`generates`) refuses an unknown field that asks for an output form: the answer would not have
    that form."""

    generates = False

    class Meta:
        unknown = EXCLUDE

    def __init__(self, limits: Limits = _USUAL) -> None:
        super().__init__()
        self.limits = limits


class WireField(fields.Field[Any]):
    """Base of all request fields. `note` completes the description in the documentation.

    `to` is the value's place in the request: the name of one of its fields (`stop`), or a key in one that is a mapping
    (`sampling.top_k`). `via` makes what belongs there out of the value. A field without `to` is read by its endpoint.

    `takes` is the only type of value that it accepts, and `expected` what an error calls it. Without it `_deserialize`
    checks the type.

    `ignores` are the parts of the value that have no effect: `("declarations.behaviour",)`, in each of several objects.
    """

    verdict = HONOURED
    takes: type | None = None
    expected = ""

    def __init__(
        self,
        note: str = "",
        *,
        to: str | None = None,
        via: Callable[[Any], Any] | None = None,
        ignores: tuple[str, ...] = (),
        required: bool = False,
        load_default: Any = missing,
    ) -> None:
        if ignores:
            note = "; ".join(filter(None, (note, "without effect: " + ", ".join(f"`{name}`" for name in ignores))))
        super().__init__(required=required, load_default=load_default, metadata={"verdict": self.verdict, "note": note})
        self.to, self._via = to, via
        self.ignores = {path: tuple(map(_spellings, path.split("."))) for path in ignores}
        self._mapping, _, self._key = (to or "").rpartition(".")

    def deserialize(self, value: Any, attr: str | None = None, data: Any = None, **kwargs: Any) -> Any:
        """As marshmallow's, without its chains of hooks and validators: they are empty here, and cost as much as the
        check itself."""
        if value is missing:
            return super().deserialize(value, attr, data, **kwargs)
        if self.takes is not None and type(value) is not self.takes:
            raise wrong_type(self.expected, value)
        return self._deserialize(value, attr, data)

    def put(self, parts: dict[str, Any], value: Any) -> None:
        """Put a loaded value in its place. Where several fields have the same place, the one declared first wins."""
        place = parts.setdefault(self._mapping, {}) if self._mapping else parts
        place.setdefault(self._key, value if self._via is None else self._via(value))

    def unheard_in(self, value: Any) -> Iterable[str]:
        """The parts of a checked value, as the client wrote it, that ask for something and have no effect."""
        return [path for path, steps in self.ignores.items() if _asks_at(value, steps)]

    @property
    def limits(self) -> Limits:
        schema: Any = self.root
        limits: Limits = schema.limits
        return limits


def _spellings(name: str) -> tuple[str, ...]:
    """A name as it is declared; one of Google's with underscores, too."""
    return tuple({name: None, re.sub("([A-Z])", lambda match: f"_{match[1].lower()}", name): None})


def _asks_at(value: Any, steps: tuple[tuple[str, ...], ...]) -> bool:
    """Whether something is asked for at this place in an object, or in one of an array's objects."""
    if type(value) is list:
        return any(_asks_at(one, steps) for one in value)
    if type(value) is not dict:
        return False
    for name in steps[0]:
        if name in value:
            return _asks_at(value[name], steps[1:]) if steps[1:] else value[name] not in NOTHING
    return False


class Ignored(WireField):
    """A field that is accepted and has no effect."""

    verdict = IGNORED


class Refused(WireField):
    """A field that asks for something this server does not do. Values in `harmless` ask for nothing."""

    verdict = REFUSED

    def __init__(self, note: str, *, harmless: tuple[Any, ...] = (False, [], {}, "")) -> None:
        super().__init__(note)
        self.harmless = harmless

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> None:
        if value not in self.harmless:
            raise Refusal(f"'{attr}' is not supported by this server: {self.metadata['note']}")


class Moderation(WireField):
    """OpenAI's moderation of prompts and answers. A policy that blocks would change the answer."""

    verdict = IGNORED

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> None:
        policy = value.get("policy") if type(value) is dict else None
        for part in policy.values() if type(policy) is dict else ():
            if type(part) is dict and part.get("mode") == "block":
                raise Refusal(f"'{attr}' is not supported: this server has no moderation.")


class String(WireField):
    """A text of any length, or of at most `most` characters."""

    takes = str
    expected = "a string"

    def __init__(self, note: str = "", *, most: int | None = None, **place: Any) -> None:
        super().__init__(note, **place)
        self.most = most

    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if self.most is not None and len(value) > self.most:
            raise Invalid(f"string too long. Expected at most {self.most} characters, but got {len(value)}.")
        return value


class Array(WireField):
    takes = list
    expected = "an array"


class Object(WireField):
    takes = dict
    expected = "an object"


class Flag(WireField):
    takes = bool
    expected = "a boolean"


class StreamFlag(Flag):
    """A flag that has an effect on streams only. `stream` is declared before it."""

    def put(self, parts: dict[str, Any], value: bool) -> None:
        super().put(parts, value and parts.get("stream", False))


class Count(WireField):
    """An integer between two bounds. 3.0 is one; true and "3" are not. A bound may be the name of a limit."""

    def __init__(self, low: int, high: int | str, note: str = "", *, also: tuple[int, ...] = (), **place: Any) -> None:
        super().__init__(note, **place)
        self.low, self.high, self.also = low, high, also

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> int:
        number: int = value if type(value) is int else _integer(value)
        high: int = getattr(self.limits, self.high) if isinstance(self.high, str) else self.high
        if not self.low <= number <= high and number not in self.also:
            bound = f">= {self.low}" if number < self.low else f"<= {high}"
            side = "below minimum" if number < self.low else "above maximum"
            raise Invalid(f"integer {side} value. Expected a value {bound}, but got {number} instead.")
        return number


def _integer(value: Any) -> int:
    if type(value) is not float or not value.is_integer():
        raise wrong_type("an integer", value)
    return int(value)


class Bound(Count):
    """An upper bound; -1 means none. Where several have the same place, the tightest wins."""

    def __init__(
        self, low: int, high: int | str, note: str = "", *, also: tuple[int, ...] = (-1,), **place: Any
    ) -> None:
        super().__init__(low, high, note, also=also, **place)

    def put(self, parts: dict[str, Any], value: int) -> None:
        if value >= 0:
            parts[self._key] = min(value, parts.get(self._key, value))


class Number(WireField):
    """A number between two bounds, both included unless `above` excludes the lower."""

    def __init__(self, low: float, high: float, note: str = "", *, above: bool = False, **place: Any) -> None:
        super().__init__(note, **place)
        self.low, self.high, self.above = low, high, above

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        number: float = value if type(value) is float else _float(value)
        if not self.low <= number <= self.high or (self.above and number == self.low):
            low = f"greater than {self.low:g}" if self.above else f"at least {self.low:g}"
            raise Invalid(f"number out of range. Expected a value {low} and at most {self.high:g}, but got {number:g}.")
        return number


def _float(value: Any) -> float:
    expect(int, value, what="a number")
    return float(value) if -1e300 < value < 1e300 else math.inf


class OneOf(WireField):
    """One of a few words."""

    def __init__(self, words: Sequence[str], note: str = "", **place: Any) -> None:
        super().__init__(note, **place)
        self.words = tuple(words)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value not in self.words:
            raise Invalid(f"expected one of {', '.join(self.words)}, but got '{str(value)[:40]}'.")
        return str(value)


class Names(WireField):
    """A list of strings, or a single string; none of them empty."""

    def __init__(self, most: str, chars: int | str, note: str = "", **place: Any) -> None:
        super().__init__(note, **place)
        self.most, self.chars = most, chars

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if type(value) is str:
            value = (value,)
            paths: tuple[tuple[int, ...], ...] = ((),)
        elif type(value) is list:
            paths = tuple((i,) for i in range(len(value)))
        else:
            raise wrong_type("a string or an array of strings", value)
        most = getattr(self.limits, self.most)
        chars = self.chars if type(self.chars) is int else getattr(self.limits, str(self.chars))
        check_length(value, most, "entries")
        for path, text in zip(paths, value):
            expect(str, text, *path)
            if not text:
                raise Invalid("must not be an empty string.", *path)
            if len(text) > chars:
                raise Invalid(f"string too long. Expected at most {chars} characters, but got {len(text)}.", *path)
        return tuple(value)


class Row(NamedTuple):
    """One line of an endpoint's table in the documentation."""

    field: str
    verdict: str
    note: str


def rows(schema: type[WireSchema]) -> list[Row]:
    """What the endpoint does with each field it knows."""
    fields = schema().fields
    return [Row(name, field.metadata["verdict"], field.metadata["note"]) for name, field in fields.items()]
