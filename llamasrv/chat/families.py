"""Model families whose format a probe cannot learn: their templates show no calls, or their syntax is unique."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from llamasrv.chat.formats import Calls, ChatFormat, ReasoningMarks
from llamasrv.chat.notations.braces import Braces
from llamasrv.chat.notations.in_header import InHeader
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.keyword_call import KeywordCall
from llamasrv.chat.notations.named import Named
from llamasrv.chat.notations.tagged import Tagged

THINK = ReasoningMarks("<think>", "</think>")

GENERIC_CALLS = Calls(
    JsonObject(), call_start="<tool_call>\n", call_end="\n</tool_call>", separator="\n"
)  # what `write_tools` in `written` asks for
GENERIC = ChatFormat("generic", calls=GENERIC_CALLS)

HARMONY = ChatFormat(
    "harmony",
    reasoning=ReasoningMarks("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    calls=Calls(
        InHeader(name_end=" <|constrain|>json<|message|>"),
        call_start="<|channel|>commentary to=functions.",
        parallel=False,
    ),
    content_start="<|channel|>final<|message|>",
    aside="<|channel|>commentary<|message|>",
    others=("<|call|>", "<|return|>"),
)

LFM2_CALLS = Calls(
    KeywordCall(single=True), section_start="<|tool_call_start|>[", section_end="]<|tool_call_end|>", separator=", "
)

GEMMA4 = ChatFormat(
    "gemma 4",
    reasoning=ReasoningMarks("<|channel>thought\n", "<channel|>", anywhere=True),
    calls=Calls(Braces(), call_start="<|tool_call>call:", call_end="<tool_call|>"),
    silent=("<channel|>", "<turn|>"),
)

DSML = "｜DSML｜"


def _dsml(section: str) -> ChatFormat:
    return ChatFormat(
        "deepseek dsml",
        reasoning=replace(THINK, ended_by_calls=True),
        calls=Calls(
            Tagged(
                name_end='">\n',
                key_start=f'<{DSML}parameter name="',
                key_end='"',
                string_type=' string="true">',
                other_type=' string="false">',
                value_end=f"</{DSML}parameter>\n",
            ),
            section_start=f"\n\n<{DSML}{section}>\n",
            section_end=f"\n</{DSML}{section}>",
            call_start=f'<{DSML}invoke name="',
            call_end=f"</{DSML}invoke>",
            separator="\n",
        ),
    )


KIMI_K3 = ChatFormat(
    "kimi k3",
    reasoning=ReasoningMarks("<|open|>think<|sep|>", "<|close|>think<|sep|>", ended_by_calls=True),
    calls=Calls(
        Tagged(
            name_end='" index="{number}"<|sep|>',
            key_start='<|open|>argument key="',
            key_end='"',
            string_type=' type="string"<|sep|>',
            other_type=' type="{type}"<|sep|>',
            value_end="<|close|>argument<|sep|>",
        ),
        section_start="<|open|>tools<|sep|>",
        section_end="<|close|>tools<|sep|>",
        call_start='<|open|>call tool="',
        call_end="<|close|>call<|sep|>",
    ),
    content_start="<|open|>response<|sep|>",
    content_end="<|close|>response<|sep|>",
    turn_end="<|close|>message<|sep|>",
    silent=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
)

MINIMAX_M3 = ChatFormat(
    "minimax m3",
    reasoning=ReasoningMarks("<mm:think>", "</mm:think>"),
    calls=Calls(
        Tagged(
            name_end='">',
            key_start="]<]minimax[>[<",
            key_end=">",
            value_end="]<]minimax[>[</{key}>",
            elements=True,
        ),
        section_start="]<]minimax[>[<tool_call>\n",
        section_end="]<]minimax[>[</tool_call>",
        call_start=']<]minimax[>[<invoke name="',
        call_end="]<]minimax[>[</invoke>\n",
    ),
)

FUNCTIONARY_32 = ChatFormat(
    "functionary 3.2",
    calls=Calls(Named(name_end="\n", content_name="all"), call_start=">>>"),
    content_start="all\n",
)

COMMAND_R_PLUS = ChatFormat(
    "command r plus",
    calls=Calls(
        JsonObject(name_key="tool_name", arguments_key="parameters"),
        section_start="Action:\n```json\n[\n    ",
        section_end="\n]```",
        separator=",\n    ",
    ),
    silent=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
)

COMMAND_R7B = ChatFormat(
    "command r7b",
    reasoning=ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=Calls(
        JsonObject(name_key="tool_name", arguments_key="parameters", id_key="tool_call_id", id_first=True),
        section_start="<|START_ACTION|>[\n    ",
        section_end="\n]<|END_ACTION|>",
        separator=",\n    ",
    ),
    content_start="<|START_RESPONSE|>",
    content_end="<|END_RESPONSE|>",
    silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)

SOLAR_OPEN = ChatFormat(
    "solar open",
    reasoning=ReasoningMarks("<|think|>", "<|end|>"),
    calls=Calls(
        Named(id_mark="<|tool_call:name|>", id_first=True, name_end="<|tool_call:args|>"),
        section_start="<|tool_calls|>",
        section_end="<|calls|>",
        call_start="<|tool_call:begin|>",
        call_end="<|tool_call:end|>",
    ),
    content_start="<|content|>",
    silent=("<|begin|>assistant", "<|content|>", "<|end|>", "<|flush|>"),
)

GRANITE_33 = ChatFormat(
    "granite 3.3",
    reasoning=THINK,
    calls=Calls(JsonObject(), section_start="<|tool_call|>[", section_end="]", separator=", "),
    content_start="",
    silent=("<response>", "</response>"),
)

KIMI_K2_CALLS = Calls(
    Named(id_form="functions.{name}:{index}", name_end="<|tool_call_argument_begin|>"),
    section_start="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    call_start="<|tool_call_begin|>",
    call_end="<|tool_call_end|>",
)


def _giga(mark: str) -> ChatFormat:
    return ChatFormat("gigachat", calls=Calls(JsonObject(), call_start=mark, parallel=False))


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


@dataclass(frozen=True, slots=True)
class Wrapped:
    """Marks around a whole answer, which the template of earlier turns leaves out."""

    words: tuple[str, ...]  # of the template's source
    start: str
    end: str


WRAPPED: tuple[Wrapped, ...] = (
    # Hunyuan-A13B: its template shows earlier answers without them.
    Wrapped(("<|startoftext|>", "<|extra_0|>"), "<answer>", "</answer>"),
)


def wrapped(format: ChatFormat, source: str) -> ChatFormat:
    """The format with the marks that this template's model writes around an answer, if any."""
    code = _COMMENT.sub("", source)
    for row in WRAPPED:
        if all(word in code for word in row.words):
            return replace(format, leads=(*format.leads, row.start), role_ends=(*format.role_ends, row.end))
    return format


def known_families(source: str) -> Iterator[ChatFormat]:
    """The rows of the table that match a template. Its comments do not count: they also name what is not used."""
    code = _COMMENT.sub("", source)
    for family in TABLE:
        if all(word in code for word in family.words):
            yield family.format


_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
