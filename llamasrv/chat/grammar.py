"""What a model may write, as a grammar: the same ChatFormat that the parser reads, seen from the other side.

Makes Lark text as llguidance understands it, from the format, the tools, whether one must be called, and the form that
the content must have. The grammar covers everything from the first token on: thinking, free text, calls. Text that is
one token of the vocabulary's special ones is written as that token. Nothing is compiled here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llamasrv.chat import values
from llamasrv.chat.endless import has_an_end
from llamasrv.chat.formats import Calls, ChatFormat, Shape, pieces
from llamasrv.chat.schemas import SchemaBounds
from llamasrv.domain.request import Content, Tool
from llamasrv.errors import InvalidRequest

MAX_MEMBERS_ANY_ORDER = 60  # arguments that may come in any order: a parameter of a rule has 64 bits
MAX_DEPTH = 16
MAX_LENGTH = 4_000_000  # characters of a grammar

_TEXT = "X_TEXT"
_BREAK = "\n"  # before the first mark it belongs to the text before it
_BREAKS = r"/\n{0,3}/"
_NUMBER = "/[0-9]{1,3}/"
_SHORT_ID = "/[a-zA-Z0-9]{9}/"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the marks that end free text: before one of these is written, nothing is constrained.

    Without marks the grammar holds from the first token on.
    """

    grammar: str
    triggers: tuple[str, ...] = ()


def constrain(
    format: ChatFormat,
    *,
    prompt: str = "",
    continues: str | None = None,
    tools: Sequence[Tool] = (),
    must_call: bool = False,
    parallel: bool = True,
    content: Content | None = None,
    thinking: bool = True,
    special_tokens: Mapping[str, int] | None = None,
) -> Constraint | None:
    """The constraint of one request, or None where anything may be written.

    `tools` are those that may be called; `prompt` and `continues` as for the parser. `special_tokens` are those that
    the grammar must name by their number, because their text means something else. With `thinking` off no block for
    thinking is opened, but one that the prompt has opened is still ended.
    """
    calls = format.calls if tools else None
    if content is None and calls is None:
        return None
    if must_call and calls is None:
        raise InvalidRequest("A tool must be called, but there is none.", param="tool_choice")
    writer = _Writer(special_tokens or {})
    is_open = _is_thinking(format, prompt, continues)
    head = _thinking(writer, format, is_open, thinking and continues is None)
    instead = ""
    if calls is not None:
        made = _made(writer, calls, tools, prompt, parallel and calls.parallel)
        body = _body(writer, format, calls, made, must_call, content)
        if is_open and continues is None:
            instead = _instead_of_thinking(writer, format, calls, made, must_call, content)
    else:
        body = _content(writer, format, content, continues is not None)
    ending = f" ({writer.literal(format.turn_end)})?" if format.turn_end else ""
    grammar = writer.text(f"({head}{body}{instead}){ending}")
    free = calls is not None and not must_call and content is None and not calls.bare and not format.content_start
    return Constraint(grammar, (_trigger(calls),) if free and calls is not None else ())


# ---------------------------------------------------------------- writing rules


