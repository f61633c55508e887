"""The sandbox for chat templates: jinja2's immutable one with the extensions that model authors expect, and limits.

Templates come with model files, so they are not trusted. A rendering has a budget of work. Results are charged by
class: strings by their bytes, containers by their items; a value that is written out, compared or sorted is charged for
everything inside it, as often as it occurs. Operations that could be expensive before they have a result are checked
first. Only listed functions may be called: filters, and methods of strings, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import islice
from types import BuiltinFunctionType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llamasrv.chat.sandbox import filters
from llamasrv.chat.sandbox.budget import (
    COST_OF_TURN,
    LIST_METHODS,
    MAX_OUTPUT,
    MAX_PIECES,
    MAX_WORK,
    TRIAL_WORK,
    Budget,
    TooCostly,
)
from llamasrv.chat.sandbox.calls import METHODS, check_call, check_product, class_of, is_one_letter
from llamasrv.chat.sandbox.rewriting import RewriteLimits, charge_loop

__all__ = [
    "LIST_METHODS",
    "MAX_WORK",
    "TRIAL_WORK",
    "Sandbox",
    "TooCostly",
    "environment",
    "joined",
    "strftime_now",
    "strftime_on_trial",
]

# Python compiles a template in one piece, which takes up to 30 us per part. The largest of 134 templates has 3,624.
MAX_NODES = 10_000
MOST_ATTRIBUTES = 10_000  # max remembered verdicts on attributes
_OF_DICTS = frozenset(dir(dict))
_FRAME = ("_loop_vars", "_block_vars")  # compiled templates pass these to everything they call


def joined(pieces: Iterable[str]) -> str:
    """The output of a template, a macro or a block."""
    texts = list(islice(pieces, MAX_PIECES + 1))
    if len(texts) > MAX_PIECES or sum(map(len, texts)) > MAX_OUTPUT:
        raise TooCostly("the chat template's output is too large for these messages")
    return "".join(texts)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks a model's output, for training; here it only prints its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment, with limits. One per process: it holds no state of a rendering."""

    concat = staticmethod(joined)
    intercepted_binops = frozenset(("+", "-", "*", "**", "%"))
    context_class = Budget

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._safe: dict[tuple[type, str], bool] = {}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        if sum(1 for _ in islice(tree.find_all(nodes.Node), MAX_NODES + 1)) > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} parts")
        checked: nodes.Template = RewriteLimits().visit(tree)
        return checked

    def getattr(self, obj: Any, attribute: str) -> Any:
        # jinja2 returns the same, but only after catching an AttributeError.
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Some templates change lists that they made. What they were given is copied for them (`_copies_input`).
        if attr in LIST_METHODS and type(obj) is list:
            return True
        # jinja2 decides by the type and the name; its dozen `isinstance` were two fifths of a rendering.
        safe = self._safe.get((type(obj), attr))
        if safe is None:
            safe = super().is_safe_attribute(obj, attr, value)
            if len(self._safe) < MOST_ATTRIBUTES:
                self._safe[type(obj), attr] = safe
        return safe

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" or operator == "**":
            check_product(context, operator, left, right)
        elif operator == "%" and isinstance(left, str):
            return context.made(filters.percent(context, left, right))
        elif operator != "+" and not isinstance(left, (int, float)) and not is_one_letter(operator, left, right):
            raise SecurityError(f"a {type(left).__name__} has no operator {operator} in chat templates")
        return context.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __context.spend(COST_OF_TURN)
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2's own `str.format`
        if type(method) is BuiltinFunctionType:
            check = METHODS.get((class_of(method.__self__), method.__name__))
            if check is None:
                raise SecurityError(f"{method.__qualname__} is not available in chat templates")
            own = {name: value for name, value in kwargs.items() if name not in _FRAME} if kwargs else kwargs
            check(__context, method.__self__, *args, **own)
        elif isinstance(__obj, LoopContext):
            args = (charge_loop(__context, *args),)
        elif not isinstance(__obj, (Macro, BlockReference)):
            check_call(__context, __obj, args)
        return __context.made(super().call(__context, __obj, *args, **kwargs))


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateRuntimeError(str(message))


def strftime_now(format: str) -> str:
    return datetime.now().strftime(str(format)[:200])


def strftime_on_trial(format: str) -> str:
    """A clock that stands still: trial conversations that are compared may differ in their messages only."""
    return datetime(2024, 1, 1).strftime(str(format)[:200])


@lru_cache(maxsize=1)
def environment() -> Sandbox:
    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    filters.install(made.filters, made.tests)
    made.globals.pop("lipsum", None)
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = strftime_now
    return made
