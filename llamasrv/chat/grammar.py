"""The grammar of what a model may write: the ChatFormat that the parser reads, turned into rules.

Makes Lark text as llguidance understands it, from the format, the tools, whether one must be called, and the form that
the content must have. The grammar covers everything from the first token on: thinking, free text, calls. Text that is
one token of the vocabulary's special ones is written as that token. Nothing is compiled here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llamasrv.chat import structural_tag
from llamasrv.chat.argument_rules import json_arguments
from llamasrv.chat.client_grammars import MAX_LENGTH, check_fixed, check_lark, check_pattern
from llamasrv.chat.formats import Blocks, Calls, ChatFormat, Headers
from llamasrv.chat.notations.holes import heads, marked
from llamasrv.chat.rules import TEXT, RuleWriter, escaped, literal_pattern, quoted
from llamasrv.chat.schema_references import check_references
from llamasrv.chat.schema_termination import has_an_end
from llamasrv.domain.request import Content, Tool
from llamasrv.errors import InvalidRequest

_BREAK = "\n"  # before the first mark it belongs to the text before it
_CLOSES = re.compile(r"[<\[]/")  # a mark that closes
_BREAKS = r"/\n{0,4} ?/"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the marks that end free text: nothing is constrained until one of them is written. Without marks
    the grammar applies from the first token on."""

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
    """The constraint of one request, or None if anything may be written.

    `tools` are the tools that may be called; `prompt` and `continues` are as for the parser. `special_tokens` must be
    referred to by number in the grammar, because their text means something else. With `thinking` off the model may
    not open a thinking block, but it still closes one that the prompt has opened.
    """
    calls = format.calls if tools else None
    if content is None and calls is None:
        return None
    if must_call and calls is None:
        raise InvalidRequest("'tool_choice' requires a tool call, but no tools were given.", param="tool_choice")
    rules = RuleWriter(special_tokens or {})
    row = format.headers or format.blocks
    if row is not None:
        called = _messages(rules, row, calls, tools, parallel) if calls is not None else ""
        if isinstance(row, Blocks):
            continues = continues or row.begun_by(prompt)
        return Constraint(rules.text(_row(rules, row, called, must_call, content, thinking, continues)))
    is_open = _is_thinking(format, prompt, continues)
    # A continued text neither opens a block nor closes one: the mark would be read as text.
    head = "" if continues == "content" else _thinking(rules, format, is_open, thinking and continues is None)
    instead, begun = "", False
    if calls is not None:
        made = _made(rules, calls, tools, prompt, parallel and calls.parallel)
        begun = not made.opening and not calls.bare
        body = _body(rules, format, calls, made, must_call, content, tools)
        if is_open and continues is None or (thinking and continues is None and _may_lack_its_end(format)):
            instead = _instead_of_thinking(rules, format, calls, made, is_open, must_call, content)
    else:
        body = _content(rules, format, content, continues is not None)
    ending = f" ({rules.literal(format.turn_end)})?" if format.turn_end else ""
    lead = ""  # the line break that some templates write behind the head of a turn
    if must_call and not is_open and continues is None and prompt and not prompt[-1].isspace():
        lead = f"({rules.literal(_BREAK)})? "
    grammar = rules.text(f"{lead}({head}{body}{instead}){ending}")
    free = content is None and not (must_call or begun or format.content_start or calls is None or calls.bare)
    return Constraint(grammar, (_trigger(calls),) if free and calls is not None else ())


def _row(
    rules: RuleWriter,
    row: Headers | Blocks,
    called: str,
    must_call: bool,
    content: Content | None,
    thinking: bool,
    continues: str | None,
) -> str:
    """A row of messages or blocks: a thought, words for the user, and calls or the answer."""
    text = TEXT if content is None else _form(rules, content)
    until = f"{rules.until(row.more)} {rules.literal(row.start)}"
    said = f"{rules.literal(row.text_start)} "
    answer = called if must_call else f"{said}{text} | {called}" if called else f"{said}{text}"
    before = f"({said}{until})? " if called and not must_call and content is None else ""
    rest = f"{before}{rules.rule(answer)}"
    if continues == "reasoning":
        return f"{until} {rest}"
    if continues == "content":
        return f"{text} | {until} {called}" if called and content is None else text
    if not thinking or not row.thought_start:
        return rest
    return f"({rules.literal(row.thought_start)} {until})? {rest}"


def _messages(rules: RuleWriter, row: Headers | Blocks, calls: Calls, tools: Sequence[Tool], parallel: bool) -> str:
    """Calls that are messages or blocks of their own, or one list of them in a block."""
    if calls.section_start:
        return _made(rules, calls, tools, "", parallel and calls.parallel).text(rules)
    branches = []
    for tool in tools:
        opening = calls.header.replace("{name}", tool.name) + calls.call_start
        branches.append(f"{rules.literal(opening)} {_call(rules, calls, tool)}")
    last = ""  # may be the end of the turn, a token without text
    if isinstance(row, Blocks):
        last = row.more if calls.call_end.endswith(row.more) else calls.call_end
    end = calls.call_end.removesuffix(last)
    one = rules.rule(" | ".join(branches)) + (f" {rules.literal(end)}" if end else "")
    between = rules.literal(last + calls.separator)
    called = f"{one} ({between} {one})*" if parallel and calls.parallel else one
    return f"{called} ({rules.literal(last)})?" if last else called


