"""A long conversation goes on from a summary of its older turns, whole in its pairs and in the user's words."""

from __future__ import annotations

import os
import random

import pytest

from llamasrv.domain.context_edits import ClearResults, Compact, ContextEdits
from llamasrv.domain.events import Finished, FinishReason, Text, Usage
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, Tool, ToolCall
from llamasrv.domain.sequence_spec import Urgency
from llamasrv.domain.summary import LEFT_OUT, SUMMARISE, SUMMARY, WORDS, last_request, summarised, whole_cut
from llamasrv.errors import ContextTooLong, Unavailable
from llamasrv.pipeline.compacted_run import write_ahead
from llamasrv.pipeline.compaction import AHEAD, LongConversation, SummaryBook
from llamasrv.pipeline.context_edits import edited


def size(prompt):
    return sum(len(str(message.content or "").split()) + 2 for message in prompt.messages)


def calls(number):
    """A turn with a call, and its result."""
    call = ToolCall(f"c{number}", "read", f'{{"n": {number}}}')
    return [Message("assistant", None, tool_calls=(call,)), Message("tool", f"r{number} " * 20, tool_call_id=call.id)]


def talk_of(messages, book, *, limit=200, owner="", context=10_000, **more):
    request = GenerateRequest((ChatPrompt(tuple(messages)),), owner=owner, **more)
    return LongConversation(request, Compact(limit), book, sent=messages, model="m", context=context)


SYSTEM, ASK = Message("system", "Be brief"), Message("user", "Do it")


def long(number=12):
    return [SYSTEM, ASK, *(message for n in range(number) for message in calls(n))]


@pytest.fixture
def book():
    return SummaryBook()


def test_a_short_conversation_stays_as_it_is(book):
    talk = talk_of(long(3), book)
    assert talk.plan(size) == 0 and talk.shortened(talk.used) == talk.prompt


def test_beyond_its_limit_all_but_the_last_request_is_summarised(book):
    messages = long()
    talk = talk_of(messages, book)
    number = talk.plan(size)
    assert messages[number:] == calls(11)
    order = talk.order(number)
    assert order.prompts[0].messages == (*messages[:number], Message("user", SUMMARISE))
    assert order.tool_choice.mode == "none" and order.tool_choice.shown  # the prefix is the one in the cache
    book.put(talk.keys[number - 1], "All done so far.", Usage())
    again = talk_of(messages, book)
    assert again.plan(size) == 0 and again.used == number
    head, summary, *rest = again.shortened(number).messages
    assert head == SYSTEM and rest == calls(11)
    assert summary == Message("user", f"{SUMMARY}All done so far.{WORDS}Do it")


def test_later_requests_go_on_from_the_same_summary(book):
    messages = long()
    talk = talk_of(messages, book)
    book.put(talk.keys[talk.plan(size) - 1], "Sum.", Usage())
    first = talk_of(messages, book)
    first.plan(size)
    later = talk_of([*messages, *calls(12)], book)
    assert later.plan(size) == 0
    before = first.shortened(first.used).messages
    assert later.shortened(later.used).messages[: len(before)] == before


def test_another_key_model_or_order_finds_nothing(book):
    talk = talk_of(long(), book)
    book.put(talk.keys[talk.plan(size) - 1], "Sum.", Usage())
    assert not talk_of(long(), book, owner="somebody").ready
    assert not talk_of(long(), book, cache_salt="salt").ready


def test_while_its_summary_is_being_written_a_conversation_goes_on_as_long_as_it_fits_the_window(book):
    """Just beyond its limit it was summarised a second time, and the turn waited for all of that: 20 s, not 0.4."""
    messages = long()
    beyond, full = talk_of(messages, book), talk_of(messages, book, context=210)
    assert size(beyond.prompt) > 1.1 * beyond.limit and size(full.prompt) > 210
    assert book.join(beyond.keys[-3], beyond, calls(12)[0])
    beyond.look()
    full.look()
    assert beyond.plan(size) == 0 and full.plan(size) > 0
    book.end_job(beyond.keys[-3])  # it was given up
    beyond.look()
    assert beyond.plan(size) > 0


class WrittenRun:
    """A run that says "Sum." at once."""

    done = False
    urgency = Urgency.NONE

    def hurry(self, urgency):
        self.urgency = urgency

    def events(self, timeout=None):
        self.done = True
        return [Text(0, "Sum."), Finished(0, FinishReason.STOP), Usage()]


