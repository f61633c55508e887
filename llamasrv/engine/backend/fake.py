"""A back end without a model: deterministic, instant, strict.

Tokens are bytes and a few specials. It answers a chat with "You said: ..." and raw text with a fixed phrase. Its logits
depend only on the lane's tokens, so results alone, in a batch, after reuse and after a swap must be exactly equal. It
asserts wherever the real library would abort. Served by `--fake`, and used by most tests.
"""

from __future__ import annotations

import copy
import re
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.sequence_spec import Adapters
from llamasrv.engine.backend.fake_projector import FakeProjector, fake_rows
from llamasrv.engine.base.arrays import Floats, Ids, Int32s, LaneState, Reals, pooled
from llamasrv.engine.base.batch import Batch, MediaRows
from llamasrv.engine.base.interface import (
    ATTENTION,
    Adapter,
    Chain,
    CheckpointKind,
    DraftModel,
    MemoryTraits,
    ModelInfo,
    OutOfCells,
    Progress,
    SpeechBackend,
    Together,
)
from llamasrv.engine.base.media_timeline import MediaTimeline

SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
BOS, IM_START, IM_END, END_OF_TEXT, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = range(256, 256 + len(SPECIALS))
N_VOCAB = 256 + len(SPECIALS)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SPECIAL = re.compile("(" + "|".join(re.escape(s) for s in SPECIALS) + ")")
_PEAK, _NOISE = np.float32(14.0), np.float32(3.0)


class _Pieces(list[bytes]):
    def all(self) -> list[bytes]:
        return self


class FakeVocabulary:
    """Bytes and special tokens, then unused tokens up to `size`."""

    specials = SPECIALS
    controls = {text: 256 + n for n, text in enumerate(SPECIALS)}
    eog = frozenset({IM_END, END_OF_TEXT})
    bos: int | None = BOS
    eos: int | None = IM_END
    sep: int | None = IM_END
    add_bos = False
    add_eos = False
    add_sep = True
    fim_pre: int | None = FIM_PREFIX
    fim_suf: int | None = FIM_SUFFIX
    fim_mid: int | None = FIM_MIDDLE
    fim_rep: int | None = None
    fim_sep: int | None = None
    native: tuple[int, int] | None = None

    def __init__(self, size: int = N_VOCAB) -> None:
        self.size = size
        self.pieces = _Pieces([bytes([b]) for b in range(256)] + [b""] * (size - 256))

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        if not parse_special:
            return list(text.encode("utf-8"))
        tokens: list[int] = []
        for part in _SPECIAL.split(text):
            tokens += [256 + SPECIALS.index(part)] if part in SPECIALS else part.encode("utf-8")
        return tokens

    def is_control(self, token: int) -> bool:
        return token >= 256

    def hold(self) -> bool:
        return True

    def release(self) -> None:
        pass


