"""The record of one HTTP request: id, owner, and at its end one log line, one count and one span.

The line contains nothing that the client wrote, except its request id, in a safe alphabet, and paths that match no
route.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from random import getrandbits
from typing import Any, NamedTuple

from llamasrv.domain.events import Usage
from llamasrv.engine.base.metrics import SECONDS, Histogram
from llamasrv.pipeline.cache_report import CacheReport
from llamasrv.pipeline.run import Run, RunInfo, RunState
from llamasrv.web.access.quota import Quota
from llamasrv.web.jobs.idle_gate import IdleGate
from llamasrv.web.ops.recent import SLOW, RecentRequests
from llamasrv.web.ops.usage import UsageBook

log = logging.getLogger("llamasrv.request")

QUIET = frozenset((
    "/livez", "/readyz", "/health", "/v1/health", "/metrics", "/metrics/load", "/v1/loads", "/loads",
    "/ui/static/<version>/<path:name>", "/admin/state", "/admin/requests",
))  # fmt: skip
"""Polled routes and routes of pages: logged at debug level if they succeed."""

_STEPS, _STEP = (
    8,
    re.compile(r"[A-Za-z0-9_.:-]{0,24}\Z"),
)  # limits on a logged path; longer segments are ids or users' words
_AGENT = re.compile(r"[A-Za-z0-9._-]{1,32}(/[A-Za-z0-9._-]{1,16})?(?=[ ;(]|\Z)")  # the first product of a User-Agent
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


class EngineLoad(NamedTuple):
    """What an engine did when it took a request."""

    running: int
    waiting: int
    held: float  # share of the cells that running requests held


class RequestStats:
    """Counts requests by route pattern, never by the client's path."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()  # by (route, status)
        self.errors: Counter[str] = Counter()  # by code
        self.seconds: dict[str, Histogram] = {}  # by route
        self.open: dict[RequestLog, None] = {}  # in order of arrival
        self.slow_seconds: float | None = None  # slower requests get a log line of their own; None: never
        self.recent = RecentRequests()
        self.usage: UsageBook | None = None  # totals by key
        self.on_close: Callable[[RequestLog, int], None] | None = None  # called after the last byte, with the status

    @property
    def num_open(self) -> int:
        return len(self.open)

    def enter(self, record: RequestLog, status: int, seconds: float) -> None:
        self.open.pop(record, None)
        self.counts[record.route, status] += 1
        if record.error is not None:
            self.errors[record.error] += 1
        histogram = self.seconds.get(record.route)
        if histogram is None:
            histogram = self.seconds[record.route] = Histogram(SECONDS)
        histogram.observe(seconds)


def _as_route(path: str) -> str:
    """The path with unknown segments replaced by `...`: they may be users' words."""
    steps = path.split("/", _STEPS + 1)
    return "/".join(step if _STEP.match(step) else "..." for step in steps[: _STEPS + 1])


