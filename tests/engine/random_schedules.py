"""Random schedules: an engine under all operations at once, compared with each answer alone.

An episode is a random configuration and random operations, all from one seed. After every turn all tables must agree.
Each choice must get exactly its answer alone and one End, last; no sequence waits for ever, no state is copied over and
over; after an injected failure every client gets its End, and the engine continues.
"""

from __future__ import annotations

import random
from array import array
from contextlib import contextmanager
from dataclasses import replace

from constraints import CALLS, WORDS, constraint
from engine_by_hand import HandEngine
from engine_driver import chat
from media_prompts import picture, sound
from media_prompts import prompt as media_prompt
from schedule_backend import Clock, PoolByHand, RandomDrafts, ScheduleBackend
from schedule_books import check_books

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec, Urgency
from llamasrv.engine.backend.fake import IM_END, FakeVocabulary
from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.engine.base.arrays import common_prefix
from llamasrv.engine.base.channels import Delta, End, PromptScored
from llamasrv.engine.base.interface import ATTENTION, HYBRID, RECURRENT, WINDOW, Adapter, Together
from llamasrv.engine.base.options import EngineOptions
from llamasrv.engine.kv.host_cache import HostCache
from llamasrv.errors import LlamasrvError
from llamasrv.web.stored.slots import SavedSlotFiles

VOCABULARY = FakeVocabulary()
ADAPTERS = (Adapter("one", "one.gguf", digest="1"), Adapter("two", "two.gguf", digest="2"))
GRAMMARS = (WORDS, CALLS, 'start: "ab"', f'start: "{"x" * 30}" /[ab]/', 'start: /[ab]/ "cccccccc" /[xy]{12}/')
SYSTEMS = ["", *(f"<|im_start|>system\nyou are assistant {i} {'and polite ' * 3 * i}<|im_end|>\n" for i in range(4))]
RAW = ("once upon a time", "a b c a b c a b c a b c a b", "and so on, and so forth and so on")
IDLE_TURNS = 400  # without progress, of 10 ms and more
MEMORIES = {
    "attention": {},
    "no sharing": {"traits": ATTENTION._replace(can_share=False)},
    "split": {"traits": ATTENTION._replace(can_share=False, split=True)},
    "hybrid": {"traits": HYBRID, "max_rollback": 3},
    "hybrid without rollback": {"traits": HYBRID},
    "window": {"traits": WINDOW, "slack": 24, "max_rollback": 31},
    "recurrent": {"traits": RECURRENT, "max_rollback": 2},
}


class Choice:
    """One choice and its items. `spared`: it may fail or be cut short."""

    def __init__(self, spec, grammar, stream):
        self.spec, self.grammar, self.stream = spec, grammar, stream
        self.items: list[object] = []
        self.cancelled = self.may_fail = False

    @property
    def end(self):
        return self.items[-1] if self.items and isinstance(self.items[-1], End) else None


