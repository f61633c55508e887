"""Filters and tests: jinja2's and our own, with their costs.

Filters are listed, too. Values that they write out, compare or sort are weighed before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.filters import do_indent, do_wordwrap, make_attrgetter
from jinja2.runtime import Undefined

from llamasrv.chat.guard import FIRST_STAND_IN
from llamasrv.chat.sandbox.budget import (
    COST_OF_ITEM,
    COST_OF_OBJECT,
    COST_OF_SORTING,
    COST_OF_TEXT,
    COST_OF_TURN,
    FEW_CHARS,
    MAX_BITS,
    MAX_CHARS,
    MAX_DIGITS,
    SCALARS,
    Budget,
    TooCostly,
)
from llamasrv.chat.sandbox.calls import Check, listed_cost, num_lines, strip_cost
from llamasrv.chat.sandbox.rewriting import REWRITTEN, compared, is_in, written


@jinja2.pass_context
def _replace(context: Budget, text: Any, old: str, new: str, count: int | None = None) -> str:
    whole, old, new = str(text), str(old), str(new)
    context.has_room(len(whole) + whole.count(old) * len(new))
    return whole.replace(old, new, -1 if count is None else count)


@jinja2.pass_context
def _join(context: Budget, values: Any, between: Any = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    joint = str(between)
    texts = [value if type(value) is str else written(context, value) for value in values]
    context.has_room(sum(map(len, texts)) + len(joint) * len(texts))
    return joint.join(texts)


_CONVERSION = re.compile(r"%(?:\(\w+\))?[-+ #0]?(\d{0,3})(?:\.(\d{1,2}))?[diouxXeEfFgGcrsa]|%%|(%)")


@jinja2.pass_context
def _format(context: Budget, text: Any, *args: Any, **kwargs: Any) -> str:
    """`%` on a text."""
    text = str(text)
    fields = text.count("%")
    context.spend(fields * COST_OF_OBJECT)
    size = len(text)
    for value in (*args, *kwargs.values()):
        context.weigh(value, max(1, fields))
        size += fields * (len(value) if hasattr(value, "__len__") else MAX_BITS)
    for conversion in _CONVERSION.finditer(text):
        if conversion[3]:
            raise SecurityError("this form of `format` is not available in chat templates")
        size += int(conversion[1] or 0) + int(conversion[2] or 0)
    context.has_room(size)
    return str(text % (kwargs or args))


def percent(context: Budget, text: str, right: Any) -> str:
    """`text % right`."""
    if isinstance(right, Mapping):
        return _format(context, text, **{str(name): value for name, value in right.items()})
    return _format(context, text, *(right if isinstance(right, tuple) else (right,)))


@jinja2.pass_context
def _indent(context: Budget, text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = str(text)
    lines = num_lines(text)
    context.spend(lines * COST_OF_OBJECT)
    context.has_room(len(text) + lines * (width if isinstance(width, int) else len(width)))
    return do_indent(text, width, first, blank)


@jinja2.pass_context
def _center(context: Budget, text: Any, width: int = 80) -> str:
    context.has_room(width if isinstance(width, int) else 0)
    return str(text).center(width)


_RUNS = re.compile(r"\s+|\S+")


@jinja2.pass_context
def _wordwrap(
    context: Budget,
    text: Any,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    text = str(text)
    size = max(1, width if isinstance(width, int) else 1)
    lines = num_lines(text) + len(text) // size + text.count(" ")
    broken = sum(len(word) ** 2 // size for word in _RUNS.findall(text) if len(word) > size)  # the rest is copied
    context.spend(len(text) + lines * COST_OF_OBJECT + broken)
    context.has_room(len(text) + lines * len(wrapstring or "\n"))
    return do_wordwrap(context.environment, text, width, break_long_words, wrapstring, break_on_hyphens)


_ESCAPES = (("&", "&amp;"), (">", "&gt;"), ("<", "&lt;"), ("'", "&#39;"), ('"', "&#34;"))


@jinja2.pass_context
def _escape(context: Budget, value: Any) -> str:
    """A plain text: without autoescaping, text marked safe would have its neighbours escaped."""
    text = str(value)
    context.has_room(5 * len(text))
    for letter, entity in _ESCAPES:
        text = text.replace(letter, entity)
    return text


@jinja2.pass_context
def _sum(context: Budget, values: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    numbers = [*values, start]
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise SecurityError("only numbers can be added up in chat templates")
    return sum(numbers)


def _plain(value: Any) -> Any:
    """Values that `json` cannot write: generators (results of `map`), undefined values, mappings other than dicts."""
    if isinstance(value, Undefined):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (GeneratorType, Iterable)):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


@jinja2.pass_context
def _tojson(
    context: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: no HTML escaping, and non-ASCII characters stay."""
    depth = context.weigh(value, COST_OF_TEXT)
    if (indent is not None and (depth + 1) * (indent if isinstance(indent, int) else len(indent)) > MAX_CHARS) or (
        separators is not None and sum(map(len, separators)) > FEW_CHARS
    ):
        raise TooCostly("the chat template indents JSON too deeply")
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )
    for number, token in enumerate(context.guarded):
        stand_in, inside = chr(FIRST_STAND_IN + number), json.dumps(token, ensure_ascii=ensure_ascii)[1:-1]
        shown_as = json.dumps(stand_in, ensure_ascii=ensure_ascii)[1:-1]
        if inside != token:  # JSON's escapes have already broken the token
            text = text.replace(shown_as, inside)
        elif shown_as != stand_in:
            text = text.replace(shown_as, stand_in)
    return text


