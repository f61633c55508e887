"""One text being spoken: its prompt rows, the sampling of its frames, and the order in which they become sound.

    QwenUtterance     a frame is a sampled code and 15 more of the generator; sound in windows of 72 frames
    PocketUtterance   a frame is 32 numbers; sound in any number of frames

A long text is cut at sentences into chunks, spoken one after another in the same lane with the same voice. Seeds are
per frame, so the sound does not depend on who else speaks. The prompts are those of llama.cpp's own loop for
Qwen3-TTS and Pocket TTS.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from llamasrv.domain.speech import LANE_CELLS, UtteranceSpec
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.sound_track import SoundPiece
from llamasrv.errors import InvalidRequest

if TYPE_CHECKING:
    from llamasrv.engine.backend.speech import LlamaSpeech

ENDS, PAUSES = frozenset(".!?…。！？"), frozenset(",;:，；：、")
WINDOW = 72  # frames that the vocoder of Qwen computes at once
EARLY = (4, 12, 28)  # frames of a first window from which a part is ready early, for a first sound soon
POCKET_FRAMES = (1, 2, 4)  # frames of the first calls; then POCKET_TOGETHER
POCKET_TOGETHER = 8
FRAMES_A_SECOND = 12.5


class LlamaUtterance(ABC):
    """`pending` rows are to be computed at `position`; `mark_computed` counts them. After the last one call `advance`
    with its place."""

    most_tokens: int  # max tokens of a chunk

    def __init__(self, model: LlamaSpeech, spec: UtteranceSpec) -> None:
        self._g, self.spec = model, spec
        self.position = 0
        self.kept = 0  # rows of the lane that stay for the next chunk
        self.num_frames = 0
        self.num_prompt = 0
        self.is_done = self.is_cut = False
        self._key = hashlib.sha256(f"{spec.seed}\0{spec.text}".encode()).digest()
        self._random = np.random.default_rng(spec.seed)
        self._frames: list[Any] = []  # since the last whole piece
        self._is_first = True  # no whole piece of this chunk yet
        self._pieces: list[SoundPiece] = []
        self._computed: list[Floats] = []  # the rows at [0, position)
        tokens = self._tokens()
        if not tokens:
            raise InvalidRequest("There is nothing to say: the input has no text.", param="input")
        self._chunks = list(reversed(chunks_of(tokens, model.vocab.pieces, self.most_tokens)))
        self.pending: Floats = self._begin(self._chunks.pop())
        self.num_prompt += len(self.pending)

    @abstractmethod
    def _tokens(self) -> list[int]: ...

    @abstractmethod
    def _begin(self, tokens: list[int]) -> Floats:
        """The prompt rows of the next chunk."""

    def _kept_rows(self) -> list[Floats]:
        """The rows at [0, kept)."""
        return []

    @abstractmethod
    def _next_row(self, place: int) -> Floats | None:
        """Sample a frame; the row that follows it. None at the end of the chunk."""

    @abstractmethod
    def _piece(self, *, is_last: bool) -> SoundPiece | None:
        """The piece that is ready with the newest frame. `is_last`: of the chunk."""

    def mark_computed(self, num_rows: int) -> None:
        """The first `num_rows` of `pending` are in the lane."""
        self._computed.append(self.pending[:num_rows])
        self.position += num_rows
        self.pending = self.pending[num_rows:]

    def advance(self, place: int) -> bool:
        """Take the frame that the row at `place` gives. True: the lane starts anew at `kept`, with another chunk."""
        row = self._next_row(place)
        if row is not None and (self.spec.most_frames is None or self.num_frames < self.spec.most_frames):
            self.pending = row[None]
            self._add_piece(is_last=False)
            return False
        if row is not None:
            self._chunks.clear()
            self.is_cut = True
        self._add_piece(is_last=True)
        self._is_first = True
        if not self._chunks:
            self.is_done = True
            return False
        self.position, self._computed = self.kept, self._kept_rows()
        self.pending = self._begin(self._chunks.pop())
        self.num_prompt += len(self.pending)
        return True

    def release_lane(self) -> None:
        """All rows of its lane are to be computed again."""
        self.pending = np.concatenate([*self._computed, self.pending])
        self.position, self._computed = 0, []

    def take_pieces(self) -> list[SoundPiece]:
        """What has become ready to be sound, in order."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add_piece(self, *, is_last: bool) -> None:
        if self._frames and (piece := self._piece(is_last=is_last)) is not None:
            self._pieces.append(piece)

    def _cut_piece(self, *, is_whole: bool) -> SoundPiece:
        piece = SoundPiece(np.concatenate(self._frames), self._is_first, is_whole)
        if is_whole:
            self._frames, self._is_first = [], False
        return piece

    def _frame_seed(self) -> int:
        digest = hashlib.sha256(self._key + self.num_frames.to_bytes(4, "little")).digest()
        return int.from_bytes(digest[:4], "little") % 0xFFFFFFFF  # the largest number means a random one

    def _row(self, token: int | str) -> Floats:
        row: Floats = self._g.table.row(self._g.ids[token] if isinstance(token, str) else token)
        return row


