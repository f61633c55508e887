"""What operators and calls cost, before they have a result.

Methods are listed: what is not in the table cannot be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from string import Formatter
from types import FunctionType, MethodType
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined
from jinja2.utils import Cycler, Joiner, Namespace

from llamasrv.chat.sandbox.budget import (
    COST_OF_ITEM,
    COST_OF_OBJECT,
    MAX_BITS,
    MAX_CHARS,
    Budget,
    TooCostly,
)
from llamasrv.chat.sandbox.rewriting import single


def check_product(context: Budget, operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and not isinstance(right, int):
        left, right = right, left
    if not isinstance(right, int):
        return
    if operator == "**":
        if isinstance(left, int) and left.bit_length() * right > MAX_BITS:
            raise TooCostly("the chat template computes a number that is too large")
    elif isinstance(left, str):
        context.has_room(len(left) * max(right, 0))
    elif isinstance(left, (list, tuple)):
        context.spend(len(left) * max(right, 0) * COST_OF_ITEM)


def is_one_letter(operator: str, left: Any, right: Any) -> bool:
    """Whether this is `'%c' % number`, the only way to a letter by its number."""
    return operator == "%" and left == "%c" and isinstance(right, int)


def check_call(context: Budget, function: Any, args: Sequence[Any]) -> None:
    """What the environment and the runtime offer to call may compare, hash or print its arguments."""
    kinds = (FunctionType, MethodType, Joiner, Undefined)
    if not isinstance(function, kinds) and function not in (dict, Namespace, Cycler, Joiner):
        raise SecurityError(f"a {type(function).__name__} cannot be called in chat templates")
    for value in args:
        context.weigh(value)


def num_lines(text: str) -> int:
    return sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")) + 1


def listed_cost(context: Budget, value: Any) -> None:
    if hasattr(value, "__len__"):
        context.spend(len(value) * (COST_OF_ITEM if isinstance(value, (list, tuple)) else COST_OF_OBJECT))


def class_of(value: Any) -> type:
    return next((kind for kind in (str, list, dict, tuple) if isinstance(value, kind)), type(value))


def _text_cost(context: Budget, owner: str, *args: Any, **kwargs: Any) -> None:
    for value in args:
        context.weigh(value)


def strip_cost(context: Budget, owner: str, chars: Any = None) -> None:
    if isinstance(chars, str) and len(chars) > MAX_CHARS:
        raise TooCostly("the chat template strips too many different characters")


def _padded_cost(context: Budget, owner: str, width: Any, fill: Any = "") -> None:
    context.has_room(width if isinstance(width, int) else 0)


def _tabs_cost(context: Budget, owner: str, tabsize: Any = 8) -> None:
    context.has_room(len(owner) + owner.count("\t") * (max(tabsize, 0) if isinstance(tabsize, int) else 0))


def _replace_cost(context: Budget, owner: str, old: Any, new: Any, *count: Any, **more: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        context.has_room(len(owner) + owner.count(old) * len(new))


def _join_cost(context: Budget, owner: str, values: Any) -> None:
    if hasattr(values, "__len__"):
        context.weigh(values)
        context.has_room(len(owner) * len(values) + sum(len(value) for value in values if isinstance(value, str)))
    elif isinstance(values, Iterator):
        raise SecurityError("str.join needs a list in chat templates")


def _split_cost(context: Budget, owner: str, sep: Any = None, *most: Any, **more: Any) -> None:
    parts = owner.count(sep) if isinstance(sep, str) and sep else len(owner) // 2
    context.spend((parts + 1) * COST_OF_OBJECT)


def _lines_cost(context: Budget, owner: str, *keep: Any, **more: Any) -> None:
    context.spend((num_lines(owner) + 1) * COST_OF_OBJECT)


def _backward_cost(context: Budget, owner: str, what: Any = "", *more: Any, **options: Any) -> None:
    """From the end the library searches place by place."""
    context.spend(len(owner) * (len(what) if isinstance(what, str) else 1))


def _rsplit_cost(context: Budget, owner: str, sep: Any = None, *most: Any, **more: Any) -> None:
    _backward_cost(context, owner, sep)
    _split_cost(context, owner, sep)


def _format_cost(context: Budget, owner: str, *args: Any, **kwargs: Any) -> None:
    fields = 0
    size = len(owner)
    for _, name, spec, _ in Formatter().parse(owner):
        fields += name is not None
        if spec:
            if "{" in spec or len(spec) > 8:
                raise SecurityError("nested and long format specifications are not available in chat templates")
            size += max(map(int, "".join(c if c.isdigit() else " " for c in spec).split()), default=0)
    for value in (*args, *kwargs.values()):
        context.weigh(value, max(1, fields))
        size += fields * (len(value) if hasattr(value, "__len__") else MAX_BITS)
    context.has_room(size)


def _searched_cost(context: Budget, owner: Sequence[Any], *args: Any) -> None:
    for value in args:
        context.weigh(value, len(owner) + 1)


def _extended_cost(context: Budget, owner: list[Any], values: Any = (), *more: Any) -> None:
    if not hasattr(values, "__len__"):
        raise SecurityError("list.extend needs a list in chat templates")
    listed_cost(context, values)


def _appended_cost(context: Budget, owner: list[Any], *args: Any) -> None:
    context.spend(COST_OF_ITEM)


def _inserted_cost(context: Budget, owner: list[Any], *args: Any) -> None:
    context.spend(len(owner))


def _key_cost(context: Budget, owner: Mapping[Any, Any], key: Any = None, *default: Any) -> None:
    single(key)


def _copy_cost(context: Budget, owner: Any) -> None:
    context.spend(len(owner) * COST_OF_ITEM)


Check = Callable[..., None]
METHODS: dict[tuple[type, str], Check] = {
    **{(str, name): _text_cost for name in (
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower", "partition",
        "removeprefix", "removesuffix", "startswith", "swapcase", "title", "upper")},
    **{(str, name): strip_cost for name in ("strip", "lstrip", "rstrip")},
    **{(str, name): _padded_cost for name in ("center", "ljust", "rjust", "zfill")},
    **{(str, name): _backward_cost for name in ("rfind", "rindex", "rpartition")},
    (str, "expandtabs"): _tabs_cost,
    (str, "replace"): _replace_cost,
    (str, "join"): _join_cost,
    (str, "split"): _split_cost,
    (str, "rsplit"): _rsplit_cost,
    (str, "splitlines"): _lines_cost,
    (str, "format"): _format_cost,
    **{(kind, name): _searched_cost for kind in (list, tuple) for name in ("count", "index")},
    (list, "append"): _appended_cost,
    (list, "extend"): _extended_cost,
    (list, "insert"): _inserted_cost,
    (list, "pop"): _inserted_cost,
    (list, "copy"): _copy_cost,
    (dict, "copy"): _copy_cost,
    (dict, "get"): _key_cost,
    **{(dict, name): _key_cost for name in ("items", "keys", "values")},
}  # fmt: skip
"""What each method costs before it has a result: called with its owner and arguments. Others are refused."""
