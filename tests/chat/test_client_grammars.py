"""Bounds on clients' grammars: small ones ended the worker, or held everybody up."""

import contextlib
import re
import time

import pytest
from test_grammar import PLAIN

from llamasrv.chat.client_grammars import MAX_LENGTH, MAX_PATTERN, check_gbnf, check_lark, check_pattern
from llamasrv.chat.grammar import constrain
from llamasrv.domain.request import Content
from llamasrv.errors import InvalidRequest

ARITHMETIC = """
start: sum
?sum: product | sum "+" product   // a comment: with a colon
product: atom | product "*" atom
atom.2: NUMBER | "-" atom | "(" sum ")" | /[a-z:]+/
NUMBER: /[0-9]+(\\.[0-9]{1,3})?/
name[lazy]: /(?s:.*)/ ";"
counted::_: atom counted::set_bit(0) %if bit_clear(0) | ""
%import common.WS
%ignore WS
"""
CHESS = """# a comment ::= no rule
root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+
move ::= (pawn | non-pawn | castle) [+#]?
non-pawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""


def lark_chain(length):
    return "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(length)) + f'r{length}: "a"\n'


def terminals(length):
    return "start: T0\n" + "".join(f"T{n}: T{n + 1}\n" for n in range(length)) + f'T{length}: "a"\n'


def gbnf_chain(length, text='"a" '):
    return "root ::= r0\n" + "".join(f"r{n} ::= {text}r{n + 1}\n" for n in range(length)) + f'r{length} ::= "a"\n'


def test_ordinary_grammars_are_taken():
    assert check_lark(ARITHMETIC) == (ARITHMETIC, [])
    assert check_gbnf(CHESS) == CHESS
    assert check_lark(lark_chain(400)) == (lark_chain(400), []) and check_gbnf(gbnf_chain(150)) == gbnf_chain(150)


@pytest.mark.parametrize("check, text", [
    (check_lark, lark_chain(600)), (check_lark, lark_chain(3000)), (check_lark, terminals(1000)), (check_lark, terminals(9000)),
    (check_gbnf, gbnf_chain(600)), (check_gbnf, gbnf_chain(8000)),
    (check_lark, "start: " + "(" * 300 + '"a"' + ")" * 300), (check_gbnf, "root ::= " + "(" * 300 + '"a"' + ")" * 300),
    (check_lark, "start: /" + "(" * 300 + "a" + ")" * 300 + "/"),
    (check_lark, "start: " + "".join(f'"{n}" | ' for n in range(90_000)) + '"x"'),
])  # fmt: skip
def test_depth_rules_and_length_are_bounded(check, text):
    """3,000 rules of Lark in 38 KiB, each the next one, ended the worker with SIGSEGV."""
    with pytest.raises(InvalidRequest, match="levels deep|more than 2000 rules|too deeply|longer than") as caught:
        check(text)
    assert caught.value.param == "content"


@pytest.mark.parametrize(
    "text",
    [
        'start: "a"~1000000000',
        'start: ("a" | "b") y{1000}\ny: x{1000}\nx: "abc"',
        f'start: x{{1000}}\nx: "{"ab" * 100}"',
        "start: /((ab){1000}){1000}/",
        'start: a a a a\na: b b b b\nb: c c c c\nc: "' + "x" * 1000 + '"',
    ],
)
def test_a_long_text_without_a_choice_is_refused(text):
    with pytest.raises(InvalidRequest, match="fixes a text"):
        check_lark(text)


def test_the_same_bounds_hold_in_gbnf_and_for_patterns():
    with pytest.raises(InvalidRequest, match="fixes a text"):
        check_gbnf('root ::= ("abc" "d"){20000}')
    with pytest.raises(InvalidRequest, match="fixes a text"):
        check_pattern("(?:abc){20000}")
    with pytest.raises(InvalidRequest, match="longer than"):
        check_pattern("a*" * MAX_LENGTH)
    assert check_pattern("(a|b|c|d){1000}" * 20) == 20_000
    assert check_pattern(r"^((25[0-5]|(2[0-4]|1\d|[1-9]|)\d)\.?\b){4}$") < 30


@pytest.mark.parametrize("check, start", [(check_lark, "start: "), (check_gbnf, "root ::= ")])
def test_words_that_may_be_left_out_are_no_fixed_text(check, start):
    """They were refused for fixing a text of more than 32,768 characters."""
    check(start + '"some of the words "? ' * 2000 + '"end"')
    check(start + '("some of " "the words ")* ' * 2000 + '"end"')
    for fixed in ('"ab"? "' + "a" * 40_000 + '"', '("ab"{20000})? "b"', '("a"? "' + "b" * 20_000 + '"){2}'):
        with pytest.raises(InvalidRequest, match="fixes a text"):
            check(start + fixed)


@pytest.mark.parametrize("empty", ["[]", "[^]"])
def test_a_class_without_characters_is_named(empty):
    """The message was of the converted grammar: "line 3: / has no end"."""
    with pytest.raises(InvalidRequest, match=re.escape(f"line 2: {empty} is empty")):
        check_gbnf(f'root ::= "a" x\nx ::= [^\\]] {empty} "b"')


@pytest.mark.parametrize("part", ['"a"? ', '"a"* ', '("a" | "b" "c")? ', '"a"{0,3} '])
@pytest.mark.parametrize("check, start", [(check_lark, "start: "), (check_gbnf, "root ::= ")])
def test_a_long_row_of_what_may_be_left_out_is_refused_at_once(check, start, part):
    """The library took 7 s to say no."""
    with pytest.raises(InvalidRequest, match="more than 2000 parts in a row that may be left out"):
        check(start + part * 2001 + '"end"')
    check(start + (part * 1000 + '"and" ') * 3 + '"end"')
    check(start + ("(" + part * 1000 + " | " + part * 1000 + ')? "x" ') * 2)


def powers(most, empty=""):
    return " | ".join("s " * n for n in range(2, most)) + f' | "x"{empty}'


@pytest.mark.parametrize("check, text", [
    (check_lark, "start: s\ns: " + powers(60, " |")), (check_gbnf, "root ::= s\ns ::= " + powers(60, '?')),
    (check_lark, "start: " + "e " * 2000 + '"a"\ne: ' + " | ".join(['"x"?'] * 50)),
    (check_lark, "start: " + "e " * 2000 + '"a"\ne: ' + " | ".join(['["x"]'] * 50)),
    (check_lark, "start: " + "e " * 2000 + '"a"\ne: ' + " | ".join(['("x" "y"?){0,9}'] * 50)),
    (check_gbnf, "root ::= " + "E " * 2000 + '"a"\nE ::= ' + " | ".join(["([a-z]*)"] * 50)),
])  # fmt: skip
def test_an_ambiguous_grammar_is_refused_by_its_rule(check, text):
    """3.7 KB of alternatives without text: the first mask took minutes, and no other grammar was compiled meanwhile."""
    with pytest.raises(InvalidRequest, match=r"too ambiguous: the rule '\w' has \d+ alternatives"):
        check(text)


def test_alternatives_that_must_match_something_are_not_ambiguous():
    words = " | ".join(f'"w{n}" x?' for n in range(400))
    assert check_lark("start: " + "word " * 500 + f'\nword: {words}\nx: A | B\nA: /a?/\nB: "b"')[1] == []
    objects = '"{" v? "}" ' * 500
    check_gbnf(f'root ::= (v v)+\nv ::= o | a | s | n\no ::= {objects}\na ::= "[" v "]"\ns ::= "s"\nn ::= [0-9]+')
    check_lark("start: e\n?e: " + " | ".join(f'e "{op}" e' for op in "+-*/%<>=&|^") + " | /[0-9]+/")


def test_schemas_inside_lark_have_the_bounds_of_schemas():
    """The same chain of references that a schema may not have ended the worker from within `%json`."""
    _, (schema,) = check_lark('start: "x" %json {"type": "object", "properties": {"a: b": {}}} "y"\nother: start')
    assert schema["properties"] == {"a: b": {}}
    parts = ",".join(f'"d{n}": {{"$ref": "#/$defs/d{n + 1}"}}' for n in range(2500))
    text = f'start: %json {{"$ref": "#/$defs/d0", "$defs": {{{parts}, "d2500": {{}}}}}}'
    with pytest.raises(InvalidRequest, match="levels deep"):
        constrain(PLAIN, content=Content("lark", text))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        check_lark("start: %json {nothing}")


def test_forms_of_other_kinds_have_them_too():
    for content in (
        Content("regex", "(abc){20000}"),
        Content("choice", ["x" * 40_000]),
        Content("tags", {"type": "const_string", "value": "x" * 70_000}),
    ):
        with pytest.raises(InvalidRequest, match="fixes a text|'const' is too large"):
            constrain(PLAIN, content=content)


def test_many_rules_of_gbnf_come_behind_those_that_they_refer_to():
    """The converter passed over all rules for each of them: 4 s for 29 KiB, in which nobody else was served."""
    from llamasrv.engine.sampling.grammar_compiler import lark_of_gbnf

    text = gbnf_chain(480)
    ordered = check_gbnf(text)
    assert sorted(ordered.split("\n")) == sorted(text.split("\n")) and ordered.index("r479 ") < ordered.index("r478 ")
    started = time.process_time()
    fast = lark_of_gbnf(ordered)
    between = time.process_time()
    slow = lark_of_gbnf(text)
    assert sorted(fast.split("\n")) == sorted(slow.split("\n"))
    assert between - started < (time.process_time() - between) / 2


HARD = (
    "/[", "<", '"', "{ ", "{" + " " * 5000, "[", "(?<", "\\p{", "\\", "a ", "~ ", "%json ", "\n[", "a: [", "/a", "(", "~1", "::=",
    "a", "#", "\r", "a{1}", "<[", "[^", "//",
)  # fmt: skip


@pytest.mark.parametrize("piece", HARD)
@pytest.mark.parametrize("check", [check_lark, check_gbnf, check_pattern])
def test_reading_takes_time_that_grows_with_the_length_alone(check, piece):
    """What looks for its end at each place takes the square of the length: minutes for 256 KiB."""
    length = MAX_PATTERN if check is check_pattern else MAX_LENGTH
    text = (piece * (length // len(piece) + 1))[: length - 20]
    for whole in (
        text,
        *([] if check is check_pattern else [("start: " if check is check_lark else "root ::= ") + text]),
    ):
        started = time.process_time()
        with contextlib.suppress(InvalidRequest):
            check(whole)
        assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "check, text",
    [
        (check_lark, 'start: "a'),
        (check_lark, "start: a\nb: /x"),
        (check_gbnf, "root ::= [a"),
        (check_pattern, "[a"),
    ],
)
def test_a_mark_without_an_end_is_refused(check, text):
    with pytest.raises(InvalidRequest, match="has no end"):
        check(text)