def test_what_follows_from_a_summary_is_computed_up_to_where_the_conversation_is_by_then(book):
    """Turns that were answered while the summary was being written were left out of the prompt computed ahead, and the
    first turn beyond the limit computed them: 769 tokens, not 244."""
    first, later = [*long()], [*long(), *calls(12), Message("user", "And now?")]
    answer = Message("assistant", "Now it works.")
    submitted = []

    def submit(request):
        submitted.append(request)
        if len(submitted) == 1:  # the summary is being written, and the next turn has its answer
            write_ahead(talk_of(later, book), answer, book, submit)
            assert len(submitted) == 1
        return WrittenRun()

    write_ahead(talk_of(first, book), calls(12)[0], book, submit)
    _, ahead = submitted
    assert ahead.deferrable and ahead.max_tokens == 0
    assert ahead.prompts[0].messages[-4:] == (*later[-3:], answer)
    assert ahead.prompts[0].messages[1].content.startswith(SUMMARY + "Sum.")
    assert talk_of(later, book).ready and not book.num_jobs


def test_a_summary_is_used_once_the_prompt_that_follows_from_it_is_computed(book):
    """It was used as soon as it was written, and with half a second between turns the one that crossed the limit
    computed all of that prompt: its first token took up to 4.6 times that of the turn before."""
    messages, answer = long(), Message("assistant", "Now it works.")
    later = [*messages, *calls(12)]
    requests = []

    def submit(request):
        requests.append(request)
        if len(requests) == 2:  # the first prompt is being computed: a turn beyond the limit is answered as it is
            beyond, full = talk_of(later, book), talk_of(later, book, context=250)
            assert beyond.ready and beyond.plan(size) == 0 and not beyond.used
            assert size(beyond.prompt) > beyond.limit
            assert full.plan(size) == 0 and full.used  # and one that does not fit uses it
            book.find(full.keys[full.used - 1]).is_used = False
            write_ahead(talk_of(later, book), answer, book, submit)
            assert len(requests) == 2  # that job goes on to this turn
        return WrittenRun()

    write_ahead(talk_of(messages, book), calls(12)[0], book, submit)
    assert [request.prompts[0].messages[-1] for request in requests[1:]] == [calls(12)[0], answer]
    after = talk_of([*later, answer, Message("user", "And now?")], book)
    assert after.plan(size) == 0 and after.used


def test_a_summary_becomes_urgent_when_the_next_turn_passes_the_limit(book):
    """Where turns came without a pause, it was written in the gaps until the context ended, and the turn that did not
    fit waited for all of it: 7 s, not 0.3."""
    answer = Message("assistant", "word " * 8)
    talk = talk_of([*long(6), ASK], book)
    talk.plan(size)
    assert [talk.is_near(answer, Usage(n, 8)) for n in (120, 140, 190)] == [False, True, True]
    assert [talk.urgency(answer, Usage(n, 8)) for n in (145, 190)] == [Urgency.NONE, Urgency.URGENT]
    short = talk_of([*long(6), ASK], book, context=267)
    short.plan(size)  # at this pace, the summary takes four turns
    assert short.limit == talk.limit
    assert [short.urgency(answer, Usage(n, 8)) for n in (145, 190)] == [Urgency.PRESSING, Urgency.PRESSING]
    assert talk.urgency(answer, Usage(410, 8)) is Urgency.PRESSING  # far beyond its limit
    large = Message("assistant", "word " * 90)
    assert talk.is_near(large, Usage(30, 90)) and talk.urgency(large, Usage(30, 90)) is Urgency.URGENT


def test_what_the_job_of_an_urgent_summary_has_under_way_runs_beside_others(book):
    messages, answer = long(), Message("assistant", "Now it works.")
    runs, urgencies = [], [Urgency.NONE, Urgency.PRESSING, Urgency.NONE]

    def submit(request):
        runs.append(run := WrittenRun())
        assert request.deferrable
        return run

    def write(number):
        write_ahead(talk_of([*messages, *calls(12)], book), answer, book, submit, urgencies[number])

    class Slow(WrittenRun):
        def events(self, timeout=None):
            write(1)  # the next turn is answered meanwhile
            write_ahead(talk_of([*messages, *calls(12)], book), None, book, submit, Urgency.URGENT)
            return super().events(timeout)

    def slow(request):
        runs.append(run := Slow() if not runs else WrittenRun())
        return run

    write_ahead(talk_of(messages, book), answer, book, slow, urgencies[0])
    assert [run.urgency for run in runs] == [Urgency.PRESSING, Urgency.PRESSING]
    write(2)
    assert runs[-1].urgency is Urgency.NONE  # another job