def _from_json(value: str) -> Any:
    return json.loads(value)


def unavailable(*args: Any, **kwargs: Any) -> None:
    raise SecurityError("this filter is not available in chat templates")


def _free(context: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Nothing beyond the charge for what it is given and what it makes."""


def _batch_cost(context: Budget, value: Any, linecount: int, fill_with: Any = None) -> None:
    size = len(value) if hasattr(value, "__len__") else 0
    context.spend((linecount + size) * COST_OF_ITEM + size // max(1, linecount) * COST_OF_OBJECT)


def _sorted_cost(context: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    context.spend(len(value) * COST_OF_SORTING)


def _words_cost(context: Budget, value: Any) -> None:
    context.spend(len(value) // 2 * COST_OF_OBJECT if isinstance(value, str) else 0)


def _trim_cost(context: Budget, value: Any, chars: Any = None) -> None:
    strip_cost(context, "", chars)


def _int_cost(context: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(value, str) and len(value) > MAX_BITS:
        raise TooCostly("the chat template reads a number that is too large")


def _round_cost(context: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if isinstance(precision, int) and abs(precision) > MAX_DIGITS:
        raise TooCostly("the chat template rounds to too many digits")


def _json_cost(context: Budget, value: Any) -> None:
    context.spend(sum(map(str(value).count, "[{,")) * COST_OF_OBJECT)


_LOOK_INSIDE: dict[str, Check] = {
    **{name: _free for name in (
        "abs", "capitalize", "center", "e", "escape", "filesizeformat", "float", "forceescape", "format", "indent",
        "join", "lower", "replace", "safe", "string", "truncate", "upper", "wordwrap")},
    **{name: _sorted_cost for name in ("dictsort", "groupby", "max", "min", "sort", "sum", "unique")},
    "from_json": _json_cost,
    "int": _int_cost,
    "round": _round_cost,
    "title": _words_cost,
    "trim": _trim_cost,
    "wordcount": _words_cost,
}  # fmt: skip
_TAKE_LISTS: dict[str, Check] = {
    **{name: _free for name in ("map", "reject", "rejectattr", "reverse", "select", "selectattr", "tojson")},
    "batch": _batch_cost,
    "list": listed_cost,
    "slice": _batch_cost,
}
"""Filters, and what they cost before they have a result. The first write out, compare or sort what they are given."""
_PICK = frozenset(("attr", "count", "d", "default", "first", "items", "last", "length"))
"""Filters that make nothing: they are as jinja2 has them."""


_PARTS = {"context": "", "eval_context": "eval_ctx", "environment": "environment"}
"""What jinja2's filters may ask for, as attributes of the context."""


def charged(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose work and result are charged."""
    wanted = getattr(function, "jinja_pass_arg", None)
    part = None if wanted is None else _PARTS[wanted.name]
    check, looks_inside = _LOOK_INSIDE.get(name) or _TAKE_LISTS[name], name in _LOOK_INSIDE

    @jinja2.pass_context
    def filter(context: Budget, value: Any, *args: Any, **kwargs: Any) -> Any:
        context.spend(COST_OF_TURN)
        if type(value) not in SCALARS and looks_inside:
            if isinstance(value, Iterator):
                value = list(value)
            context.weigh(value)
        for other in (*args, *kwargs.values()):
            if type(other) not in SCALARS:
                context.weigh(other)
        check(context, value, *args, **kwargs)
        if part is None:
            return context.made(function(value, *args, **kwargs))
        return context.made(function(getattr(context, part) if part else context, value, *args, **kwargs))

    return filter


def _guarded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    @jinja2.pass_context
    def test(context: Budget, value: Any, *args: Any) -> Any:
        return function(compared(context, value), *args)

    return test


def install(filters: dict[str, Any], tests: dict[str, Any]) -> None:
    """Replace those of an environment."""
    own = {"tojson": _tojson, "safe": str, "from_json": _from_json, "replace": _replace, "join": _join,
           "indent": _indent, "format": _format, "e": _escape, "escape": _escape, "forceescape": _escape,
           "sum": _sum, "center": _center, "wordwrap": _wordwrap}  # fmt: skip
    known = {**filters, **own}
    filters.update({name: known[name] if name in _PICK else unavailable for name in known})
    filters.update({name: charged(name, known[name]) for name in (*_LOOK_INSIDE, *_TAKE_LISTS)})
    filters.update(REWRITTEN)
    for name in _COMPARING:
        tests[name] = _guarded_test(tests[name])
    tests["in"] = is_in


_COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "equalto", "lessthan", "greaterthan", "lower", "upper",
              "==", "!=", "<", "<=", ">", ">=")  # fmt: skip
