"""A run whose model may search for tools: the server runs the search and continues the answer.

    a round     one generation; a call of the search tool is not reported as a call
    between     ToolsFound; the next prompt appends the round's turn and the tools found
    the end     the first round that calls no search, or that also calls a tool of the client

To its reader it is one run with one Usage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llamasrv.concurrency import off_hub
from llamasrv.domain.events import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallStart,
    ToolsFound,
    Usage,
)
from llamasrv.domain.found_tools import found_message
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, ToolCall
from llamasrv.errors import ContextTooLong, LlamasrvError
from llamasrv.pipeline.run import Run, RunInfo, RunState, Starter
from llamasrv.pipeline.tool_search import Search, search

MOST_ROUNDS = 8  # max rounds with searches; after that the model cannot search


class SearchRun(Run):
    """`starter_of` creates the starter of each round's request: one chat prompt, one choice."""

    def __init__(
        self,
        request: GenerateRequest,
        starter_of: Callable[[GenerateRequest], Starter],
        *,
        on_start: Callable[[RunInfo], None] | None = None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None = None,
    ) -> None:
        self._request = request
        self._starter_of = starter_of
        self._searches = {tool.name: tool for tool in request.searches}
        self._num_rounds = 0
        self._usages: list[Usage] = []
        self._new_round()
        super().__init__(starter_of(request), on_start=on_start, explain=explain)

    def _new_round(self) -> None:
        self._num_rounds += 1
        self._said: list[str] = []
        self._thought: list[str] = []
        self._made: dict[int, tuple[str, str, list[str]]] = {}  # id, name, arguments, by the round's own number
        self._shown: dict[int, int] = {}  # numbers of the calls in the order the reader sees
        self._goes_on = False

    def events(self, timeout: float | None = None) -> list[Event]:
        out: list[Event] = []
        for event in super().events(timeout):
            self._take(event, out)
        return out

    def _take(self, event: Event, out: list[Event]) -> None:
        if isinstance(event, (ToolCallStart, ToolCallArguments)):
            self._take_call(event, out)
            return
        if isinstance(event, Text):
            self._said.append(event.text)
        elif isinstance(event, Reasoning):
            self._thought.append(event.text)
        elif isinstance(event, Finished):
            self._finish(event, out)
            return
        elif isinstance(event, Usage):
            self._usages.append(event)
            if self._goes_on:
                self._go_on(out)
                return
            event = _of_all(self._usages)
        out.append(event)

    def _take_call(self, event: ToolCallStart | ToolCallArguments, out: list[Event]) -> None:
        if isinstance(event, ToolCallStart):
            self._made[event.call] = (event.id, event.name, [])
            if event.name in self._searches:
                return
            self._shown[event.call] = len(self._shown)
        else:
            self._made[event.call][2].append(event.fragment)
        if event.call in self._shown:
            out.append(event._replace(call=self._shown[event.call]))

    def _finish(self, event: Finished, out: list[Event]) -> None:
        """Run the searches that the round asked for. If it called nothing else, another round follows."""
        if event.reason is not FinishReason.TOOL_CALLS or len(self._made) == len(self._shown):
            out.append(event)
            return
        results = []
        for number, (id, name, fragments) in self._made.items():
            if number not in self._shown:
                arguments = "".join(fragments)
                found: Search = off_hub(search, self._searches[name], arguments)
                out.append(ToolsFound(0, id, name, arguments, tuple(t.name for t in found.found), found.error))
                result = found_message(name, id, found.found)
                results.append(replace(result, content=f"Error: {found.error}.") if found.error else result)
        if self._shown:
            out.append(event)  # the client's turn: it will send these blocks back
            return
        self._goes_on = True
        self._results = results

    # ------------------------------------------------------------ the next round

    def _go_on(self, out: list[Event]) -> None:
        request = self._request
        done = sum(usage.completion_tokens for usage in self._usages)
        if self.cancelled or (request.max_tokens is not None and done >= request.max_tokens):
            self._end(out, FinishReason.CANCELLED if self.cancelled else FinishReason.LENGTH)
            return
        left = None if request.max_tokens is None else request.max_tokens - done
        (prompt,) = request.prompts
        assert isinstance(prompt, ChatPrompt)
        following = self._request_after(prompt)._replace(
            max_tokens=left, prediction=None, with_progress=False, previous=None, pins=()
        )
        info, self._request = self.info, following._replace(max_tokens=request.max_tokens, pins=request.pins)
        self._new_round()
        try:
            self._begin(self._starter_of(following))
        except ContextTooLong:
            self._end(out, FinishReason.CONTEXT)
        except LlamasrvError as error:
            self.state = RunState.DONE
            out.append(Failed(0, self._explain(error)))
        self.info = info

    def _request_after(self, prompt: ChatPrompt) -> GenerateRequest:
        """The request with this round's turn and the results of its searches at the end of the conversation."""
        before = prompt.messages
        text, thoughts = "".join(self._said), "".join(self._thought)
        if prompt.continue_final_message:
            last, before = before[-1], before[:-1]
            text = (last.content if isinstance(last.content, str) else "") + text
            thoughts = (last.reasoning or "") + thoughts
        calls = tuple(ToolCall(id, name, "".join(fragments)) for id, name, fragments in self._made.values())
        turn = Message("assistant", text or None, reasoning=thoughts or None, tool_calls=calls)
        results = self._results
        if self._num_rounds >= MOST_ROUNDS:
            results[-1] = replace(results[-1], removed_tools=tuple(self._searches))
        after = replace(
            prompt, messages=(*before, turn, *results), add_generation_prompt=True, continue_final_message=False
        )
        return self._request._replace(prompts=(after,))

    def _end(self, out: list[Event], reason: FinishReason) -> None:
        self.state = RunState.DONE
        out += [Finished(0, reason), _of_all(self._usages)]


def _of_all(usages: list[Usage]) -> Usage:
    """The usage of all rounds: the last prompt, which contains the earlier ones, and all generated tokens. Prompt
    tokens that no round had to compute count as cached."""
    if len(usages) == 1:
        return usages[0]
    last = usages[-1]
    computed = sum(usage.prompt_tokens - usage.cached_tokens for usage in usages)
    return last._replace(
        cached_tokens=max(0, last.prompt_tokens - computed),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
        queue_seconds=sum(usage.queue_seconds for usage in usages),
        prefill_seconds=sum(usage.prefill_seconds for usage in usages),
        decode_seconds=sum(usage.decode_seconds for usage in usages),
        pinned=usages[0].pinned,
    )
