"""Situations recorded under load, and the plans that were made for them.

Half come from random schedules on the fake back end, half from servers of small models with streams, chats and long
prompts at once. Each is kept as plain numbers, so that it can be planned again.
"""

from __future__ import annotations

import gzip
import json
from array import array
from pathlib import Path

from engine_driver import sequence as make_sequence

from llamasrv.engine.kv.match import Match
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.step.plan import Pool
from llamasrv.engine.step.scheduler import Scheduler

DATA = Path(__file__).parent / "data" / "situations.json.gz"


def load():
    return json.loads(gzip.decompress(DATA.read_bytes()))


class RecordedNewcomers(list):
    """Like `Newcomers`, with the prefixes that were common when the situation was recorded."""

    def __init__(self, replay):
        self.replay = replay

    def add(self, seq):
        self.append(seq)

    def ahead_of(self, seq):
        numbers, commons = self.replay.numbers, self.replay.commons
        shared = [(commons.get((numbers[seq.id], numbers[other.id]), 0), other) for other in self]
        length, other = max(shared, key=lambda one: one[0], default=(0, None))
        return (other, length) if length else None


class Replay:
    """A recorded situation as objects. Sequences are named by their place in `sequences`."""

    def __init__(self, record):
        self.record = record
        self.scheduler = scheduler = Scheduler(**record["options"])
        a, b, c = record["cost"]
        scheduler.cost.unknowns = [a, b, c, 0.0, 0.0]
        scheduler.cost.noise = scheduler.cost.missed = 0.0
        for rows in (1, 2, 4, 8, 16, 32):
            scheduler.cost.rows.learn(rows, max(1e-6, a + c * rows))
        room, scheduler.restore_cost._token_bytes, scheduler.restore_cost._byte_seconds = record["restore"]
        if room is not None:
            scheduler.restore_cost.room = room
        scheduler.served = dict(record["served"])
        self.by_id = {}
        self.waiting = [self._sequence(numbers) for numbers in record["waiting"]]
        self.running = [self._sequence(numbers) for numbers in record["running"]]
        self.pool, self.now = Pool(*record["pool"]), record["now"]
        self.hits = {int(number): self._hit(hit) for number, hit in record["hits"].items()}
        self.commons = {(a, b): length for a, b, length in record["commons"]}
        self.numbers = {seq.id: number for number, seq in self.by_id.items()}

    def _sequence(self, numbers):
        (
            length,
            num_prompt,
            computed,
            reused,
            lane,
            arrived,
            admitted,
            first_token,
            owner,
            priority,
            deferrable,
            max_tokens,
            saved,
            is_scored,
            num_scores,
            num_forgotten,
            adapters,
            number,
        ) = numbers
        seq = make_sequence(
            [7] * length,
            owner=owner,
            priority=priority,
            deferrable=deferrable,
            max_tokens=max_tokens,
            prompt_logprobs=is_scored,
            adapters=tuple((n, scale) for n, scale in adapters),
        )
        seq.num_prompt, seq.num_computed, seq.reused, seq.lane = num_prompt, computed, reused, lane
        seq.arrived, seq.admitted, seq.first_token = arrived, admitted, first_token
        seq.num_forgotten, seq.scores = num_forgotten, [None] * num_scores
        seq.saved = None if saved is None else SavedState(array("i", [7] * saved), None)
        self.by_id[number] = seq
        return seq

    @staticmethod
    def _hit(numbers):
        if numbers is None:
            return None
        length, coming, held, lane, is_file = numbers
        return Match(lane, length, coming, held, file="a file" if is_file else None, num_held=length if held else 0)

    def lookup(self, seq):
        return self.hits.get(self.numbers[seq.id])

    def newcomers(self):
        return RecordedNewcomers(self)

    def summary(self, plan):
        """The plan as plain values."""
        number = self.numbers
        return {
            "preempt": [number[seq.id] for seq in plan.preempt],
            "admit": [number[seq.id] for seq, _ in plan.admit],
            "read": [number[seq.id] for seq, _ in plan.read],
            "parts": [[number[seq.id], count] for seq, count in plan.parts],
            "num_decodes": plan.num_decodes,
            "num_prompt": plan.num_prompt,
            "adapters": [list(adapter) for adapter in plan.adapters],
        }
