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
from llamasrv.chat.formats import Calls, ChatFormat, Shape, pieces
from llamasrv.chat.schemas import SchemaBounds
from llamasrv.domain.request import Content, Tool
from llamasrv.errors import InvalidRequest

MAX_MEMBERS_ANY_ORDER = 5  # arguments that may come in any order: one rule for each set of those still missing
MAX_DEPTH = 16
MAX_LENGTH = 4_000_000  # characters of a grammar

_TEXT = "X_TEXT"
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
    head = _thinking(writer, format, prompt, continues, thinking)
    if calls is not None:
        body = _body(writer, format, calls, tools, prompt, must_call, parallel and calls.parallel, content)
    else:
        body = _content(writer, format, content, continues is not None)
    ending = f" ({writer.literal(format.turn_end)})?" if format.turn_end else ""
    grammar = writer.text(f"{head}{body}{ending}")
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
        body = dict(schema) if isinstance(schema, Mapping) else {}
        return self.rule(f"%json {json.dumps({**body, 'x-guidance': options}, ensure_ascii=False, default=dict)}")


# ---------------------------------------------------------------- the parts of an answer


def _thinking(writer: _Writer, format: ChatFormat, prompt: str, continues: str | None, thinking: bool) -> str:
    """The block before the answer: already open, possible, or none."""
    thought = format.reasoning
    if thought is None or continues == "content":
        return ""
    end = f"{writer.until(thought.end.strip())} {_BREAKS}"
    if continues == "reasoning" or thought.is_open(prompt):
        return f"{end} "
    if not thinking or thought.assumed or not thought.start:
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


def _body(
    writer: _Writer,
    format: ChatFormat,
    calls: Calls,
    tools: Sequence[Tool],
    prompt: str,
    must_call: bool,
    parallel: bool,
    content: Content | None,
) -> str:
    """Free text and calls, calls alone, or content of a form or calls."""
    call = writer.rule(" | ".join(_call(writer, calls, tool) for tool in tools))
    more = writer.literal(calls.separator + calls.call_start) if calls.separator + calls.call_start else ""
    one = f"{call}{_after(writer, calls.call_end)}"
    rest = f"{one} ({more} {one})*" if parallel else one
    rest = writer.rule(f"{rest}{_after(writer, calls.section_end)} {_BREAKS}")
    opening = calls.section_start + calls.call_start
    begun = bool(calls.call_start) and prompt.endswith(calls.call_start.strip())
    made = rest if begun or not opening else f"{writer.literal(_at_start(opening))} {rest}"
    if must_call:
        return made
    if content is not None:
        return writer.rule(f"{_content(writer, format, content)} | {made}")
    if calls.bare:
        begins = r"\[{" if calls.array else "{"
        return writer.rule(rf"{made} | /[^{begins}\s](?s:.*)/ | /\s*/")
    trigger = _trigger(calls)
    late = f"{writer.until(trigger)} {writer.literal(opening[opening.index(trigger) + len(trigger) :])} {rest}"
    if format.content_start:
        start = writer.literal(format.content_start)
        if format.content_end:
            spoken = f"{start} {writer.until(format.content_end)} ({made})? | {start} {_TEXT}"
        else:
            spoken = f"{start} ({late} | {_TEXT})"
        return writer.rule(f"{spoken} | {made}")
    return writer.rule(f"{late} | {_TEXT}")


def _after(writer: _Writer, text: str) -> str:
    return f" {writer.literal(text)}" if text else ""


def _at_start(opening: str) -> str:
    """Line breaks before the first mark belong to the text before it."""
    return opening.lstrip("\n")


def _trigger(calls: Calls) -> str:
    """The first mark of a call: behind it nothing but a call may come."""
    first = (pieces(calls.section_start) + pieces(calls.call_start))[0]
    return first


# ---------------------------------------------------------------- one call


def _call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    return _CALLS[calls.shape](writer, calls, tool)


def _arguments(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments. What it does not name is not written, unless it says so."""
    schema = dict(tool.parameters) or {"properties": {}}
    schema.setdefault("type", "object")
    if "properties" in schema and not any(key in schema for key in ("additionalProperties", "patternProperties",
                                                                       "anyOf", "oneOf", "allOf", "$ref")):  # fmt: skip
        schema["additionalProperties"] = False
    return schema


def _json_call(writer: _Writer, calls: Calls, tool: Tool) -> str:
    arguments = writer.schema(_arguments(tool), lenient=not tool.strict)
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
    arguments = writer.schema(_arguments(tool), lenient=not tool.strict)
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
    """Items, each at most once, required ones exactly once; a few in any order, many in theirs."""
    if len(items) <= MAX_MEMBERS_ANY_ORDER:
        return _in_any_order(writer, items, separator)
    first = later = '""'
    for item, needed in reversed(items):
        first, later = (
            writer.rule(f"{before}{item} {later}" + ("" if needed else f" | {without}"))
            for before, without in (("", first), (f"{separator} " if separator else "", later))
        )
    return first


def _in_any_order(writer: _Writer, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """One rule for each set of items that are still to come."""
    known: dict[tuple[frozenset[int], bool], str] = {}

    def rest(left: frozenset[int], first: bool) -> str:
        key = (left, first)
        if key not in known:
            branches = [] if any(items[n][1] for n in left) else ['""']
            before = "" if first or not separator else f"{separator} "
            branches += [f"{before}{items[n][0]} {rest(left - {n}, False)}" for n in sorted(left)]
            known[key] = writer.rule(" | ".join(branches))
        return known[key]

    return rest(frozenset(range(len(items))), True)


def _properties(tool: Tool) -> list[tuple[str, Any, bool]]:
    """Name, schema and whether it is required, of each argument."""
    schema = tool.parameters
    properties = schema.get("properties")
    required = schema.get("required")
    names = set(required) if isinstance(required, (list, tuple)) else set()
    if not isinstance(properties, Mapping):
        return []
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found = []
    for key in properties:
        part = values.property_schema(schema, key)
        found.append(
            (key, {**part, **definitions} if definitions and isinstance(part, Mapping) else part, key in names)
        )
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
        return f"{writer.literal(start)} {item}{_repeats(schema)} {writer.literal(end)}"
    if not kinds or "string" in kinds:
        return f"{writer.literal(start)} {_plain_text(writer, schema, end)}"
    return f"{writer.literal(start)} {writer.schema(_without_text(schema))} {writer.literal(end)}"


def _repeats(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if not isinstance(least, int) and not isinstance(most, int):
        return "*"
    return f"{{{least if isinstance(least, int) else 0},{most if isinstance(most, int) else ''}}}"


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
        branches.append(f'"[" ({item} ("," {item})*)? "]"')
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