class RequestLog:
    """One request, from arrival to `close`."""

    __slots__ = (
        "id", "owner", "route", "model", "reason", "usage", "cache", "error", "field", "asked", "quota", "idle_gate",
        "trace", "started", "run", "_agent", "_start", "_waited_for_model", "_load", "_stats", "_begun", "_closed",
    )  # fmt: skip

    def __init__(self, environ: dict[str, Any], stats: RequestStats) -> None:
        given = environ.get("HTTP_X_REQUEST_ID") or environ.get("HTTP_X_CLIENT_REQUEST_ID")
        self.id = given if given and _SAFE_ID.match(given) else f"req-{getrandbits(96):024x}"
        self.owner = ""
        self.route = "unknown"
        self.model: str | None = None
        self.reason: str | None = None  # finish reason of the first choice
        self.usage: Usage | None = None
        self.cache: CacheReport | None = None
        self.error: str | None = None  # code of the error reply
        self.field: str | None = None  # request field that the error concerns
        self.asked: tuple[str, str] | None = None  # (method, path) if no route matches
        self.quota: Quota | None = None  # quota that it counts against
        self.idle_gate: IdleGate | None = None  # entered with this request
        self.trace: str | None = environ.get("HTTP_TRACEPARENT")
        self.started = time.time()
        self.run: Run | None = None  # its generation
        self._agent: str = environ.get("HTTP_USER_AGENT", "")
        self._start: float | None = None  # seconds until the engine took it
        self._waited_for_model = False
        self._load: EngineLoad | None = None  # the engine's load at that time
        self._begun = time.monotonic()
        self._stats = stats
        self._closed = False
        stats.open[self] = None

    def note_start(self, info: RunInfo, load: EngineLoad | None) -> None:
        """The engine has taken it."""
        self.model, self.cache, self._load = info.model, info.cache, load
        self._start = time.monotonic() - self._begun

    def note_run(self, run: Run) -> None:
        self.run = run
        self._waited_for_model = run.state is RunState.LOADING

    @property
    def seconds(self) -> float:
        """Since it arrived."""
        return time.monotonic() - self._begun

    def close(self, status: int) -> None:
        """Call once, after the last byte is sent or the client is gone."""
        if self._closed:
            return
        self._closed = True
        stats, seconds = self._stats, time.monotonic() - self._begun
        stats.enter(self, status, seconds)
        if self.idle_gate is not None:
            self.idle_gate.leave()
        if self.quota is not None:
            usage = self.usage or Usage()
            self.quota.leave(usage.prompt_tokens + usage.completion_tokens)
        if self.usage is not None and self.model is not None and stats.usage is not None:
            stats.usage.note(self.owner, self.model, self.usage, seconds)
        slow = stats.slow_seconds is not None and stats.slow_seconds <= seconds
        level = logging.DEBUG if status < 400 and self.route in QUIET else logging.INFO
        is_logged = slow or log.isEnabledFor(level)
        is_slow = seconds >= (SLOW if stats.slow_seconds is None else stats.slow_seconds)
        is_kept = is_slow or status >= 400 or self.error is not None
        if is_logged or is_kept:
            fields = self._fields(status, seconds)
            if is_kept and self.route not in QUIET:
                stats.recent.note(self.started, fields | self.history(), is_slow=is_slow)
            if is_logged:
                word = "slow request" if slow else "request"
                log.log(logging.WARNING if slow else level, word, extra={"fields": fields})
        if stats.on_close is not None:
            stats.on_close(self, status)

    def history(self) -> dict[str, Any]:
        """What operators are shown of it beside the fields of the log line: `client`, `start` (seconds until the engine
        took it), `loading` (it waited for its model), and the engine's load at that time."""
        shown: dict[str, Any] = {}
        if client := _AGENT.match(self._agent):
            shown["client"] = client[0]
        if self._waited_for_model:
            shown["loading"] = True
        if self._start is not None:
            shown["start"] = self._start
        if self._load is not None:
            shown |= self._load._asdict()
        return shown

    def _fields(self, status: int, seconds: float) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": self.id, "route": self.route, "status": status, "seconds": seconds}
        for name, value in (
            ("key", self.owner or None),
            ("model", self.model),
            ("finish", self.reason),
            ("error", self.error),
            ("field", self.field),
        ):
            if value is not None:
                fields[name] = value
        if self.asked is not None:
            fields["method"], fields["path"] = self.asked[0][:16], _as_route(self.asked[1])
        usage = self.usage
        if usage is not None:
            fields |= {
                "prompt": usage.prompt_tokens,
                "cached": usage.cached_tokens,
                "completion": usage.completion_tokens,
                "queue": usage.queue_seconds,
                "prefill": usage.prefill_seconds,
                "decode": usage.decode_seconds,
            }
            if usage.paused_seconds:
                fields["paused"] = usage.paused_seconds
            change = None if self.cache is None else self.cache.change()
            if change is not None:
                fields["changed"] = str(change)
            if usage.forgotten_tokens:
                fields["forgotten"] = usage.forgotten_tokens
        return fields