class QwenUtterance(LlamaUtterance):
    most_tokens = 120

    def _tokens(self) -> list[int]:
        g, spec = self._g, self.spec
        if spec.language is not None and spec.language not in g.languages:
            raise InvalidRequest(
                f"This model does not speak '{spec.language[:64]}'; it speaks {', '.join(g.languages)}.",
                param="language",
            )
        if spec.speaker is not None and spec.speaker not in g.speakers:
            raise InvalidRequest(f"This model has no voice '{spec.speaker[:64]}' of its own.", param="voice")
        self._pad, codec_pad = self._row("<tts_pad>"), self._row("<|codec_pad|>")
        self._codec_pad = codec_pad
        self._code0: int = g.ids["<|codec_0|>"]
        self._end: int = g.ids["<|codec_eos_token|>"]
        # Control tokens in the text are text.
        tokens: list[int] = g.vocab.tokenize(spec.text.strip(), parse_special=False)
        return tokens

    def _begin(self, tokens: list[int]) -> Floats:
        g, spec, pad = self._g, self.spec, self._pad
        rows: list[Floats] = []
        if spec.instructions:
            head = g.vocab.tokenize("<|im_start|>user\n")
            said = g.vocab.tokenize(spec.instructions, parse_special=False)
            rows += [self._row(t) for t in [*head, *said, *g.vocab.tokenize("<|im_end|>\n")]]
        rows += [self._row(t) for t in g.vocab.tokenize("<|im_start|>assistant\n")]
        think = ("think", "think_bos", f"language_{spec.language}", "think_eos")
        names = think if spec.language is not None else ("nothink", "think_bos", "think_eos")
        rows += [pad + self._row(f"<|codec_{name}|>") for name in names]
        if spec.voice is not None:
            rows.append(pad + spec.voice[0])
        elif spec.speaker is not None:
            rows.append(pad + self._row(f"<|spk_{spec.speaker}|>"))
        rows.append(self._row("<tts_text_bos>") + self._codec_pad)
        rows += [self._row(t) + self._codec_pad for t in tokens]
        rows += [self._row("<tts_text_eod>") + self._codec_pad, pad + self._row("<|codec_bos|>")]
        if len(rows) > LANE_CELLS // 2:
            raise InvalidRequest("The instructions are too long.", param="instructions")
        chars = sum(len(g.vocab.pieces[t]) for t in tokens)
        self._left = min(LANE_CELLS - len(rows), math.ceil(FRAMES_A_SECOND * (3 + chars / 4)))
        return np.stack(rows)

    def _next_row(self, place: int) -> Floats | None:
        code = self._sample(self._g.logits(place))
        if code == self._end or self._left <= 0:
            return None
        spec = self.spec
        frame = self._g.generator.next_frame(
            self._g.hidden(place),
            self._frame_seed(),
            code0=code - self._code0,
            top_k=50 if spec.top_k is None else spec.top_k,
            top_p=1.0 if spec.top_p is None else spec.top_p,
        )
        self._frames.append(frame.numbers)
        self.num_frames += 1
        self._left -= 1
        row: Floats = frame.row + self._pad
        return row

    def _sample(self, logits: Floats) -> int:
        spec = self.spec
        temperature = 0.9 if spec.temperature is None else spec.temperature
        top_k = 50 if spec.top_k is None else spec.top_k
        x = logits[self._code0 :].astype(np.float64)
        suppressed = self._g.suppressed
        x[suppressed[suppressed >= self._code0] - self._code0] = -np.inf
        if temperature <= 0:
            return self._code0 + int(x.argmax())
        if 0 < top_k < len(x):
            x[x < np.partition(x, -top_k)[-top_k]] = -np.inf
        p = np.exp((x - x.max()) / temperature)
        p /= p.sum()
        if spec.top_p is not None and 0 < spec.top_p < 1:
            order = np.argsort(-p)
            beyond = np.cumsum(p[order]) - p[order] >= spec.top_p
            p[order[beyond]] = 0
            p /= p.sum()
        # Rounding may leave the sum of all below the number that was drawn.
        drawn = min(int(np.searchsorted(np.cumsum(p), self._random.random())), int(np.flatnonzero(p)[-1]))
        return self._code0 + drawn

    def _piece(self, *, is_last: bool) -> SoundPiece | None:
        count = len(self._frames)
        is_whole = is_last or count == WINDOW
        if not is_whole and not (self._is_first and count in EARLY):
            return None
        return self._cut_piece(is_whole=is_whole)


