"""The fake model for random schedules: takes time on its own clock, counts copies, fails on demand."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import numpy as np
from recording_backend import RecordingBackend

from llamasrv.engine.backend.fake import script_after
from llamasrv.engine.base.interface import DecodeFailed, OutOfCells, Proposal
from llamasrv.engine.base.native_pool import NativePool

STEP, PROMPT_ROW, LOGITS_ROW, BYTE = 0.01, 0.001, 2e-5, 1e-8  # seconds
FALLIBLE = (
    "use", "decode", "logits", "copy", "cut", "roll_back", "mark", "mark_size", "rewind", "save",
    "saved_size", "restore", "usable", "clear", "chain",
)  # fmt: skip


SPOILED = object()  # a failure: logits of NaN


class Injected(RuntimeError):
    """A call of the library that fails for no reason."""


class ScheduleBackend(RecordingBackend):
    """Every call advances `clock`. `slack`: last tokens of a lane that a window still has, so that it can be cut there.
    `fail_in`: number of calls until the next failure; `failed`: which call failed, and how."""

    def __init__(self, *, clock=None, slack=0, **settings):
        self.clock = clock or Clock()
        self.slack = slack
        self.counts = Counter()  # calls by name
        self.fail_in, self.how, self.failed = None, None, []
        super().__init__(**settings)

    def reset(self):
        super().reset()
        self._floors = [0] * self.num_lanes  # lengths to which a window can be cut back

    def usable(self, lane, position):
        if super().usable(lane, position):
            return True
        length = self._length(lane, position)
        return bool(self.slack) and length is not None and length >= self._floors[lane]

    def _slide(self):
        """Cells are taken, among them any that have left the window of their lane."""
        for lane, tokens in enumerate(self._kv):
            self._floors[lane] = max(self._floors[lane], len(tokens) - self.slack)

    def copy(self, source, target, position):
        usable = self.usable(source, position)
        super().copy(source, target, position)
        self._floors[target] = self._floors[source]
        self._slide()
        if usable:
            self._behind.discard(target)

    def cut(self, lane, position):
        if self.traits.can_cut:
            return super().cut(lane, position)
        length = bisect_left(self._places[lane], position)
        if not self.slack or length < self._floors[lane]:
            return False
        self._drop(lane, length)
        return True

    def rewind(self, lane, position, mark):
        marked = self.counts["mark"]
        done = super().rewind(lane, position, mark)  # which looks at the state again
        self.counts["mark"] = marked
        self._floors[lane] = len(self._kv[lane])
        return done

    def clear(self, lane):
        super().clear(lane)
        self._floors[lane] = 0

    def decode(self):
        n = self.batch.num_rows
        logits = int(self.batch.wants_logits[:n].sum())
        self.clock.now += STEP + PROMPT_ROW * (n - logits) + LOGITS_ROW * logits
        self._slide()
        super().decode()

    def save(self, lane):
        state = super().save(lane)
        self.clock.now += state.nbytes * BYTE
        return state

    def restore(self, lane, saved):
        self.clock.now += saved.nbytes * BYTE
        self._slide()
        done = super().restore(lane, saved)
        self._floors[lane] = len(self._kv[lane])
        return done


def _fallible(name):
    act = getattr(ScheduleBackend, name)

    def call(self, *arguments, **settings):
        self.counts[name] += 1
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0 and (failure := _failure(self, name)) is not None:
                self.fail_in = None
                self.failed.append((name, self.how))
                if failure is SPOILED:
                    return np.full_like(act(self, *arguments, **settings), np.nan)
                if failure is not False:
                    raise failure
                return False
        return act(self, *arguments, **settings)

    return call


def _failure(backend, name):
    """How this call fails: an exception, or a refusal; None if it cannot fail in this way."""
    if backend.how == "raises":
        return Injected(name)
    if backend.how == "spoils":
        return SPOILED if name == "logits" else None
    if backend.how == "refuses":
        return {"restore": False, "rewind": False, "decode": OutOfCells()}.get(name)
    if name == "decode":
        return DecodeFailed("as was asked for", fatal=backend.how == "fatal")
    return None


for _name in FALLIBLE:
    setattr(ScheduleBackend, _name, _fallible(_name))


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class RandomDrafts:
    """A draft model that knows the fake model's answer, and is sometimes wrong."""

    source = "draft"

    def __init__(self, rng):
        self._rng = rng
        self.follows = True

    def follow(self, is_on):
        self.follows = is_on

    def lag(self, timeline):
        return self._rng.choice([None, 1, 1, 1, 3])

    def advance(self, timeline, most):
        return self._rng.random() < 0.8

    def propose(self, timelines, most):
        return [self._propose(timeline.tokens.tolist(), most) for timeline in timelines]

    def _propose(self, tokens, most):
        rng = self._rng
        script, said = script_after(tokens)
        guesses = script[said : said + rng.randint(0, most)]
        guesses = [(token + 1) % 256 if rng.random() < 0.1 else token for token in guesses]
        return Proposal(guesses, [3.0] * len(guesses))


class PoolByHand(NativePool):
    """A pool that runs jobs on the caller's thread: at once or on demand, each queue in order."""

    def __init__(self, delays=lambda width: False):
        super().__init__()
        self.delays = delays  # whether a job of a queue of this width waits
        self.waiting = []

    def queue(self, width, *, yields=False):
        return QueueByHand(self, width)

    def do(self, most=None):
        """Run at most `most` waiting jobs; returns how many."""
        done = 0
        while self.waiting and (most is None or done < most):
            self.waiting.pop(0)[1]()
            done += 1
        return done

    def close(self):
        self.do()


class QueueByHand:
    def __init__(self, pool, width):
        self.width, self._pool = width, pool

    def put(self, job):
        pool = self._pool
        if pool.delays(self.width) or any(queue is self for queue, _ in pool.waiting):
            pool.waiting.append((self, job))
        else:
            job()
        return True

    def map(self, act, items):
        return [act(item, 0) for item in items]
