"""The engine's interface to a model and its context, and the errors it may raise.

`backend/context.py` and `fake.py` implement it.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from llamasrv.domain.media import Measured, MediaChunk, MediaInput
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.speech import UtteranceSpec
from llamasrv.engine.base.options import Adapter as Adapter
from llamasrv.engine.base.use import FailedAllocation

if TYPE_CHECKING:  # the process that checks model files does not import numpy
    from llamasrv.engine.base.arrays import Floats, Ids, LaneState, Reals
    from llamasrv.engine.base.batch import Batch
    from llamasrv.engine.base.media_timeline import MediaTimeline
    from llamasrv.engine.base.sound_track import SoundPiece

Progress = Callable[[float], bool]
"""Called with the loaded share (0 to 1) now and then; returning False aborts loading."""


class BackendError(Exception):
    """Base of the errors of a decode."""


class OutOfCells(BackendError):
    """No cells for this batch. Nothing has changed: free cells and try again."""


class DecodeFailed(BackendError):
    """The batch failed. The contents of its lanes are unknown: wipe them. `fatal`: the context is unusable."""

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class LoadFailed(Exception):
    """The model cannot be served; the message names the file and the reason, in one line."""


class NoMemory(LoadFailed):
    """Not enough memory: a smaller context or fewer layers on a device may fit. `refused`: the allocation that failed,
    if the library reported it."""

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
    """The bytes of each token, by its id."""

    def __getitem__(self, token: int, /) -> bytes: ...

    def all(self) -> list[bytes]:
        """In order of token ids."""
        ...


class Vocabulary(Protocol):
    """Text to tokens and back. Thread-safe: it touches no context."""

    size: int
    pieces: Pieces  # the bytes of each token; b"" for control tokens
    specials: tuple[str, ...]  # texts of the control tokens
    controls: Mapping[str, int]  # their ids by text
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
    native: tuple[int, int] | None  # addresses of llama.cpp's vocabulary and of llama_tokenize; None on the fake

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]: ...

    def is_control(self, token: int) -> bool: ...

    def hold(self) -> bool:
        """Keep the model loaded until `release`, for jobs that may outlive the engine. False if it is freed already."""

    def release(self) -> None: ...


class Chain(Protocol):
    """The native sampler chain of one sequence: chooses among candidates, remembers accepted tokens."""

    def choose(self, ids: Ids, logits: Floats) -> int:
        """One of `ids` (int64, at least one), by their logits (float32, finite)."""

    def left(self) -> tuple[Ids, Reals]:
        """Ids and logits of the candidates that remained after the last `choose`."""

    def accept(self, token: int) -> None: ...

    def clone(self) -> Chain:
        """A copy in the same state."""

    def close(self) -> None: ...


class EmbeddingBackend(Protocol):
    """A model's context for turning inputs into vectors. Its methods belong to the embedder's thread."""

    size: int  # length of a vector; with pooling "rank" the number of scores
    pooling: str  # none, mean, cls, last or rank
    labels: tuple[str, ...]  # with pooling "rank", the class of each score
    context: int  # max tokens of one input
    group_tokens: int  # max tokens computed together; at least `context`
    group_inputs: int  # max inputs computed together
    most_rows: int  # max rows of an image that must be computed in one call; 0: it takes text only

    def embed(self, inputs: Sequence[array[int]]) -> list[Floats]:
        """One float32 [size] per input; with pooling "none" float32 [tokens, size]. Raises DecodeFailed."""

    def embed_media(self, tokens: array[int], media: MediaTimeline) -> Floats:
        """The same for one input with images or sounds; `media` must hold all their rows."""

    def reset(self) -> None:
        """A fresh context, as after loading."""

    def close(self) -> None: ...


class Utterance(Protocol):
    """A text being spoken. `pending` rows are to be computed at `position`; `mark_computed` counts them, and after the
    last of them comes `advance`."""

    pending: Floats  # float32 [rows, width]
    position: int
    kept: int  # rows that stay in the lane when it starts anew
    num_prompt: int  # rows so far
    num_frames: int
    is_done: bool
    is_cut: bool  # it was ended by a limit

    def mark_computed(self, num_rows: int) -> None:
        """The first `num_rows` of `pending` are in the lane."""

    def advance(self, place: int) -> bool:
        """Take the frame that the row at `place` gives. True: the lane starts anew at `kept`. Raises DecodeFailed."""

    def release_lane(self) -> None:
        """All rows of its lane are to be computed again."""

    def take_pieces(self) -> Sequence[SoundPiece]:
        """What has become ready to be sound, in order."""


class SoundBackend(Protocol):
    """The vocoder of a speech model. Belongs to one thread."""

    def sound(self, numbers: Any, state: Any) -> tuple[Floats, Any]:
        """Float32 samples of frames, and the state for those that follow. `state` None: silence before. Raises
        DecodeFailed."""


class SpeechBackend(Protocol):
    """The context of a speech model. Its methods belong to the speaker's thread, but `utterance` and `encode_voice` to
    any, and those of `vocoder` to a thread of its own if there is one."""

    kind: str  # architecture
    width: int
    num_lanes: int
    max_rows: int  # max rows of a call
    needs_voice: bool  # whether it says nothing without a clip
    is_deterministic: bool  # one utterance a call: what is heard does not depend on who else speaks
    vocoder: SoundBackend
    has_own_vocoder: bool  # usable on a thread of its own, beside all other calls
    languages: tuple[str, ...]  # languages that a request may name
    speakers: tuple[str, ...]  # its own voices

    def utterance(self, spec: UtteranceSpec) -> Utterance:
        """Raises InvalidRequest."""

    def encode_voice(self, samples: Floats) -> Floats:
        """The rows of a voice, float32 [rows, width], from mono sound at SAMPLE_RATE. Slow. Raises InvalidRequest."""

    def decode(self, parts: Sequence[tuple[int, int, Floats]]) -> list[int]:
        """Compute (lane, first position, rows) of several utterances together. Returns the place of each part's last
        row. Raises DecodeFailed."""

    def release(self, lane: int, start: int = 0) -> None:
        """Drop the lane's rows from `start` on."""

    def reset(self) -> None:
        """A fresh context, as after loading."""

    def close(self) -> None: ...


