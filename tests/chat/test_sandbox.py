"""What a hostile template may cost, and what the limits leave as it is."""

from __future__ import annotations

import time

import pytest
from template_attacks import ATTACKS, measured

from llamasrv.chat.renderer import Renderer, TemplateError
from llamasrv.chat.template import ChatTemplate
from llamasrv.errors import InvalidRequest

MOST_CPU = 25  # seconds, where a machine is busy; unbounded they take minutes or never end
MOST_MEMORY = 700  # MiB; unbounded they take all there is


def plain(source: str, **variables) -> str:
    return Renderer(source).render([{"role": "user", "content": "Hi"}], variables=variables)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_template_takes_the_server_down(name):
    """A model file's template took gigabytes or held the interpreter for minutes, beside other models' streams: only
    methods of exact strings and some filters were charged, and nothing that nests."""
    found, seconds, grown = measured(ATTACKS[name])
    assert found.startswith(("InvalidRequest", "TemplateError")) or found.endswith(" characters"), found
    assert len(found) < 500  # what is wrong is said in a sentence
    assert seconds < MOST_CPU
    assert grown < MOST_MEMORY


@pytest.mark.parametrize(
    "part, count",
    [
        ("{%% block b%d %%}x{%% endblock %%}", 3_400),
        ("{%% macro m%d() %%}x{%% endmacro %%}", 3_400),
        ("{{ x%d }}", 10_001),
    ],
)
def test_a_template_of_very_many_parts_is_not_compiled(part, count):
    """20,000 blocks held the interpreter, and with it all streams, for 2 s: Python compiles a module in one piece."""
    with pytest.raises(TemplateError, match="cannot be compiled: it has more than 10000 parts"):
        Renderer("".join(part % n for n in range(count)))