class _Writer:
    """Collects rules under fresh names."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self._numbers = special_tokens
        words = sorted(special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, words)) or "(?!)")
        self._names: dict[str, str] = {}
        self._bounds = SchemaBounds()

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """The name of a rule with this body; equal bodies share one."""
        key = f"{lazy} {body}"
        name = self._names.get(key)
        if name is None:
            name = f"x{len(self._names)}"
            self._names[key] = name
            self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def parametric(self, branches: Callable[[str], list[str]]) -> str:
        """The name of a rule with a parameter; its branches refer to it."""
        name = self.reserve()
        self.rules.append(f"{name}::_: " + "\n  | ".join(branches(name)))
        return name

    def reserve(self) -> str:
        """A name for a rule that refers to itself."""
        name = f"x{len(self._names)}"
        self._names[name] = name
        return name

    def text(self, start: str) -> str:
        text = "\n".join(("%llguidance {}", f"start: {start}", f"{_TEXT}: /(?s:.*)/", *self.rules)) + "\n"
        if len(text) > MAX_LENGTH:
            raise InvalidRequest("The tools and the schema make a grammar that is too large.", param="tools")
        return text

    def literal(self, text: str) -> str:
        """Exactly this text, special tokens in it by number."""
        parts: list[str] = []
        position = 0
        for found in self._special.finditer(text):
            if found.start() > position:
                parts.append(json.dumps(text[position : found.start()], ensure_ascii=False))
            parts.append(f"<[{self._numbers[found.group()]}]>")
            position = found.end()
        if position < len(text):
            parts.append(json.dumps(text[position:], ensure_ascii=False))
        return " ".join(parts) or '""'

    def terminal(self, body: str) -> str:
        """The name of a terminal: one regular expression."""
        key = f"terminal {body}"
        name = self._names.get(key)
        if name is None:
            name = f"X{len(self._names)}"
            self._names[key] = name
            self.rules.append(f"{name}: {body}")
        return name

    def is_special(self, text: str) -> bool:
        """Whether a text begins with a special token."""
        return self._special.match(text) is not None

    def until(self, mark: str) -> str:
        """Any text up to a mark, and the mark."""
        found = self._special.search(mark)
        if found is None:
            return self.rule(f"{_TEXT} {self.literal(mark)}", lazy=True)
        if found.start() == 0:
            return f"{_TEXT} {self.literal(mark)}"
        # A lazy rule must end with text; the tokens of the mark follow.
        begun = self.rule(f"{_TEXT} {self.literal(mark[: found.start()])}", lazy=True)
        return f"{begun} {self.literal(mark[found.start() :])}"

    def schema(self, schema: Any, *, lenient: bool = True, separators: tuple[str, str] = (", ?", ": ?")) -> str:
        """A JSON value. Spaces as the templates write them, or none."""
        options = {
            "whitespace_flexible": False, "item_separator": separators[0], "key_separator": separators[1],
            "lenient": lenient,
        }  # fmt: skip
        param = "tools" if lenient else "content"
        if schema is False:
            raise InvalidRequest("A schema that is false allows nothing.", param=param)
        self._bounds.add(schema, param)
        if not has_an_end(schema):
            raise InvalidRequest("Nothing satisfies the schema: it refers to itself without an end.", param=param)
        body = dict(schema) if isinstance(schema, Mapping) else {}
        return self.rule(f"%json {json.dumps({**body, 'x-guidance': options}, ensure_ascii=False, default=dict)}")


# ---------------------------------------------------------------- the parts of an answer


def _is_thinking(format: ChatFormat, prompt: str, continues: str | None) -> bool:
    """Whether the answer begins inside a block for thinking."""
    thought = format.reasoning
    return thought is not None and continues != "content" and (continues == "reasoning" or thought.is_open(prompt))


def _thinking(writer: _Writer, format: ChatFormat, is_open: bool, allowed: bool) -> str:
    """The block before the answer: already open, possible, or none."""
    thought = format.reasoning
    if thought is None:
        return ""
    end = f"{writer.until(thought.end.strip())} {_BREAKS}"
    if is_open:
        return f"{end} "
    if not allowed or thought.assumed or not thought.start:
        return ""
    return f"({writer.literal(thought.start)} {end})? "


def _content(writer: _Writer, format: ChatFormat, content: Content | None, continuing: bool = False) -> str:
    """What is for the user, with the marks around it."""
    inner = _TEXT if content is None else _form(writer, content)
    start = "" if continuing or not format.content_start else writer.literal(format.content_start) + " "
    end = f" ({writer.literal(format.content_end)})?" if format.content_end else ""
    return f"{start}{inner}{end}"


def _form(writer: _Writer, content: Content) -> str:
    if content.kind == "json":
        schema = {"type": "object"} if content.value is None else content.value
        return writer.schema(schema, lenient=False)
    if content.kind == "choice":
        return writer.rule(" | ".join(json.dumps(choice, ensure_ascii=False) for choice in content.value))
    if content.kind == "regex":
        return writer.rule(f"/{_escaped(content.value)}/")
    if content.kind == "lark":
        return writer.rule(f"%lark {{\n{content.value}\n}}")
    raise ValueError(content.kind)


def _escaped(pattern: str) -> str:
    """A regular expression between slashes."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", "\\n")


