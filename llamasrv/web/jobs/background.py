"""Background responses, which outlive their client.

Each has a thread of its own (a greenlet, in a worker) that reads its generation, keeps its events for readers, and
stores it: when it is queued, and when it has ended. While it works it renews a lease, so that other servers can tell a
response that is being generated from one whose server is gone, and it sees by its entry when another server cancelled
or deleted it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from llamasrv.domain.events import Event, Failed, Usage
from llamasrv.errors import LlamasrvError, QueueFull, Unavailable
from llamasrv.protocols.openai.responses.events import error_event
from llamasrv.protocols.openai.responses.reply import Keep, ResponseReply
from llamasrv.protocols.openai.responses.stored import ENDED, Stored
from llamasrv.protocols.reply import RunFacts
from llamasrv.web.access.quota import Quota
from llamasrv.web.ops.request_log import RequestLog
from llamasrv.web.ops.usage import UsageBook
from llamasrv.web.stored.responses import ResponseNotFound, StoredResponses
from llamasrv.web.streams.streaming import ActiveRun, Client, Framing, LiveStream, settle

log = logging.getLogger("llamasrv")
request_log = logging.getLogger("llamasrv.request")

BEAT = 5.0  # seconds between two looks at the entry
LEASE = 30.0  # seconds after which whoever did not renew it is gone

Submit = Callable[[Callable[[RunFacts], None]], ActiveRun]
"""Starts a generation; what it is given is called when the model has taken it."""


class Background:
    """The background runs of this process, at most `most` at once. `share`: most of one owner; None: all of them."""

    def __init__(self, memory: StoredResponses, most: int, usage: UsageBook) -> None:
        self.memory = memory
        self.share: int | None = None
        self._usage = usage
        self._most = most
        self._runs: dict[tuple[str, str], BackgroundRun] = {}

    def __iter__(self) -> Iterator[BackgroundRun]:
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def check_room(self, owner: str) -> None:
        if len(self._runs) >= self._most:
            raise QueueFull(f"{self._most} background responses are already running.")
        if self.share is not None and sum(1 for whose, _ in self._runs if whose == owner) >= self.share:
            raise QueueFull(f"{self.share} background responses of this API key are already running.")

    def start(
        self,
        owner: str,
        model: str,
        submit: Submit,
        reply: Callable[[Keep], ResponseReply],
        quota: Quota | None = None,
    ) -> BackgroundRun:
        self.check_room(owner)
        run = BackgroundRun(owner, model, self.memory, submit, reply, quota)
        try:
            if not self.memory.keep(owner, run.reply.stored(), time.time() + LEASE):
                raise Unavailable("The response cannot be stored, so it cannot run in the background.")
            self._runs[owner, run.id] = run
            threading.Thread(target=self._work, args=(run,), daemon=True, name=f"background-{run.id[-8:]}").start()
        except BaseException:
            run.cancel()
            raise
        return run

    def _work(self, run: BackgroundRun) -> None:
        try:
            run.work()
        finally:
            del self._runs[run.owner, run.id]
            self._usage.note(run.owner, run.queued["model"], run.usage, run.seconds)

    def find(self, owner: str, id: str) -> BackgroundRun | None:
        return self._runs.get((owner, id))


class BackgroundRun:
    """One response, from its start to its last event."""

    def __init__(
        self,
        owner: str,
        model: str,
        memory: StoredResponses,
        submit: Submit,
        reply: Callable[[Keep], ResponseReply],
        quota: Quota | None,
    ) -> None:
        """Raises what `submit` raises."""
        self.owner = owner
        self.reply = reply(self._keep)
        self._chunks = self.reply.queue(model)
        self.queued = dict(self.reply.response)  # as its client sees it first
        self.id: str = self.queued["id"]
        self.done = False
        self.dropped = False  # deleted: nothing is stored any more
        self._memory = memory
        self._quota = quota
        self._usage = Usage()
        self._begun = time.monotonic()
        self._news = threading.Condition()
        self._running = submit(self.reply.start)

    # ------------------------------------------------------------ for others

    @property
    def cancelled(self) -> bool:
        return self._running.cancelled

    def cancel(self) -> None:
        self._running.cancel()

    @property
    def usage(self) -> Usage:
        """What it has cost; complete once it is done."""
        return self._usage

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def chunks(self, start: int, timeout: float | None) -> list[bytes]:
        """The events from number `start` on; waits for at least one. [] after `timeout` seconds, or if it ended
        before."""
        with self._news:
            self._news.wait_for(lambda: len(self._chunks) > start or self.done, timeout)
            return self._chunks[start:]

    def keep_alive(self) -> None:
        """Tell all readers that it is still at work."""
        with self._news:
            if not self.done:
                self._tell(())

    def wait(self, timeout: float) -> bool:
        """Whether it has ended."""
        with self._news:
            return self._news.wait_for(lambda: self.done, timeout)

    # ------------------------------------------------------------ its own thread

    def work(self) -> None:
        try:
            self._read()
        except LlamasrvError as error:
            self._tell([Failed(0, error)])
        except Exception as error:
            log.error("response %s failed in the background", self.id, exc_info=error)
            self._tell([Failed(0, LlamasrvError("The server had an error."))])
        finally:
            if self._quota is not None:
                self._quota.leave(self._usage.prompt_tokens + self._usage.completion_tokens)
            self._log()
            with self._news:
                self.done = True
                self._news.notify_all()

    def _read(self) -> None:
        running = self._running
        beat = time.monotonic() + BEAT
        while not running.done and not self.reply.failed:
            events = running.events(max(0.0, beat - time.monotonic()))
            for event in events:
                if isinstance(event, Usage):
                    self._usage = event
            if events:
                self._tell(events)
            if time.monotonic() >= beat:
                beat = time.monotonic() + BEAT
                self._renew()
        self._usage = settle(running) or self._usage

    def _log(self) -> None:
        """One log line for the run, as requests have: the request's own line only said that it was queued."""
        fields = {"id": self.id, "route": "background", "model": self.queued["model"]}
        if self.owner:
            fields["key"] = self.owner
        fields |= {
            "finish": self.reply.response["status"],
            "seconds": self.seconds,
            "prompt": self._usage.prompt_tokens,
            "cached": self._usage.cached_tokens,
            "completion": self._usage.completion_tokens,
        }
        request_log.info("request", extra={"fields": fields})

    def _renew(self) -> None:
        """Extend the lease of a run that is still being worked on, unless another server has ended it."""
        if self.reply.response["status"] in ENDED:
            return
        try:
            status = self._memory.find(self.owner, self.id).response["status"]
        except ResponseNotFound:
            self.dropped = True
        except LlamasrvError:
            return  # the store is away: it may come back
        else:
            if status not in ENDED:
                self._keep(self.reply.stored(), time.time() + LEASE)
                return
        self.cancel()

    def _tell(self, events: Sequence[Event]) -> None:
        with self._news:  # a reader may have it write a keepalive meanwhile
            self._chunks += self.reply.chunks(events)
            self._news.notify_all()

    def _keep(self, stored: Stored, lease: float | None = None) -> bool:
        kept = self.dropped or self._memory.keep(self.owner, stored, lease)
        if self.dropped:  # perhaps only while it was being written
            with suppress(LlamasrvError):
                self._memory.delete(self.owner, self.id)
        return kept


class Follower(LiveStream[bytes]):
    """The body of a reply that reads a run's chunks from a given number on. The run outlives its readers."""

    def __init__(
        self, run: BackgroundRun, start: int, record: RequestLog, *, client: Client, keepalive: float, framing: Framing
    ) -> None:
        super().__init__(record, client=client, keepalive=keepalive, framing=framing)
        self._run = run
        self._next = start
        self._all_read = self._left = False

    @property
    def _is_over(self) -> bool:
        return self._all_read

    @property
    def _is_cancelled(self) -> bool:
        return self._left

    def cancel(self) -> None:
        """Stop reading."""
        self._left = True

    def _read(self, timeout: float) -> list[bytes]:
        chunks = self._run.chunks(self._next, timeout)
        self._next += len(chunks)
        self._all_read = self._run.done and not self._run.chunks(self._next, 0)
        return chunks

    def _chunks(self, chunks: list[bytes]) -> list[bytes]:
        if not chunks and not self._all_read:
            self._run.keep_alive()  # it comes back as the next chunk: all readers see the same numbers
        return chunks

    def _failure(self, error: LlamasrvError) -> bytes:
        return self._framing.frame(error_event(error)) + self._framing.last
