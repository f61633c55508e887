"""A run whose conversation may be too long: writes a summary first if it must, and prepares the next one at its end.

Its reader sees one run with one Usage, that of the answer; `Compacted` reports the cost of the summary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from llamasrv.domain.context_edits import AppliedEdit
from llamasrv.domain.events import Compacted, Event, Failed, Finished, FinishReason, Text, Usage
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, ToolCall
from llamasrv.domain.sequence_spec import Urgency
from llamasrv.errors import LlamasrvError
from llamasrv.pipeline.compaction import JOB_SECONDS, LongConversation, SummaryBook
from llamasrv.pipeline.run import Run, RunInfo, RunState, Starter
from llamasrv.pipeline.search_run import SearchRun

_WHOLE = frozenset((FinishReason.STOP, FinishReason.STOP_STRING, FinishReason.LENGTH))


class Shortened(NamedTuple):
    """A request that continues from a summary, or (with `key`) the request for the summary itself."""

    request: GenerateRequest
    talk: LongConversation | None = None
    key: bytes | None = None
    event: Compacted | None = None
    edits: tuple[AppliedEdit, ...] = ()
    superseded: Sequence[int] = ()  # the tokens of the whole prompt, where a summary is used for the first time


def shortened(talk: LongConversation, encode: Callable[[ChatPrompt], Sequence[int]], *, pause: bool) -> Shortened:
    """Shorten a conversation. `encode` returns the tokens of a prompt."""
    number = talk.plan(lambda prompt: len(encode(prompt)))
    if number:
        return Shortened(talk.order(number), talk, talk.keys[number - 1])
    if not talk.used:
        return Shortened(talk.request, talk)
    prompt, summary = talk.shortened(talk.used), talk.summary(talk.used)
    usage, summary.usage = summary.usage, Usage()  # reported once
    text = prompt.messages[len(prompt.messages) - (len(talk.messages) - talk.used) - 1].content
    assert isinstance(text, str)
    whole = encode(talk.prompt)
    saved = max(0, len(whole) - len(encode(prompt)))
    request = talk.request._replace(prompts=(prompt,), max_tokens=0 if pause else talk.request.max_tokens)
    event = Compacted(0, text, prompt.messages, usage)
    superseded = whole if usage.prompt_tokens else ()
    return Shortened(request, talk, None, event, (AppliedEdit("summary", talk.used, saved),), superseded)


class CompactedRun(SearchRun):
    """`starter_of` creates the starter of a request, or of the summary that the request needs first. `ahead` is called
    with the conversation, its answer and their tokens."""

    def __init__(
        self,
        request: GenerateRequest,
        starter_of: Callable[[GenerateRequest], Starter],
        *,
        book: SummaryBook,
        ahead: Callable[[LongConversation, Message, Usage], None],
        on_start: Callable[[RunInfo], None] | None = None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None = None,
    ) -> None:
        self._book = book
        self._ahead = ahead
        self._summary: list[str] = []
        self._summary_reason: FinishReason | None = None
        self._has_reported = False
        super().__init__(request, starter_of, on_start=on_start, explain=explain)

    def events(self, timeout: float | None = None) -> list[Event]:
        work = self._work
        if work is None or work.summary is None:
            events = super().events(timeout)
            if not self._has_reported and events and self.info is not None and self.info.compacted is not None:
                self._has_reported = True
                events.insert(0, self.info.compacted)
            if self.done:
                self._look_ahead(events)
            return events
        out: list[Event] = []
        for event in Run.events(self, timeout):
            if isinstance(event, Text):
                self._summary.append(event.text)
            elif isinstance(event, Finished):
                self._summary_reason = event.reason
            elif isinstance(event, Failed):
                self._summary_reason = FinishReason.FAILED
            elif isinstance(event, Usage):
                self._answer(work.summary, event, out)
        return out

    def _answer(self, key: bytes, usage: Usage, out: list[Event]) -> None:
        """The summary is complete: start the answer."""
        if self.cancelled:
            out += [Finished(0, FinishReason.CANCELLED), usage]
            return
        text = "".join(self._summary).strip()
        self._book.put(key, text if self._summary_reason in _WHOLE else "", usage)
        try:
            self._begin(self._starter_of(self._request))
        except LlamasrvError as error:
            self.state = RunState.DONE
            out.append(Failed(0, self._explain(error)))

    def _look_ahead(self, events: list[Event]) -> None:
        talk = None if self._work is None else self._work.talk
        if talk is None or self.cancelled or not events or not isinstance(usage := events[-1], Usage):
            return
        calls = tuple(ToolCall(id, name, "".join(fragments)) for id, name, fragments in self._made.values())
        turn = Message("assistant", "".join(self._said) or None, reasoning="".join(self._thought) or None)
        turn = replace(turn, tool_calls=calls)
        self._ahead(talk, turn, usage)


def write_ahead(
    talk: LongConversation,
    turn: Message | None,
    book: SummaryBook,
    submit: Callable[[GenerateRequest], Run],
    urgency: Urgency = Urgency.NONE,
) -> None:
    """Write the summary that will be needed, unless it is there, and compute the prompt that follows from it and ends
    with this turn (None: with what is being answered); then with the latest one, as long as the conversation goes on
    meanwhile."""
    talk.look()
    number = talk.ready or talk.writing or talk.ahead()
    if not number or not book.join(key := talk.keys[number - 1], talk, turn, urgency):
        return

    def started(request: GenerateRequest) -> Run:
        run = submit(request._replace(deferrable=True, timeout=JOB_SECONDS))
        book.started(key, run.hurry)
        return run

    try:
        if not talk.summary(number).is_written:
            text, usage = written(started(talk.order(number)))
            if not text:
                return
            book.put(key, text, usage)
        while (latest := book.next_turn(key)) is not None:
            talk, turn = latest
            talk.look()
            if talk.ready:  # else a turn that no longer fitted has used it
                written(started(_warm_up(talk, turn)))
                book.computed(key, len(talk.messages) + (turn is not None))
    except LlamasrvError:
        pass  # the conversation is summarised when it passes its limit
    finally:
        book.end_job(key)


def _warm_up(talk: LongConversation, turn: Message | None) -> GenerateRequest:
    answer = () if turn is None else (turn,)
    prompt = replace(talk.shortened(talk.ready, *answer), add_generation_prompt=False, continue_final_message=False)
    request = talk.request
    return GenerateRequest(
        (prompt,),
        model=request.model,
        max_tokens=0,
        cache_salt=request.cache_salt,
        owner=request.owner,
        tool_choice=request.tool_choice,
        adapters=request.adapters,
    )


def written(run: Run) -> tuple[str, Usage]:
    """What a run says, read to its end; "" if it failed."""
    said: list[str] = []
    usage, reason = Usage(), None
    while not run.done:
        for event in run.events(1.0):
            if isinstance(event, Text):
                said.append(event.text)
            elif isinstance(event, Finished):
                reason = event.reason
            elif isinstance(event, Usage):
                usage = event
    return ("".join(said).strip() if reason in _WHOLE else ""), usage


def in_background(job: Callable[[], None]) -> None:
    threading.Thread(target=job, daemon=True).start()
