"""Chat templates: a conversation in, the prompt's text out.

Owns jinja2: the sandbox, the extensions that model authors write for, the limits of one rendering, and the marking
of what users wrote, so that special tokens in their text stay text. What a template accepts is found out by
`normalise`; what its model writes, by `probe`. Knows nothing of tokens, protocols or engines.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import GeneratorType
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent, make_attrgetter
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from llamasrv.chat import normalise, probe
from llamasrv.chat.formats import GENERIC, ChatFormat
from llamasrv.domain.request import ChatPrompt
from llamasrv.errors import InvalidRequest

MAX_SOURCE = 1 << 20  # characters of a template
MAX_TEXT = 1 << 24  # characters of one string that a template builds
MAX_OUTPUT = 1 << 26  # characters of a prompt, or of what a macro writes
MAX_WORK = 1 << 30  # what one rendering may do, in nanoseconds or so
MAX_SECONDS = 5.0
MAX_PIECES = 1 << 22  # that a rendering consists of
COST_OF_TURN = 32  # of a loop
COST_OF_TEXT = 1  # two characters cost one: a shift
LIST_METHODS = ("append", "pop", "extend", "insert")  # beyond what the immutable sandbox allows

RESERVED = frozenset(
    ("messages", "tools", "functions", "add_generation_prompt", "continue_final_message", "chat_template",
     "tokenize", "bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum",
     "cycler", "joiner", "loop", "self", "super", "caller", "varargs", "kwargs", "true", "false", "none")
)  # fmt: skip
"""Names that a request may not set through template variables."""

_THINKING_SWITCHES = ("enable_thinking", "thinking")  # templates call the same switch by two names


class TemplateError(Exception):
    """A template that cannot be compiled. The message names the line."""


class TooCostly(Exception):
    """One rendering went over its limits."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. The segments make up the text; special tokens may be parsed in trusted ones only.

    `continues` is "content" or "reasoning" where the prompt ends inside the assistant's last message.
    """

    text: str
    segments: tuple[tuple[str, bool], ...]
    continues: str | None = None


# ---------------------------------------------------------------- the sandbox


class _Budget(Context):
    """The variables of one rendering, and what it may still spend."""

    left = MAX_WORK
    deadline = float("inf")
    guarded: Sequence[str] = ()

    @property
    def is_large(self) -> bool:
        """Whether so much was done that values could be too large to be written out."""
        return self.left < MAX_WORK - (1 << 20)

    def built(self, size: int) -> None:
        """A text of that size was built."""
        if size > MAX_TEXT:
            raise TooCostly("the chat template builds a text that is too large")
        self.spend(size >> COST_OF_TEXT)

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0 or (self.is_large and time.monotonic() > self.deadline):
            raise TooCostly("the chat template does too much work for these messages")


@jinja2.pass_context
def _charge_loop(context: _Budget, values: Any) -> Any:
    """Wraps what every `for` runs over, so that loops are paid for before they start."""
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
        raise TooCostly("the chat template writes too much for these messages")
    return between.join(texts)


def _concat(pieces: Iterable[str]) -> str:
    """What a template, a macro or a block has written."""
    return _bounded_join("", list(pieces))


class _Limits(NodeTransformer):
    """Rewrites a parsed template: loops and `~` go through the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "charge loop", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join text", [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; here it prints its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Hugging Face's environment, with limits. One for the process: it holds no state of a rendering."""

    concat = staticmethod(_concat)  # type: ignore[assignment]
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
    """About how many characters a value takes when it is written as JSON."""
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
    """What `json` does not know: generators (results of `map`), undefined values, mappings that are not dicts."""
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
    """Hugging Face's `tojson`: no HTML escaping, and characters stay as they are."""
    if isinstance(indent, int) and indent > 16:
        raise TooCostly("the chat template indents JSON too far")
    if context.is_large:
        context.built(_written_size(value))
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )
    context.built(len(text))
    for number, token in enumerate(context.guarded):
        stand_in, inside = chr(_FIRST_STAND_IN + number), json.dumps(token, ensure_ascii=ensure_ascii)[1:-1]
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


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(str(format)[:200])


def _unavailable(*args: Any, **kwargs: Any) -> None:
    raise jinja2.exceptions.SecurityError("this filter is not available in chat templates")


@lru_cache(maxsize=1)
def _sandbox() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.filters["charge loop"] = _charge_loop
    environment.filters["join text"] = _join_text
    environment.filters["tojson"] = _tojson
    environment.filters["safe"] = str  # without escaping, text marked safe would have its neighbours escaped
    environment.filters["from_json"] = _from_json
    environment.filters["replace"] = _replace
    environment.filters["join"] = _join
    environment.filters["indent"] = _indent
    for name in ("center", "format", "wordwrap", "urlize", "pprint", "xmlattr", "random"):
        environment.filters[name] = _unavailable
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


# ---------------------------------------------------------------- what users wrote

