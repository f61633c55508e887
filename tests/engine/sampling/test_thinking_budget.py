import math

import pytest
from constraints import constraint, run

from llamasrv.domain.events import FinishReason
from llamasrv.engine.sampling.thinking_budget import ThinkingBudget


def budget(tokens, *, open=False, anywhere=False):
    end = "</think>\n"
    return ThinkingBudget(
        tokens, start=b"<think>", end=b"</think>", closing=list(end.encode()), open=open, anywhere=anywhere
    )


def test_a_block_is_closed_when_its_budget_is_used_up(drive):
    driver = drive()
    text, _ = run(driver, constraint=constraint(driver, budget=budget(5, open=True)), max_tokens=20)
    assert text.startswith("You s</think>\n")


def test_no_budget_closes_the_block_at_once(drive):
    driver = drive()
    text, _ = run(driver, constraint=constraint(driver, budget=budget(0, open=True)), max_tokens=20)
    assert text.startswith("</think>\n")


def test_thinking_is_ended_whatever_is_left_of_its_budget():
    bound = budget(math.inf, open=True)
    bound.accept(b"ab\xe2")
    bound.end()
    assert not bound.due()  # inside a character
    bound.accept(b"\x82\xac")
    assert bound.due()
    bound.accept(b"</think>")
    assert not bound.due()


def test_a_block_that_opens_after_thinking_was_ended_is_closed():
    bound = budget(100)
    bound.end()
    assert not bound.due()
    bound.accept(b"<think>")
    assert bound.due()


def test_a_block_is_not_closed_inside_a_character():
    bound = budget(2, open=True)
    bound.accept(b"a")
    bound.accept(b"\xe2")
    assert not bound.due()
    bound.accept(b"\x82")
    assert not bound.due()
    bound.accept(b"\xac")
    assert bound.due()


@pytest.mark.parametrize("cut", range(1, 9))
def test_marks_are_found_wherever_tokens_split_them(cut):
    bound = budget(2)
    text = b"<think>ab"
    for piece in (text[:cut], text[cut:]):
        bound.accept(piece)
    bound.accept(b"c")
    bound.accept(b"d")
    assert bound.due()
    for piece in (b"</thi", b"nk>"):
        bound.accept(piece)
    assert not bound.due()


def test_text_about_thinking_is_not_thinking():
    bound = budget(0)
    bound.accept(b"I write <think> now")
    assert not bound.due()
    bound = budget(0, anywhere=True)
    bound.accept(b"I write <think> now")
    assert bound.due()


def test_a_budget_and_a_grammar_work_together(drive):
    driver = drive()
    both = constraint(
        driver, 'start: thought /\\n{0,2}/ "yes"\nthought[lazy]: /(?s:.*)/ "</think>"\n', budget=budget(4, open=True)
    )
    text, end = run(driver, constraint=both, max_tokens=60)
    assert text.startswith("You </think>") and text.endswith("yes") and end.reason is FinishReason.STOP
