"""Turns the engine's stream for a request into events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from llamasrv.domain.events import DraftCounts, Event, Failed, Finished, FinishReason, Text, Usage
from llamasrv.engine.channels import Delta, End, PromptScored, TokenItem, TokenStream
from llamasrv.errors import EngineFailure, Unavailable
from llamasrv.pipeline.detokenizer import Detokenizer
from llamasrv.pipeline.progress import Progress


class Generation:
    """Sequences that were handed to the engine: read `events` until `done`, or `cancel` them. One reader."""

    def __init__(
        self,
        stream: TokenStream,
        cancel: Callable[[], None],
        *,
        choices: Sequence[Detokenizer],
        each: int,
        start_token: int | None = None,
        progress: Progress | None = None,
        end_thinking: Callable[[], None] | None = None,
        on_usage: Callable[[Usage], None] | None = None,
    ) -> None:
        """`each`: choices of one prompt. `start_token`: what prompts begin with that is not part of their text.
        `progress`: sees the events that report how far the request is. `end_thinking`: closes thinking blocks, where
        that is possible. `on_usage` is called once, when all choices have ended."""
        self.usage: Usage | None = None
        self.done = False
        self.cancelled = False
        self._stream = stream
        self._cancel = cancel
        self._each = each
        self._choices = choices
        self._start_token = start_token
        self._ends: list[End] = []
        self._progress = progress
        self._end_thinking = end_thinking
        self._on_usage = on_usage

    @property
    def num_reused(self) -> int | None:
        """Tokens of the prompts that were cached; None until every prompt has a lane."""
        reused, each, total = self._stream.reused, self._each, 0
        for start in range(0, len(self._choices), each):
            found = [reused[index] for index in range(start, start + each) if index in reused]
            if not found:
                return None
            total += min(found)  # the choices of one prompt share it
        return total

    def cancel(self) -> None:
        """Cancel. The events still end, with FinishReason.CANCELLED. May be called any number of times, at any time."""
        if not self.done and not self.cancelled:
            self.cancelled = True
            self._cancel()

    def end_thinking(self) -> bool:
        """Have the model close its thinking block now. False if that is not possible."""
        if self.done or self._end_thinking is None:
            return False
        self._end_thinking()
        return True

    def gather(self) -> None:
        """Deliver many events at once from now on: for callers that send everything at the end."""
        self._stream.gather()

    def events(self, timeout: float | None = None) -> list[Event]:
        """What has happened since the last call; waits for at least one event. [] after `timeout` seconds without."""
        stream = self._stream
        give_up = None
        while not self.done:
            if not stream.wait(timeout):
                break
            events = self._convert(stream.take())
            if events:
                return events
            # Half a character, or tokens without text: nothing to tell yet.
            if timeout is not None:
                now = time.monotonic()
                give_up = give_up or now + timeout
                if now >= give_up:
                    break
                timeout = give_up - now
        return []

    def _convert(self, items: list[TokenItem]) -> list[Event]:
        """The events of one wake-up. Tokens without log-probabilities are joined into one text per choice."""
        out: list[Event] = []
        choices = self._choices
        said: dict[int, list[Delta]] = {}
        for item in items:
            if self._progress is not None and not isinstance(item, End):
                self._progress.note(item, out)
            if isinstance(item, Delta):
                if item.logprobs is not None:
                    choices[item.index].hold(item, out)
                elif item.index in said:
                    said[item.index].append(item)
                else:
                    said[item.index] = [item]
                continue
            if item.index in said:
                choices[item.index].say(said.pop(item.index), out)
            if isinstance(item, End):
                self._end(item, out)
            elif isinstance(item, PromptScored):
                self._scored(item, out)
        for index, deltas in said.items():
            choices[index].say(deltas, out)
        return out

    def _scored(self, item: PromptScored, out: list[Event]) -> None:
        logprobs = item.logprobs
        if len(logprobs) > 1 and logprobs[0].token == self._start_token:
            logprobs = logprobs[1:]  # its text is told without it
        out.append(Text(item.index, "", tuple(logprobs)))

    def _end(self, end: End, out: list[Event]) -> None:
        index = end.index
        choice = self._choices[index]
        choice.finish(index, out)
        if end.error is not None:
            out.append(Failed(index, end.error.but()))  # others may be told the same
        elif end.reason is FinishReason.CANCELLED and not self.cancelled:
            out.append(Failed(index, Unavailable("The server is stopping.")))
        elif end.reason is FinishReason.FAILED:
            out.append(Failed(index, EngineFailure("The model failed to compute this request.")))
        elif end.reason is FinishReason.STOP and choice.made_calls:
            out.append(Finished(index, FinishReason.TOOL_CALLS, usage=_usage_of(end, choice)))
        else:
            out.append(Finished(index, end.reason, end.stop, _usage_of(end, choice), end.slot))
        self._ends.append(end)
        if len(self._ends) == len(self._choices):
            self.usage = _usage(self._ends, self._choices, self._each)
            if self._on_usage is not None:
                self._on_usage(self.usage)
            out.append(self.usage)
            self.done = True


def _usage_of(end: End, choice: Detokenizer) -> Usage:
    return Usage(
        end.num_prompt,
        end.num_reused,
        end.num_generated,
        choice.num_reasoning,
        end.queue_seconds,
        end.prefill_seconds,
        end.decode_seconds,
        end.num_forgotten,
        end.drafts,
        tuple(end.pinned),
    )


def _usage(ends: list[End], choices: Sequence[Detokenizer], each: int) -> Usage:
    if len(ends) == 1:
        return _usage_of(ends[0], choices[0])
    prompts = range(len(choices) // each)
    reused = [min((e.num_reused for e in ends if e.index // each == p), default=0) for p in prompts]
    return Usage(
        prompt_tokens=sum(max(e.num_prompt for e in ends if e.index // each == p) for p in prompts),
        cached_tokens=sum(reused),  # the choices of one prompt share it: it was cached if it was for all of them
        completion_tokens=sum(e.num_generated for e in ends),
        reasoning_tokens=sum(choice.num_reasoning for choice in choices),
        queue_seconds=max(e.queue_seconds for e in ends),
        prefill_seconds=max(e.prefill_seconds for e in ends),
        decode_seconds=max(e.decode_seconds for e in ends),
        forgotten_tokens=sum(e.num_forgotten for e in ends),
        drafts=_draft_counts([e.drafts for e in ends]),
        pinned=tuple(pin for e in ends for pin in e.pinned),
    )


def _draft_counts(counts: list[DraftCounts]) -> DraftCounts:
    predicted = [c.predicted for c in counts if c.predicted is not None]
    return DraftCounts(
        sum(c.drafted for c in counts),
        sum(c.accepted for c in counts),
        sum(predicted) if predicted else None,
        sum(c.predicted_accepted for c in counts),
    )