def test_without_a_pause_a_summary_is_used_once_all_but_the_last_answer_is_computed(book):
    """The job was always one turn behind, so it was used where the context ended: after 22 turns, not 9."""
    messages, answer = long(), Message("assistant", "Now it works.")
    second = [*messages, answer, Message("user", "And now?")]
    third = [*second, answer, Message("user", "And then? " * 10)]
    requests, used = [], []

    def submit(request):
        requests.append(request)
        talk = talk_of(third if len(requests) == 4 else second, book)
        if len(requests) == 3:  # the second turn ends
            write_ahead(talk, answer, book, submit)
            return WrittenRun()
        assert talk.plan(size) == 0
        used.append((talk.is_behind, talk.used > 0))
        if len(requests) == 2:  # it begins
            write_ahead(talk, None, book, submit, Urgency.URGENT)
        return WrittenRun()

    write_ahead(talk_of(messages, book), answer, book, submit)
    ends = [request.prompts[0].messages[-1] for request in requests[1:]]
    assert ends == [answer, second[-1], answer]
    assert used == [(False, False), (True, False), (False, True)]


def test_without_a_pause_the_turn_that_uses_a_summary_computes_no_long_answer(book):
    """Its first token took 1.7 times as long as that of the turn before."""
    messages, ask = long(), Message("user", "What about it? " * 10)
    key = talk_of(messages, book).keys[-1]
    assert book.join(key, talk_of(messages, book), None)
    book.put(key, "Sum.", Usage())
    book.computed(key, len(messages))
    used = []
    for words in (1, 60):
        for limit in (300, 150):
            talk = talk_of([*messages, Message("assistant", "word " * words), ask], book, limit=limit)
            assert talk.plan(size) == 0
            used.append(talk.used > 0)
            book.find(key).is_used = False
    assert used == [True, True, False, True]  # the last one is far beyond its limit


@pytest.mark.parametrize("wrong", ["", "the prompt"])
def test_a_job_that_fails_leaves_nothing_to_wait_for(book, wrong):
    """No text: another may try again. A summary whose prompt cannot be computed is used as it is."""
    requests = []

    def submit(request):
        requests.append(request)
        if not wrong:
            raise Unavailable("no time")
        if len(requests) == 2:
            raise ContextTooLong(num_prompt=2, context=1)
        return WrittenRun()

    write_ahead(talk_of(long(), book), calls(12)[0], book, submit)
    talk = talk_of(long(), book)
    assert len(requests) == (2 if wrong else 1) and not book.num_jobs and not talk.writing and not talk.has_job
    assert (talk.plan(size), talk.used > 0) == (0, True) if wrong else talk.plan(size) > 0


def test_the_second_summary_knows_the_first_and_repeats_the_users_words(book):
    messages = long()
    talk = talk_of(messages, book)
    number = talk.plan(size)
    book.put(talk.keys[number - 1], "First.", Usage())
    longer = [*messages, Message("user", "Now the tests"), *(m for n in range(12, 24) for m in calls(n))]
    talk = talk_of(longer, book)
    talk.plan(size)  # the one that is there
    second = talk.plan(size)
    asked = talk.order(second).prompts[0].messages
    assert asked[1].content.startswith(SUMMARY + "First.") and len(asked) < len(longer)
    book.put(talk.keys[second - 1], "Second.", Usage())
    talk.look()
    talk.plan(size)
    assert talk.shortened(talk.used).messages[1].content == f"{SUMMARY}Second.{WORDS}Do it\n\nNow the tests"
    # The same where the client sends the first summary back instead of what it stands for.
    kept = summarised(longer, second, "Second.", 1000)
    assert summarised([*summarised(longer, number, "First.", 1000)], second - number + 2, "Second.", 1000) == kept


def test_too_many_words_of_the_user_stay_whole_from_the_end():
    messages = [Message("user", word * 10) for word in "abc"]
    (turn,) = summarised(messages, 3, "Sum.", 25)
    assert turn.content == f"{SUMMARY}Sum.{WORDS}{LEFT_OUT}\n\n{'b' * 10}\n\n{'c' * 10}"


def test_tools_that_came_in_what_is_summarised_can_still_be_called():
    tool = Tool("late")
    messages = [ASK, Message("system", None, added_tools=(tool,)), *calls(1)]
    assert summarised(messages, 2, "Sum.", 99)[0].added_tools == (tool,)


def test_a_summary_that_failed_is_not_tried_again_for_the_same_request(book):
    talk = talk_of(long(), book)
    book.put(talk.keys[talk.plan(size) - 1], "", Usage())
    assert talk_of(long(), book).plan(size) == 0


