"""The sandbox for chat templates: jinja2's immutable one with the extensions that model authors expect, and limits.

Templates come with model files, so they are not trusted: a budget of loop turns, built characters and seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, make_attrgetter
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from llamasrv.chat.guard import FIRST_STAND_IN

MAX_TEXT = 1 << 24  # characters of one string that a template builds
MAX_OUTPUT = 1 << 26  # characters of a prompt, or of what a macro writes
MAX_WORK = 1 << 30  # what one rendering may do, in nanoseconds or so
COST_OF_TURN = 64  # of a loop
COST_OF_TEXT = 2  # of a character: it may be kept, and fresh memory costs more than the copy
LIST_METHODS = ("append", "pop", "extend", "insert")  # beyond what the immutable sandbox allows


class TooCostly(Exception):
    """A rendering exceeded its limits."""


class _Budget(Context):
    """The variables of one rendering, and what the rendering may still spend."""

    left = MAX_WORK
    deadline = float("inf")
    guarded: Sequence[str] = ()

    @property
    def is_large(self) -> bool:
        """Whether the rendering has done so much that values could be too large to write out."""
        return self.left < MAX_WORK - (1 << 20)

    def built(self, size: int) -> None:
        """Charge for a text of that size."""
        if size > MAX_TEXT:
            raise TooCostly("the chat template builds a string that is too large")
        self.spend(size * COST_OF_TEXT)

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0 or (self.is_large and time.monotonic() > self.deadline):
            raise TooCostly("the chat template does too much work for these messages")


@jinja2.pass_context
def _charge_loop(context: _Budget, values: Any) -> Any:
    """Wraps what each `for` iterates over, so that loops are charged before they start."""
    if isinstance(values, Undefined):
        return values
    if not hasattr(values, "__len__"):
        values = list(values)
    context.spend((len(values) + 1) * COST_OF_TURN)
    return values


@jinja2.pass_context
def _join_text(context: _Budget, parts: list[Any]) -> str:
    """The `~` operator."""
    text = "".join(map(str, parts))
    context.built(len(text))
    return text


@jinja2.pass_context
def _replace(context: _Budget, text: Any, old: str, new: str, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    context.built(len(text) + text.count(old) * len(new))
    return text.replace(old, new, -1 if count is None else count)


@jinja2.pass_context
def _join(context: _Budget, values: Any, between: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        values = map(make_attrgetter(context.environment, attribute), values)
    return _bounded_join(str(between), [str(value) for value in values])


@jinja2.pass_context
def _indent(context: _Budget, text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = width if isinstance(width, int) else len(width)
    context.built(len(text) + (text.count("\n") + 1) * size)
    return do_indent(text, width, first, blank)


def _bounded_join(between: str, texts: list[str]) -> str:
    if sum(map(len, texts)) + len(between) * len(texts) > MAX_OUTPUT:
        raise TooCostly("the chat template's output is too large for these messages")
    return between.join(texts)


def joined(pieces: Iterable[str]) -> str:
    """The output of a template, a macro or a block."""
    return _bounded_join("", list(pieces))


class _Limits(NodeTransformer):
    """Rewrites a parsed template so that loops and `~` are charged to the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "charge loop", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join text", [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks a model's output, for training; here it only prints its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment, with limits. One per process: it holds no state of a rendering."""

    concat = staticmethod(joined)  # type: ignore[assignment]
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    context_class = _Budget

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Limits().visit(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates change lists that they made. What they were given is copied for them (`_copies_input`).
        if attr in LIST_METHODS and type(obj) is list:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            result = left + right
            if type(result) is str:
                context.built(len(result))
            return result
        if operator == "%" and not isinstance(left, (int, float)):
            raise jinja2.exceptions.SecurityError("formatting with % is not available")
        if operator == "**" or (operator == "*" and not (_is_number(left) and _is_number(right))):
            size = _power_size(left, right) if operator == "**" else _repeat_size(left, right)
            context.built(size)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if type(owner) is str:
            _check_text_method(__context, owner, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _repeat_size(left: Any, right: Any) -> int:
    if isinstance(left, int):
        left, right = right, left
    return len(left) * max(right, 0) if hasattr(left, "__len__") and isinstance(right, int) else 0


def _written_size(value: Any, depth: int = 0) -> int:
    """About how many characters a value has as JSON."""
    if isinstance(value, str):
        return len(value)
    if depth > 64:
        return 1
    if isinstance(value, Mapping):
        return sum(_written_size(key) + _written_size(item, depth + 1) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return len(value) + sum(_written_size(item, depth + 1) for item in value)
    return 1


def _power_size(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * max(right, 0) // 8
    return 0


def _check_text_method(context: _Budget, owner: str, method: str, args: tuple[Any, ...]) -> None:
    if method in ("format", "format_map", "translate"):
        raise jinja2.exceptions.SecurityError(f"str.{method} is not available")
    size = len(owner)
    if method == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        size += owner.count(args[0]) * len(args[1])
    elif method in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        size = max([size] + [a for a in args if isinstance(a, int)]) * (owner.count("\t") + 1)
    elif method == "join" and args and hasattr(args[0], "__len__"):
        size = size * len(args[0]) + sum(len(item) for item in args[0] if isinstance(item, str))
    context.built(size)


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
    context: _Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's `tojson`: no HTML escaping, and non-ASCII characters stay."""
    if isinstance(indent, int) and indent > 16:
        raise TooCostly("the chat template indents JSON too deeply")
    if context.is_large:
        context.built(_written_size(value))
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )
    context.built(len(text))
    for number, token in enumerate(context.guarded):
        stand_in, inside = chr(FIRST_STAND_IN + number), json.dumps(token, ensure_ascii=ensure_ascii)[1:-1]
        written = json.dumps(stand_in, ensure_ascii=ensure_ascii)[1:-1]
        if inside != token:  # JSON's escapes have already broken the token
            text = text.replace(written, inside)
        elif written != stand_in:
            text = text.replace(written, stand_in)
    return text


def _from_json(value: str) -> Any:
    return json.loads(value)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateRuntimeError(str(message))


def strftime_now(format: str) -> str:
    return datetime.now().strftime(str(format)[:200])


def _unavailable(*args: Any, **kwargs: Any) -> None:
    raise jinja2.exceptions.SecurityError("this filter is not available in chat templates")


@lru_cache(maxsize=1)
def environment() -> Sandbox:
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    made.filters["charge loop"] = _charge_loop
    made.filters["join text"] = _join_text
    made.filters["tojson"] = _tojson
    made.filters["safe"] = str  # without escaping, text marked safe would have its neighbours escaped
    made.filters["from_json"] = _from_json
    made.filters["replace"] = _replace
    made.filters["join"] = _join
    made.filters["indent"] = _indent
    for name in ("center", "format", "wordwrap", "urlize", "pprint", "xmlattr", "random"):
        made.filters[name] = _unavailable
    made.globals.pop("lipsum", None)
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = strftime_now
    return made
