"""The requests of a batch, read from its input a line at a time. No more than one line is in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar

import orjson

from llamasrv.concurrency import breathe, compute_off_hub
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.anthropic import batches as anthropic
from llamasrv.protocols.common.json_text import has_more_values
from llamasrv.protocols.errors import anthropic_body
from llamasrv.protocols.openai import batches as openai
from llamasrv.store.batches import BatchResult, BatchStore, StoredBatch, read_journal
from llamasrv.web.http.body import is_large

MOST_LINES = 50_000  # max requests per batch, as at OpenAI
MOST_EMPTY = 50_000  # max empty lines on top
MOST_ERRORS = 20  # errors reported for an invalid input file; they stay in the batch's record
PIECE = 1 << 20  # bytes per read
BREATH = 0.001  # seconds of work between two pauses for others

R = TypeVar("R")


class InputLine(NamedTuple):
    n: int
    custom_id: str
    body: bytes  # JSON
    refusal: InvalidRequest | None = None  # why it cannot be sent


def lines_of(file: BinaryIO, batch: StoredBatch) -> Iterator[InputLine]:
    """The requests in a checked input."""
    for n, line in enumerate(file, 1):
        if not line.isspace():
            yield _made_of(line, partial(_input_line, line, n, batch))


def _made_of(line: bytes, make: Callable[[], R]) -> R:
    """The result of `make`. A large line is parsed off the hub, and its objects freed there: that takes as long."""
    return compute_off_hub(make) if is_large(line) else make()


def _input_line(line: bytes, n: int, batch: StoredBatch) -> InputLine:
    """Raises openai.LineError."""
    openai_line = batch.protocol == "openai"
    custom_id, body = openai.parse_line(line, batch.endpoint) if openai_line else anthropic.parse_line(line)
    try:
        return InputLine(n, custom_id, orjson.dumps({**body, "stream": False} if "stream" in body else body))
    except orjson.JSONEncodeError:
        return InputLine(n, custom_id, b"", InvalidRequest("The request is nested too deeply.", code="invalid_json"))


def _custom_id(line: bytes, batch: StoredBatch, most_values: int) -> str:
    """Raises openai.LineError."""
    if has_more_values(line, most_values):
        raise openai.LineError("invalid_json_line", f"This line has more than {most_values} keys and values.")
    return openai.parse_line(line, batch.endpoint).custom_id


def results_of(store: BatchStore, batch: StoredBatch) -> Iterator[BatchResult]:
    """The answers of a batch that has ended. If it failed, the other requests have its error for an answer."""
    answered = set()
    for entry in read_journal(store.journal_of(batch)):
        answered.add(entry.n)
        yield entry
    for error in batch.errors:
        body = anthropic_body(LlamasrvError(error["message"], code=error["code"]))
        with store.input_of(batch).open() as file:
            for line in breathing(lines_of(file, batch)):
                if line.n not in answered:
                    yield BatchResult(line.n, line.custom_id, LlamasrvError.status, "", body)


def check_input(file: BinaryIO, batch: StoredBatch, longest: int, most_values: int) -> tuple[list[dict[str, Any]], int]:
    """What is wrong with an input, and how many requests it has. A line has at most `longest` bytes and `most_values`
    keys and values."""
    errors: list[dict[str, Any]] = []
    seen: set[int] = set()

    def wrong(code: str, message: str, line: int | None, param: str | None = None) -> None:
        errors.append({"code": code, "message": message, "line": line, "param": param})

    if batch.protocol == "anthropic":  # checked when it was sent
        return [], sum(1 for _ in breathing(file))
    for n, line in enumerate(breathing(_lines(file, longest)), 1):
        if not line:
            wrong("line_too_long", f"A line has at most {longest} bytes.", n)
            break
        if n > MOST_LINES + MOST_EMPTY or len(seen) > MOST_LINES:
            wrong("too_many_requests", f"A batch has at most {MOST_LINES} requests.", n)
            break
        if line.isspace():
            continue
        try:
            custom_id = _made_of(line, partial(_custom_id, line, batch, most_values))
        except openai.LineError as error:
            wrong(error.code, error.message, n, error.param)
            if len(errors) >= MOST_ERRORS:
                break
            continue
        if hash(custom_id) in seen:
            wrong("duplicate_custom_id", "This custom_id is used by an earlier line.", n, "custom_id")
            if len(errors) >= MOST_ERRORS:
                break
        seen.add(hash(custom_id))
    if len(seen) > MOST_LINES and not errors:
        wrong("too_many_requests", f"A batch has at most {MOST_LINES} requests.", None)
    if not seen and not errors:
        wrong("empty_file", "The input file is empty.", None)
    return errors, len(seen)


def _lines(file: BinaryIO, longest: int) -> Iterator[bytes]:
    """The lines; b"" for one of more than `longest` bytes, which is never put together: of 32 MB that takes 30 ms."""
    while line := file.readline(PIECE):
        pieces, size = [line], len(line)
        while len(line) == PIECE and not line.endswith(b"\n") and size <= longest:
            breathe()
            line = file.readline(PIECE)
            pieces.append(line)
            size += len(line)
        yield b"" if size > longest else b"".join(pieces)


def breathing(lines: Iterable[Any]) -> Iterator[Any]:
    """The same items, with pauses in which others may run."""
    end = time.perf_counter() + BREATH
    for line in lines:
        yield line
        if time.perf_counter() >= end:
            breathe()
            end = time.perf_counter() + BREATH
