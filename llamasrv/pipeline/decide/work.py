"""Runs one request for decisions on the engine: each question is a fork of the input, and they share steps.

If the model is to think, each question's thought is generated first; labels are read where it ends.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from llamasrv.domain.decide import Decided, DecideRequest, Decisions, Question
from llamasrv.domain.events import FinishReason
from llamasrv.domain.media import MediaSpan
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec
from llamasrv.engine.base.channels import Delta, End, TokensRead, TokenStream
from llamasrv.errors import BodyTooLarge, ContextTooLong, EngineFailure, QueueFull, Unavailable
from llamasrv.pipeline.decide.answers import answer, fit_for
from llamasrv.pipeline.decide.labels import Labels, Path
from llamasrv.pipeline.decide.questions import Thought
from llamasrv.pipeline.loaded_model import LoadedModel

PLAIN = SamplingParams(temperature=0.0)
"""Nothing is sampled, so no sampler chain is built."""

GROUPS = 2  # of sequences at the engine at once, so that steps stay full while answers are read


@dataclass(frozen=True, slots=True)
class ShownQuestion:
    """A question in one order. `own`: its tokens, after those of the input. `spans`: images of both."""

    number: int
    order: tuple[int, ...]  # of its options
    labels: Labels
    own: Sequence[int]
    spans: tuple[MediaSpan, ...] = ()


@dataclass(slots=True)
class _Fork:
    """One sequence: the input, a question, and the beginning of a label."""

    asked: int
    node: Path
    reads: tuple[int, ...]
    num_own: int
    thinks: bool = False  # it writes the thought instead of reading labels


class DecisionWork:
    """A DecideRequest in progress: wait for its `result`, or `cancel`. One reader."""

    def __init__(
        self,
        served: LoadedModel,
        request: DecideRequest,
        head: list[int],
        asked: list[ShownQuestion],
        cache_key: CacheKey,
        thought: Thought | None = None,
    ) -> None:
        """Submits the first questions. Raises InvalidRequest."""
        self.model = served.model.name
        self.num_computed = 0  # tokens of the input, of thoughts, and of the answered questions
        self.cancelled = False
        self._served, self._request, self._cache_key = served, request, cache_key
        self._head, self._asked = array("i", head), asked
        self._found: list[dict[Path, dict[int, float]]] = [{} for _ in asked]
        self._cached = 0
        self._thought, self._num_thought = thought, 0
        self._thoughts: list[bytearray] = [bytearray() for _ in asked] if thought is not None else []
        self._ended: set[int] = set()  # thoughts that a control token has ended
        self._closing = served.vocab.tokenize(thought.closing, parse_special=True) if thought is not None else []
        self._deadline = None if request.timeout is None else served.engine.clock() + request.timeout
        self._size = served.engine.options.places
        self._check()
        self._left = self._forks() if thought is None else self._thinking_forks()
        self._open: deque[tuple[TokenStream, list[_Fork]]] = deque()
        self._next = list(islice(self._left, self._size))
        self._submit()

    def cancel(self) -> None:
        """Cancel. May be called any number of times, at any time."""
        self.cancelled = True
        for stream, _ in self._open:
            self._served.engine.cancel(stream)

    def result(self) -> Decisions:
        """Wait for the result. Raises the failure, and Unavailable after `cancel`."""
        try:
            with self._served.model.lease():
                while self._open:
                    self._fill()
                    self._read(*self._open[0])
                    self._open.popleft()
                    if not self._open and not self._next and self._thoughts:
                        self._begin_reads()
                    if not self._open and self._next:
                        self._submit()
        finally:
            for stream, _ in self._open:
                self._served.engine.cancel(stream)
        num_prompt = self.num_computed - self._num_thought
        return Decisions(self.model, self._answers(), num_prompt, min(self._cached, num_prompt), self._num_thought)

    # ------------------------------------------------------------ to the engine

    def _check(self) -> None:
        context, num_head = self._served.context, len(self._head)
        num_thought = self._request.thinking + len(self._closing) if self._thought is not None else 0
        total = num_head
        for asked in self._asked:
            longest = num_head + len(asked.own) + num_thought + max(map(len, asked.labels.reads))
            question = self._request.questions[asked.number]
            if longest > context:
                raise ContextTooLong(num_prompt=longest, context=context, param=question.param)
            total += len(asked.own) + num_thought + len(asked.labels.reads) - 1
        if total > self._request.most_tokens:
            raise BodyTooLarge(
                f"The input and the questions have {total} tokens together, with further orders, thoughts and labels "
                f"of several tokens; at most {self._request.most_tokens} are answered at once.",
                param="questions",
            )

    def _thinking_forks(self) -> Iterator[_Fork]:
        return (_Fork(number, (), (), len(asked.own), thinks=True) for number, asked in enumerate(self._asked))

    def _forks(self) -> Iterator[_Fork]:
        for number, asked in enumerate(self._asked):
            num_own = len(asked.own) if self._thought is None else len(self._closing)
            for node, reads in asked.labels.reads.items():
                yield _Fork(number, node, reads, 0 if node else num_own)

    def _begin_reads(self) -> None:
        """All thoughts are complete: continue each question with its own."""
        assert self._thought is not None
        for number, (asked, data) in enumerate(zip(self._asked, self._thoughts)):
            text = data.decode(errors="ignore").partition(self._thought.mark)[0]
            if self._thought.closing[0].isspace():
                text = text.rstrip()
            tokens = self._served.vocab.tokenize(text, parse_special=False)[: self._request.thinking] if text else []
            self._asked[number] = replace(asked, own=[*asked.own, *tokens, *self._closing])
        self._thoughts = []
        self._left = self._forks()
        self._next = list(islice(self._left, self._size))

    def _fill(self) -> None:
        """Queue the next group behind the one being computed, unless others need the queue."""
        while self._next and len(self._open) < GROUPS and not self.cancelled:
            try:
                self._submit()
            except QueueFull:
                return

    def _submit(self) -> None:
        group = self._next
        specs = [self._spec(fork, choice) for choice, fork in enumerate(group)]
        self._open.append((self._served.engine.submit(specs), group))
        self._next = list(islice(self._left, self._size))

    def _spec(self, fork: _Fork, choice: int) -> SequenceSpec:
        asked, request, num_head = self._asked[fork.asked], self._request, len(self._head)
        tokens = self._head[:]
        tokens.extend(asked.own)
        tokens.extend(fork.node)
        return SequenceSpec(
            tokens,
            media=asked.spans,
            params=PLAIN,
            choice=choice,
            max_tokens=request.thinking if fork.thinks else 0,
            stop=(self._thought.mark,) if fork.thinks and self._thought is not None else (),
            reads=fork.reads,
            # The input, and questions with further forks.
            leaves_prefix=fork.thinks or not fork.asked or len(asked.labels.reads) > 1,
            passes=bool(fork.asked) and not fork.thinks,
            boundaries=(num_head,) if self._served.engine.model.takes_checkpoints else (),
            deadline=self._deadline,
            owner=request.owner,
            deferrable=request.deferrable,
            cache_key=self._cache_key,
        )

    # ------------------------------------------------------------ from the engine

    def _read(self, stream: TokenStream, group: list[_Fork]) -> None:
        left = len(group)
        while left:
            # A cancel from another greenlet may come before there is a stream to cancel.
            if not stream.wait(0.5) and self.cancelled:
                raise Unavailable("The request was cancelled.")
            for item in stream.take():
                fork = group[item.choice]
                if isinstance(item, Delta):
                    self._write(fork.asked, item.data)
                elif isinstance(item, TokensRead):
                    self._found[fork.asked][fork.node] = dict(zip(fork.reads, item.logprobs))
                elif isinstance(item, End):
                    self._end(item, fork)
                    left -= 1

    def _write(self, asked: int, data: bytes) -> None:
        """Add a token to a thought. A control token ends it: its mark, or the turn."""
        if not data:
            self._ended.add(asked)
        elif asked not in self._ended:
            self._thoughts[asked] += data

    def _end(self, end: End, fork: _Fork) -> None:
        if end.error is not None:
            raise end.error.but()  # a copy: other readers may get the same error
        if end.reason is FinishReason.CANCELLED:
            raise Unavailable("The request was cancelled." if self.cancelled else "The server is stopping.")
        if end.reason is FinishReason.FAILED:
            raise EngineFailure("The model failed to compute this request.")
        if not self.num_computed:
            self.num_computed = len(self._head)
        if fork.asked == 0 and not fork.node and fork.thinks == (self._thought is not None):
            self._cached = end.num_reused
        self._num_thought += end.num_generated
        self.num_computed += fork.num_own + end.num_generated

    def _answers(self) -> tuple[Decided, ...]:
        settings = self._served.model.settings.decisions
        fits = settings.fits if self._thought is None else {}  # they were found without thoughts
        shown: list[list[tuple[Sequence[int], Sequence[float]]]] = [[] for _ in self._request.questions]
        for asked, found in zip(self._asked, self._found):
            shown[asked.number].append((asked.order, asked.labels.logprobs(found)))

        def answered(question: Question, rows: list[tuple[Sequence[int], Sequence[float]]]) -> Decided:
            fit = fit_for(fits, question.kind, len(question.options))
            return answer(rows, fit, settings.min_mass)

        return tuple(map(answered, self._request.questions, shown))