def _is_thinking(format: ChatFormat, prompt: str, continues: str | None) -> bool:
    """Whether the answer begins inside a thinking block."""
    thought = format.reasoning
    return thought is not None and continues != "content" and (continues == "reasoning" or thought.is_open(prompt))


def _thinking(rules: RuleWriter, format: ChatFormat, is_open: bool, allowed: bool) -> str:
    """The thinking block before the answer: already open, possible, or none."""
    thought = format.reasoning
    if thought is None:
        return ""
    end = f"{rules.until(thought.end.strip())} {_BREAKS}"
    if is_open:
        return f"{end} "
    if thought.assumed or not thought.start:
        return ""
    block = [f"{_opened(rules, thought.start)} {end}"] if allowed else []
    if _CLOSES.match(thought.end.strip()):  # some models that do not think begin with it
        block.append(f"{rules.literal(thought.end.strip())} {_BREAKS}")
    return f"({' | '.join(block)})? " if block else ""


def _opened(rules: RuleWriter, start: str) -> str:
    """What begins a thought or a call; the line breaks in front of it may be missing."""
    mark = start.lstrip(_BREAK)
    breaks = start[: len(start) - len(mark)]
    return f"({rules.literal(breaks)})? {_loosely(rules, mark)}" if breaks and mark else _loosely(rules, start)


def _content(rules: RuleWriter, format: ChatFormat, content: Content | None, continuing: bool = False) -> str:
    """The text for the user, with the marks around it."""
    inner = TEXT if content is None else _form(rules, content)
    start = "" if continuing or not format.content_start else rules.literal(format.content_start) + " "
    end = f" ({rules.literal(format.content_end)})?" if format.content_end else ""
    return f"{start}{inner}{end}"


def _form(rules: RuleWriter, content: Content) -> str:
    if content.kind == "json":
        schema = {"type": "object"} if content.value is None else content.value
        return rules.schema(schema, lenient=False)
    if content.kind == "choice":
        check_fixed(max(map(len, content.value)))
        if sum(map(len, content.value)) > MAX_LENGTH:
            raise InvalidRequest(f"The choices are longer than {MAX_LENGTH} characters.", param="content")
        return rules.rule(" | ".join(quoted(choice) for choice in content.value))
    if content.kind == "regex":
        check_pattern(content.value)
        return rules.rule(f"/{escaped(content.value)}/")
    if content.kind == "lark":
        text, schemas = check_lark(content.value)
        for schema in schemas:
            rules.admit(schema, "content")
        return rules.rule(f"%lark {{\n{text}\n}}")
    if content.kind == "tags":
        return rules.rule(structural_tag.rule(rules, content.value))
    raise ValueError(content.kind)


@dataclass(frozen=True, slots=True)
class _Made:
    """Calls: the mark that begins them (empty if the prompt wrote it or there is none), and what follows it."""

    opening: str
    rest: str
    start: str  # the mark that begins them behind a text
    alone: str = ""  # a call without marks, where that is one
    other: str = ""  # a call with another header

    def text(self, rules: RuleWriter) -> str:
        whole = f"{_opened(rules, self.opening)} {self.rest}" if self.opening else self.rest
        return f"({whole} | {self.other})" if self.other else whole

    def behind(self, rules: RuleWriter, trigger: str, before: str) -> str:
        """The same calls after a text that ends with the first mark."""
        return f"{before} {_loosely(rules, self.start.partition(trigger)[2])} {self.rest}"


def _made(rules: RuleWriter, calls: Calls, tools: Sequence[Tool], prompt: str, parallel: bool) -> _Made:
    call = rules.rule(" | ".join(_call(rules, calls, tool) for tool in tools))
    more = _loosely(rules, calls.separator + calls.call_start)
    one = f"{call} {marked(rules, calls.call_end)}" if calls.call_end else call
    rest = f"{one} ({more} {one})*" if parallel else one
    end = _loosely(rules, calls.section_end)
    if calls.ends_turn and end:
        end = f"({end})?"
    elif calls.ends_turn and calls.call_end:
        last = marked(rules, calls.call_end)
        rest = f"{call} ({last} {more} {call})* ({last})?" if parallel else f"{call} ({last})?"
    rest = rules.rule(f"{rest} {end} {_BREAKS}")
    begun = calls.at_start or (bool(calls.call_start) and prompt.endswith(calls.call_start.strip()))
    start = calls.section_start + calls.call_start
    other = " | ".join(
        f"{rules.literal(calls.otherwise.replace('{name}', tool.name))} {json_arguments(rules, tool)}"
        for tool in tools
        if calls.otherwise
    )
    alone = call if calls.may_be_bare else ""
    return _Made("" if begun else start, rest, start, alone, rules.rule(other) if other else "")


_LAYOUT = re.compile(
    r"(\n? {2,}|\n(?=[\]}]))"
)  # runs of blanks in a mark, and what puts a bracket on a line of its own


