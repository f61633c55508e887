"""Old results and old thoughts are left out of a long conversation, in steps that keep its prefix."""

from __future__ import annotations

from os.path import commonprefix

import pytest

from llamasrv.domain.context_edits import AppliedEdit, ClearResults, ContextEdits
from llamasrv.domain.request import ChatPrompt, MediaPart, Message, TextPart, Tool, ToolCall
from llamasrv.pipeline.context_edits import CLEARED, CLEARED_ARGUMENTS, edited


def words(text):
    return len(text.split())


def texts(prompt):
    """The prompt as a template would write it: a mark and the content of each turn."""
    out = [f"<tool> {tool.name}" for tool in prompt.tools]
    for message in prompt.messages:
        content = message.content
        parts = [content] if isinstance(content, str) else [p.text for p in content or () if isinstance(p, TextPart)]
        calls = [f"{call.name} {call.arguments}" for call in message.tool_calls]
        out.append(" ".join([f"<{message.role}>", message.reasoning or "", *parts, *calls]))
    return out


def edit(messages, *, context=10_000, tools=(), **edits):
    prompt = ChatPrompt(tuple(messages), tools=tools)
    return edited(
        prompt,
        ContextEdits(**edits),
        count=lambda prompt: words(" ".join(texts(prompt))),
        weigh=words,
        context=context,
    )


def rounds(number, *, size=30, name="read", thinks=False):
    """A conversation with `number` calls, each with a result of `size` words."""
    yield Message("user", "Do it")
    for n in range(number):
        reasoning = f"thought {n}" if thinks else None
        yield Message("assistant", None, reasoning=reasoning, tool_calls=(ToolCall(f"c{n}", name, f'{{"n": {n}}}'),))
        yield Message("tool", f"r{n} " * size, name=name, tool_call_id=f"c{n}")


def cleared(prompt):
    return [at for at, m in enumerate(m for m in prompt.messages if m.role == "tool") if m.content == CLEARED]


def test_a_short_conversation_stays_whole():
    messages = list(rounds(5))
    assert edit(messages, results=ClearResults(max_tokens=1000)) == (ChatPrompt(tuple(messages)), ())


def test_beyond_the_limit_the_oldest_results_become_a_notice():
    prompt, applied = edit(rounds(6), results=ClearResults(max_tokens=150, keep=2))
    assert cleared(prompt) == [0, 1, 2, 3]
    before = words(" ".join(texts(ChatPrompt(tuple(rounds(6))))))
    assert applied == (AppliedEdit("results", 4, before - words(" ".join(texts(prompt)))),)
    assert [call.arguments for m in prompt.messages for call in m.tool_calls][0] == '{"n": 0}'


def test_the_limit_may_be_a_number_of_results():
    prompt, _ = edit(rounds(6), results=ClearResults(max_results=5, keep=1))
    assert cleared(prompt) == [0, 1, 2, 3, 4]
    assert not edit(rounds(5), results=ClearResults(max_results=5, keep=1))[1]


def test_as_many_as_are_kept_are_never_cleared():
    assert not edit(rounds(3), results=ClearResults(max_tokens=1, keep=3))[1]
    assert cleared(edit(rounds(3), results=ClearResults(max_tokens=1, keep=0))[0]) == [0, 1, 2]


def test_too_small_a_saving_is_not_worth_it():
    assert not edit(rounds(6), results=ClearResults(max_tokens=50, keep=2, min_tokens=1000))[1]
    assert edit(rounds(6), results=ClearResults(max_tokens=50, keep=2, min_tokens=10))[1]


def test_results_of_excluded_tools_stay():
    messages = [*rounds(3, name="memory"), *list(rounds(3))[1:]]
    prompt, _ = edit(messages, results=ClearResults(max_tokens=1, keep=1, excluded=frozenset(("memory",))))
    assert cleared(prompt) == [3, 4]


@pytest.mark.parametrize("which, number", [(True, 2), (frozenset(("read",)), 2), (frozenset(("other",)), 0)])
def test_arguments_are_cleared_where_that_is_asked_for(which, number):
    prompt, _ = edit(rounds(4), results=ClearResults(max_tokens=1, keep=2, arguments=which))
    arguments = [call.arguments for message in prompt.messages for call in message.tool_calls]
    assert arguments.count(CLEARED_ARGUMENTS) == number and arguments[2:] == ['{"n": 2}', '{"n": 3}']


def test_images_of_a_cleared_result_go_with_it():
    shown = Message("user", (MediaPart("image", b"png", result_of="c0"), TextPart("What is this?")))
    first, call, result, *others = rounds(3)
    prompt, _ = edit([first, call, result, shown, *others], results=ClearResults(max_tokens=1, keep=2))
    assert prompt.messages[3].content == (TextPart("What is this?"),)


@pytest.mark.parametrize("keep, left", [(1, [4]), (3, [2, 3, 4]), (9, [0, 1, 2, 3, 4]), (None, [0, 1, 2, 3, 4])])
def test_thoughts_of_the_newest_turns_stay(keep, left):
    prompt, applied = edit(rounds(5, thinks=True), thoughts=keep)
    assert [m.reasoning for m in prompt.messages if m.reasoning] == [f"thought {n}" for n in left]
    assert [edit.number for edit in applied] == ([5 - len(left)] if len(left) < 5 else [])


def test_a_limit_beyond_the_context_counts_as_most_of_it():
    """Clients choose limits for windows of 200,000 tokens: in a smaller one the request would be refused first."""
    assert edit(rounds(6), results=ClearResults(max_tokens=100_000, keep=1), context=200)[1]


def test_requests_of_a_conversation_clear_the_same_results_until_it_has_grown_again():
    """Else each turn would change the middle of its prompt, and find only the part before that."""
    tools = (Tool("read", "Reads a file"),)
    before, changes, found = "", 0, []
    for number in range(1, 30):
        prompt, _ = edit(rounds(number), results=ClearResults(max_tokens=600, keep=3), tools=tools)
        text = " ".join(texts(prompt))
        assert words(text) <= 600
        share = len(commonprefix((before, text))) / max(1, len(before))
        changes += share < 1
        found.append(share)
        before = text
    assert changes <= 4, found


def test_tools_without_results_and_other_turns_are_no_trouble():
    messages = [Message("system", "Be brief"), Message("user", None), Message("assistant", "Hello")]
    assert not edit(messages, results=ClearResults(max_tokens=1, keep=0), thoughts=1)[1]
    lonely = [*messages, Message("tool", "a b c " * 9, tool_call_id="unknown"), Message("user", "And?")]
    assert cleared(edit(lonely, results=ClearResults(max_tokens=1, keep=0))[0]) == [0]


@pytest.mark.parametrize("rule", [ClearResults(max_tokens=1, keep=3), ClearResults(max_results=3, keep=1)])
def test_no_prompt_is_counted_while_too_few_results_are_there(rule):
    """Counting renders and tokenises the whole conversation once more, and agents send the rule with every request."""
    prompt = ChatPrompt(tuple(rounds(3)))
    assert edited(prompt, ContextEdits(rule), count=pytest.fail, weigh=pytest.fail, context=1000) == (prompt, ())