class Episode:
    """`folder`: for files of its own. `num_operations`: of them; then all is brought to its end."""

    def __init__(self, seed, folder, *, num_operations=150, faults=True):
        self.rng = random.Random(seed)
        self.folder, self.num_operations, self.faults = folder, num_operations, faults
        self.clock = self.engine_clock = Clock()
        self.choices: list[Choice] = []
        self.open: list[Choice] = []
        self.timelines: list[tuple[CacheKey, array]] = []  # that may have been kept
        self.sources: list[tuple[bytes, str]] = []  # prompts and answers, to be continued
        self.slot_files: dict[str, CacheKey] = {}
        self.prefixes = HostCache()
        self.was_suspect = None  # a sequence that is computed alone because of NaN
        self.num_turns = self.idle = self.sequences_before = 0
        self.copies_before = self.copies_allowed = 0
        self.configure()
        self.alone = Alone(self)
        self.start()

    # configuration

    def configure(self):
        rng = self.rng
        self.memory = rng.choice(list(MEMORIES))
        self.parallel = rng.randint(1, 10)
        self.context = rng.choice([96, 160, 400])
        self.mrope = rng.random() < 0.5
        self.whole = rng.random() < 0.3
        self.with_media = rng.random() < 0.5
        ubatch = rng.choice([16, 64])
        if self.with_media and self.whole:
            ubatch = 64
        lanes = self.parallel + rng.choice([2, 4, 16])
        cells = max(self.context, rng.choice([300, 700, 2500]))
        if self.memory == "split":
            lanes, cells = self.parallel, self.parallel * self.context
        self.backend_settings = MEMORIES[self.memory] | {
            "num_lanes": lanes,
            "num_cells": cells,
            "context": self.context,
            "batch_size": max(ubatch, rng.choice([32, 256]), lanes),
            "ubatch_size": ubatch,
            "idle_cells": rng.choice([0, 100, cells]),
        }
        self.attributes = {
            "max_outputs": max(lanes, rng.choice([16, 64])),
            "together": rng.choice([Together.ANY] * 4 + [Together.ONE_PROMPT, Together.ONE_LANE]),
        }
        self.options = EngineOptions(
            parallel=self.parallel,
            context_shift=rng.random() < 0.5,
            keep=rng.choice([0, 0, 5, -1]),
            deterministic=self.memory == "split" and rng.random() < 0.7,
            spec=rng.choice(["auto", "auto", "ngram", "off"]),
            draft_most=rng.choice([3, 16]),
            swap_bytes=rng.choice([0, 3000, 1 << 20]),
            cache_bytes=rng.choice([0, 8000, 30_000, 200_000]),
            pin_share=rng.choice([0.25, 0.6]),
            checkpoint_bytes=rng.choice([0, 3000, 20_000, 1 << 20]),
            disk_bytes=rng.choice([0, 100_000, 300_000]),
            disk_folder=self.folder / "disk",
            digest="model",
            media_bytes=rng.choice([3000, 1 << 20]),
            queue_limit=500,
            step_target=rng.choice([0.05, 0.2]),
            coalesce=0.0,
            flash_attn=rng.choice(["auto", "off"]),
            threads=2,
        )
        self.draft_model = rng.random() < 0.3

    def make_backend(self):
        projector = FakeProjector(mrope=self.mrope, whole=self.whole) if self.with_media else None
        backend = ScheduleBackend(clock=self.clock, adapters=ADAPTERS, projector=projector, **self.backend_settings)
        for name, value in self.attributes.items():
            setattr(backend, name, value)
        if self.draft_model:
            backend.draft_model = RandomDrafts(self.rng)
        return backend

    def start(self):
        rng = self.rng
        self.backend, self.num_failed = self.make_backend(), 0
        self.pool = PoolByHand()
        self.engine = self.make_engine(self.backend, pool=self.pool)
        self.open_engine()
        # Files wait for their turn, masks are late now and then.
        self.pool.delays = lambda width: rng.random() < (0.7 if width == 1 else 0.02)

    def make_engine(self, backend, *, pool):
        return HandEngine(
            lambda progress: backend, self.options, clock=self.engine_clock, prefixes=self.prefixes, pool=pool
        )

    def open_engine(self):
        self.engine.open()
        self.engine.grammars.prepare()

    @property
    def core(self):
        return self.engine.core

    # the whole of it

    def run(self):
        operations = [
            (30, self.submit), (60, self.turns), (4, self.cancel), (2, self.pass_time), (3, self.preempt),
            (2, self.save_slot), (2, self.restore_slot), (1, self.erase_slot), (1, self.hold), (0.5, self.restart),
            (0.3, self.lose_a_file), (3 if self.faults else 0, self.inject),
        ]  # fmt: skip
        weights, acts = zip(*operations)
        for act in self.rng.choices(acts, weights, k=self.num_operations):
            act()
        self.finish()
        self.rest()
        self.stop()
        assert all(chain.closed for chain in self.backend.chains), "a chain was left open"

    def turns(self):
        for _ in range(self.rng.choice([1, 1, 2, 5, 12])):
            self.turn()

    def turn(self):
        rng, core = self.rng, self.core
        self.clock.now += rng.choice([0.0001, 0.01])
        before = self.backend.counts["decode"]
        self.was_suspect = core._refused.suspect
        if core.encoder is not None and rng.random() < 0.7:
            core.encoder.turn()
        if rng.random() < 0.5:
            self.pool.do(rng.choice([1, None]))
        assert self.engine.host.turn(wait=False), "the engine gave up"
        self.num_turns += 1
        if len(self.backend.failed) > self.num_failed:  # also between turns, on the pool
            self.note_failure()
        check_books(core, self.engine.arrived, self.backend)
        assert self.engine.num_open == sum(stream.open_choices for stream in self.streams())
        self.read()
        # Somebody waits, and nothing is computed for anybody: only for so long.
        held = core.scheduler.holds_until > self.clock.now
        busy = self.backend.counts["decode"] > before or held or not (core.running or core.waiting)
        self.idle = 0 if busy else self.idle + 1
        assert self.idle < IDLE_TURNS, f"nothing is computed for {[*core.running, *core.waiting]}"
        self.check_copies()

    def streams(self):
        return {id(choice.stream): choice.stream for choice in self.open}.values()

    def check_copies(self):
        """States are copied only for a reason, once for each."""
        metrics, counts = self.engine.metrics, self.backend.counts
        reasons = (
            metrics.swaps
            + metrics.evictions
            + metrics.checkpoints
            + metrics.pins
            + metrics.prefixes_written
            + self.copies_allowed
        )
        assert counts["save"] + counts["mark"] <= reasons + 30, "states are copied over and over"

    def finish(self):
        turns = 0
        while self.open:
            self.turn()
            self.clock.now += 0.01
            turns += 1
            assert turns < 30_000, f"no end: {[*self.core.running, *self.core.waiting]}"

    def rest(self):
        """The engine is idle: it must soon stop copying."""
        metrics, counts = self.engine.metrics, self.backend.counts
        before = counts["save"] - metrics.prefixes_written
        for _ in range(60):
            self.clock.now += 1.0
            self.turn()
        self.pool.do()
        self.turn()
        assert counts["save"] - metrics.prefixes_written - before <= self.backend.num_lanes + 8, "an idle engine copies"

    # operations

    def submit(self):
        if len(self.open) > 40:
            return self.turns()
        specs, grammar = self.request()
        constraints = [self.constraint(self.engine, grammar) for _ in specs]
        stream = self.engine.submit(specs, constraints)
        made = [Choice(spec, grammar, stream) for spec in specs]
        self.open += made
        self.choices += made

    def request(self):
        """The choices of one request, and their grammar."""
        rng = self.rng
        tokens, media, boundaries = self.prompt()
        n = rng.choice([1, 1, 1, 1, 2, 3])
        scope = rng.choice(["", "", "a", "b"])
        adapters = rng.choice([(), (), (), ((0, 1.0),), ((0, 0.5), (1, 1.0))])
        scored = rng.random() < 0.08 and not media
        limit = rng.choice([300 if self.options.context_shift else None, 1, 4, 12, 40, 200] + ([0] if scored else []))
        length = len(tokens)
        if length > self.context - (limit != 0):
            return self.request()
        answer = array("i", VOCABULARY.tokenize(rng.choice(["You said: ", "and so on, and so forth", "nothing"])))
        common = dict(
            media=media,
            max_tokens=limit,
            boundaries=boundaries,
            owner=rng.choice("abc"),
            stop=rng.choice([(), (), (), ("said",), ("d: ", "zzz")]),
            logprobs=rng.choice([None, None, None, 0, 2]),
            sampled_probs=rng.random() < 0.1,
            reports_progress=rng.random() < 0.3,
            cache_prompt=rng.random() < 0.9,
            keep=rng.choice([None, None, 0, 7, -1]),
            discard=rng.choice([0, 0, 20]),
            prediction=answer if rng.random() < 0.15 else None,
            prompt_logprobs=scored,
            pins=((rng.randint(1, length), rng.choice([1.0, 300.0])),) if rng.random() < 0.15 else (),
            slot=rng.randrange(self.parallel + 1) if rng.random() < 0.1 else None,
            deadline=self.clock.now + rng.choice([0.05, 1.0]) if rng.random() < 0.04 else None,
            priority=rng.choice([0, 0, 0, 1, -1]),
            deferrable=rng.random() < 0.15,
            cache_key=CacheKey(adapters, scope),
        )
        grammar = rng.choice(GRAMMARS) if rng.random() < 0.2 else None
        specs = [SequenceSpec(tokens, choice=index, params=self.params(grammar, limit), **common) for index in range(n)]
        return specs, grammar

    def constraint(self, engine, grammar):
        if grammar is None:
            return None
        with self.at_once():
            return constraint(HandDriver(engine), grammar)

    def params(self, grammar, limit):
        rng = self.rng
        return SamplingParams(
            temperature=rng.choice([0.0, 0.8, 1.5]),
            top_k=rng.choice([0, 40]),
            seed=rng.getrandbits(31),
            ignore_eos=grammar is None and limit is not None and rng.random() < 0.3,
            min_tokens=rng.choice([0, 0, 9]),
            logit_bias=LogitBias([(ord("a"), 3.0), (ord("Y"), float("-inf"))] if rng.random() < 0.1 else ()),
            dry_multiplier=rng.choice([0.0, 0.0, 0.0, 0.8]),
        )

    def prompt(self):
        """Tokens, media, and where messages begin."""
        rng = self.rng
        if self.with_media and rng.random() < 0.2:
            parts = [f"{rng.choice('ab')}: "]
            for _ in range(rng.choice([1, 1, 2])):
                number = rng.randrange(4)
                size = (100, 70) if number % 2 else (64, 64)
                parts.append(picture(f"no {number}", *size) if rng.random() < 0.8 else sound(f"no {number}", 3))
                parts.append(rng.choice(["", "and "]))
            made = media_prompt(self.engine, *parts, f"look {rng.randrange(30)}")
            return made.tokens, made.media, ()
        if self.sources and rng.random() < 0.35:
            said, answer = rng.choice(self.sources)
            text = said + answer + "<|im_end|>\n" + chat(f"more {rng.randrange(9)}")
        elif rng.random() < 0.15:
            text = rng.choice(RAW)
        else:
            text = rng.choice(SYSTEMS) + chat(rng.choice(["hello ", "tell me of it ", ""]) + f"{rng.getrandbits(24):x}")
        tokens = VOCABULARY.tokenize(text)
        ends = [at + 1 for at, token in enumerate(tokens) if token == IM_END]
        return array("i", tokens), (), tuple(ends) if rng.random() < 0.7 else ()

    def cancel(self):
        if self.open:
            stream = self.rng.choice(self.open).stream
            for choice in self.open:
                choice.cancelled |= choice.stream is stream
            self.engine.cancel(stream)

    def pass_time(self):
        self.clock.now += self.rng.choice([0.5, 3.0, 25.0])

    def preempt(self):
        if self.core.running:
            with self.guarded():
                self.engine.preempt(self.rng.choice(self.core.running))

    def hold(self):
        self.engine.hold_deferrable(self.rng.choice([0.0, 0.2, 2.0]))
        if self.num_turns % 2:  # draws nothing: a seed stays what it is
            for choice in self.open:
                self.engine.hurry(choice.stream, Urgency.URGENT)

    def files(self):
        return SavedSlotFiles(self.folder / "slots", self.backend.state_facts)

    def save_slot(self):
        """As the HTTP side does: ask the engine for the state, write the file."""
        number, name = self.rng.randrange(self.parallel), f"slot-{self.rng.randrange(3)}"
        self.copies_allowed += 1
        with self.guarded():
            state = self.engine.ask_by_hand(lambda core: core.admission.slots.save(number, core.memory))
            self.files().write(name, state)
            self.slot_files[name] = state.cache_key
            self.timelines.append((state.cache_key, state.tokens))

    def restore_slot(self):
        if self.slot_files:
            name = self.rng.choice(list(self.slot_files))
            with self.guarded():
                state, _ = self.files().read(name)
                number = self.rng.randrange(self.parallel)
                self.engine.ask_by_hand(lambda core: core.admission.slots.restore(number, state, core.memory))
                host = self.core.memory.host
                assert host.covers(state.tokens, state.length, state.cache_key), "restored, and not there"

    def erase_slot(self):
        with self.guarded():
            number = self.rng.randrange(self.parallel)
            self.engine.ask_by_hand(lambda core: core.admission.slots.erase(number, core.memory))

    def lose_a_file(self):
        """Another process makes room."""
        files = sorted((self.folder / "disk").glob("*/*.prefix"))
        if files:
            self.rng.choice(files).unlink()

    def inject(self):
        self.backend.fail_in = self.rng.choice([0, 1, 5, 20, 60])
        self.backend.how = self.rng.choice(["raises", "raises", "refuses", "fails", "fatal", "spoils", "spoils"])

    def restart(self):
        """The model is unloaded and loaded again, or the process restarts and only the disk is left."""
        rng = self.rng
        self.stop()
        if rng.random() < 0.5:
            self.prefixes = HostCache()
            self.options = replace(
                self.options,
                checkpoint_bytes=rng.choice([0, 3000, 1 << 20]),
                cache_bytes=rng.choice([0, 8000, 200_000]),
            )
        self.start()

    def stop(self):
        """All open choices get their End."""
        for choice in self.open:
            choice.may_fail = True
        self.backend.fail_in = None
        with self.at_once():
            self.engine.host.close()
        self.read()
        assert not self.open, "a client was not told"
        self.timelines += [(seq.spec.cache_key, seq.tokens) for seq in self.engine.arrived]
        self.copies_allowed = 0
        self.engine.release()

    @contextmanager
    def at_once(self):
        delays, self.pool.delays = self.pool.delays, lambda width: False
        self.pool.do()
        yield
        self.pool.delays = delays

    @contextmanager
    def guarded(self):
        """An operation outside the loop may be refused, or fail as injected."""
        failed = len(self.backend.failed)
        try:
            yield
        except LlamasrvError:
            pass
        except Exception:
            if len(self.backend.failed) == failed:
                raise
            self.note_failure()
            assert self.engine.host.recover()  # as where it is raised within the loop

    # what came out

    def note_failure(self):
        """Any open choice may be affected, but by NaN that may come from another sequence."""
        self.num_failed = len(self.backend.failed)
        in_crowd = self.was_suspect is None and self.backend.failed[-1][1] == "spoils"
        if in_crowd and self.options.flash_attention == "off":
            return
        for choice in self.open:
            choice.may_fail = True

    def read(self):
        for stream in list(self.streams()):
            for item in stream.take():
                choice = next(c for c in self.open if c.stream is stream and c.spec.choice == item.choice)
                assert choice.end is None, "something follows an End"
                choice.items.append(item)
        for choice in [c for c in self.open if c.end is not None]:
            self.open.remove(choice)
            self.judge(choice)
            assert choice.stream.open_choices >= 0

    def judge(self, choice):
        end, items = choice.end, [i for i in choice.items if isinstance(i, (Delta, PromptScored))]
        expected = self.alone.items(choice)
        whole = expected[-1]
        deltas = [i for i in items if isinstance(i, Delta)]
        right = [i for i in expected[:-1] if isinstance(i, Delta)]
        if end.reason is FinishReason.FAILED:
            assert choice.may_fail, f"failed: {end.error!r}"
        elif end.reason is FinishReason.CANCELLED:
            assert choice.cancelled
        elif end.reason is FinishReason.DEADLINE:
            assert choice.spec.deadline is not None and self.clock.now >= choice.spec.deadline
        else:
            assert items == expected[:-1], "not what it is alone"
            figures = (end.reason, end.stop, end.num_prompt, end.num_generated, end.num_forgotten)
            assert figures == (whole.reason, whole.stop, whole.num_prompt, whole.num_generated, whole.num_forgotten)
            if whole.reason is FinishReason.STOP and choice.grammar is None and not choice.spec.media:
                self.sources.append((_text(choice.spec.tokens), _text([delta.token for delta in deltas])))
        if choice.spec.stop:  # what was held back is delivered at the end
            assert deltas[: len(right)] == right[: len(deltas)]
        else:
            assert deltas == right[: len(deltas)], "not the beginning of what it is alone"
        key, tokens = choice.spec.cache_key, choice.spec.tokens
        if end.num_reused:
            others = [timeline for mine, timeline in self.timelines if mine == key]
            others += [s.tokens for s in self.engine.arrived if s.spec.cache_key == key and s.spec is not choice.spec]
            others += [c.spec.tokens for c in self.choices if c is not choice and c.spec.cache_key == key]
            most = max((common_prefix(tokens, other) for other in others), default=0)
            assert end.num_reused <= most and choice.spec.cache_prompt, "reused what was never computed under its key"
        timeline = tokens + array("i", [delta.token for delta in deltas])
        self.timelines.append((key, timeline))