def _loosely(rules: RuleWriter, text: str) -> str:
    """A mark whose white space may be missing or differ."""
    if not text.strip():
        return marked(rules, text) if text else ""
    parts = enumerate(_LAYOUT.split(text))
    return " ".join(r"/\n? {0,12}/" if place % 2 else marked(rules, part) for place, part in parts if part)


def _body(
    rules: RuleWriter,
    format: ChatFormat,
    calls: Calls,
    made: _Made,
    must_call: bool,
    content: Content | None,
    tools: Sequence[Tool],
) -> str:
    """Free text and calls, calls only, or content of a given form or calls."""
    called = made.text(rules)
    if must_call:
        return f"{_layout(rules, format, calls)}" + (f"({called} | {made.alone})" if made.alone else called)
    if content is not None:
        return rules.rule(f"{_content(rules, format, content)} | {called}")
    if calls.named_only and not format.content_start:
        names = "|".join(literal_pattern(tool.name) for tool in tools)
        no_call = rules.terminal(rf"/(?s:.*)/ & ~/({names})\s*[<{{(\n](?s:.*)/")
        return rules.rule(f"{called} | {no_call}")
    if calls.bare:
        begins = r"\[{" if calls.lists else "{"
        return rules.rule(rf"{called} | /[^{begins}\s](?s:.*)/ | /\s*/")
    late = _late(rules, calls, made)
    if format.content_start:
        said = _spoken(rules, format, rules.literal(format.content_start), called, late)
        return f"{_aside(rules, format)}{rules.rule(f'{said} | {called}')}"
    return rules.rule(f"{late} | {TEXT}")


def _layout(rules: RuleWriter, format: ChatFormat, calls: Calls) -> str:
    """What some templates write in front of calls without words: blanks, the marks of an empty text."""
    indents = dict.fromkeys(blanks for blanks in (calls.gap, calls.indent) if blanks.strip("\n"))
    blanks = f"({' | '.join(map(rules.literal, indents))})? " if indents else ""
    if not format.content_start.startswith("<") or calls.bare:
        return blanks
    end = f" ({rules.literal(format.content_end)})?" if format.content_end else ""
    return f"({rules.literal(format.content_start)}{end})? {blanks}"


def _late(rules: RuleWriter, calls: Calls, made: _Made) -> str:
    """Calls that follow any text."""
    trigger = _trigger(calls)
    return made.behind(rules, trigger, rules.until(trigger))


def _spoken(rules: RuleWriter, format: ChatFormat, start: str, called: str, late: str) -> str:
    """Free content between its marks, followed by calls."""
    if format.content_end:
        return f"{start} {rules.until(format.content_end)} ({called})? | {start} {TEXT}"
    return f"{start} ({late} | {TEXT})"


def _aside(rules: RuleWriter, format: ChatFormat) -> str:
    """Optional words for the user before a call."""
    if not format.aside or format.reasoning is None:
        return ""
    return f"({rules.literal(format.aside)} {rules.until(format.reasoning.end)})? "


def _may_lack_its_end(format: ChatFormat) -> bool:
    """Whether a call alone may end a thought that the answer begins with."""
    thought = format.reasoning
    return thought is not None and thought.ended_by_calls and bool(thought.start) and format.learned


def _instead_of_thinking(
    rules: RuleWriter,
    format: ChatFormat,
    calls: Calls,
    made: _Made,
    is_open: bool,
    must_call: bool,
    content: Content | None,
) -> str:
    """What may follow an open thinking block other than its end: some models call a tool at once, and with some a call
    or the start of the content ends the block."""
    thought = format.reasoning
    if calls.bare or not made.opening or thought is None:
        return ""
    trigger = _trigger(calls)
    if not is_open:
        return f" | {_opened(rules, thought.start)} {_late(rules, calls, made)}"
    if not thought.ended_by_calls:
        mark = rules.literal(trigger)
        at_once = rf"/\s*/ {mark}" if rules.is_special(trigger) else rules.rule(rf"/\s*/ {mark}", lazy=True)
        return f" | {made.behind(rules, trigger, at_once)}"
    late = _late(rules, calls, made)
    if must_call or not format.content_start:
        return f" | {late}"
    if content is not None:
        spoken = f"{rules.until(format.content_start)} {_content(rules, format, content, True)}"
    else:
        spoken = _spoken(rules, format, rules.until(format.content_start), made.text(rules), late)
    return f" | {late} | {spoken}"


def _trigger(calls: Calls) -> str:
    """The first mark of a call: only a call may follow it."""
    first = (heads(calls.section_start) + heads(calls.call_start))[0]
    return calls.openers[0] if first == "[" and calls.openers else first


def _call(rules: RuleWriter, calls: Calls, tool: Tool) -> str:
    if not has_an_end(tool.parameters):
        name = tool.name[:64]
        message = f"Nothing satisfies the parameters of the tool '{name}': they refer to themselves endlessly."
        raise InvalidRequest(message, param="tools")
    check_references(tool.parameters, "tools")  # also of what the notation writes as text
    return calls.notation.rule(rules, tool)