class FakeChain:
    """Temperature, top_k, top_p and min_p with a seeded generator; ignores the other samplers."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._greedy = params.temperature <= 0
        self._random = np.random.default_rng(params.seed)
        self.closed = self.was_in_graph = False
        self._left: tuple[Ids, Reals] = np.empty(0, np.int64), np.empty(0)

    def choose(self, ids: Ids, logits: Floats) -> int:
        assert len(ids) and np.isfinite(logits).all()
        order = np.lexsort((ids, -logits))
        if self._greedy:
            self._left = ids[order[:1]], logits[order[:1]]
            return int(ids[order[0]])
        p = self._params
        order = order[: p.top_k] if p.top_k > 0 else order
        x = logits[order].astype(np.float64)
        probs = np.exp(x - x[0])
        keep = int(np.searchsorted(np.cumsum(probs / probs.sum()), p.top_p)) + 1
        keep = min(keep, int(np.count_nonzero(probs >= p.min_p)))
        self._left = ids[order[:keep]], x[:keep] / p.temperature
        weights = np.exp((x[:keep] - x[0]) / p.temperature)
        pick = int(np.searchsorted(np.cumsum(weights), self._random.random() * weights.sum()))
        return int(ids[order[min(pick, keep - 1)]])

    def left(self) -> tuple[Ids, Reals]:
        return self._left

    def accept(self, token: int) -> None:
        """Nothing to do: it has no penalties."""

    def clone(self) -> FakeChain:
        other = copy.deepcopy(self)
        other.was_in_graph = False
        return other

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class FakeBackend:
    """Asserts wherever the real library would abort."""

    state_facts: dict[str, object] = {"library": "fake"}
    host_bytes: int | None = None
    max_outputs = 64
    exact_rows = 0
    front_end_load = 0.0

    def __init__(
        self,
        *,
        num_lanes: int = 16,
        num_cells: int = 4096,
        context: int | None = None,
        batch_size: int = 256,
        ubatch_size: int = 64,
        traits: MemoryTraits = ATTENTION,
        max_rollback: int | None = None,
        idle_cells: int | None = None,
        pooling: str | None = None,
        adapters: tuple[Adapter, ...] = (),
        projector: FakeProjector | None = None,
        speech: SpeechBackend | None = None,
        num_tokens: int = N_VOCAB,
    ) -> None:
        """With `pooling` it also makes embeddings; with a `projector` it takes images and sounds; with `speech` it does
        nothing but speak. `num_tokens`: size of its vocabulary."""
        self.info = ModelInfo(
            name="fake",
            description="fake model: echoes",
            architecture="fake",
            n_vocab=num_tokens,
            context_train=context or num_cells,
            chat_template=CHATML,
            bos_token=SPECIALS[0],
            eos_token=SPECIALS[2],
        )
        self.vocab = FakeVocabulary(num_tokens)
        self.num_lanes, self.num_cells = num_lanes, num_cells
        self.context = context or num_cells
        self.batch = Batch(batch_size, dimensions=4 if projector is not None and projector.mrope else 1)
        self.ubatch_size = ubatch_size
        self.traits = traits
        self.together = Together.ANY
        self.max_rollback = (num_cells if traits.can_cut else 0) if max_rollback is None else max_rollback
        self.idle_cells = num_cells if idle_cells is None else idle_cells
        self.embeddings = None if pooling is None else FakeEmbeddings(pooling, context=self.context)
        self.speech, self.generates = speech, speech is None
        self.draft_model: DraftModel | None = None
        self.adapters = adapters
        self.projector = projector
        self.closed = False
        self._kv: list[list[int]] = []
        self._cells: list[list[object]] = []  # one object per cell; lanes share objects
        self._places: list[list[int]] = []  # the position of each cell
        self._used: Adapters = ()
        self._marks: list[int] = []  # by lane: hash of the adapters it was computed with
        self._logits = np.empty((0, num_tokens), np.float32)
        self._noise = np.random.default_rng(7).random((1024, num_tokens), np.float32) * _NOISE
        self.reset()

    def reset(self) -> None:
        self._kv = [[] for _ in range(self.num_lanes)]
        self._cells = [[] for _ in range(self.num_lanes)]
        self._places = [[] for _ in range(self.num_lanes)]
        self._used, self._marks = (), [0] * self.num_lanes
        self.lane_chains: dict[int, Chain] = {}  # by lane
        self._sampled: dict[int, int] = {}  # by row of logits of the last batch
        self._behind: set[int] = set()  # lanes that need `rewind` before they are used
        self._fresh: dict[int, int] = {}  # by lane: tokens of its last decode that can be taken back

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True
        if self.speech is not None:
            self.speech.close()

    @property
    def used_cells(self) -> int:
        return len(set().union(*self._cells))

    def add_adapter(self, adapter: Adapter) -> None:
        self.adapters += (adapter,)

    def use(self, adapters: Adapters) -> None:
        assert all(0 <= number < len(self.adapters) and scale for number, scale in adapters)
        self._used = adapters

    def decode(self) -> None:
        batch = self.batch
        n = batch.num_rows
        assert 0 < n <= batch.capacity and batch.num_outputs <= self.max_outputs
        if sum(map(len, self._cells)) + n > self.num_cells and self.used_cells + n > self.num_cells:
            raise OutOfCells
        rows = []
        self._note_fresh(batch.lane[:n].tolist())
        mark = zlib.crc32(repr(self._used).encode()) >> 1
        if batch.media is None:
            tokens, positions = batch.token[:n].tolist(), batch.position[:n].tolist()
        else:
            tokens, positions = self._rows_as_tokens(batch.media, n)
        for token, position, lane, wanted in zip(
            tokens,
            positions,
            batch.lane[:n].tolist(),
            batch.wants_logits[:n].tolist(),
        ):
            assert (token < 0) is (batch.media is not None) and token < self.vocab.size and 0 <= lane < self.num_lanes
            self._check_place(lane, token, position)
            assert position < self.context, "past the context"
            assert lane not in self._behind, "a state of another position"
            assert not position or self._marks[lane] == mark, "one timeline, two sets of adapters"
            self._marks[lane] = mark
            self._kv[lane].append(token)
            self._cells[lane].append(object())
            self._places[lane].append(position)
            if wanted:
                rows.append(self._row(self._kv[lane]))
        self._logits = np.stack(rows) if rows else np.empty((0, self.vocab.size), np.float32)
        if self.lane_chains:
            self._sample(batch.lane[:n][batch.wants_logits[:n] != 0].tolist())

    def logits(self, num_rows: int) -> Floats:
        assert num_rows == len(self._logits)
        return self._logits

    def _row(self, tokens: list[int]) -> Floats:
        row: Floats = self._noise[zlib.crc32(array("i", tokens).tobytes()) % len(self._noise)]
        row = row.copy()
        script, said = script_after(tokens, "".join(f", {self.adapters[n].name} {scale:g}" for n, scale in self._used))
        if said < len(script):
            row[script[said]] += _PEAK
        else:
            row[IM_END] += _PEAK
            row[script[said % len(script)]] += _PEAK - 8  # the next best, if ending is banned
        return row

    def sample_lane(self, lane: int, chain: Chain | None) -> bool:
        self.lane_chains.pop(lane, None)
        if chain is not None:
            assert isinstance(chain, FakeChain) and not chain.was_in_graph, "the library aborts"
            chain.was_in_graph = True
            self.lane_chains[lane] = chain
        return True

    def sampled(self, row: int) -> int | None:
        return self._sampled[row]

    def _sample(self, lanes: list[int]) -> None:
        """Sample for lanes with a chain; overwrites their logits with NaN."""
        self._sampled = {}
        for number, (lane, row) in enumerate(zip(lanes, self._logits)):
            chain = self.lane_chains.get(lane)
            if chain is not None:
                self._sampled[number] = chain.choose(np.arange(self.vocab.size), row.copy())
                row[:] = np.nan

    def length(self, lane: int) -> int:
        places = self._places[lane]
        return places[-1] + 1 if places else 0

    def usable(self, lane: int, position: int) -> bool:
        length = self._length(lane, position)
        return length is not None and (self.traits.can_cut or length == len(self._kv[lane]))

    def copy(self, source: int, target: int, position: int) -> None:
        length = self._length(source, position)
        assert self.traits.can_share and not self._kv[target] and length is not None
        self._behind.discard(target)
        if not self.traits.can_cut and length < len(self._kv[source]):
            assert self.traits.checkpoints is CheckpointKind.PARTIAL
            self._behind.add(target)  # its state belongs to a later position
        self._kv[target], self._marks[target] = self._kv[source][:length], self._marks[source]
        self._cells[target], self._places[target] = self._cells[source][:length], self._places[source][:length]

    def cut(self, lane: int, position: int) -> bool:
        if not self.traits.can_cut:
            return False
        self._drop(lane, bisect_left(self._places[lane], position))
        return True

    def roll_back(self, lane: int, position: int) -> None:
        length = bisect_left(self._places[lane], position)
        assert 0 < len(self._kv[lane]) - length <= self._fresh.pop(lane), "more than can be taken back"
        self._drop(lane, length)

    def _note_fresh(self, lanes: list[int]) -> None:
        self._fresh.update((lane, min(lanes.count(lane) - 1, self.max_rollback)) for lane in set(lanes))

    def _drop(self, lane: int, length: int) -> None:
        del self._kv[lane][length:], self._cells[lane][length:], self._places[lane][length:]

    def _length(self, lane: int, position: int) -> int | None:
        """Cells before a position; None if the lane does not reach it."""
        places = self._places[lane]
        length = bisect_left(places, position)
        if length < len(places) or not places:
            return length if not position or places else None
        return length if self._kv[lane][-1] < 0 or position == places[-1] + 1 else None

    def _rows_as_tokens(self, media: MediaRows, n: int) -> tuple[list[int], list[int]]:
        """A negative number for each row, by its content, and its position."""
        projector = self.projector
        assert projector is not None and media.embeddings.shape == (n, projector.width)
        assert media.embeddings.dtype == np.float32 and np.isfinite(media.embeddings).all()
        assert media.positions.shape == (self.batch.dimensions, n) and (not media.whole or n <= self.ubatch_size)
        return [-1 - (zlib.crc32(row.tobytes()) >> 1) for row in media.embeddings], media.positions[0].tolist()

    def _check_place(self, lane: int, token: int, position: int) -> None:
        """Positions are consecutive; those within an M-RoPE image stay the same, and the position after it skips
        some."""
        places = self._places[lane]
        last = places[-1] if places else -1
        mrope = self.batch.dimensions > 1 and bool(places)
        assert position == last + 1 or (
            mrope and self._kv[lane][-1] < 0 and (position > last or token < 0 and position == last)
        ), f"position {position} behind {last}"

    def mark(self, lane: int) -> LaneState:
        assert lane not in self._behind
        raw = array("i", self._kv[lane]).tobytes()
        return np.array([len(self._kv[lane]), zlib.crc32(raw), zlib.adler32(raw)], np.int64)

    def mark_size(self, lane: int) -> int:
        return 24

    def rewind(self, lane: int, position: int, mark: LaneState) -> bool:
        self._drop(lane, bisect_left(self._places[lane], position))
        self._behind.discard(lane)
        assert mark.tolist() == self.mark(lane).tolist(), "a checkpoint of another timeline"
        return True

    def clear(self, lane: int) -> None:
        assert 0 <= lane < self.num_lanes
        self._behind.discard(lane)
        self._kv[lane], self._cells[lane], self._places[lane] = [], [], []

    def save(self, lane: int) -> LaneState:
        assert lane not in self._behind
        return np.array([*self._kv[lane], *self._places[lane], self._marks[lane]], np.int32)

    def saved_size(self, lane: int) -> int:
        return 4 * (2 * len(self._kv[lane]) + 1)

    def restore(self, lane: int, saved: LaneState) -> bool:
        length = len(saved) // 2
        if self.used_cells + length > self.num_cells:
            return False
        self._kv[lane], self._places[lane] = saved[:length].tolist(), saved[length:-1].tolist()
        self._marks[lane] = int(saved[-1])
        self._cells[lane] = [object() for _ in self._kv[lane]]
        return True

    def chain(self, params: SamplingParams) -> FakeChain:
        return FakeChain(params)


class FakeEmbeddings:
    """Counts bytes, so that texts with the same letters have similar vectors. Ranks by shared letters."""

    def __init__(self, pooling: str, *, context: int = 512, group_tokens: int = 1024, group_inputs: int = 32) -> None:
        self.pooling = pooling
        self.size = 1 if pooling == "rank" else 32
        self.labels = ("match",) if pooling == "rank" else ()
        self.context, self.group_tokens, self.group_inputs = context, max(context, group_tokens), group_inputs
        self.most_rows = 0 if pooling == "rank" else self.group_tokens
        self.closed = False

    def embed(self, inputs: Sequence[array[int]]) -> list[Floats]:
        lengths = [len(tokens) for tokens in inputs]
        assert 0 < len(lengths) <= self.group_inputs and sum(lengths) <= self.group_tokens
        assert max(lengths) <= self.context
        return [self._one(np.frombuffer(tokens, np.int32)) for tokens in inputs]

    def embed_media(self, tokens: array[int], media: MediaTimeline) -> Floats:
        for number, span in enumerate(media.spans):
            assert (media.rows[number] == fake_rows(span.chunk)).all(), "the rows of another image"
        return self._one(np.frombuffer(tokens, np.int32))

    def _one(self, tokens: Int32s) -> Floats:
        if self.pooling == "rank":
            parts = np.split(tokens, np.flatnonzero(tokens == IM_END)[:1])
            query, document = parts[0], parts[-1]  # equal if there is only one text
            return np.array([len(np.intersect1d(query, document)) - 4], np.float32)
        rows = np.eye(32, dtype=np.float32)[tokens % 32] + np.float32(0.01)
        return pooled(rows, self.pooling)

    def reset(self) -> None:
        """Nothing to do: it has no state."""

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


def script_after(tokens: list[int], adapters: str = "") -> tuple[list[int], int]:
    """The answer to these tokens, and how much of it they contain already."""
    try:
        turn = len(tokens) - 1 - tokens[::-1].index(IM_START)
    except ValueError:
        turn = -1
    if turn >= 0:
        start = turn + 1 + len(b"assistant\n")
        said = max(0, len(tokens) - start)
        user = [IM_START, *b"user\n"]
        text: list[int] = []
        for at in range(turn - 1, -1, -1):
            if tokens[at : at + len(user)] == user:
                rest = tokens[at + len(user) : turn]
                text = [token for token in (rest[: rest.index(IM_END)] if IM_END in rest else rest) if token >= 0]
                break
        return [*f"You said{adapters}: ".encode(), *text], said
    return list(b" and so on, and so forth"), 0 if not tokens else _raw_said(tokens)


def _raw_said(tokens: list[int]) -> int:
    """Raw text has no mark where the answer starts: count how much of the script it ends with."""
    script = b" and so on, and so forth"
    tail = bytes(t if 0 <= t < 256 else 0 for t in tokens[-len(script) :])
    return next((n for n in range(min(len(script), len(tail)), 0, -1) if tail.endswith(script[:n])), 0)


def open_fake_backend(
    progress: Progress,
    *,
    num_lanes: int = 64,
    num_cells: int = 65536,
    pooling: str | None = None,
    adapters: tuple[Adapter, ...] = (),
    projector: FakeProjector | None = None,
) -> FakeBackend:
    """The back end that `--fake` serves."""
    progress(1.0)
    return FakeBackend(
        num_lanes=num_lanes,
        num_cells=num_cells,
        context=8192,
        batch_size=2048,
        ubatch_size=512,
        pooling=pooling,
        adapters=adapters,
        projector=projector,
    )
