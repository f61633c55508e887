"""Rewrites a parsed template, so that what its environment would not see is charged, too.

Loops, `~`, comparisons, slices and output become filters of ours, whose names no template can write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from jinja2.visitor import NodeTransformer

from llamasrv.chat.sandbox.budget import (
    COST_OF_TEXT,
    COST_OF_TURN,
    FEW_TURNS,
    MAX_BITS,
    SCALARS,
    Budget,
)


class _Turns:
    """What a long loop iterates over: looks at the clock in each turn."""

    __slots__ = ("_context", "_values")

    def __init__(self, context: Budget, values: Any) -> None:
        self._context, self._values = context, values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._context.spend(0)
            yield value


@jinja2.pass_context
def charge_loop(context: Budget, values: Any) -> Any:
    """Wraps what each `for` iterates over, so that loops are charged before they start."""
    if isinstance(values, Undefined):
        return values
    if not hasattr(values, "__len__"):
        values = list(values)
    size = len(values)
    context.spend((size + 1) * COST_OF_TURN)
    return values if size <= FEW_TURNS else _Turns(context, values)


@jinja2.pass_context
def join_text(context: Budget, parts: list[Any]) -> str:
    """The `~` operator."""
    texts = [part if type(part) is str else written(context, part) for part in parts]
    context.has_room(sum(map(len, texts)))
    text: str = context.made("".join(texts))
    return text


def written(context: Budget, value: Any) -> str:
    """A value that is no text, as text."""
    if type(value) not in SCALARS and not isinstance(value, Undefined):
        context.weigh(value, COST_OF_TEXT)
    return str(value)


@jinja2.pass_context
def shown(context: Budget, value: Any) -> Any:
    """Wraps what is written to the output."""
    left = context.left = context.left - COST_OF_TURN // 2
    if left < 0:
        context.spend(0)
    return value if type(value) is str else context.made(written(context, value))


@jinja2.pass_context
def compared(context: Budget, value: Any) -> Any:
    """Wraps the left side of a comparison: with a single value on one side it is cheap, whatever the other is."""
    if type(value) not in SCALARS:
        context.weigh(value)
    return value


@jinja2.pass_context
def is_in(context: Budget, value: Any, values: Any) -> bool:
    """The `in` operator and test."""
    if type(value) not in SCALARS:
        context.weigh(value, len(values) if hasattr(values, "__len__") else 1)
    return value in values


@jinja2.pass_context
def made(context: Budget, value: Any) -> Any:
    """Wraps slices."""
    return context.made(value)


def single(value: Any) -> Any:
    """Wraps what is looked up, what keys a dict, and the middle of `a < b < c`."""
    if type(value) not in SCALARS and not isinstance(value, (str, Undefined)):
        raise SecurityError(f"a {type(value).__name__} cannot be looked up")
    return value


class RewriteLimits(NodeTransformer):
    """Rewrites a parsed template so that what the environment does not see is charged to the budget, too: loops, `~`,
    comparisons, slices, output."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter(node.iter, "charge loop")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "join text")

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [child if _is_text(child) else _filter(child, "shown") for child in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        if sum(not _is_constant(side) for side in sides) < 2:
            return node
        if len(sides) > 2:
            node.expr = _filter(node.expr, "single")
            for operand in node.ops:
                operand.expr = _filter(operand.expr, "single") if operand is not node.ops[-1] else operand.expr
            return node
        if node.ops[0].op not in ("in", "notin"):
            node.expr = _filter(node.expr, "compared")
            return node
        found = _filter(node.expr, "is in", [node.ops[0].expr])
        return found if node.ops[0].op == "in" else nodes.Not(found, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _filter(node, "made")
        if not isinstance(node.arg, nodes.Const):
            node.arg = _filter(node.arg, "single")
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filter(node.key, "single")
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            raise jinja2.TemplateSyntaxError("this number is too large", node.lineno)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Scope:
        """`{% autoescape %}` only prints its body: prompts are not HTML."""
        self.generic_visit(node)
        return nodes.Scope(node.body, lineno=node.lineno)


def _filter(node: Any, name: str, args: Sequence[nodes.Expr] = ()) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _is_constant(node: nodes.Expr) -> bool:
    """Whether it is a single value, or some of them, in the template's own source."""
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


_GIVE_TEXT = frozenset(("join text", "tojson", "join", "trim", "replace", "upper", "lower", "string", "indent", "safe"))


def _is_text(node: nodes.Node) -> bool:
    """Whether an expression gives a text, if it gives anything."""
    if isinstance(node, nodes.Filter):
        return node.name in _GIVE_TEXT
    if isinstance(node, nodes.Add):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, nodes.CondExpr):
        return _is_text(node.expr1) and node.expr2 is not None and _is_text(node.expr2)
    return isinstance(node, nodes.TemplateData) or (isinstance(node, nodes.Const) and isinstance(node.value, str))


REWRITTEN = {
    "charge loop": charge_loop,
    "join text": join_text,
    "shown": shown,
    "is in": is_in,
    "compared": compared,
    "single": single,
    "made": made,
}
