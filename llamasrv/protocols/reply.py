"""What an endpoint gives for one request: an object that writes its answer.

    Reply          made when the request is parsed; the same for a stream and for a whole answer
    RunFacts       what it learns when the model has taken the request

Knows no protocol, no socket and no engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from llamasrv.domain.context_edits import AppliedEdit
from llamasrv.domain.events import Event
from llamasrv.domain.params import SamplingParams
from llamasrv.errors import LlamasrvError


class CacheFacts(Protocol):
    """How much of a request's prompts was found in the cache."""

    @property
    def was_named(self) -> bool: ...

    @property
    def was_found(self) -> bool: ...

    @property
    def num_missed(self) -> int: ...

    def num_reused(self) -> int | None: ...

    def change(self) -> Any: ...

    def answered_as(self, id: str) -> None: ...


class RunFacts(Protocol):
    """What is known about a request once the engine has it, before there are events."""

    @property
    def model(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def params(self) -> SamplingParams: ...

    @property
    def end_tokens(self) -> Collection[int]: ...

    @property
    def num_prompt(self) -> int: ...

    @property
    def num_media(self) -> int: ...

    @property
    def left_out(self) -> int: ...

    @property
    def windows(self) -> Sequence[tuple[float, float]]: ...

    @property
    def edits(self) -> Sequence[AppliedEdit]: ...

    @property
    def cache(self) -> CacheFacts | None: ...

    def num_prompt_of(self, choice: int) -> int: ...

    def prompt_text(self, choice: int) -> str: ...

    def whole_text(self, answer: str) -> list[int]: ...


class Reply(ABC):
    """One reply: `start`, then either `chunks` for a stream, in order, or `fold` and at last `whole`. A stream may
    begin before the model is loaded: before `start` there are no chunks, except for an error. Nothing is written after
    a failure."""

    id: str | None = None  # id by which clients can control the run
    failed: bool = False

    @abstractmethod
    def start(self, info: RunFacts) -> None:
        """Called once, before there are events other than a failure."""

    @abstractmethod
    def chunks(self, events: Sequence[Event]) -> list[bytes]:
        """The chunks for these events; without events, what is sent during a silence."""

    @abstractmethod
    def fold(self, events: Sequence[Event]) -> None:
        """Take in events of a reply that is sent as a whole."""

    @abstractmethod
    def whole(self) -> bytes:
        """The reply, once all its events are folded. None of them is a failure."""

    @abstractmethod
    def error(self, error: LlamasrvError) -> bytes:
        """The chunk that reports a failure; it is the last one."""
