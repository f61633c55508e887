"""Grammars of custom tools: held to whether their text stands in JSON, between tags or in a notation's own quotes."""

from __future__ import annotations

import json
import random

import pytest
from chat_samples import FAMILIES, LEARNED_BY_MARKS
from test_grammar import Bytes, accepts, matcher
from vectors import message_of

from llamasrv.chat import families, lark
from llamasrv.chat.grammar import Constraint, constrain
from llamasrv.chat.parser import Parser
from llamasrv.chat.template import ChatTemplate
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.openai.custom import custom_tool

llguidance = pytest.importorskip("llguidance")

# What Codex sends with its tool apply_patch.
APPLY_PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
TOOL = custom_tool("apply_patch", "", {"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH})
PATCH = '*** Begin Patch\n*** Update File: src\\a "b".c\n@@ int f()\n-\treturn "<a>";\n+\treturn \'ä\';\n }\n*** End Patch\n'
WRONG = (
    "*** Begin Patch\n*** End Patch\n",
    PATCH[1:],
    PATCH.replace("\n-", "\n/"),
    PATCH.replace("*** End Patch\n", ""),
    PATCH + "\nmore",
    "",
)


def formats():
    yield "generic", families.GENERIC
    yield from ((family.format.name, family.format) for family in families.TABLE)
    yield from ((name, ChatTemplate(source).format) for name, source in {**FAMILIES, **LEARNED_BY_MARKS}.items())


FORMATS = list(dict(formats()).items())


def written(format, text):
    return format.calls.write([(TOOL.name, json.dumps({"input": text}, ensure_ascii=False))]).lstrip("\n")


def read(format, text):
    parser = Parser(format, tools=[TOOL])
    message = message_of(parser.feed(text) + parser.finish())
    return [json.loads(call["arguments"])["input"] for call in message["tool_calls"]]


def parses(text, definition=APPLY_PATCH):
    return accepts(Constraint(definition), text)


def begins_a_patch(text):
    """Whether something follows that makes it a patch."""
    return matcher(Constraint(APPLY_PATCH)).try_consume_tokens(list(text.encode())) == len(text.encode())


@pytest.mark.parametrize("name, format", FORMATS)
def test_codex_patches_are_held_to_their_grammar(name, format):
    constraint = constrain(format, tools=[TOOL], must_call=True)
    assert (
        parses(PATCH)
        and accepts(constraint, written(format, PATCH))
        and read(format, written(format, PATCH)) == [PATCH]
    )
    for text in WRONG:
        assert not parses(text) and not accepts(constraint, written(format, text))


def walk(constraint, random_source, seed, length):
    """What a model would write that is led by nothing but the grammar, now and then by a piece of a patch."""
    found, out = matcher(constraint), bytearray()
    while len(out) < length and not found.is_stopped():
        bias = found.compute_logit_bias()
        allowed = [token for token in range(256) if bias[token]]
        assert allowed or bias[Bytes.eos_token_id], f"a dead end behind {bytes(out[-60:])!r}"
        if not allowed or (bias[Bytes.eos_token_id] and random_source.random() < 0.7):
            break
        piece = list(random_source.choice(seed).encode())
        if random_source.random() < 0.5 and found.validate_tokens(piece) == len(piece):
            assert found.consume_tokens(piece)
            out += bytes(piece)
            continue
        token = random_source.choice([token for token in allowed if 32 <= token < 127] or allowed)
        assert found.consume_token(token)
        out.append(token)
    return bytes(out).decode(errors="replace") if found.is_accepting() else None


@pytest.mark.parametrize("name, format", FORMATS)
def test_whatever_is_written_under_the_grammar_is_a_patch(name, format):
    random_source = random.Random(name)
    constraint = constrain(format, tools=[TOOL], must_call=True, thinking=False)
    end = getattr(format.calls.notation, "value_end", "").replace("{key}", "input") or '"'
    seed = [
        "*** Begin Patch",
        "*** End Patch",
        "*** Add File: a",
        "\n",
        "\\n",
        "+",
        "<",
        "</",
        '\\"',
        end,
        end.strip(),
        '"}',
        "x",
    ]
    finished = 0
    for _ in range(6):
        text = walk(constraint, random_source, seed, 3000)
        for patch in read(format, text) if text is not None else ():
            finished += 1
            assert parses(patch), patch
    assert finished


DEFINITIONS = {
    "classes": ('start: /[^"x\\\\]+/ "\\\\" /[\\n\\t]/', ['a\n"no', "ab\\\n", "a\tb\\\t", "abx\\\n", "\\\\\\\n"]),
    "dots": ("start: /.{2,3}/ /(?s:.)/", ["abc\n", "a\nb", 'a"\n', '\\"\\\n', "ab"]),
    "terminals": (
        'start: NAME "=" VALUE\nNAME: /[a-z]/ (/[a-z0-9]/)*\nVALUE: "\\"" /[^"]*/ "\\""',
        ['a1="x\ny"', "a=1", '1="x"'],
    ),
    "escapes": (r'start: /\d+\s\w+\/\x41\u00e4/ "\x22"', ['12 ab/Aä"', '12\nab/Aä"', 'x ab/Aä"', '1\x0bb/Aä"']),
    "case": ('start: "select"i /[a-z]+/i', ["SELECT x", "Selectabc", "selectABC", "select1"]),
    "ranges": ('start: "a".."c" DIGIT~2\nDIGIT: /[0-9]/', ["b12", "d12", "b1"]),
    "common": (
        "start: INT NEWLINE CNAME\n%import common.INT\n%import common.NEWLINE\n%import common.CNAME",
        ["1\n\r\nab_1", "1 a"],
    ),
    "alternatives": ('start: ( /a+\\n/ | "b\\n" | /"(\\\\.|[^"\\\\])*"/ )+', ["aa\nb\n", '"a\\"b"', '"a"b"', "a"]),
    "comments": ('// one\nstart: "a" | b // "b"\n# two\nb: "/" /\\//', ["a", "//", "/", "b"]),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_grammar_means_the_same_in_json_and_between_tags(name):
    definition, texts = DEFINITIONS[name]
    plain = definition.replace("DIGIT~2", "DIGIT{2}")
    tool = custom_tool("t", "", {"type": "grammar", "syntax": "lark", "definition": plain})
    for format in (families.GENERIC, ChatTemplate(FAMILIES["values on lines"]).format):
        constraint = constrain(format, tools=[tool], must_call=True)
        for text in texts:
            call = format.calls.write([("t", json.dumps({"input": text}, ensure_ascii=False))]).lstrip("\n")
            assert accepts(constraint, call) == parses(text, plain), text
    assert any(parses(text, plain) for text in texts) and not all(parses(text, plain) for text in texts)


@pytest.mark.parametrize("definition, told", [
    ('start: "a" %json {"type": "string"}', "'%json'"), ("start: /a(?=b)/", r"\(\?="), ("start: /[[:alpha:]\\n]/", "class"),
    ("start: A\nA: /\\bx\\n/", "b'"), ('start: "a"\n%import common.NOTHING', "common.NOTHING"), ("start: <|im_end|>", "im_end"),
    ("start: A\nA: /x/m", "flags"), ('start: "a\n', "unexpected"), ('start: "a"\n%ignore /\\s+/', "%ignore"),
])  # fmt: skip
def test_what_cannot_be_enforced_is_refused_with_its_place(definition, told):
    tool = custom_tool("t", "", {"type": "grammar", "syntax": "lark", "definition": definition})
    with pytest.raises(InvalidRequest, match=rf"The grammar of the tool 't': line \d: .*{told}") as error:
        constrain(families.GENERIC, tools=[tool])
    assert error.value.param == "tools"


def test_a_text_that_is_the_end_of_a_value_is_refused_between_tags():
    tool = custom_tool("t", "", {"type": "grammar", "syntax": "lark", "definition": 'start: "x</arg>"'})
    with pytest.raises(InvalidRequest, match="</arg>"):
        constrain(ChatTemplate(FAMILIES["values on lines"]).format, tools=[tool])
    assert constrain(families.GENERIC, tools=[tool]) is not None


def test_a_definition_has_a_limit():
    with pytest.raises(InvalidRequest, match="longer"):
        lark.escaped("start: A\n" * lark.MAX_LENGTH)


def test_a_tool_without_a_grammar_takes_any_text():
    constraint = constrain(families.GENERIC, tools=[custom_tool("t", "", None)], must_call=True)
    assert accepts(constraint, families.GENERIC.calls.write([("t", '{"input": "any\\ntext"}')]).lstrip("\n"))


def test_the_bounds_of_other_grammars_hold_for_tools_too():
    powers = " | ".join("s " * n for n in range(2, 60))
    tool = custom_tool("t", "", {"type": "grammar", "syntax": "lark", "definition": f"start: s\ns: {powers} | "})
    with pytest.raises(InvalidRequest, match="The grammar of the tool 't': The grammar is too ambiguous") as error:
        constrain(families.GENERIC, tools=[tool])
    assert error.value.param == "tools"
