"""How a model writes reasoning and tool calls, as plain data.

One ChatFormat drives the parser, the grammar and the trigger. `probe` learns it from the template; the table here is
for families that cannot be learned: their templates do not show calls, or their syntax is one of a kind.
Marks are kept as the template writes them, white space included; readers may be lenient about that, writers not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any


class Shape(str, Enum):
    """How one call is written."""

    JSON = "json"  # an object that holds the name and the arguments
    NAMED = "named"  # the name, then the arguments as a JSON object
    TAGGED = "tagged"  # the name, then each argument between marks
    PYTHON = "python"  # name(key="value", other=1)
    BRACES = "braces"  # name{key:<|"|>value<|"|>,other:1}
    CHANNEL = "channel"  # Harmony: messages with a recipient


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Where thinking starts and ends. `start` "" means that only the prompt can open it."""

    start: str
    end: str
    ended_by_calls: bool = False  # a call or the start of the content ends the block, wherever it comes
    anywhere: bool = False  # a block may open after content, too
    opening: str = ""  # words at the end of the prompt that belong to the thinking
    assumed: bool = False  # nothing says that this model thinks at all

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends inside a block."""
        end = prompt[-512:].rstrip()
        if self.opening and end.endswith(self.opening):
            return True
        return bool(self.start) and end.endswith(self.start.strip())

    def reopened(self, prompt: str) -> str:
        """A prompt that ends inside a block, whatever it did about thinking before."""
        if self.is_open(prompt):
            return prompt
        end = prompt.rstrip()
        if end.endswith(self.end.strip()):
            end = end[: -len(self.end.strip())].rstrip()
            return end if self.is_open(end) else end + self.start
        return prompt + self.start


@dataclass(frozen=True, slots=True)
class Calls:
    """How tool calls are written: section_start (call_start call call_end) separator … section_end."""

    shape: Shape
    section_start: str = ""
    section_end: str = ""
    call_start: str = ""
    call_end: str = ""
    separator: str = ""
    parallel: bool = True
    # JSON
    array: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    name_is_key: bool = False  # {"name": {…arguments…}}
    bare: bool = False  # no mark at all: an object, or a list of them, at the start of the content
    # NAMED and TAGGED
    name_end: str = ""
    id_mark: str = ""  # between name and id, or between id and name
    id_first: bool = False
    id_form: str = ""  # the name is part of an id: "functions.{name}:{index}"
    content_name: str = ""  # this "name" addresses the user: content follows
    # TAGGED
    key_start: str = ""
    key_end: str = ""  # between key and value
    value_end: str = ""  # may hold {key}
    string_type: str = ""  # the attribute that says whether a value is text: its text for "is text"
    other_type: str = ""  # and for "is JSON"
    elements: bool = False  # objects and arrays are written as nested tags


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """What a model writes after the prompt."""

    name: str
    reasoning: Reasoning | None = None
    calls: Calls | None = None
    content_start: str = ""  # around the content
    content_end: str = ""
    aside: str = ""  # begins words for the user that come before a call; they end as a thought does
    turn_end: str = ""  # written before the end token
    silent: tuple[str, ...] = ()  # marks that say nothing
    others: tuple[str, ...] = ()  # marks that the parser knows by itself
    learned: bool = False  # by the probe, not from the table

    def needs(self, token: str) -> bool:
        """Whether a special token is part of a mark: its text must reach the parser."""
        if not token.strip():
            return False
        thought, calls = self.reasoning, self.calls
        parts: tuple[Any, ...] = (self, *(part for part in (thought, calls) if part is not None))
        texts = [getattr(part, name) for part in parts for name in part.__slots__]
        marks = [text for text in texts if isinstance(text, str)] + [*self.silent, *self.others]
        return any(token in mark for mark in marks)

    def closed(self, prompt: str) -> str:
        """A prompt that leaves no room for thinking: a block that it has opened is ended at once."""
        if self.reasoning is None or not self.reasoning.is_open(prompt):
            return prompt
        return f"{prompt.rstrip()}\n\n{self.reasoning.end.strip()}\n\n"

    def describe(self) -> dict[str, Any]:
        """For people: only what is set, and says something for this shape."""
        told: dict[str, Any] = {"format": self.name, "learned": self.learned}
        mute = {"name_key", "arguments_key"} if self.calls and self.calls.shape is not Shape.JSON else set()
        for part in ("reasoning", "calls"):
            value = getattr(self, part)
            if value is not None:
                said = {name: _plain(getattr(value, name)) for name in value.__slots__ if name not in mute}
                told[part] = {name: item for name, item in said.items() if item}
        for name in ("content_start", "content_end", "turn_end", "silent"):
            if getattr(self, name):
                told[name] = getattr(self, name)
        return told


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def pieces(mark: str) -> tuple[str, ...]:
    """The lines of a mark without white space around them: what readers look for."""
    return tuple(piece for piece in (line.strip() for line in mark.split("\n")) if piece)


# ---------------------------------------------------------------- families that a probe cannot learn

THINK = Reasoning("<think>", "</think>")

GENERIC_CALLS = Calls(
    Shape.JSON, call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"
)  # what `write_tools` in `normalise` asks for
GENERIC = ChatFormat("generic", calls=GENERIC_CALLS)

HARMONY = ChatFormat(
    "harmony",
    reasoning=Reasoning("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    calls=Calls(
        Shape.CHANNEL,
        call_start="<|channel|>commentary to=functions.",
        name_end=" <|constrain|>json<|message|>",
        parallel=False,
    ),
    content_start="<|channel|>final<|message|>",
    aside="<|channel|>commentary<|message|>",
    others=("<|call|>", "<|return|>"),
)

LFM2_CALLS = Calls(Shape.PYTHON, section_start="<|tool_call_start|>[", section_end="]<|tool_call_end|>", separator=", ")

GEMMA4 = ChatFormat(
    "gemma 4",
    reasoning=Reasoning("<|channel>thought\n", "<channel|>", anywhere=True),
    calls=Calls(Shape.BRACES, call_start="<|tool_call>call:", call_end="<tool_call|>"),
    silent=("<channel|>", "<turn|>"),
)

DSML = "｜DSML｜"


def _dsml(section: str) -> ChatFormat:
    return ChatFormat(
        "deepseek dsml",
        reasoning=replace(THINK, ended_by_calls=True),
        calls=Calls(
            Shape.TAGGED,
            section_start=f"\n\n<{DSML}{section}>\n",
            section_end=f"\n</{DSML}{section}>",
            call_start=f'<{DSML}invoke name="',
            name_end='">\n',
            call_end=f"</{DSML}invoke>",
            separator="\n",
            key_start=f'<{DSML}parameter name="',
            key_end='"',
            string_type=' string="true">',
            other_type=' string="false">',
            value_end=f"</{DSML}parameter>\n",
        ),
    )


KIMI_K3 = ChatFormat(
    "kimi k3",
    reasoning=Reasoning("<|open|>think<|sep|>", "<|close|>think<|sep|>", ended_by_calls=True),
    calls=Calls(
        Shape.TAGGED,
        section_start="<|open|>tools<|sep|>",
        section_end="<|close|>tools<|sep|>",
        call_start='<|open|>call tool="',
        name_end='" index="{number}"<|sep|>',
        call_end="<|close|>call<|sep|>",
        key_start='<|open|>argument key="',
        key_end='"',
        string_type=' type="string"<|sep|>',
        other_type=' type="{type}"<|sep|>',
        value_end="<|close|>argument<|sep|>",
    ),
    content_start="<|open|>response<|sep|>",
    content_end="<|close|>response<|sep|>",
    turn_end="<|close|>message<|sep|>",
    silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
)

MINIMAX_M3 = ChatFormat(
    "minimax m3",
    reasoning=Reasoning("<mm:think>", "</mm:think>"),
    calls=Calls(
        Shape.TAGGED,
        section_start="]<]minimax[>[<tool_call>\n",
        section_end="]<]minimax[>[</tool_call>",
        call_start=']<]minimax[>[<invoke name="',
        name_end='">',
        call_end="]<]minimax[>[</invoke>\n",
        key_start="]<]minimax[>[<",
        key_end=">",
        value_end="]<]minimax[>[</{key}>",
        elements=True,
    ),
)

FUNCTIONARY_32 = ChatFormat(
    "functionary 3.2",
    calls=Calls(Shape.NAMED, call_start=">>>", name_end="\n", content_name="all"),
    content_start="all\n",
)

COMMAND_R_PLUS = ChatFormat(
    "command r plus",
    calls=Calls(
        Shape.JSON,
        section_start="Action:\n```json\n[\n    ",
        section_end="\n]```",
        separator=",\n    ",
        array=True,
        name_key="tool_name",
        arguments_key="parameters",
    ),
    silent=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
)

COMMAND_R7B = ChatFormat(
    "command r7b",
    reasoning=Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=Calls(
        Shape.JSON,
        section_start="<|START_ACTION|>[\n    ",
        section_end="\n]<|END_ACTION|>",
        separator=",\n    ",
        array=True,
        name_key="tool_name",
        arguments_key="parameters",
        id_key="tool_call_id",
        id_first=True,
    ),
    content_start="<|START_RESPONSE|>",
    content_end="<|END_RESPONSE|>",
    silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)

SOLAR_OPEN = ChatFormat(
    "solar open",
    reasoning=Reasoning("<|think|>", "<|end|>"),
    calls=Calls(
        Shape.NAMED,
        section_start="<|tool_calls|>",
        section_end="<|calls|>",
        call_start="<|tool_call:begin|>",
        id_mark="<|tool_call:name|>",
        id_first=True,
        name_end="<|tool_call:args|>",
        call_end="<|tool_call:end|>",
    ),
    content_start="<|content|>",
    silent=("<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"),
)

GRANITE_33 = ChatFormat(
    "granite 3.3",
    reasoning=THINK,
    calls=Calls(
        Shape.JSON, section_start="<|tool_call|>[", section_end="]", separator=", ", array=True
    ),
    content_start="",
    silent=("<response>", "</response>"),
)  # fmt: skip

KIMI_K2_CALLS = Calls(
    Shape.NAMED,
    section_start="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call_start="<|tool_call_begin|>",
    id_form="functions.{name}:{index}",
    name_end="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
)


def _giga(mark: str) -> ChatFormat:
    return ChatFormat("gigachat", calls=Calls(Shape.JSON, call_start=mark, parallel=False))


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table: a template belongs to it if its source holds all these words."""

    words: tuple[str, ...]
    format: ChatFormat