class ComputeCost(Protocol):
    """What the cost model tells of prompts."""

    def prompt_seconds(self, num_prompt: float) -> float:
        """Marginal cost of computing that many tokens; negative for a negative number."""


class CopyCost(Protocol):
    """What was learnt of copies of states."""

    def copy_seconds(self, size: float) -> float:
        """Seconds to copy `size` bytes out and back."""


class CheckpointKind(Enum):
    """What is needed to bring a lane back to an earlier position."""

    NONE = "none"  # nothing: lanes can be cut anywhere
    PARTIAL = "partial"  # the state at that position, and a lane or a saved state at least that long
    WHOLE = "whole"  # a saved state of exactly that length


class MemoryTraits(NamedTuple):
    """What a context's memory can do. The presets below are what models have, in unified KV."""

    can_share: bool = True  # lanes can share a prefix
    can_cut: bool = True  # a lane can be cut back to any length
    can_cut_saved: bool = True  # a restored lane can be cut back to any length
    checkpoints: CheckpointKind = CheckpointKind.NONE  # what bringing a lane back takes where it cannot be cut
    split: bool = False  # every lane has its own cells


ATTENTION = MemoryTraits()
WINDOW = HYBRID = MemoryTraits(can_cut=False, can_cut_saved=False, checkpoints=CheckpointKind.PARTIAL)
RECURRENT = MemoryTraits(can_share=False, can_cut=False, can_cut_saved=False, checkpoints=CheckpointKind.WHOLE)


class Together(Enum):
    """Which sequences the library computes correctly in one batch."""

    ANY = "any"
    ONE_PROMPT = "one prompt"  # at most one lane with several tokens, beside single tokens of others
    ONE_LANE = "one lane"


class Projector(Protocol):
    """Turns images and sounds into rows of embeddings. `encode` belongs to the encoder's thread; any thread may use the
    rest."""

    vision: bool
    audio: bool
    sample_rate: int | None  # samples a second; None without audio
    width: int  # length of a row

    def measure(self, media: MediaInput) -> Measured:
        """The exact size of an input in a timeline, without encoding it. Slow for sounds: about 5 ms per second of
        audio. Raises InvalidRequest if the projector cannot take the input."""

    def encode(self, media: MediaInput, chunks: Sequence[MediaChunk], stop: Callable[[], bool]) -> list[Floats]:
        """Rows (float32 [num_tokens, width], finite) of these chunks of the input. Returns early, with fewer rows, when
        `stop` returns true. Raises LlamasrvError."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known once the model is loaded."""

    info: ModelInfo
    vocab: Vocabulary
    generates: bool
    context: int  # max tokens of one sequence, prompt and answer
    num_lanes: int
    num_adapters: int
    state_facts: Mapping[str, object]  # beside the model, what a saved state is valid for: library, number formats
    projector: Projector | None = None  # None: it takes no images and sounds
    ubatch_size: int = 0  # max rows of a media chunk that must be computed in one step
    takes_checkpoints: bool = False  # whether it uses `SequenceSpec.boundaries`
    host_bytes: int | None = None  # host memory in use; None if the library does not report it


class Timeline(NamedTuple):
    """A sequence as a draft model sees it."""

    lane: int
    tokens: array[int]


class Proposal(NamedTuple):
    """A draft model's tokens, and the gap of each to the next best token, in logits."""

    tokens: list[int]
    gaps: list[float]