@dataclass(frozen=True, slots=True)
class _Made:
    """Calls: the mark that begins them, empty where the prompt wrote it or there is none, and what follows it."""

    opening: str
    rest: str

    def text(self, writer: _Writer) -> str:
        return f"{writer.literal(self.opening.lstrip(_BREAK))} {self.rest}" if self.opening else self.rest

    def behind(self, writer: _Writer, trigger: str, before: str) -> str:
        """With a text before them that ends with the first mark."""
        return f"{before} {writer.literal(self.opening.partition(trigger)[2])} {self.rest}"


def _made(writer: _Writer, calls: Calls, tools: Sequence[Tool], prompt: str, parallel: bool) -> _Made:
    call = writer.rule(" | ".join(_call(writer, calls, tool) for tool in tools))
    more = writer.literal(calls.separator + calls.call_start) if calls.separator + calls.call_start else ""
    one = f"{call}{_after(writer, calls.call_end)}"
    rest = f"{one} ({more} {one})*" if parallel else one
    rest = writer.rule(f"{rest}{_after(writer, calls.section_end)} {_BREAKS}")
    begun = bool(calls.call_start) and prompt.endswith(calls.call_start.strip())
    return _Made("" if begun else calls.section_start + calls.call_start, rest)


def _body(
    writer: _Writer, format: ChatFormat, calls: Calls, made: _Made, must_call: bool, content: Content | None
) -> str:
    """Free text and calls, calls alone, or content of a form or calls."""
    called = made.text(writer)
    if must_call:
        return called
    if content is not None:
        return writer.rule(f"{_content(writer, format, content)} | {called}")
    if calls.bare:
        begins = r"\[{" if calls.array else "{"
        return writer.rule(rf"{called} | /[^{begins}\s](?s:.*)/ | /\s*/")
    late = _late(writer, calls, made)
    if format.content_start:
        said = _spoken(writer, format, writer.literal(format.content_start), called, late)
        return f"{_aside(writer, format)}{writer.rule(f'{said} | {called}')}"
    return writer.rule(f"{late} | {_TEXT}")


def _late(writer: _Writer, calls: Calls, made: _Made) -> str:
    """Calls behind any text."""
    trigger = _trigger(calls)
    return made.behind(writer, trigger, writer.until(trigger))


def _spoken(writer: _Writer, format: ChatFormat, start: str, called: str, late: str) -> str:
    """Free content between its marks, and calls behind it."""
    if format.content_end:
        return f"{start} {writer.until(format.content_end)} ({called})? | {start} {_TEXT}"
    return f"{start} ({late} | {_TEXT})"


def _aside(writer: _Writer, format: ChatFormat) -> str:
    """Words for the user that may come first."""
    if not format.aside or format.reasoning is None:
        return ""
    return f"({writer.literal(format.aside)} {writer.until(format.reasoning.end)})? "


def _instead_of_thinking(
    writer: _Writer, format: ChatFormat, calls: Calls, made: _Made, must_call: bool, content: Content | None
) -> str:
    """What may come where a block for thinking is open, other than its end: some models call at once, and with some
    a call or the start of the content ends the block."""
    thought = format.reasoning
    if calls.bare or not made.opening or thought is None:
        return ""
    trigger = _trigger(calls)
    if not thought.ended_by_calls:
        mark = writer.literal(trigger)
        at_once = rf"/\s*/ {mark}" if writer.is_special(trigger) else writer.rule(rf"/\s*/ {mark}", lazy=True)
        return f" | {made.behind(writer, trigger, at_once)}"
    late = _late(writer, calls, made)
    if must_call or not format.content_start:
        return f" | {late}"
    if content is not None:
        spoken = f"{writer.until(format.content_start)} {_content(writer, format, content, True)}"
    else:
        spoken = _spoken(writer, format, writer.until(format.content_start), made.text(writer), late)
    return f" | {late} | {spoken}"