TABLE: tuple[Family, ...] = (
    Family(("<|channel|>", "<|message|>", "<|start|>"), HARMONY),
    Family(("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
           ChatFormat("kimi k2", reasoning=replace(THINK, ended_by_calls=True), calls=KIMI_K2_CALLS)),
    Family(("<|open|>", "<|sep|>", "argument"), KIMI_K3),
    Family(("<|tool_call_start|>",), ChatFormat("lfm2", reasoning=THINK, calls=LFM2_CALLS)),
    Family(("<|tool_list_start|>",), ChatFormat("lfm2", reasoning=THINK, calls=LFM2_CALLS)),
    Family(("List of tools: [", "keep_past_thinking"), ChatFormat("lfm2", reasoning=THINK, calls=LFM2_CALLS)),
    Family(("<|tool_call>call:",), GEMMA4),
    Family(("<|tool_call>", "call:", "<channel|>"), GEMMA4),
    Family((DSML, "function_calls"), _dsml("function_calls")),
    Family((DSML,), _dsml("tool_calls")),
    Family(("]<]minimax[>[",), MINIMAX_M3),
    Family((">>>all\n",), FUNCTIONARY_32),
    Family((">>>all\\n",), FUNCTIONARY_32),
    Family(("<|START_ACTION|>", "<|START_RESPONSE|>"), COMMAND_R7B),
    Family(("directly-answer", "<|CHATBOT_TOKEN|>"), COMMAND_R_PLUS),
    Family(("<|tool_call:begin|>",), SOLAR_OPEN),
    Family(("<|tool_call|>", "<|start_of_role|>"), GRANITE_33),
    Family(("function call<|role_sep|>",), _giga("<|message_sep|>\n\nfunction call<|role_sep|>\n")),
    Family(("<|function_call|>",), _giga("<|function_call|>")),
)  # fmt: skip


def known_family(source: str) -> ChatFormat | None:
    """The row of the table that a template belongs to."""
    for family in TABLE:
        if all(word in source for word in family.words):
            return family.format
    return None


# ---------------------------------------------------------------- writing calls

Call = tuple[str, str]  # name, arguments as JSON text


def write_calls(calls: Calls, made: Sequence[Call]) -> str:
    """Calls as the model would write them: for templates that do not show the calls of earlier turns."""
    write = _WRITERS[calls.shape]
    written = (calls.call_start + write(calls, name, arguments, place) + calls.call_end
               for place, (name, arguments) in enumerate(made))  # fmt: skip
    return calls.section_start + calls.separator.join(written) + calls.section_end


def _write_json(calls: Calls, name: str, arguments: str, place: int) -> str:
    if calls.name_is_key:
        return f"{{{_quote(name)}: {arguments or '{}'}}}"
    head = f"{_quote(calls.name_key)}: {_quote(name)}, {_quote(calls.arguments_key)}: {arguments or '{}'}"
    if not calls.id_key:
        return f"{{{head}}}"
    if calls.id_first:
        return f"{{{_quote(calls.id_key)}: {_quote(str(place))}, {head}}}"
    return f"{{{head}, {_quote(calls.id_key)}: {_quote(f'{place:09}')}}}"


def _write_named(calls: Calls, name: str, arguments: str, place: int) -> str:
    if calls.id_form:
        name = calls.id_form.format(name=name, index=place)
    elif calls.id_mark:
        id = f"{place:09}"
        name = f"{id}{calls.id_mark}{name}" if calls.id_first else f"{name}{calls.id_mark}{id}"
    return name + calls.name_end + (arguments or "{}")


def _write_tagged(calls: Calls, name: str, arguments: str, place: int) -> str:
    values = _values(arguments)
    text = name + calls.name_end.replace("{number}", str(place + 1))
    for key, value in values.items():
        if calls.elements:
            text += _write_element(calls, key, value)
            continue
        is_text = isinstance(value, str)
        kind = calls.string_type if is_text else calls.other_type.replace("{type}", _type_name(value))
        shown = value if is_text else json.dumps(value, ensure_ascii=False)
        text += calls.key_start + key + calls.key_end + kind + shown + calls.value_end.replace("{key}", key)
    return text


def _write_element(calls: Calls, key: str, value: Any) -> str:
    """One value between tags; objects and arrays as tags inside it."""
    if isinstance(value, dict):
        inner = "".join(_write_element(calls, k, item) for k, item in value.items())
    elif isinstance(value, list):
        inner = "".join(_write_element(calls, "item", item) for item in value)
    else:
        inner = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return calls.key_start + key + calls.key_end + inner + calls.value_end.replace("{key}", key)


def _write_python(calls: Calls, name: str, arguments: str, place: int) -> str:
    pairs = (f"{key}={_python(value)}" for key, value in _values(arguments).items())
    return f"{name}({', '.join(pairs)})"


def _python(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _write_braces(calls: Calls, name: str, arguments: str, place: int) -> str:
    return name + _braces(_values(arguments))


def _braces(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_braces(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_braces, value)) + "]"
    return json.dumps(value)


def _values(arguments: str) -> dict[str, Any]:
    try:
        values = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _type_name(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "object")


_WRITERS: dict[Shape, Callable[[Calls, str, str, int], str]] = {
    Shape.JSON: _write_json,
    Shape.NAMED: _write_named,
    Shape.TAGGED: _write_tagged,
    Shape.PYTHON: _write_python,
    Shape.BRACES: _write_braces,
    Shape.CHANNEL: _write_named,
}
