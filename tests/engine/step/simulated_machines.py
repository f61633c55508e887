"""A scheduler on a simulated machine: streams beside prompts, step after step, with what their clients would see."""

from __future__ import annotations

import random

from engine_driver import sequence
from plans import planned

from llamasrv.engine.step.plan import Pool
from llamasrv.engine.step.scheduler import Scheduler


def two_cores(prompts, decodes):
    """Seconds of a step of a 0.5B model on two cores. Attention takes 64 rows at once, each of which then passes the
    cells of all; fewer rows pass only their own, one by one, at twice the cost. `prompts`: (rows, tokens before them);
    `decodes`: tokens of each decoding sequence."""
    rows, cell = 0.0028, 1.6e-4  # seconds of a row, and its share for a cell
    num_rows = sum(count for count, _ in prompts) + len(decodes)
    cells = sum(decodes) + sum(count + behind for count, behind in prompts)
    seconds = 0.025 + 0.01 * len(decodes)
    for count, behind in prompts:
        passed = cells + 1.2 * (behind + count / 2) if num_rows >= 64 else 4.6 * (behind + count / 2)
        seconds += count * rows * (1 + cell * passed)
    return seconds


def one_by_one(prompts, decodes):
    """A model of 17 MB on two cores with AVX2. 63 rows over 4,096 cells take seven times as long as 64."""
    num_rows = sum(count for count, _ in prompts) + len(decodes)
    cells = sum(decodes) + sum(count + behind for count, behind in prompts)
    own = sum(decodes) + sum(count * (behind + count / 2) for count, behind in prompts)
    attention = own * 0.4e-6 + (num_rows * cells - own) * 0.1e-6 if num_rows >= 64 else own * 2.6e-6
    return 0.002 + 0.0002 * num_rows + attention


def gpu(prompts, decodes):
    """Rows are almost free up to 512."""
    rows = sum(count for count, _ in prompts) + len(decodes)
    return 0.012 + 1e-5 * min(rows, 512) + 1e-4 * max(0, rows - 512) + 2e-9 * sum(n * m for n, m in prompts)


def noisy(machine, seed=1):
    """The same machine with other work on it: 10 % of noise, and one step in 30 takes three times as long."""
    rng = random.Random(seed)

    def seconds(prompts, decodes):
        return machine(prompts, decodes) * rng.uniform(0.95, 1.05) * (3.0 if rng.random() < 1 / 30 else 1.0)

    return seconds


def restless(machine, seed=1):
    """The same machine beside others' work that comes and goes: each step takes up to a quarter more or less."""
    rng = random.Random(seed)
    return lambda prompts, decodes: machine(prompts, decodes) * rng.uniform(0.8, 1.25)


class Simulation:
    """`streams` of `cells` tokens each decode while prompts of `length` tokens arrive, `together` at a time: the next
    ones when these are computed. `since`: when the streams' first tokens came; long before: readers wait for each."""

    def __init__(self, machine, *, streams=3, cells=100, length=1600, together=1, rounds=3, target=0.2, since=1.0):
        self.machine, self.now = machine, 1.0
        tile = 64 if machine is one_by_one else 0
        self.scheduler = Scheduler(parallel=32, batch_size=2048, ubatch_size=512, target=target, exact_rows=tile)
        self.decoding = [sequence([7] * cells, max_tokens=9999) for _ in range(streams)]
        for seq in self.decoding:
            seq.num_computed, seq.admitted, seq.first_token = seq.num_tokens - 1, 0.0, since
        self.gaps, self.first_tokens, self.plans = [], [], []
        self._last = self.now
        self.scheduler.cost.learn(cells, 0, machine([(cells, 0)], []))  # as a stream's own prompt was computed
        for _ in range(30):
            self.step([])
        for _ in range(rounds):
            begun, prompts = self.now, [sequence(range(length)) for _ in range(together)]
            for seq in prompts:
                seq.arrived = self.now
            while any(seq.owed for seq in prompts):
                self.step([seq for seq in prompts if seq.owed])
                self.first_tokens += [self.now - begun] * sum(not seq.owed for seq in prompts)
                prompts = [seq for seq in prompts if seq.owed]
            for _ in range(20):
                self.step([])

    def step(self, prompts):
        plan = planned(self.scheduler, [], [*self.decoding, *prompts], Pool(100_000, 16, 64), self.now)
        pieces = [(count, seq.num_computed) for seq, count in plan.parts[plan.num_decodes :]]
        seconds = self.machine(pieces, [s.num_computed for s, _ in plan.parts[: plan.num_decodes]])
        self.scheduler.account(plan, seconds)
        self.now += seconds
        self.plans.append((plan.num_decodes, plan.num_prompt))
        if plan.num_decodes:
            self.gaps.append(self.now - self._last)
            self._last = self.now
        for seq, count in plan.parts:
            seq.num_computed += count
            if seq in self.decoding:
                seq.tokens.append(8)

    @property
    def first_token(self):
        """Mean seconds."""
        return sum(self.first_tokens) / len(self.first_tokens)
