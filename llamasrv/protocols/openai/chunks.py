"""What replies of chat completions and completions share: the frame of their chunks, usage, and llama.cpp's
figures in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from llamasrv.domain.events import Finished, Pace, PromptProgress, PromptWaits, Usage
from llamasrv.protocols.common.wire import usage_body
from llamasrv.protocols.llamacpp.final import final_body
from llamasrv.protocols.telemetry import Extras, Paces, members, progress_of, timings
from llamasrv.protocols.writer import Writer


class ChunkOptions(Protocol):
    @property
    def include_usage(self) -> bool: ...

    @property
    def extras(self) -> Extras: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...


class ChunkReply(Writer):
    """A chunk is constant bytes around the parts that change: a subclass says where choice, content, log-probabilities
    and finish reason go (`_chunk`)."""

    NO_CONTENT = b"{}"

    def __init__(self, options: ChunkOptions) -> None:
        super().__init__()
        self._extras, self._settings, self._include_usage = options.extras, options.settings, options.include_usage
        self._head = self._tail = b""
        self._paces = Paces()

    def _chunk(self, choice: int, content: bytes, logprobs: bytes, reason: bytes, extra: bytes | None = None) -> bytes:
        """`extra`: further members of the chunk; None: the current speed, if that was asked for."""
        raise NotImplementedError

    def _begin_chunks(self, fields: dict[str, Any]) -> None:
        self._head = orjson.dumps(fields)[:-1] + b',"choices":['
        self._tail = b'}],"usage":null' if self._include_usage else b"}]"

    def on_usage(self, event: Usage) -> None:
        if self._include_usage:
            counts = members({"usage": usage_body(event), "timings": timings(event)})
            self._out.append(b"%b]%b}" % (self._head, counts))

    def on_pace(self, event: Pace) -> None:
        self._paces.note(event)

    def on_progress(self, event: PromptWaits | PromptProgress) -> None:
        extra = members(progress_of(event)) + self._paces.of(event.choice)
        self._out.append(self._chunk(event.choice, self.NO_CONTENT, b"null", b"null", extra))

    def _end(self, event: Finished, reason: str) -> None:
        """The last chunk of a choice."""
        extra: dict[str, Any] = {}
        if event.usage is not None and (self._extras.per_token or not self._include_usage):
            extra["timings"] = timings(event.usage)
        if self._extras.verbose:
            extra["__verbose"] = self._verbose(event, "")
        more = members(extra) if extra else b""
        self._out.append(self._chunk(event.choice, self.NO_CONTENT, b"null", b'"%b"' % reason.encode(), more))

    def _whole_figures(self) -> dict[str, Any]:
        """The last members of a non-streamed reply."""
        figures = {"timings": timings(self.folded.usage)}
        if self._extras.verbose:
            first = self.folded.choice(0)
            figures["__verbose"] = self._verbose(first.finished(0), "".join(first.text))
        return figures

    def _verbose(self, event: Finished, text: str) -> dict[str, Any]:
        return final_body(
            event,
            self.info,
            self._settings,
            text=text,
            tokens=[],
            has_new_line="\n" in text,
        )