@pytest.mark.parametrize("source", ["{{ 'x' * 99999999 }}", "{% for i in range(99999) %}{{ i ** 2 }}{% endfor %}" * 99])
def test_a_template_that_is_costly_for_a_few_words_is_refused_as_a_whole(source):
    with pytest.raises(TemplateError, match="although these are a few words"):
        _ = ChatTemplate(source).traits


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '<{}{a}>'.format('x', a=1) }}{{ '{:>4}'.format(7) }}", "<x1>   7"),
        ("{{ '%c' % 233 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 3 * 'ab' }}{{ [1] * 2 }}", "é31024ababab[1, 1]"),
        ("{% autoescape true %}{{ '<' }}{{ '<'|e }}{% endautoescape %}{{ '<'|e ~ '<' }}", "<&lt;&lt;<"),
        ("{{ [1, 2] in [[1, 2]] }}{{ [1] == [1] }}{{ 1 < 2 < 3 }}{{ 'a' not in 'b' }}", "TrueTrueTrueTrue"),
        ("{{ messages[0] == messages[-1] }}{{ messages[0] in messages }}{{ messages[0].role in ['user'] }}", "TrueTrueTrue"),
        ("{{ [3, 1, 2]|sort }}{{ 'bab'|unique|join }}{{ [1, 2, 3]|sum }}{{ [[1, 'a']]|map('last')|list }}", "[1, 2, 3]ba6['a']"),
        ("{{ range(5)|batch(2, 0)|list }}{{ range(5)|slice(2)|list }}", "[[0, 1], [2, 3], [4, 0]][[0, 1, 2], [3, 4]]"),
        ("{% for a in [[1], [2]] recursive %}{{ loop(a) if a is sequence else a }}{% endfor %}", "12"),
        ("{% for i in range(99) %}{% if loop.last %}{{ loop.length }} {{ loop.revindex }}{% endif %}{% endfor %}", "99 1"),
        ("{{ 'a b'.split()[1] }}{{ 'abcd'[1:3] }}{{ [1, 2, 3][::-1] }}{{ 'x,y'.rsplit(',', 1) }}", "bbc[3, 2, 1]['x', 'y']"),
        ("{{ {'a': none, 'b': [true, 1.5]} }}{{ (1, 'a') }}{{ missing }}{{ none }}", "{'a': None, 'b': [True, 1.5]}(1, 'a')None"),
        ("{% set d = {'k': 1} %}{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}{{ d.get('k') }}{{ d[d.keys()|first] }}", "k111"),
        ("{% set d = {'items': 1, 'k': 2, '__class__': 3} %}{{ d.items()|list|length }}{{ d.k }}{{ d.__class__ }}|{{ d.x }}|", "32||"),
        ("{% set n = namespace(l=[]) %}{% set _ = n.l.append(n) %}{{ n.l|length }}", "1"),
        ("{% if messages|selectattr('role', 'equalto', 'tool') %}a generator is true{% endif %}", "a generator is true"),
        ("{% macro m() %}{{ caller('x') }}{{ varargs }}{% endmacro %}{% call(y) m(1) %}{{ y }}{% endcall %}", "x(1,)"),
        ("{{ '  a '|trim }}{{ 'aXa'|trim('a') }}{{ '42.5'|int }}{{ 'x'|int(-1) }}{{ 2.567|round(1) }}", "aX42-12.6"),
        ("{{ '%s: %03d, %.1f%%' | format('a', 7, 2.5) }}", "a: 007, 2.5%"),
        ("{{ '%(who)s!' | format(who=['you']) }}", "['you']!"),
        ("{{ [{'a': [1]}]|tojson(indent=1) }}", '[\n {\n  "a": [\n   1\n  ]\n }\n]'),
    ],
)  # fmt: skip
def test_what_templates_do_stays_as_it_is(source, text):
    assert plain(source) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'abc'|center(9) }}|", "   abc   |"),
        ("{{ 'a b c d'|wordwrap(3) }}", "a b\nc d"),
        ("{{ '%s-%03d' % ('a', 5) }}", "a-005"),
        ("{{ '%(n)s' % {'n': 1} }}", "1"),
        ("{{ '%-4s|%.1e'|format('a', 2) }}", "a   |2.0e+00"),
        ("{{ '{:>3}{}'.format('a', 1) }}", "  a1"),
        ("{{ tools is defined }} {{ tools is none }} {{ documents is none }}", "True True True"),
    ],
)
def test_texts_and_absent_variables_are_those_of_transformers(source, text):
    assert plain(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a'.encode() }}", "{{ (1).to_bytes(2, 'big') }}", "{{ dict.fromkeys('ab') }}", "{{ {}.keys() - [] }}",
        "{{ 'a'.translate({97: 'b'}) }}", "{{ '{:{}}'.format(1, 2) }}", "{{ 'a'|pprint }}", "{{ lipsum() }}",
        "{% include 'x' %}", "{% import 'x' as y %}", "{{ [[1]]|sum(start=[]) }}", "{{ {[1]: 2} }}", "{{ '%*s' % (9, 'a') }}",
        "{{ '%*d' | format(9, 9) }}", "{{ '%9999s' | format('a') }}", "{{ '%s' | format }}",
    ],
)  # fmt: skip
def test_what_is_not_listed_is_refused(source):
    with pytest.raises(InvalidRequest):
        plain(source)


@pytest.mark.parametrize("char", ["a", " ", "-"])
def test_wrapping_one_long_word_is_charged_for_what_it_copies(char):
    """Each line copied the rest of the word: a word of a million letters held the interpreter for 38 s."""
    started = time.process_time()
    with pytest.raises(InvalidRequest, match="too much work"):
        plain("{{ ('" + char + "' * 200000)|wordwrap(1) }}")
    assert time.process_time() - started < 2


def test_an_error_of_a_template_is_a_sentence_and_not_its_data():
    with pytest.raises(InvalidRequest) as caught:
        plain("{{ raise_exception('x' * 999999) }}")
    assert len(str(caught.value)) < 3000


def test_what_is_safe_is_remembered_by_type_and_name():
    """A refused attribute stays refused, and another type's of the same name stays allowed."""
    source = "{% set ns = namespace(pop='a', clear='b') %}{{ ns.pop }}{{ ns.clear }}"
    assert plain(source) == "ab"
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="unsafe|not available"):
            plain("{{ {}.clear() }}")
        with pytest.raises(InvalidRequest, match="unsafe|undefined|not available"):
            plain("{{ ''.__class__.__mro__ }}")
    assert plain(source) == "ab"