# A special token in a user's text goes through the template as one stand-in, a character of the rarest Chinese
# block; afterwards the token is put back, as an untrusted segment. The template cannot see it, so nothing it does to
# texts can turn it into markup. Private-use characters would not do: Python's notation escapes them.
_FIRST_STAND_IN = 0x30000
_STAND_INS = "[\U00030000-\U00031340]"
MAX_STAND_INS = 0x1340
_END = "\U0003134a"  # put at the end of the message that is being continued
_LOOKS_SPECIAL = rf"<[^\s<>]{{1,64}}>|\[/?[A-Z][A-Z_]+\]|\]<\][^\s]{{1,32}}\[>\[|{_STAND_INS}|{_END}"
"""What may be a special token where nobody told which there are."""


def _any_of(words: Iterable[str]) -> str:
    """One expression for many words: a tree, because `re` tries alternatives one after another."""
    tree: dict[str, Any] = {}
    for word in words:
        node = tree
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _tree_expression(tree)


def _tree_expression(tree: dict[str, Any]) -> str:
    prefix = ""
    while len(tree) == 1 and "" not in tree:
        ((char, tree),) = tree.items()
        prefix += re.escape(char)
    branches = [re.escape(char) + _tree_expression(below) for char, below in tree.items() if char]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"


class _Guard:
    """Replaces special tokens in one conversation, and finds them again in the rendered text."""

    def __init__(self, pattern: re.Pattern[str], visible: frozenset[str]) -> None:
        self.tokens: list[str] = []
        self._search = pattern.search
        self._sub = pattern.sub
        self._visible = visible

    def messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        search = self._search
        for message in messages:
            for key, value in message.items():
                if type(value) is str:
                    if search(value) is not None and key != "role":
                        hide = self._hide_unseen if key == "content" and message["role"] == "assistant" else self._hide
                        message[key] = self._sub(hide, value)
                elif value is not None:
                    message[key] = self.value(value)
        return messages

    def value(self, value: Any) -> Any:
        if type(value) is str:
            return value if self._search(value) is None else self._sub(self._hide, value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def _hide(self, match: re.Match[str]) -> str:
        token = match.group()
        if token not in self.tokens:
            if len(self.tokens) >= MAX_STAND_INS:
                raise InvalidRequest("The messages name too many different special tokens.", param="messages")
            self.tokens.append(token)
        return chr(_FIRST_STAND_IN + self.tokens.index(token))

    def _hide_unseen(self, match: re.Match[str]) -> str:
        # What an assistant wrote may carry marks that the template looks for itself, like `</think>`.
        return match.group() if match.group() in self._visible else self._hide(match)

    def segments(self, text: str) -> tuple[str, tuple[tuple[str, bool], ...]]:
        if not self.tokens:
            return text, ((text, True),)
        segments: list[tuple[str, bool]] = []
        for number, piece in enumerate(re.split(f"({_STAND_INS})", text)):
            if number % 2:
                index = ord(piece) - _FIRST_STAND_IN
                segments.append((self.tokens[index] if index < len(self.tokens) else "\ufffd", False))
            elif piece:
                segments.append((piece, True))
        return "".join(piece for piece, _ in segments), tuple(segments)


def _words_looked_for(tree: nodes.Template) -> frozenset[str]:
    """Texts that a template searches for in contents: operands of `in`, arguments of text methods."""
    found: set[str] = set()
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            found.update(const.value for const in compare.find_all(nodes.Const) if isinstance(const.value, str))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            found.update(const.value for const in call.find_all(nodes.Const) if isinstance(const.value, str))
    return frozenset(found)


# ---------------------------------------------------------------- a template


@lru_cache(maxsize=64)
def _compile(source: str) -> tuple[jinja2.Template, frozenset[str], frozenset[str]]:
    """The template, the variables it reads, and the texts it looks for."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"the chat template is longer than {MAX_SOURCE} characters")
    environment = _sandbox()
    try:
        tree = environment.parse(source)
        return environment.from_string(source), frozenset(meta.find_undeclared_variables(tree)), _words_looked_for(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
    except (RecursionError, ValueError, SyntaxError, MemoryError) as error:
        raise TemplateError(f"the chat template cannot be compiled: {error}") from None


class ChatTemplate:
    """One template of one model. Compiled once; what it accepts is found out at the first rendering."""

    def __init__(
        self, source: str, bos_token: str = "", eos_token: str = "", special_tokens: Iterable[str] | None = None
    ) -> None:
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self._template, self.variables, looked_for = _compile(source)
        if special_tokens is None:
            self._special = re.compile(_LOOKS_SPECIAL)
        else:
            words = [word for word in (*special_tokens, bos_token, eos_token) if word]
            self._special = re.compile("|".join(([_any_of(words)] if words else []) + [_STAND_INS, _END]))
        self._looked_for = looked_for
        self._copies_input = any(f".{method}(" in source for method in LIST_METHODS)
        self._environment = _sandbox()
        self._given = {"bos_token": bos_token, "eos_token": eos_token}
        self._wants_time = "datetime" in self.variables
        self._traits: normalise.Traits | None = None
        self._format: ChatFormat | None = None

    @property
    def traits(self) -> normalise.Traits:
        """What this template accepts and shows. The first access renders a few dozen trial conversations."""
        if self._traits is None:
            self._traits = normalise.examine(self)
        return self._traits

    @property
    def format(self) -> ChatFormat:
        """How the model of this template writes reasoning and calls. Learned at the first access."""
        if self._format is None:
            trial = copy.copy(self)
            trial._format = GENERIC  # while it is learned; others may render meanwhile
            self._format = probe.describe(trial)
        return self._format

    def render(self, prompt: ChatPrompt) -> Rendered:
        """The prompt of a conversation. Raises InvalidRequest with the template's own sentence where it refuses."""
        variables = self._allowed(prompt.template_kwargs)
        traits = self.traits
        conversation = normalise.prepare(prompt, traits, self.format.calls)
        guard = _Guard(self._special, self._looked_for)
        messages = guard.messages(conversation.messages)
        if conversation.continues is not None:
            conversation.held = guard.value(conversation.held)
            normalise.mark_ending(conversation, traits, _END)
        tools = guard.value(conversation.tools) if conversation.tools else None
        if variables:
            variables = guard.value(variables)
        if traits.tools_variable != "tools":
            variables = {**variables, **normalise.tools_elsewhere(tools, traits)}
            tools = None
        text = self.render_plain(messages, tools, conversation.add_generation_prompt, variables, guard.tokens)
        if conversation.continues is not None:
            text = self._cut_at_end(text, conversation, tools, variables, guard.tokens)
        elif conversation.add_generation_prompt and _switches_thinking_off(prompt.template_kwargs):
            text = self.format.closed(text)
        text, segments = guard.segments(text)
        return Rendered(text, segments, conversation.continues)

    def _cut_at_end(
        self,
        text: str,
        conversation: normalise.Conversation,
        tools: list[Any] | None,
        variables: Mapping[str, Any],
        guarded: Sequence[str],
    ) -> str:
        """The prompt up to where the last message goes on."""
        thought, held = self.format.reasoning, conversation.held
        end = text.rfind(_END)
        if end < 0:
            # The template does not show what is to be continued: begin a new turn, and write it there.
            if conversation.continues == "reasoning":
                variables = {**variables, **{name: True for name in _THINKING_SWITCHES if name in self.variables}}
            start = self.render_plain(conversation.messages[:-1], tools, True, variables, guarded)
            if conversation.continues == "reasoning" and thought is not None:
                start = thought.reopened(start)
        elif conversation.continues == "reasoning" or not text[:end].endswith(held):
            return text[:end]
        else:
            start = text[: end - len(held)]
        if conversation.continues == "content" and thought is not None and thought.is_open(start):
            start = start.rstrip() + "\n" + thought.end.lstrip()
        return start + held

    def render_plain(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        guarded: Sequence[str] = (),
        *,
        work: int = MAX_WORK,
    ) -> str:
        """Exactly what the template makes of these messages; InvalidRequest where it fails."""
        if self._copies_input:
            messages, tools = _deep_copy(messages), _deep_copy(tools)
        given = {
            **self._given,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
            **(variables or {}),
        }
        if tools:
            given["tools"] = tools
        if self._wants_time and "datetime" not in given:
            given["datetime"] = _strftime_now("%B %d %Y %H:%M:%S")
        context: Any = self._template.new_context(given)  # a _Budget
        context.guarded = guarded
        context.left = work
        context.deadline = time.monotonic() + MAX_SECONDS
        pieces: list[str] = []
        try:
            pieces.extend(islice(self._template.root_render_func(context), MAX_PIECES + 1))
            if len(pieces) > MAX_PIECES:
                raise TooCostly("the chat template writes too much for these messages")
            text = _concat(pieces)
        except (jinja2.TemplateError, TooCostly) as error:
            raise InvalidRequest(str(error) or "The chat template refused these messages.", param="messages") from None
        except Exception as error:  # a template can fail in every way that Python can
            raise InvalidRequest(
                f"The chat template cannot render these messages: {type(error).__name__}: {error}", param="messages"
            ) from None
        return text

    def _allowed(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Only what the template reads gets through; what would replace the conversation is refused."""
        if not variables:
            return {}
        for name in variables:
            if name in RESERVED or name.startswith("_"):
                raise InvalidRequest(f"'{name}' cannot be set as a template variable.", param="chat_template_kwargs")
        allowed = {name: value for name, value in variables.items() if name in self.variables}
        for name, twin in (_THINKING_SWITCHES, _THINKING_SWITCHES[::-1]):
            if name in variables and twin in self.variables and twin not in variables:
                allowed[twin] = variables[name]
        return allowed


def _switches_thinking_off(variables: Mapping[str, Any]) -> bool:
    return any(variables.get(name) is False for name in _THINKING_SWITCHES)


def _deep_copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _deep_copy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_deep_copy(item) for item in value]
    return value


# ---------------------------------------------------------------- templates of our own


def _directory() -> Path:
    """Where the fallback templates lie: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "templates" / "chat"
    return inside if inside.is_dir() else package.parent / "templates" / "chat"


@lru_cache(maxsize=8)
def fallback_source(name: str = "chatml") -> str:
    """The source of one of our own templates: chatml (the default where a model has none) or plain."""
    return (_directory() / f"{name}.jinja").read_text(encoding="utf-8")
