"""The corpus: deterministic, rendered by the template that is served, and split for the evaluation for ever."""

from collections import Counter
from itertools import islice

import pytest

from llamasrv.demo.corpus import SKILLS, chat, draw, facts, kits, memory, numbers, specs, talk, tools, words
from llamasrv.demo.corpus import documents as stream
from llamasrv.demo.corpus.chat import END_OF_TEXT, END_OF_TURN, ChatDocument, document, render

FEW = 400


def some(count=FEW, **options):
    return list(islice(stream(7, **options), count))


def test_the_same_seed_gives_the_same_documents():
    assert some() == some()


def test_another_seed_gives_others():
    assert some(20) != list(islice(stream(8), 20))


def test_a_document_depends_on_its_number_alone():
    assert list(islice(stream(7, start=FEW - 3), 3)) == some()[-3:]


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("skill", SKILLS)
def test_every_skill_makes_documents(skill, held_out):
    for made in some(25, skills=(skill,), held_out=held_out):
        assert made.skill == skill
        assert made.expected.endswith((END_OF_TURN, END_OF_TEXT))
        assert made.accepts(made.expected)


def test_what_is_given_and_expected_is_the_whole_text():
    for made in some():
        assert "".join(text for text, _ in made.parts) == made.given + made.expected


def test_the_last_part_is_learned():
    for made in some():
        text, learned = made.parts[-1]
        assert learned and text == made.expected


def test_users_and_schemas_are_not_learned():
    made = some(60, skills=("tool call", "memory", "JSON with keys"))
    learned = [text for document in made for text, is_learned in document.parts if is_learned]
    assert not any("<|im_start|>" in text or "<tools>" in text for text in learned)


def test_earlier_answers_are_learned_too():
    made = document("memory", ChatDocument("And?", "So.", turns=[chat.said("One.", "Two.")]))
    assert [text for text, learned in made.parts if learned] == ["Two.<|im_end|>", "So.<|im_end|>"]


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, "<|im_start|>assistant\nFour.<|im_end|>"),
        (True, "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nFour.<|im_end|>"),
        (False, "<|im_start|>assistant\n<think>\n\n</think>\n\nFour.<|im_end|>"),
    ],
)
def test_thinking_is_written_as_the_template_asks_for_it(thinking, expected):
    made = ChatDocument("2 + 2?", "Four.", "Hm.", thinking=thinking)
    assert made.text() == "<|im_start|>user\n2 + 2?<|im_end|>\n" + expected


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Hm.\n</think>\n\nFour.<|im_end|>", True),
        ("Hm, hm.\n</think>\n\nFour.<|im_end|>", True),
        ("Hm.\n</think>\n\nFive.<|im_end|>", False),
        ("Four.<|im_end|>", False),
    ],
)
def test_the_answer_is_judged_and_not_the_thought(text, right):
    made = document("memory", ChatDocument("2 + 2?", "Four.", "Hm.", thinking=True))
    assert made.accepts(text) == right


def test_thoughts_of_earlier_turns_are_dropped():
    messages = [*chat.said("One.", "<think>\nHm.\n</think>\n\nTwo."), {"role": "user", "content": "Three."}]
    assert "Hm." not in render(messages)


def test_calls_are_rendered_alike_from_text_and_from_objects():
    """Clients send arguments as JSON text, the corpus as objects."""

    def rendered(arguments):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return render([{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert rendered({"a": 1, "b": "é"}) == rendered('{"a": 1, "b": "é"}')


def test_a_developer_is_a_system():
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert render(messages).startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_parts_of_content_are_joined():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render([{"role": "user", "content": parts}]) == render([{"role": "user", "content": "Hello"}])


LISTS = [talk.GREETINGS, talk.WHO, facts.CAPITAL, facts.OPPOSITE, numbers.PLUS, numbers.COUNT, tools.MADE_ASK]
LISTS += [memory.YOU_ARE, *[ways for ways, _, _, _ in memory.STATED]]


@pytest.mark.parametrize("patterns", LISTS)
def test_wordings_are_on_one_side(patterns):
    training, held_out = draw.split_wordings(patterns)
    assert held_out and not set(training) & set(held_out)
    assert set(training) | set(held_out) == set(patterns)


@pytest.mark.parametrize("pool", [words.NAMES, words.CITIES, words.WORDS, words.THINGS, tools.NOUNS, specs.SPECS])
def test_values_are_on_one_side(pool):
    training, held_out = draw.split_values(pool)
    assert held_out and not set(training) & set(held_out)


def test_a_longer_list_moves_nothing_to_the_evaluation():
    """What training has seen must not become held out when the corpus grows."""
    training, _ = draw.split_wordings(talk.WHO[:20])
    _, held_out = draw.split_wordings(talk.WHO)
    assert not set(training) & set(held_out)


def test_sums_of_the_evaluation_are_not_trained():
    trained = {made.expected for made in some(1500, skills=("arithmetic",))}
    asked = {made.expected for made in some(200, skills=("arithmetic",), held_out=True)}
    plain = {text for text in asked if " = " in text and "<think>" not in text and "*" not in text}
    assert plain and not plain & trained


def test_tool_answers_name_a_tool_of_the_prompt():
    for made in some(60, skills=("tool call", "parallel calls")):
        for line in made.expected.splitlines():
            if line.startswith('{"name": "'):
                name = line.split('"')[3]
                assert f'"name": "{name}"' in made.given


@pytest.mark.parametrize("make", [kits.looking_up, kits.writing_down, kits.computing])
def test_a_made_up_tool_is_asked_for_all_that_its_schema_has(make):
    for n in range(100):
        d = draw.Draw(n)
        spec = make(d)
        request, arguments = spec.ask(d)
        assert list(arguments) == [key for key, *_ in spec.parameters]
        assert all(str(value).lower() in request.lower() for value in arguments.values())


def test_the_evaluation_has_no_made_up_tools():
    assert all(tools.hand_made(draw.Draw(n, held_out=True)) in specs.SPECS for n in range(50))


def test_made_up_words_begin_alike_within_a_document():
    """What follows their first letter is then told by more than that letter."""
    words = [[d.pieced() for _ in range(20)] for d in map(draw.Draw, range(20))]
    alike = sum(max(Counter(word[0] for word in some).values()) for some in words) / 20
    mixed = sum(max(Counter(some[n][0] for some in words).values()) for n in range(20)) / 20
    assert alike > mixed + 1
