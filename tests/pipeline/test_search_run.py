"""A run that searches for tools on its way, with an engine that says what the test wants."""

from __future__ import annotations

import json

import pytest
from test_run import Said, Start

from llamasrv.domain.events import (
    Failed,
    Finished,
    FinishReason,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolsFound,
    Usage,
)
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, Tool, ToolSearch
from llamasrv.errors import ContextTooLong
from llamasrv.pipeline.search_run import MOST_ROUNDS, SearchRun

FIND = Tool("crm_find", "Finds customers.")
SEARCH = ToolSearch("search", "words", (FIND,))


def call(number, tool, **arguments):
    return [ToolCallStart(0, number, f"call_{number}", tool), ToolCallArguments(0, number, json.dumps(arguments))]


def calls_end(tokens=10, cached=0, prompt=100):
    return [
        Finished(0, FinishReason.TOOL_CALLS),
        Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=tokens),
    ]


def text_end(text="Done.", prompt=150, cached=110):
    usage = Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=5)
    return [Text(0, text), Finished(0, FinishReason.STOP), usage]


class Rounds:
    """Starts one round after another; each tells these events, or raises."""

    def __init__(self, *rounds, **request):
        self.rounds, self.requests = list(rounds), []
        prompt = ChatPrompt((Message("user", "Who?"),), (Tool("search"),))
        self.request = GenerateRequest((prompt,), searches=(SEARCH,), **request)

    def starter(self, request):
        self.requests.append(request)
        told = self.rounds.pop(0)
        if isinstance(told, Exception):
            return Start(lambda: (_ for _ in ()).throw(told))
        return Start(lambda: Said().submitted(stages=[lambda events: told]))

    def read(self):
        run = SearchRun(self.request, self.starter)
        events = []
        while not run.done:
            events += run.events(1)
        return events

    def prompt(self, number):
        return self.requests[number].prompts[0]


def test_the_answer_goes_on_with_what_was_found():
    rounds = Rounds([Text(0, "Let me see."), *call(0, "search", query="customers"), *calls_end()], text_end())
    events = rounds.read()
    assert [type(event) for event in events] == [Text, ToolsFound, Text, Finished, Usage]
    assert events[1].found == ("crm_find",) and events[1].id == "call_0"
    turn, result = rounds.prompt(1).messages[1:]
    assert (turn.role, turn.content, turn.tool_calls[0].name) == ("assistant", "Let me see.", "search")
    assert (result.role, result.tool_call_id, result.added_tools) == ("tool", "call_0", (FIND,))
    assert rounds.prompt(1).tools == rounds.prompt(0).tools  # the head stays
    assert [tool.name for tool in rounds.prompt(1).offered] == ["search", "crm_find"]


def test_its_usage_is_that_of_one_prompt():
    rounds = Rounds([*call(0, "search", query="customers"), *calls_end(cached=60)], text_end(prompt=150, cached=110))
    usage = rounds.read()[-1]
    # 40 and 40 tokens were computed
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (150, 70, 15)


def test_a_call_for_the_client_ends_it():
    both = [*call(0, "search", query="customers"), *call(1, "other"), *calls_end()]
    events = Rounds(both).read()
    assert [type(event) for event in events] == [ToolCallStart, ToolCallArguments, ToolsFound, Finished, Usage]
    assert events[0].call == 0 and events[-2].reason is FinishReason.TOOL_CALLS


def test_a_found_tool_can_be_called():
    rounds = Rounds(
        [*call(0, "search", query="customers"), *calls_end()], [*call(0, "crm_find", name="x"), *calls_end(prompt=150)]
    )
    events = rounds.read()
    assert [event.name for event in events if isinstance(event, ToolCallStart)] == ["crm_find"]
    assert events[-2].reason is FinishReason.TOOL_CALLS


def test_wrong_arguments_are_reported_to_the_model_and_the_client():
    rounds = Rounds([*call(0, "search", pattern="x"), *calls_end()], text_end())
    events = rounds.read()
    assert "query" in events[0].error and events[0].found == ()
    assert rounds.prompt(1).messages[-1].content.startswith("Error:")


def test_a_model_cannot_search_for_ever():
    again = [*call(0, "search", query="customers"), *calls_end()]
    rounds = Rounds(*[again] * MOST_ROUNDS, text_end())
    rounds.read()
    assert "search" in {tool.name for tool in rounds.prompt(MOST_ROUNDS - 1).offered}
    assert "search" not in {tool.name for tool in rounds.prompt(MOST_ROUNDS).offered}


@pytest.mark.parametrize("most, reason", [(10, FinishReason.LENGTH), (11, FinishReason.STOP)])
def test_its_tokens_are_counted_over_all_rounds(most, reason):
    rounds = Rounds([*call(0, "search", query="customers"), *calls_end(tokens=10)], text_end(), max_tokens=most)
    events = rounds.read()
    assert events[-2].reason is reason
    assert len(rounds.requests) == 1 or rounds.requests[1].max_tokens == 1


def test_a_next_round_that_does_not_fit_ends_it():
    too_long = ContextTooLong(num_prompt=9, context=8, param="prompt")
    events = Rounds([*call(0, "search", query="customers"), *calls_end()], too_long).read()
    assert [type(event) for event in events] == [ToolsFound, Finished, Usage]
    assert events[1].reason is FinishReason.CONTEXT


def test_an_error_between_rounds_reaches_the_client():
    from llamasrv.errors import Unavailable

    events = Rounds([*call(0, "search", query="customers"), *calls_end()], Unavailable("gone")).read()
    assert isinstance(events[-1], Failed)


def test_no_round_follows_a_cancellation():
    rounds = Rounds([*call(0, "search", query="customers"), *calls_end()])
    run = SearchRun(rounds.request, rounds.starter)
    run.cancel()
    events = run.events(1)
    assert run.done and events[-2].reason is FinishReason.CANCELLED and len(rounds.requests) == 1
