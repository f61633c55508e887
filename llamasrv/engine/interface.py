"""What the engine needs from a back end, and what a back end may raise. `backend/context.py` and `fake.py` implement
it.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from llamasrv.domain.media import Measured, MediaChunk, MediaInput
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.options import Adapter as Adapter
from llamasrv.engine.use import FailedAllocation

if TYPE_CHECKING:  # the process that only checks models does without them
    import numpy as np

    from llamasrv.engine.batch import Batch
    from llamasrv.engine.media.timeline import MediaTimeline

Progress = Callable[[float], bool]
"""Told the loaded share (0 to 1) now and then; False from it gives up loading."""


class BackendError(Exception):
    """Base of what a decode may raise."""


class OutOfCells(BackendError):
    """No cells for this batch. Nothing changed: make room and try again."""


class DecodeFailed(BackendError):
    """The batch failed. The contents of its lanes are unknown: wipe them. `fatal`: the context is unusable."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class LoadFailed(Exception):
    """The model cannot be served; the message names the file and the reason, in one line."""


class NoMemory(LoadFailed):
    """Not enough memory; with less on a device, or a smaller context, there may be enough. `refused`: the allocation
    that failed, if the library told."""

    def __init__(self, message: str, refused: FailedAllocation | None = None) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The metadata of a model file."""

    name: str
    path: str = ""
    description: str = ""
    architecture: str = ""
    num_params: int = 0
    size_bytes: int = 0
    context_train: int = 0
    n_embd: int = 0
    n_layer: int = 0
    n_vocab: int = 0
    vocab_type: int = 0
    file_type: str = ""
    chat_template: str | None = None
    templates: dict[str, str] = field(default_factory=dict)  # named ones: "tool_use", "rerank"
    bos_token: str = ""
    eos_token: str = ""
    sampling_defaults: dict[str, object] = field(default_factory=dict)  # the author's, names of SamplingParams
    metadata: dict[str, str] = field(default_factory=dict)


class Pieces(Protocol):
    """What tokens write, by their ids."""

    def __getitem__(self, token: int, /) -> bytes: ...

    def all(self) -> list[bytes]:
        """In the order of the tokens."""
        ...


class Vocabulary(Protocol):
    """Text to tokens and back. Safe from any thread: it touches no context."""

    size: int
    pieces: Pieces  # what each token writes; b"" for control tokens
    specials: tuple[str, ...]  # how control tokens are written in a text
    controls: Mapping[str, int]  # the same, with their ids
    eog: frozenset[int]  # tokens that end a generation
    bos: int | None
    eos: int | None
    sep: int | None
    add_bos: bool
    add_eos: bool
    add_sep: bool
    fim_pre: int | None
    fim_suf: int | None
    fim_mid: int | None
    fim_rep: int | None
    fim_sep: int | None
    native: tuple[int, int] | None  # addresses of llama.cpp's vocabulary and of llama_tokenize, where there are any

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]: ...

    def is_control(self, token: int) -> bool: ...

    def hold(self) -> bool:
        """Keep the model that it belongs to from being freed until `release`. False if it already is. For jobs that
        may outlive the engine."""

    def release(self) -> None: ...


class Chain(Protocol):
    """A native sampler chain of one sequence: chooses among candidates, remembers what it accepted."""

    def choose(self, ids: np.ndarray, logits: np.ndarray) -> int:
        """One of `ids` (int64), given their logits (float32, finite); at least one."""

    def left(self) -> tuple[np.ndarray, np.ndarray]:
        """The candidates of the last `choose`, as the samplers left them: ids and logits."""

    def accept(self, token: int) -> None: ...

    def clone(self) -> Chain:
        """A copy in the same state."""

    def close(self) -> None: ...


class EmbeddingBackend(Protocol):
    """A model's context for turning inputs into vectors. All but the figures belongs to the embedder's thread."""

    size: int  # numbers of a vector; scores where it ranks
    pooling: str  # none, mean, cls, last or rank
    labels: tuple[str, ...]  # of its classes, one for each number, where it ranks
    context: int  # most tokens of one input
    group_tokens: int  # most tokens that are computed together; at least `context`
    group_inputs: int  # most inputs that are computed together
    most_rows: int  # of an image or a sound that is seen as a whole, in one input; 0: it takes texts alone

    def embed(self, inputs: Sequence[array[int]]) -> list[np.ndarray]:
        """A vector (float32) for each; without pooling one for each token. Raises DecodeFailed."""

    def embed_media(self, tokens: array[int], media: MediaTimeline) -> np.ndarray:
        """The same for an input with images or sounds whose rows are available."""

    def reset(self) -> None:
        """A fresh context, as after loading."""

    def close(self) -> None: ...


class CheckpointKind(Enum):
    """What it takes to bring back a lane that cannot be cut anywhere."""

    NONE = "none"  # it can be cut anywhere
    PARTIAL = "partial"  # the state at that position, and a lane or a saved state that has at least as much
    WHOLE = "whole"  # a saved state of exactly that length


class Together(Enum):
    """What the library can compute in one batch without mixing it up."""

    ANY = "any"
    ONE_PROMPT = "one prompt"  # several tokens of one lane at most, beside single ones of others
    ONE_LANE = "one lane"


class MediaWork(NamedTuple):
    """What to encode of an input."""

    media: MediaInput
    chunks: Sequence[MediaChunk]


class Projector(Protocol):
    """Turns images and sounds into rows of embeddings. `encode` and what has to do with inputs together are the encoder
    thread's, the rest is anybody's."""

    vision: bool
    audio: bool
    sample_rate: int | None  # samples a second of its sounds; None where it does not hear
    width: int  # numbers of a row

    @property
    def most_together(self) -> int:
        """Chunks like the last one that it would now encode in one call; 1 where each is a call of its own. Any
        thread may ask."""

    def measure(self, media: MediaInput) -> Measured:
        """What an input takes in a timeline; exact, though nothing is encoded. Slow for sounds: about 5 ms per second.
        Raises InvalidRequest if the projector cannot take it."""

    def encode(self, media: MediaInput, chunks: Sequence[MediaChunk], stop: Callable[[], bool]) -> list[np.ndarray]:
        """Rows (float32 [num_tokens, width], finite) of these chunks of the input. Ends early, with fewer rows, once
        `stop` returns true. Raises LlamasrvError."""

    def fit_together(self, work: Sequence[MediaWork]) -> bool:
        """Whether it encodes the chunks of all these inputs in one call."""

    def encode_together(self, work: Sequence[MediaWork], stop: Callable[[], bool]) -> list[list[np.ndarray]]:
        """`encode` for inputs that fit together: the rows of each. Raises LlamasrvError if one of them has none; each
        alone tells which."""

    def close(self) -> None: ...


class Timeline(NamedTuple):
    """A sequence as a draft model sees it."""

    lane: int
    tokens: array[int]


class Proposal(NamedTuple):
    """What a draft model would write, and how far ahead of the next best each token was, in logits."""

    tokens: list[int]
    gaps: list[float]


class DraftModel(Protocol):
    """A model that drafts for another one, on lanes of the same numbers. Belongs to the engine thread."""

    source: str  # what its drafts are counted as

    def follow(self, is_on: bool) -> None:
        """Whether it has to be ready for drafts. While it does not, that costs nothing."""

    def lag(self, timeline: Timeline) -> int | None:
        """How many tokens it must compute before it can draft, at least 1; None if it cannot."""

    def advance(self, timeline: Timeline, most: int) -> bool:
        """Compute at most `most` of the missing tokens. Returns whether it now lags by one token only."""

    def propose(self, timelines: Sequence[Timeline], most: int) -> list[Proposal]:
        """At most `most` tokens for each timeline; fewer or none if there is no room. The timelines should lag
        little."""

    def close(self) -> None: ...


class Backend(Protocol):
    """One model and its context. Everything but `info`, `vocab` and `projector` belongs to the engine thread."""

    info: ModelInfo
    vocab: Vocabulary
    generates: bool  # False: it only makes embeddings, and nothing of the lanes below is used
    embeddings: EmbeddingBackend | None  # where it makes embeddings
    projector: Projector | None  # where it takes images or sounds
    draft_model: DraftModel | None  # where one drafts for it
    adapters: tuple[Adapter, ...]  # LoRA adapters that `use` may name, by their place in here
    num_lanes: int
    num_cells: int
    context: int  # most tokens of one sequence
    batch: Batch  # rows to decode; `decode` reads them from here
    ubatch_size: int
    row_multiple: int  # batches of a multiple of so many rows are computed best
    cell_share: float  # what another sequence's cell adds to a row's work, as a part of all of it; see prompt_turns.py
    max_outputs: int  # most rows with logits in one batch
    can_share: bool  # a prefix of one lane can be given to another
    can_cut: bool  # a lane can be cut back to any length
    max_rollback: int  # last tokens of a lane's last decode that can be taken back, if that had more
    can_shift: bool  # tokens can be taken out of the middle of a lane
    together: Together  # what one batch may have
    checkpoints: CheckpointKind  # where it cannot
    can_cut_saved: bool  # a restored lane can be cut back to any length
    split: bool  # every lane has cells of its own
    state_facts: dict[str, object]  # what a saved state depends on beside the model: library, number formats
    front_end_load: float  # the share of the next step for which the HTTP side will want a core; may be more than 1
    host_bytes: int | None  # of this machine that it takes; None where nobody tells
    idle_cells: int  # cells that idle prefixes may keep before they slow decodes down noticeably

    def add_adapter(self, adapter: Adapter) -> None:
        """Load one more adapter; it becomes the last of `adapters`. Raises LoadFailed."""

    def use(self, adapters: tuple[tuple[int, float], ...]) -> None:
        """Compute with these adapters and scales from now on. Raises DecodeFailed."""

    def decode(self) -> None:
        """Compute the batch. Raises OutOfCells, DecodeFailed."""

    def logits(self, num_rows: int) -> np.ndarray:
        """Logits of the rows that asked for them, in batch order: float32 [num_rows, n_vocab], writable."""

    def sample_lane(self, lane: int, chain: Chain | None) -> bool:
        """From the next decode on, choose from a lane's rows with a chain where they are computed; None: stop doing
        so. The lane may then have at most one row with logits in a batch. False if this is not possible: then nothing
        has changed."""

    def sampled(self, row: int) -> int | None:
        """The token chosen from this row of logits of the batch, for a lane that has a chain; its logits are unknown.
        None if there was nothing to choose from."""

    def length(self, lane: int) -> int:
        """The position behind the last token of a lane; 0 if it is empty."""

    def usable(self, lane: int, position: int) -> bool:
        """Whether this lane can be cut back to this position, or ends there. After an M-RoPE image a position is less
        than the number of tokens before it; otherwise they are equal."""

    def copy(self, source: int, target: int, position: int) -> None:
        """Give the empty `target` what is before this position. If the source is not usable up to there, the target
        must be brought back with `rewind` before anything else."""

    def cut(self, lane: int, position: int) -> bool: ...

    def roll_back(self, lane: int, position: int) -> None:
        """Take back the tokens of the lane's last decode from this position on: at most `max_rollback`, and not all of
        them. Once for each decode."""

    def shift(self, lane: int, start: int, count: int) -> None:
        """Forget `count` tokens from `start` on; those after them move up. The lane must not be saved before the next
        decode."""

    def clear(self, lane: int) -> None: ...

    def mark(self, lane: int) -> np.ndarray:
        """The current state of a lane that cannot be cut: a checkpoint."""

    def mark_size(self, lane: int) -> int:
        """Bytes that `mark` would return."""

    def rewind(self, lane: int, position: int, mark: np.ndarray) -> bool:
        """Bring a lane that has gone on past this position back to it, with what `mark` returned there. False if that
        failed: the lane's contents are then unknown."""

    def save(self, lane: int) -> np.ndarray: ...

    def saved_size(self, lane: int) -> int:
        """Bytes that `save` would return."""

    def restore(self, lane: int, saved: np.ndarray) -> bool: ...

    def chain(self, params: SamplingParams, *, greedy: bool) -> Chain: ...

    def reset(self) -> None:
        """A fresh context, as after loading."""

    def close(self) -> None: ...


_SAMPLING_KEYS = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "penalty_last_n": ("repeat_last_n", int),
    "penalty_repeat": ("repeat_penalty", float),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}
"""What a model's author recommends: `general.sampling.*` in the GGUF."""


def sampling_defaults(metadata: Mapping[str, str]) -> dict[str, object]:
    """The author's recommendations, under the names of SamplingParams; values that are not numbers are left out."""
    found = {}
    for key, (name, kind) in _SAMPLING_KEYS.items():
        with contextlib.suppress(KeyError, ValueError, TypeError):
            found[name] = kind(float(metadata[f"general.sampling.{key}"]))
    return found
