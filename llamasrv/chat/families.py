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
        otherwise=" to=functions.{name}<|channel|>commentary json<|message|>",
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

COMMAND_R7B = ChatFormat(
    "command r7b",
    reasoning=ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    calls=Calls(
        JsonObject(
            name_key="tool_name", arguments_key="parameters", id_key="tool_call_id", id_first=True, id_counts=True
        ),
        section_start="<|START_ACTION|>[\n    ",
        section_end="\n]<|END_ACTION|>",
        separator=",\n    ",
    ),
    content_start="<|START_RESPONSE|>",
    content_end="<|END_RESPONSE|>",
    silent=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)

GRANITE_33 = ChatFormat(
    "granite 3.3",
    reasoning=THINK,
    calls=Calls(JsonObject(), section_start="<|tool_call|>[", section_end="]", separator=", "),
    content_start="",
    silent=("<response>", "</response>"),
)


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table: a template belongs to it if its source holds all words of one of these sets."""

    format: ChatFormat
    why: str  # it cannot be learned
    words: tuple[tuple[str, ...], ...]


TABLE: tuple[Family, ...] = (
    Family(
        HARMONY,
        "earlier calls name their recipient before the channel, and no turn shows words for the user before a call",
        (("<|channel|>", "<|message|>", "<|start|>"),),
    ),
    Family(
        KIMI_K3,
        "each tag is made of two tokens with words between, and earlier thoughts are left out",
        (("<|open|>", "<|sep|>", "argument"),),
    ),
    Family(
        ChatFormat("lfm2", reasoning=THINK, calls=LFM2_CALLS),
        "no template but the latest shows earlier calls",
        (("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [", "keep_past_thinking")),
    ),
    Family(
        GEMMA4,
        "a thought before a call is shown in a turn of its own, and the models think after content, too",
        (("<|tool_call>call:",), ("<|tool_call>", "call:", "<channel|>")),
    ),
    Family(
        MINIMAX_M3,
        "objects and lists are nested elements, which a call with flat values does not show",
        (("]<]minimax[>[",),),
    ),
    Family(
        FUNCTIONARY_32,
        "a text is written as a call of what is no tool",
        ((">>>all\n",), (">>>all\\n",)),
    ),
    Family(
        COMMAND_R7B,
        "ids count the calls of a conversation, and one template of the family shows no earlier calls",
        (("<|START_ACTION|>", "<|START_RESPONSE|>"),),
    ),
    Family(
        GRANITE_33,
        "no earlier calls are shown",
        (("<|tool_call|>", "<|start_of_role|>"),),
    ),
)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """Marks around a whole answer, which the template of earlier turns leaves out."""

    start: str
    end: str
    why: str  # it cannot be learned
    words: tuple[str, ...]  # words in the template's source


WRAPPED: tuple[Wrapped, ...] = (
    Wrapped("<answer>", "</answer>", "earlier answers are shown without them", ("<|startoftext|>", "<|extra_0|>")),
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
        if any(all(word in code for word in words) for words in family.words):
            yield family.format


_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
