"""Background responses, which outlive their client.

Each has a thread of its own (a greenlet, in a worker) that reads its generation, keeps its events for readers, and
stores it: when it is queued, and when it has ended. While it works it renews a lease, so that other servers can tell a
response that is being generated from one whose server is gone, and it sees by its entry when another server cancelled
or deleted it.

If several servers share the store, the request is stored as well, and another server takes over if this one dies
(take_over.py). Readers then get an event only once it is stored, so that the other server knows what they have seen.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import NamedTuple

from llamasrv.concurrency import compute_off_hub
from llamasrv.domain.events import Event, Failed, Pace, Reasoning, Usage
from llamasrv.errors import LlamasrvError, QueueFull, Unavailable
from llamasrv.protocols.openai.responses.reply import Keep, ResponseReply
from llamasrv.protocols.openai.responses.resumed import PartialAnswer, resume
from llamasrv.protocols.openai.responses.stored import ENDED, Stored
from llamasrv.protocols.reply import RunFacts
from llamasrv.store import StoreError
from llamasrv.store.runs import Delivered, RunJournal, RunStore, StoredRun
from llamasrv.store.storage_quota import StorageFull
from llamasrv.web.access.quota import Quota
from llamasrv.web.ops.usage import UsageBook
from llamasrv.web.stored.responses import ResponseNotFound, StoredResponses
from llamasrv.web.streams.streaming import ActiveRun, settle

log = logging.getLogger("llamasrv")
request_log = logging.getLogger("llamasrv.request")

WRITE_EVERY = 0.1  # min seconds between two writes of new events to the store


class RunTimes(NamedTuple):
    """In seconds."""

    beat: float = 5.0  # between two renewals of a run's entry in the store
    lease: float = 30.0  # after which an entry that was not renewed counts as abandoned
    claim: float = 4.0  # age at which a claim is renewed; well below its expiry
    listen: float = 0.3  # between two looks at the journal of another server's run


RUN_TIMES = RunTimes()


class BackgroundWork(NamedTuple):
    """What a run does. `submit` starts the generation, or continues one that another server began, and calls its
    first argument once the model has accepted it. It returns None if this answer cannot be continued."""

    submit: Callable[[Callable[[RunFacts], None], PartialAnswer], ActiveRun | None]
    reply: Callable[[Keep], ResponseReply]


class CannotGoOn(Exception):
    """The answer that another server began cannot be continued here."""


class Background:
    """The background runs of this process, at most `most` at once. `share`: max runs per owner; None: `most`.
    `runs`: the runs of all servers that share the store."""

    def __init__(
        self,
        memory: StoredResponses,
        most: int,
        usage: UsageBook,
        runs: RunStore | None = None,
        times: RunTimes = RUN_TIMES,
    ) -> None:
        self.memory = memory
        self.runs = runs
        self.times = times
        self.share: int | None = None
        self._usage = usage
        self._most = most
        self._runs: dict[tuple[str, str], BackgroundRun] = {}

    def __iter__(self) -> Iterator[BackgroundRun]:
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def has_room(self) -> bool:
        return len(self._runs) < self._most

    def check_room(self, owner: str) -> None:
        if not self.has_room:
            raise QueueFull(f"{self._most} background responses are already running.")
        if self.share is not None and sum(1 for whose, _ in self._runs if whose == owner) >= self.share:
            raise QueueFull(f"{self.share} background responses of this API key are already running.")

    def start(
        self, owner: str, model: str, work: BackgroundWork, quota: Quota | None = None, *, request: bytes = b""
    ) -> BackgroundRun:
        """`request`: the body, from which another server can repeat it."""
        self.check_room(owner)
        run = BackgroundRun(owner, model, self.memory, work, quota, self.times)
        try:
            if self.runs is not None:
                stored = StoredRun(run.id, owner, model)
                self.runs.begin(stored, request)
                run.shared = SharedRun(self.runs, stored, self.times.claim)
            if not self.memory.keep(owner, run.reply.stored(), time.time() + self.times.lease):
                raise Unavailable("The response cannot be stored, so it cannot run in the background.")
            self._begin(run)
        except BaseException:
            run.cancel()
            if run.shared is not None:
                run.shared.end(is_ours=True)
            raise
        return run

    def go_on(self, stored: StoredRun, delivered: Delivered, work: BackgroundWork, quota: Quota | None = None) -> None:
        """Take over a run that this server has claimed. Raises CannotGoOn, and what `submit` raises."""
        assert self.runs is not None
        run = BackgroundRun(stored.owner, stored.model, self.memory, work, quota, self.times, delivered)
        run.shared = SharedRun(self.runs, stored, self.times.claim)
        self.memory.keep(stored.owner, run.reply.stored(), time.time() + self.times.lease)
        if quota is not None:
            quota.take_over()
        self._begin(run)

    def hand_over(self) -> None:
        """Leave what still runs to other servers, where they share the store."""
        for run in self:
            run.hand_over()

    def _begin(self, run: BackgroundRun) -> None:
        self._runs[run.owner, run.id] = run
        threading.Thread(target=self._work, args=(run,), daemon=True, name=f"background-{run.id[-8:]}").start()

    def _work(self, run: BackgroundRun) -> None:
        try:
            run.work()
        finally:
            del self._runs[run.owner, run.id]
            self._usage.note(run.owner, run.queued["model"], run.usage, run.seconds)

    def find(self, owner: str, id: str) -> BackgroundRun | None:
        return self._runs.get((owner, id))


class SharedRun:
    """What other servers see of a run of this one."""

    def __init__(self, runs: RunStore, run: StoredRun, claim_seconds: float) -> None:
        self._runs, self._run, self._claim_seconds = runs, run, claim_seconds
        self._claimed = time.monotonic()
        self._journal: RunJournal | None = None

    def is_ours(self) -> bool:
        """Raises StoreError."""
        if time.monotonic() - self._claimed > self._claim_seconds:
            if not self._runs.claim(self._run.id):
                return False
            self._claimed = time.monotonic()
        return True

    def write(self, chunks: Sequence[bytes], tokens: int, reasoning: int) -> None:
        if self._journal is None:
            self._journal = self._runs.journal(self._run.owner, self._run.id)
        self._journal.add(chunks, tokens, reasoning)

    def end(self, *, is_ours: bool) -> None:
        with suppress(StoreError, StorageFull):  # then another server finds it and sees that it has ended
            if self._journal is not None:
                self._journal.close()
            if is_ours:
                self._runs.end(self._run.owner, self._run.id)

    def hand_over(self) -> None:
        """Let another server have it at once. It has not ended this one, so this attempt does not count."""
        with suppress(StoreError):  # else its claim expires
            if self._journal is not None:
                self._journal.close()
            if self._runs.exists(self._run.owner, self._run.id):
                self._runs.save(self._run._replace(attempts=self._run.attempts - 1))
            self._runs.release(self._run.id)


class BackgroundRun:
    """One response, from its start to its last event."""

    def __init__(
        self,
        owner: str,
        model: str,
        memory: StoredResponses,
        work: BackgroundWork,
        quota: Quota | None,
        times: RunTimes,
        delivered: Delivered | None = None,
    ) -> None:
        """`delivered`: what readers have received from another server. Raises what `work` raises, and CannotGoOn."""
        self.owner = owner
        self.reply = work.reply(self._keep)
        begun: PartialAnswer | None = PartialAnswer()
        if delivered is None or not delivered.chunks:
            self._chunks = self.reply.queue(model)
            self._written = 0  # of the chunks
        else:
            begun = compute_off_hub(partial(resume, self.reply, model, delivered.chunks))
            self._chunks, self._written = list(delivered.chunks), len(delivered.chunks)
        if begun is None:
            raise CannotGoOn
        self._begun = (
            begun
            if delivered is None
            else begun._replace(tokens=delivered.tokens, reasoning_tokens=delivered.reasoning)
        )
        self._tokens, self._reasoning = self._begun.tokens, self._begun.reasoning_tokens
        self._times = times
        self.queued = dict(self.reply.response)  # as its client first sees it
        self.id: str = self.queued["id"]
        self.shared: SharedRun | None = None
        self.done = False
        self.dropped = False  # deleted: store nothing from now on
        self.lost = False  # another server has taken over, or is about to
        self._is_handed_over = False
        self._watched = self._written > 0
        self._write_at, self._wrote_at = inf, -inf  # on the monotonic clock
        self._writing = threading.Lock()
        self._memory = memory
        self._quota = quota
        self.usage = Usage()  # what it has cost; complete once it is done
        self._started = time.monotonic()
        self._news = threading.Condition()
        running = work.submit(self.reply.start, self._begun)
        if running is None:
            raise CannotGoOn
        self._running = running

    # ------------------------------------------------------------ for other threads

    @property
    def cancelled(self) -> bool:
        return self._running.cancelled

    def cancel(self) -> None:
        self._running.cancel()

    def hand_over(self) -> None:
        """Leave it to another server, which continues after what readers have received. Without one it ends here."""
        if self.shared is None or self.dropped:
            return
        self._write()
        with self._writing:
            if self.done or self.lost or self.reply.response["status"] in ENDED:
                return
            self.lost = self._is_handed_over = True
        log.info("response %s is left to another server", self.id)
        self.cancel()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def chunks(self, start: int, timeout: float | None) -> list[bytes]:
        """The events from number `start` on; waits for at least one. [] after `timeout` seconds, or if it ended
        before."""
        with self._news:
            self._news.wait_for(lambda: self._num_shown > start or self.done, timeout)
            return self._chunks[start : self._num_shown]

    @property
    def _num_shown(self) -> int:
        return len(self._chunks) if self.shared is None or self.done and not self.lost else self._written

    def watch(self) -> None:
        """It has a reader from now on."""
        self._watched = True
        self._write()

    def keep_alive(self) -> None:
        """Send all readers a sign of life."""
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
                self._quota.leave(self.usage.prompt_tokens + self.usage.completion_tokens)
            self._log()
            self._write()
            if self._is_handed_over and self.shared is not None:
                self.shared.hand_over()
            elif self.shared is not None:
                self.shared.end(is_ours=not self.lost)
            with self._news:
                self.done = True
                self._news.notify_all()

    def _read(self) -> None:
        running = self._running
        beat = time.monotonic() + self._times.beat
        while not running.done and not self.reply.failed:
            events = self._counted(running.events(max(0.0, min(beat, self._write_at) - time.monotonic())))
            if events:
                self._tell(events)
            now = time.monotonic()
            if now >= self._write_at:
                self._write()
            if now >= beat:
                beat = now + self._times.beat
                self._renew()
        self.usage = settle(running) or self.usage

    def _counted(self, events: Sequence[Event]) -> list[Event]:
        """The events for the reply. Counts tokens, for a server that may have to take over."""
        out: list[Event] = []
        for event in events:
            if isinstance(event, Pace):
                self._tokens = self._begun.tokens + event.usage.completion_tokens
                continue
            if isinstance(event, Reasoning):
                self._reasoning = self._tokens
            elif isinstance(event, Usage):
                self.usage = event
                event = _of_both(self._begun, event)
            out.append(event)
        return out

    def _write(self) -> None:
        """Store new events before readers get them, if there are readers. They wait while the store is unreachable."""
        if self.shared is None or not self._watched:
            return
        with self._writing:
            with self._news:
                chunks = self._chunks[self._written :]
                self._wrote_at = time.monotonic()
                self._write_at = inf if self.lost or not chunks else self._wrote_at + WRITE_EVERY
            if self._write_at == inf:
                return
            try:
                if not self._is_ours():
                    return
                self.shared.write(chunks, self._tokens, self._reasoning)
            except (StoreError, StorageFull):
                return
            with self._news:
                self._written += len(chunks)
                self._write_at = inf if self._written == len(self._chunks) else self._write_at
                self._news.notify_all()

    def _is_ours(self) -> bool:
        if self.shared is not None and not self.lost and not self.shared.is_ours():
            self.lost = True
            log.warning("another server has taken over response %s", self.id)
            self.cancel()
        return not self.lost

    def _log(self) -> None:
        """One log line for the run, as requests have: the request's own line only said that it was queued."""
        fields = {"id": self.id, "route": "background", "model": self.queued["model"]}
        if self.owner:
            fields["key"] = self.owner
        fields |= {
            "finish": self.reply.response["status"],
            "seconds": self.seconds,
            "prompt": self.usage.prompt_tokens,
            "cached": self.usage.cached_tokens,
            "completion": self.usage.completion_tokens,
        }
        request_log.info("request", extra={"fields": fields})

    def _renew(self) -> None:
        """Extend the lease of a run that is still being worked on, unless another server has ended it."""
        if self.reply.response["status"] in ENDED:
            return
        try:
            if not self._is_ours():
                return
            status = self._memory.find(self.owner, self.id).response["status"]
        except ResponseNotFound:
            self.dropped = True
        except LlamasrvError:
            return  # the store is unreachable: it may come back
        else:
            if status not in ENDED:
                self._keep(self.reply.stored(), time.time() + self._times.lease)
                return
        self.cancel()

    def _tell(self, events: Sequence[Event]) -> None:
        with self._news:  # a reader may be adding a keepalive
            self._chunks += self.reply.chunks(events)
            if self.shared is not None and self._watched:
                self._write_at = min(self._write_at, max(time.monotonic(), self._wrote_at + WRITE_EVERY))
            self._news.notify_all()

    def _keep(self, stored: Stored, lease: float | None = None) -> bool:
        with suppress(StoreError):  # keeping it will fail, too
            if not self._is_ours():
                return False
        kept = self.dropped or self._memory.keep(self.owner, stored, lease)
        if self.dropped:  # perhaps only since the line above
            with suppress(LlamasrvError):
                self._memory.delete(self.owner, self.id)
        return kept


def _of_both(begun: PartialAnswer, usage: Usage) -> Usage:
    """Usage of the whole answer; its first part, generated elsewhere, was part of the prompt here."""
    prompt = max(0, usage.prompt_tokens - begun.tokens)
    return usage._replace(
        prompt_tokens=prompt,
        cached_tokens=min(usage.cached_tokens, prompt),
        completion_tokens=usage.completion_tokens + begun.tokens,
        reasoning_tokens=usage.reasoning_tokens + begun.reasoning_tokens,
    )