def test_the_book_is_bounded():
    book = SummaryBook(most=3, most_bytes=10, most_jobs=1)
    for n in range(5):
        book.put(bytes([n]), "x", Usage())
    assert len(book) == 3 and book.find(bytes([0])) is None
    book.put(b"long", "y" * 11, Usage())
    assert len(book) == 1
    talk, turn = talk_of(long(), book), calls(12)[0]
    assert book.join(b"one", talk, turn) and not book.join(b"other", talk, turn)
    assert not book.join(b"one", talk, turn)  # its job has the turn now
    book.end_job(b"one")
    assert book.join(b"other", talk, turn)


# ---------------------------------------------------------------- pairs


def random_talk(rng):
    """Calls of one or several tools at once, results in any order, words and late system turns in between."""
    messages, number = [SYSTEM] * rng.randrange(2), 0
    for _ in range(rng.randrange(1, 14)):
        if rng.random() < 0.4:
            messages.append(Message("user", f"words {number} " * rng.randrange(1, 6)))
        ids = [f"c{number + k}" for k in range(rng.randrange(4))]
        number += 1 + len(ids)
        made = tuple(ToolCall(id, rng.choice(("read", "write")), "{}") for id in ids)
        messages.append(Message("assistant", None if made else "hm", reasoning="so", tool_calls=made))
        for id in rng.sample(ids, len(ids)):
            messages.append(Message("tool", "result " * rng.randrange(1, 40), tool_call_id=id))
            if rng.random() < 0.1:
                messages.append(Message("system", "tokens left"))
    if messages[-1].role == "assistant":
        messages.append(Message("user", "Go on"))
    return messages


def check_pairs(messages):
    open_calls = set()
    for message in messages:
        if message.role == "assistant":
            assert not open_calls, "a call without its result"
            open_calls = {call.id for call in message.tool_calls}
        elif message.role == "tool":
            assert message.tool_call_id in open_calls, "a result without its call"
            open_calls.remove(message.tool_call_id)
    assert not open_calls


def check_random_talks(seed, number):
    rng, shortened = random.Random(seed), 0
    for _ in range(number):
        book, limit = SummaryBook(), rng.randrange(20, 300)
        everything = random_talk(rng)
        check_pairs(everything)
        edits = ContextEdits(
            ClearResults(max_tokens=rng.randrange(20, 200), keep=rng.randrange(4)), rng.randrange(1, 4)
        )
        ends = [n for n in range(1, len(everything) + 1) if is_request(everything, n)]
        for end in ends:
            sent = everything[:end]
            prompt, _ = edited(
                ChatPrompt(tuple(sent)), edits, count=size, weigh=lambda text: len(text.split()), context=10_000
            )
            check_pairs(prompt.messages)
            request = GenerateRequest((prompt,))
            talk = LongConversation(request, Compact(limit), book, sent=sent, model="m", context=10_000)
            made = talk.plan(size)
            if made:
                check_pairs(talk.order(made).prompts[0].messages)
                book.put(talk.keys[made - 1], "Sum.", Usage())
                talk.look()
                talk.plan(size)
            after = talk.shortened(talk.used).messages
            check_pairs(after)
            shortened += len(after) < len(sent)
            words = "\n".join(str(message.content) for message in after)
            if LEFT_OUT not in words:
                assert all(str(message.content) in words for message in sent if message.role == "user")
            if size(ChatPrompt(after)) > AHEAD * limit and (ahead := talk.ahead()):
                check_pairs(talk.order(ahead).prompts[0].messages)
                book.put(talk.keys[ahead - 1], "Sum ahead.", Usage())
    return shortened


def is_request(messages, end):
    ids = {call.id for message in messages[:end] for call in message.tool_calls}
    done = {message.tool_call_id for message in messages[:end] if message.role == "tool"}
    return messages[end - 1].role != "assistant" and ids == done


def test_pairs_and_words_of_random_conversations_stay_whole():
    """RANDOM_TALKS=10000 takes about two minutes."""
    assert check_random_talks(43, int(os.environ.get("RANDOM_TALKS", "150"))) > 100


def test_no_cut_comes_between_a_call_and_its_result():
    messages = long(3)
    assert [whole_cut(messages, at) for at in range(len(messages) + 1)] == [0, 1, 2, 2, 4, 4, 6, 6, 8]
    assert last_request(messages) == 6 and last_request([*messages, Message("assistant", "So")]) == 6
