import pytest
from decisions import asked, choice, predicate, score

from llamasrv.domain.decide import DecisionOption, Question
from llamasrv.domain.request import Message, TextPart
from llamasrv.pipeline.decide.questions import conversation, new_mark, orders, written


def text(question, labels):
    return written(question, labels, range(len(question.options)))


def test_a_predicate_shows_only_what_it_asks():
    assert text(predicate("Is it so?"), ("yes", "no")) == "Is it so?\nAnswer with yes or no only."


def test_descriptions_are_shown_beside_labels():
    question = predicate("Is it so?", true="It is", false="")
    assert text(question, ("yes", "no")) == "Is it so?\nyes: It is\nAnswer with yes or no only."


def test_options_are_lines_of_their_own():
    options = (DecisionOption("pay\nments", "all  of them"), DecisionOption("", "the rest"), DecisionOption("x"))
    question = Question("choice", (TextPart("Which?"),), options)
    assert text(question, "ABC") == (
        "Which?\nA: pay ments - all of them\nB: the rest\nC: x\nAnswer with the letter only."
    )


def test_a_boolean_and_the_same_word_are_told_apart():
    assert text(choice("Which?", True, "true", "false"), "ABC") == (
        'Which?\nA: true\nB: "true"\nC: "false"\nAnswer with the letter only.'
    )
    assert "A: true\n" in text(choice("Which?", "true", "maybe"), "AB")


def test_the_question_stands_in_the_last_turn_of_the_user():
    mark = new_mark()
    (turn,) = conversation(asked("An input", predicate("?")), mark).messages
    assert turn.content == f"An input\n\n{mark}"


def test_after_an_answer_the_question_is_a_turn_of_its_own():
    mark = new_mark()
    request = asked("Hello", predicate("?"))
    talk = conversation(type(request)((*request.input, Message("assistant", "Hi")), request.questions), mark)
    assert [m.role for m in talk.messages] == ["user", "assistant", "user"]
    assert talk.messages[-1].content == mark


def test_only_choices_have_several_orders():
    assert orders(score("?", "a", "b"), 4) == orders(choice("?", "a", "b"), 1) == [(0, 1)]
    assert orders(predicate("?"), 4) == [(0, 1)]


@pytest.mark.parametrize("most", [2, 3, 8])
def test_the_clients_order_has_no_effect_on_several(most):
    def shown(*values):
        question = choice("?", *values)
        return [[question.options[i].value for i in order] for order in orders(question, most)]

    assert shown("b", "a", True, "c") == shown("c", True, "a", "b")
    assert len(shown("b", "a", True, "c")) == min(most, 4)