def _after(writer: _Writer, text: str) -> str:
    return f" {writer.literal(text)}" if text else ""


def _trigger(calls: Calls) -> str:
    """The first mark of a call: behind it nothing but a call may come."""
    first = (pieces(calls.section_start) + pieces(calls.call_start))[0]
    return first


# ---------------------------------------------------------------- one call


def _call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    if not has_an_end(tool.parameters):
        name = tool.name[:64]
        message = f"Nothing satisfies the parameters of the tool '{name}': they refer to themselves without an end."
        raise InvalidRequest(message, param="tools")
    return _CALLS[calls.shape](writer, calls, tool)


def _arguments(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments. What it does not name is not written, unless it says so."""
    schema = dict(tool.parameters) or {"properties": {}}
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, (list, tuple)) and "object" in kind):
        message = f"The parameters of the tool '{tool.name[:64]}' must be of the type 'object'."
        raise InvalidRequest(message, param="tools")
    schema["type"] = "object"
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and not any(key in schema for key in _OPEN):
        schema["additionalProperties"] = False
        required = schema.get("required")
        if isinstance(required, (list, tuple)):  # a name without a schema of its own can be anything
            unknown = [name for name in required if isinstance(name, str) and name not in properties]
            schema["properties"] = {**properties, **{name: {} for name in unknown}}
    return schema


_OPEN = ("additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "$ref")


_PLAIN_OBJECT = frozenset((
    "type", "properties", "required", "additionalProperties", "title", "description", "$schema", "default", "examples",
))  # fmt: skip


def _json_arguments(writer: _Writer, tool: Tool) -> str:
    """A tool's arguments as a JSON object.

    A schema's properties come in its order. That loses an optional one which the model would have written later, so
    where there are such the object is written out here, in any order.
    """
    schema, lenient = _arguments(tool), not tool.strict
    if not _has_options(schema):
        return writer.schema(schema, lenient=lenient)
    items = []
    for key, part in schema["properties"].items():
        needed = key in schema.get("required", ())
        if part is not False or needed:
            name = writer.literal(json.dumps(key, ensure_ascii=False))
            items.append((writer.rule(f"{name} /: ?/ {writer.schema(part, lenient=lenient)}"), needed))
    return f'"{{" {_members(writer, items, "/, ?/")} "}}"'


def _has_options(schema: Mapping[str, Any]) -> bool:
    """Whether it is a plain object of several properties, some of them optional, that refers to nothing."""
    properties, required = schema.get("properties"), schema.get("required", ())
    return (
        isinstance(properties, Mapping) and 1 < len(properties) <= MAX_MEMBERS_ANY_ORDER
        and isinstance(required, (list, tuple)) and not set(properties) <= {str(name) for name in required}
        and schema.get("additionalProperties") is False and _PLAIN_OBJECT.issuperset(schema)
        and '"$ref"' not in json.dumps(properties, default=dict)
    )  # fmt: skip


def _json_call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    arguments = _json_arguments(writer, tool)
    name = json.dumps(tool.name, ensure_ascii=False)
    lit = writer.literal
    if calls.name_is_key:
        return f"{lit('{' + name + ': ')} {arguments} {lit('}')}"
    head = f"{json.dumps(calls.name_key)}: {name}, {json.dumps(calls.arguments_key)}: "
    if not calls.id_key:
        return f"{lit('{' + head)} {arguments} {lit('}')}"
    id = f'{json.dumps(calls.id_key)}: "'
    if calls.id_first:
        return f"{lit('{' + id)} {_NUMBER} {lit(chr(34) + ', ' + head)} {arguments} {lit('}')}"
    return f"{lit('{' + head)} {arguments} {lit(', ' + id)} {_SHORT_ID} {lit(chr(34) + '}')}"


def _named_call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    arguments = _json_arguments(writer, tool)
    lit = writer.literal
    if calls.id_form:
        before, _, after = calls.id_form.partition("{name}")
        around, _, behind = after.partition("{index}")
        return f"{lit(before + tool.name + around)} {_NUMBER} {lit(behind + calls.name_end)} {arguments}"
    if calls.id_mark and calls.id_first:
        return f"/[a-zA-Z0-9_-]{{1,40}}/ {lit(calls.id_mark + tool.name + calls.name_end)} {arguments}"
    if calls.id_mark:
        return f"{lit(tool.name + calls.id_mark)} {_SHORT_ID} {lit(calls.name_end)} {arguments}"
    return f"{lit(tool.name + calls.name_end)} {arguments}"


def _members(writer: _Writer, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Items, each at most once, required ones exactly once; in any order unless there are very many."""
    before = f"{separator} " if separator else ""
    if len(items) > MAX_MEMBERS_ANY_ORDER:
        return _in_their_order(writer, items, before)
    # A rule with a parameter, which has a bit for each item that was written; those of the required ones first.
    items = sorted(items, key=lambda item: not item[1])
    num_needed = sum(needed for _, needed in items)
    end = f'"" %if is_ones([0:{num_needed}])' if num_needed else '""'
    rest = writer.parametric(
        lambda rest: [end]
        + [f"{before}{item} {rest}::set_bit({n}) %if bit_clear({n})" for n, (item, _) in enumerate(items)]
    )
    first = [f"{item} {rest}::{1 << n}" for n, (item, _) in enumerate(items)]
    return writer.rule(" | ".join(first if num_needed else ['""', *first]))


def _in_their_order(writer: _Writer, items: Sequence[tuple[str, bool]], separator: str) -> str:
    first = later = '""'
    for item, needed in reversed(items):
        first, later = (
            writer.rule(f"{before}{item} {later}" + ("" if needed else f" | {without}"))
            for before, without in (("", first), (separator, later))
        )
    return first


def _properties(tool: Tool) -> list[tuple[str, Any, bool]]:
    """Name, schema and whether it is required, of each argument."""
    schema = _arguments(tool)
    properties = schema.get("properties")
    required = schema.get("required")
    names = {name for name in required if isinstance(name, str)} if isinstance(required, (list, tuple)) else set()
    if not isinstance(properties, Mapping):
        return []
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found = []
    for key, said in properties.items():
        if said is False and key not in names:
            continue
        part = values.property_schema(schema, key)
        if definitions and '"$ref"' in json.dumps(part, default=dict):
            part = {**part, **definitions}
        found.append((key, part, key in names))
    return found


def _tagged_call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    element = _element if calls.elements else _argument
    items = [(writer.rule(element(writer, calls, key, schema, 0)), needed) for key, schema, needed in _properties(tool)]
    name, number, end = (tool.name + calls.name_end).partition("{number}")
    head = f"{writer.literal(name)} {_NUMBER} {writer.literal(end)}" if number else writer.literal(name)
    return f"{head} {_members(writer, items, '')}"


def _argument(writer: _Writer, calls: Calls, key: str, schema: Any, depth: int) -> str:
    """One argument between its marks."""
    start = calls.key_start + key + calls.key_end
    end = calls.value_end.replace("{key}", key)
    branches = []
    if values.may_be_text(schema):
        branches.append(f"{writer.literal(start + calls.string_type)} {_plain_text(writer, schema, end)}")
    if not values.only_text(schema):
        kinds = sorted(values.types(schema) - {"string"}) or ["object"]
        inner = writer.schema(_without_text(schema))
        for kind in kinds if "{type}" in calls.other_type else [""]:
            said = calls.other_type.replace("{type}", "number" if kind == "integer" else kind)
            branches.append(f"{writer.literal(start + said)} {inner} {writer.literal(end)}")
    return " | ".join(dict.fromkeys(branches))


def _without_text(schema: Any) -> Any:
    """A schema for what is written as JSON; texts are written plainly."""
    if not isinstance(schema, Mapping):
        return {"type": ["object", "array", "number", "boolean", "null"]}
    kinds = values.types(schema) - {"string"}
    if isinstance(schema.get("type"), (list, tuple)) or not values.types(schema):
        return {**schema, "type": sorted(kinds) or ["object", "array", "number", "boolean", "null"]}
    return schema


def _plain_text(writer: _Writer, schema: Any, end: str) -> str:
    """Text without quotes, as its schema wants it, up to the mark behind it."""
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(schema, Mapping) and "const" in schema:
        choices = [schema["const"]]
    if isinstance(choices, (list, tuple)):
        texts = [json.dumps(choice, ensure_ascii=False) for choice in choices if isinstance(choice, str)]
        if texts:
            return f"({' | '.join(texts)}) {writer.literal(end)}"
    mark = pieces(end)[0]
    form = _form_of_text(schema) if isinstance(schema, Mapping) else None
    if form is None:
        # The mark alone ends the text, as it does for the parser, whatever stands around it.
        return f"{writer.until(mark)}{_after(writer, end.partition(mark)[2])}"
    if writer.is_special(mark):
        return f"{writer.terminal(f'/{form}/')} {writer.literal(end)}"
    around = end.partition(mark)
    whole = f"/{form}{_escaped(re.escape(end))}/"
    inside = f"/(?s:.*){_escaped(re.escape(mark))}(?s:.{{{len(around[2]) + 1},}})/"
    return writer.rule(writer.terminal(f"{whole} & ~{inside}"), lazy=True)


def _form_of_text(schema: Mapping[str, Any]) -> str | None:
    """What a text must look like, as a regular expression; None where anything will do."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        return _anchored(pattern)
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        return f"(?s:.){{{least if isinstance(least, int) else 0},{most if isinstance(most, int) else ''}}}"
    return None


def _anchored(pattern: str) -> str:
    """JSON Schema's patterns match anywhere; a grammar's match the whole."""
    head = "" if pattern.startswith("^") else "(?s:.*)"
    tail = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern[1:] if not head else pattern
    inner = inner[:-1] if not tail else inner
    return _escaped(f"{head}(?:{inner}){tail}")


def _element(writer: _Writer, calls: Calls, key: str, schema: Any, depth: int) -> str:
    """One argument whose objects and arrays are elements inside it."""
    start = calls.key_start + key + calls.key_end
    end = calls.value_end.replace("{key}", key)
    schema = schema if isinstance(schema, Mapping) else {}
    kinds = values.types(schema)
    properties = schema.get("properties")
    if kinds == {"object"} and isinstance(properties, Mapping) and depth < MAX_DEPTH:
        needed = schema.get("required") or ()
        inner = [(writer.rule(_element(writer, calls, k, s, depth + 1)), k in needed) for k, s in properties.items()]
        return f"{writer.literal(start)} {_members(writer, inner, '')} {writer.literal(end)}"
    if kinds == {"array"} and depth < MAX_DEPTH:
        item = writer.rule(_element(writer, calls, "item", schema.get("items"), depth + 1))
        least, most = _num_items(schema)
        items = "" if most == 0 else f"{item}{_repeats(least, most)} "
        return f"{writer.literal(start)} {items}{writer.literal(end)}"
    if not kinds or "string" in kinds:
        return f"{writer.literal(start)} {_plain_text(writer, schema, end)}"
    return f"{writer.literal(start)} {writer.schema(_without_text(schema))} {writer.literal(end)}"


def _num_items(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """The fewest and the most items of an array. Raises for what no array has."""
    said = [schema.get(name) for name in ("minItems", "maxItems")]
    least, most = (number if isinstance(number, int) and number >= 0 else None for number in said)
    if most is not None and most < (least or 0):
        raise InvalidRequest("Nothing satisfies the schema: minItems is greater than maxItems.", param="tools")
    return least or 0, most


def _repeats(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"


def _listed(item: str, schema: Mapping[str, Any]) -> str:
    """Items with commas between them, as many as an array may have."""
    least, most = _num_items(schema)
    if most == 0:
        return '""'
    more = f'("," {item}){_repeats(max(least - 1, 0), most and most - 1)}'
    return f"{item} {more}" if least else f"({item} {more})?"


def _python_call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    items = []
    for key, schema, needed in _properties(tool):
        items.append((writer.rule(f"{writer.literal(key + '=')} {_python_value(writer, schema)}"), needed))
    return f"{writer.literal(tool.name + '(')} {_members(writer, items, writer.literal(', '))} {writer.literal(')')}"


def _python_value(writer: _Writer, schema: Any) -> str:
    kinds = values.types(schema)
    constants = [word for kind, words in _PYTHON.items() if kind in kinds for word in words]
    others = kinds - set(_PYTHON)
    branches = [json.dumps(word) for word in constants]
    if others or not kinds:
        branches.append(
            writer.schema(
                {**schema, "type": sorted(others)} if others and isinstance(schema.get("type"), list) else schema
            )
        )
    return writer.rule(" | ".join(branches))


_PYTHON: Mapping[str, tuple[str, ...]] = {"null": ("None",), "boolean": ("True", "False")}


def _braces_call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    return f"{writer.literal(tool.name)} {_braces(writer, _arguments(tool), 0)}"


def _braces(writer: _Writer, schema: Any, depth: int) -> str:
    """A value in Gemma's notation: JSON without quotes around keys, and with a mark for quotes."""
    schema = schema if isinstance(schema, Mapping) and depth < MAX_DEPTH else {}
    kinds = values.types(schema)
    branches: list[str] = []
    quote = '<|"|>'
    if not kinds or "string" in kinds:
        branches.append(f"{writer.literal(quote)} {_plain_text(writer, schema, quote)}")
    if "object" in kinds:
        branches.append(_braces_object(writer, schema, depth))
    if "array" in kinds:
        item = _braces(writer, schema.get("items"), depth + 1)
        branches.append(f'"[" {_listed(item, schema)} "]"')
    plain = (kinds & {"integer", "number", "boolean", "null"}) if kinds else {"number", "boolean", "null"}
    if plain:
        branches.append(writer.schema({**{k: v for k, v in schema.items() if k != "$defs"}, "type": sorted(plain)}))
    return writer.rule(" | ".join(branches))


def _braces_object(writer: _Writer, schema: Mapping[str, Any], depth: int) -> str:
    properties = schema.get("properties")
    needed = schema.get("required") or ()
    if isinstance(properties, Mapping) and properties:
        items = []
        for key in properties:
            part = _braces(writer, values.property_schema(schema, key), depth + 1)
            items.append((writer.rule(f"{writer.literal(key + ':')} {part}"), key in needed))
        return f'"{{" {_members(writer, items, chr(34) + "," + chr(34))} "}}"'
    if depth == 0 or schema.get("additionalProperties") is False:
        return '"{" "}"'
    anything = _anything(writer)
    pair = writer.rule(f"/[A-Za-z_][A-Za-z0-9_]*:/ {anything}")
    return f'"{{" ({pair} ("," {pair})*)? "}}"'


def _anything(writer: _Writer) -> str:
    """Any value in Gemma's notation."""
    known = writer._names.get("anything")
    if known is not None:
        return known
    name = writer.reserve()
    writer._names["anything"] = name
    quote = '<|"|>'
    pair = f"/[A-Za-z_][A-Za-z0-9_]*:/ {name}"
    branches = (
        f"{writer.literal(quote)} {writer.until(quote)}",
        writer.schema({"type": ["boolean", "null", "number"]}),
        f'"[" ({name} ("," {name})*)? "]"',
        f'"{{" ({pair} ("," {pair})*)? "}}"',
    )
    writer.rules.append(f"{name}: {' | '.join(branches)}")
    return name


_CALLS: Mapping[Shape, Callable[[_Writer, Calls, Tool], str]] = {
    Shape.JSON: _json_call,
    Shape.NAMED: _named_call,
    Shape.TAGGED: _tagged_call,
    Shape.PYTHON: _python_call,
    Shape.BRACES: _braces_call,
    Shape.CHANNEL: _named_call,
}