class HandDriver:
    """What `constraint` wants of a driver."""

    def __init__(self, engine):
        self.engine, self.backend = engine, engine.backend


class Alone:
    """An engine that has one sequence at a time, and nothing to reuse: what its answers should be."""

    def __init__(self, episode):
        self._episode = episode
        projector = FakeProjector(mrope=episode.mrope, whole=episode.whole) if episode.with_media else None
        self.backend = ScheduleBackend(
            num_lanes=1,
            num_cells=episode.context,
            context=episode.context,
            batch_size=512,
            ubatch_size=256,
            adapters=ADAPTERS,
            projector=projector,
        )
        self.backend.max_outputs = 512
        options = EngineOptions(
            parallel=1,
            spec="off",
            cache_bytes=0,
            context_shift=episode.options.context_shift,
            keep=episode.options.keep,
            deterministic=episode.options.deterministic,
            threads=1,
        )
        self.engine = HandEngine(
            lambda progress: self.backend, options, clock=self.backend.clock, pool=PoolByHand()
        ).open()
        self.engine.grammars.prepare()

    def items(self, choice):
        spec = choice.spec._replace(
            cache_prompt=False,
            pins=(),
            slot=None,
            deadline=None,
            deferrable=False,
            prediction=None,
            reports_progress=False,
        )
        bound = None if choice.grammar is None else constraint(HandDriver(self.engine), choice.grammar)
        self.engine.arrived.clear()
        stream = self.engine.submit([spec], [bound])
        for _ in range(10_000):
            if not self.engine.num_open:
                return stream.take()
            if self.engine.core.encoder is not None:
                self.engine.core.encoder.turn()
            self.engine.turn()
        raise AssertionError("alone it does not come to an end")


def _text(tokens):
    return "".join(VOCABULARY.specials[t - 256] if t >= 256 else chr(t) if t < 128 else "?" for t in tokens)