# variant: temperature, frames after the end, whether short texts get spaces before them
_PACKS = {
    "english": (0.3, 0, False),
    "english_2026-01": (0.7, 0, True),
    "english_2026-04": (0.3, 0, False),
    "french_24l": (0.7, 8, False),
}


class PocketUtterance(LlamaUtterance):
    most_tokens = 50

    def _tokens(self) -> list[int]:
        g, spec = self._g, self.spec
        if spec.language is not None:
            raise InvalidRequest("This model speaks one language; leave 'language' out.", param="language")
        if spec.instructions:
            raise InvalidRequest("This kind of model takes no instructions.", param="instructions")
        if spec.voice is None:
            raise InvalidRequest("This model needs the clip of a voice.", param="voice")
        temperature, self._tail_frames, pads = _PACKS.get(g.variant, (0.7, 0, False))
        self._temperature = spec.temperature if spec.temperature else temperature
        text = re.sub(r"[\n\r]", " ", spec.text).replace(";", ",").strip(" ")
        if not text.strip():
            return []
        if "a" <= text[0] <= "z":
            text = text[0].upper() + text[1:]
        if text[-1].isascii() and text[-1].isalnum():
            text += "."
        if pads and len(text.split(" ")) < 5:
            text = " " * 8 + text
        self._num_pieces = 0
        tokens: list[int] = g.vocab.tokenize(text, parse_special=False)
        return tokens

    def _begin(self, tokens: list[int]) -> Floats:
        count = len(tokens)
        self._step, self._end = 0, -1
        self._tail = self._tail_frames or (5 if count <= 6 else 3)
        self._budget = math.ceil((count / 3 + 2) * FRAMES_A_SECOND)
        rows = np.stack([self._row(t) for t in [*tokens, self._g.ids["<|audio_bos|>"]]])
        if self.kept:
            return rows
        voice = self._kept_rows()
        self.kept = sum(map(len, voice))
        out: Floats = np.concatenate([*voice, rows])
        return out

    def _kept_rows(self) -> list[Floats]:
        start = "<|bos_before_voice|>"
        first = [self._row(start)[None]] if start in self._g.ids else []
        return [*first, self.spec.voice]

    def _next_row(self, place: int) -> Floats | None:
        frame = self._g.generator.next_frame(self._g.hidden(place), self._frame_seed(), temp=self._temperature)
        if frame.is_end and self._end < 0:
            self._end = self._step
        if self._step >= self._budget or (self._end >= 0 and self._step >= self._end + self._tail):
            return None
        self._frames.append(frame.numbers)
        self._step += 1
        self.num_frames += 1
        row: Floats = frame.row
        return row

    def _piece(self, *, is_last: bool) -> SoundPiece | None:
        wanted = POCKET_FRAMES[self._num_pieces] if self._num_pieces < len(POCKET_FRAMES) else POCKET_TOGETHER
        if not is_last and len(self._frames) < wanted:
            return None
        self._num_pieces += 1
        return self._cut_piece(is_whole=True)


def chunks_of(tokens: list[int], pieces: Any, most: int) -> list[list[int]]:
    """Tokens cut after sentences, then after pauses, then anywhere, and packed into chunks of at most `most`."""
    if len(tokens) <= most:
        return [tokens]
    parts = _cut(tokens, pieces, ENDS)
    parts = [part for long in parts for part in (_cut(long, pieces, PAUSES) if len(long) > most else [long])]
    parts = [long[at : at + most] for long in parts for at in range(0, len(long), most)]
    out: list[list[int]] = []
    for part in parts:
        if out and len(out[-1]) + len(part) <= most:
            out[-1] = out[-1] + part
        else:
            out.append(part)
    return out


def _cut(tokens: list[int], pieces: Any, marks: frozenset[str]) -> list[list[int]]:
    """Cut after each run of tokens that are nothing but marks."""
    out: list[list[int]] = []
    start, was_mark = 0, False
    for i, token in enumerate(tokens):
        text = pieces[token].decode("utf-8", "replace").strip()
        is_mark = bool(text) and marks.issuperset(text)
        if was_mark and not is_mark:
            out.append(tokens[start:i])
            start = i
        was_mark = is_mark
    out.append(tokens[start:])
    return out