class DraftModel(Protocol):
    """A model that drafts for another one, on lanes with the same numbers. Belongs to the engine thread."""

    source: str  # label of its drafts in metrics

    def follow(self, is_on: bool) -> None:
        """Whether to keep up with the target. Off, it costs nothing and cannot draft."""

    def lag(self, timeline: Timeline) -> int | None:
        """How many tokens it must compute before it can draft, at least 1; None if it cannot."""

    def advance(self, timeline: Timeline, most: int) -> bool:
        """Compute at most `most` of the missing tokens. Returns whether it now lags by a single token."""

    def propose(self, timelines: Sequence[Timeline], most: int) -> list[Proposal]:
        """At most `most` tokens per timeline; fewer or none if there is no room. Timelines should lag by a few tokens
        at most."""

    def close(self) -> None: ...


class Backend(Protocol):
    """One model and its context. Everything but `info`, `vocab` and `projector` belongs to the engine thread."""

    info: ModelInfo
    vocab: Vocabulary
    generates: bool  # False: it only makes embeddings or speech, and the lanes below are unused
    embeddings: EmbeddingBackend | None  # None: it makes no embeddings
    speech: SpeechBackend | None  # None: it does not speak
    projector: Projector | None  # None: it takes no images and sounds
    draft_model: DraftModel | None
    adapters: tuple[Adapter, ...]  # LoRA adapters; `use` names them by index
    num_lanes: int
    num_cells: int
    context: int  # max tokens of one sequence
    batch: Batch  # rows to decode; `decode` reads them from here
    ubatch_size: int
    max_outputs: int  # max rows with logits in one batch
    traits: MemoryTraits
    exact_rows: int  # rows of a ubatch from which on attention is summed in full; 0: with any number
    front_end_load: float  # the share of the next decode in which the HTTP side needs a core; may exceed 1
    max_rollback: int  # max tokens that can be taken back from a lane's last decode; at least one must stay
    together: Together  # what one batch may contain
    state_facts: dict[str, object]  # beside the model, what a saved state is valid for: library, number formats
    host_bytes: int | None  # host memory in use; None if the library does not report it
    idle_cells: int  # max cells of idle prefixes before they noticeably slow decodes down

    def add_adapter(self, adapter: Adapter) -> None:
        """Load an adapter and append it to `adapters`. Raises LoadFailed."""

    def use(self, adapters: tuple[tuple[int, float], ...]) -> None:
        """Apply these (index, scale) pairs to all following decodes. Raises DecodeFailed."""

    def decode(self) -> None:
        """Compute the batch. Raises OutOfCells, DecodeFailed."""

    def logits(self, num_rows: int) -> Floats:
        """Logits of the rows flagged in the batch, in batch order: float32 [num_rows, n_vocab], writable."""

    def sample_lane(self, lane: int, chain: Chain | None) -> bool:
        """From the next decode on, sample this lane's rows on the device with `chain`; None turns it off. The lane may
        then have at most one row with logits per batch. False, and no effect, if the library cannot do it."""

    def sampled(self, row: int) -> int | None:
        """The token sampled on the device from this row of logits; None if there was no candidate. The row's logits are
        not available."""

    def length(self, lane: int) -> int:
        """The position after the lane's last token; 0 if it is empty."""

    def usable(self, lane: int, position: int) -> bool:
        """Whether the lane ends at this position or can be cut back to it. A position equals the number of tokens
        before it, except after an M-RoPE image, where it is smaller."""

    def copy(self, source: int, target: int, position: int) -> None:
        """Share the source's tokens before `position` with the empty `target`. If the source is not `usable` there,
        call `rewind` on the target before anything else."""

    def cut(self, lane: int, position: int) -> bool: ...

    def roll_back(self, lane: int, position: int) -> None:
        """Take back tokens of the lane's last decode from `position` on: at most `max_rollback`, and not all of them.
        At most once per decode."""

    def clear(self, lane: int) -> None: ...

    def mark(self, lane: int) -> LaneState:
        """A checkpoint: the current state of a lane that cannot be cut."""

    def mark_size(self, lane: int) -> int:
        """Bytes that `mark` would return."""

    def rewind(self, lane: int, position: int, mark: LaneState) -> bool:
        """Bring a lane back to an earlier position, with the `mark` taken there. False if that failed: the lane's
        contents are then unknown."""

    def save(self, lane: int) -> LaneState: ...

    def saved_size(self, lane: int) -> int:
        """Bytes that `save` would return."""

    def restore(self, lane: int, saved: LaneState) -> bool: ...

    def chain(self, params: SamplingParams) -> Chain: ...

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
"""`general.sampling.*` keys of a GGUF: the author's recommendations."""


def sampling_defaults(metadata: Mapping[str, str]) -> dict[str, object]:
    """The author's recommendations, by SamplingParams' names; ignores values that are not numbers."""
    found = {}
    for key, (name, kind) in _SAMPLING_KEYS.items():
        with contextlib.suppress(KeyError, ValueError, TypeError):
            found[name] = kind(float(metadata[f"general.sampling.{key}"]))
    return found
