"""Turns a parsed body into checked values, and those into a request.

`Loader` reads a body through a schema, or raises InvalidRequest that names the field as the client wrote it. `build`
makes the request: each value is where its field says. Unknown fields and nulls are dropped. Knows no endpoint and no
HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, TypeVar

from marshmallow import ValidationError, missing

from llamasrv.errors import InvalidRequest, MissingParameter, Unsupported
from llamasrv.protocols.common.schema import IGNORED, NOTHING, Complaint, Ignored, Object, WireField, WireSchema
from llamasrv.protocols.limits import Limits

_LONGEST_NAME = 64  # characters of an unknown field's name in an error
_COMBINATIONS_KEPT = 16  # max cached combinations of given fields; clients repeat theirs
_LOADERS_KEPT = 256  # a server has some 50, under one set of limits
MOST_UNHEARD = 64  # longest list of ignored names in a reply; clients choose how many there are

_Request = TypeVar("_Request")

_ASKS_FOR_FORM = re.compile(
    r"guided|schema|regex|grammar|ebnf|gbnf|lark|structur|json_mode|response_format|output_format|^format$"
)
"""Part of the name of a field that asks for a form of the answer. A client that sends one relies on it."""


class Nested(Object):
    """An object with a schema of its own, whose fields say where they go; with `to=None` they go nowhere."""

    schema: type[WireSchema]

    def __init__(self, note: str = "", *, to: str | None = "") -> None:
        super().__init__(note, to=to)

    @cached_property
    def _loader(self) -> Loader:
        return loader_of(self.schema, self.limits)

    def unheard_in(self, value: Any) -> Iterable[str]:
        return self._loader.unheard(value) if type(value) is dict else ()

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        return self._loader.checked(value)

    def put(self, parts: dict[str, Any], value: dict[str, Any]) -> None:
        self._loader.place(value, parts)


class Loaded(dict[str, Any]):
    """The checked values of a body, by the names that clients use. `parts` has the values that go into the request, by
    the names of its fields."""

    __slots__ = ("parts",)

    parts: dict[str, Any]


def build(kind: type[_Request], data: Loaded, **others: Any) -> _Request:
    """The request of this kind that a body asks for. `others` win over the body; what neither sets keeps the default of
    the request's own field."""
    return kind(**{**data.parts, **others})


class Loader:
    """Loads bodies through one schema, field by field as the schema's own `load` does. That one visits all fields for
    each body, absent ones included, and collects all complaints, of which a client gets the first."""

    def __init__(self, schema: type[WireSchema], limits: Limits) -> None:
        fields: Mapping[str, Any] = schema(limits).fields
        self._order = {name: i for i, name in enumerate(fields)}
        self._inside = {name: field.unheard_in for name, field in fields.items() if _has_unheard_parts(field)}
        self._known = frozenset(fields) if schema.generates else None
        self._active = frozenset(name for name, field in fields.items() if not isinstance(field, Ignored))
        self._heard = frozenset(name for name, field in fields.items() if field.verdict != IGNORED)
        self._put = {name: field.put for name, field in fields.items() if field.to is not None}
        self._defaults = {n: field.load_default for n, field in fields.items() if field.load_default is not missing}
        required = frozenset(name for name, field in fields.items() if field.required)

        @lru_cache(maxsize=_COMBINATIONS_KEPT)
        def in_order(given: frozenset[str]) -> list[tuple[str, Callable[..., Any]]]:
            names = sorted(required | given, key=self._order.__getitem__)
            return [(name, fields[name].deserialize) for name in names]

        self._in_order = in_order

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        """The first names in the body that have no effect, because the endpoint does not know them or ignores them;
        those of objects inside it as `options.name`. Values that ask for nothing are left out."""
        heard, found = self._heard, []
        if not body.keys() <= heard:
            unheard = (name for name, value in body.items() if name not in heard and self._asks(name, value))
            found = list(islice(unheard, MOST_UNHEARD))
        for name, unheard_in in self._inside.items():
            if body.get(name) is not None:
                found += [f"{name}.{inner}" for inner in unheard_in(body[name])]
        return found

    def _asks(self, name: str, value: Any) -> bool:
        """Whether a value without effect asks for something."""
        return value is not None and (name not in self._order or value not in NOTHING)

    def load(self, body: Mapping[str, Any]) -> Loaded:
        """The checked values. Raises InvalidRequest."""
        try:
            data = Loaded(self.checked(body))
        except ValidationError as error:
            raise invalid_request(error.messages) from None
        data.parts = {}
        self.place(data, data.parts)
        return data

    def place(self, values: Mapping[str, Any], parts: dict[str, Any]) -> None:
        """Put each checked value where its field says."""
        put = self._put
        for name, value in values.items():
            if name in put:
                put[name](parts, value)

    def checked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The checked values of an object inside a field. Raises ValidationError, to which the caller adds the field's
        name."""
        active = self._active
        if self._known is not None and not body.keys() <= self._known:
            _refuse_forms(body, body.keys() - self._known)
        given = {name: value for name, value in body.items() if value is not None and name in active}
        data = self._defaults.copy()
        for name, deserialize in self._in_order(frozenset(given)):
            try:
                data[name] = deserialize(given.get(name, missing), name, given)
            except ValidationError as error:
                raise ValidationError({name: error.messages}) from None
        return data


@lru_cache(maxsize=_LOADERS_KEPT)
def loader_of(schema: type[WireSchema], limits: Limits) -> Loader:
    """The loader of a schema under these limits, for all endpoints that share it: marshmallow copies each field."""
    return Loader(schema, limits)


class SchemaEndpoint:
    """Base of the endpoints whose body has one schema."""

    schema: type[WireSchema]

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loader = loader_of(self.schema, limits)
        self._load = self._loader.load

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        """The first names in the body that have no effect."""
        return self._loader.unheard(body)


def _has_unheard_parts(field: Any) -> bool:
    return bool(field.ignores) or type(field).unheard_in is not WireField.unheard_in


def _refuse_forms(body: Mapping[str, Any], unknown: Iterable[str]) -> None:
    for name in sorted(unknown):
        if _ASKS_FOR_FORM.search(name) and body[name] not in NOTHING:
            shown = name[:_LONGEST_NAME]
            raise Unsupported(
                f"'{shown}' is not a field of this endpoint, although it seems to ask for a form of the answer. The "
                "documentation lists the fields that do.",
                param=shown,
            )


def invalid_request(messages: Any) -> InvalidRequest:
    """The first complaint, as an error that names the field: `messages[1].content`."""
    param = ""
    while isinstance(messages, dict):
        step, messages = next(iter(messages.items()))
        param += f"[{step}]" if isinstance(step, int) else f".{step}" if param else step
    complaint = messages[0]
    if not isinstance(complaint, Complaint):  # marshmallow's own: a required field is missing
        return MissingParameter(param)
    if complaint.error is Unsupported:
        return Unsupported(str(complaint), param=param, about=complaint.about)
    kind = " type for" if complaint.code == "invalid_type" else ""
    text = f"Invalid{kind} '{param}': {complaint}"
    return complaint.error(text, param=param, code=complaint.code, about=complaint.about)


@contextmanager
def inside(field: str) -> Iterator[None]:
    """Puts the field's name in front of errors raised inside it."""
    try:
        yield
    except ValidationError as error:
        raise invalid_request({field: error.messages}) from None
