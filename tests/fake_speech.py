"""A speech model that needs no files: deterministic, instant, strict.

Each character of a text takes a frame, whose samples all have the character's code; a voice is one row, the clip's
loudest sample. A chunk ends with a new line. It asserts wherever the real library would abort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llamasrv.domain.speech import LANE_CELLS, SAMPLE_RATE, UtteranceSpec
from llamasrv.engine.base.arrays import Floats
from llamasrv.engine.base.sound_track import SoundPiece
from llamasrv.errors import InvalidRequest

FRAME = 1920  # samples


class FakeUtterance:
    def __init__(self, spec: UtteranceSpec, width: int) -> None:
        text = spec.text.strip()
        if not text:
            raise InvalidRequest("There is nothing to say: the input has no text.", param="input")
        self._said = text[: spec.most_frames]
        self._voice = np.zeros((0, width), np.float32) if spec.voice is None else spec.voice
        self.pending: Floats = np.concatenate([self._voice, np.ones((len(text), width), np.float32)])
        self.position = self.num_frames = 0
        self.kept = len(self._voice)
        self.num_prompt = len(self.pending)
        self.is_done, self.is_cut = False, len(self._said) < len(text)
        self._pieces: list[SoundPiece] = []
        self._computed: list[Floats] = []

    def mark_computed(self, num_rows: int) -> None:
        self._computed.append(self.pending[:num_rows])
        self.position, self.pending = self.position + num_rows, self.pending[num_rows:]

    def advance(self, place: int) -> bool:
        assert not self.is_done and not len(self.pending)
        code = ord(self._said[self.num_frames]) % 256
        self._pieces.append(SoundPiece(np.array([code], np.int32), not self.num_frames, True))
        self.num_frames += 1
        self.is_done = self.num_frames == len(self._said)
        ends = code == ord("\n") and not self.is_done
        if not self.is_done:
            left = len(self._said) - self.num_frames
            self.pending = np.ones((left if ends else 1, self.pending.shape[1]), np.float32)
        if ends:
            self.position, self._computed = self.kept, [self._voice]
        return ends

    def release_lane(self) -> None:
        self.position, self.pending = 0, np.concatenate([*self._computed, self.pending])
        self._computed = []

    def take_pieces(self) -> list[SoundPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces


class FakeVocoder:
    """Its state is the number of frames so far."""

    def sound(self, numbers: Any, state: Any) -> tuple[Floats, Any]:
        return np.repeat(numbers.astype(np.float32) / 256, FRAME), (state or 0) + len(numbers)


class FakeSpeech:
    kind, languages, speakers = "fake", ("english", "german"), ("vivian",)

    def __init__(
        self,
        *,
        num_lanes: int = 2,
        max_rows: int = 32,
        width: int = 4,
        needs_voice: bool = False,
        has_own_vocoder: bool = False,
        is_deterministic: bool = False,
    ) -> None:
        self.num_lanes, self.max_rows, self.width, self.needs_voice = num_lanes, max_rows, width, needs_voice
        self.has_own_vocoder, self.is_deterministic = has_own_vocoder, is_deterministic
        self.vocoder = FakeVocoder()
        self.steps: list[list[tuple[int, int]]] = []  # (lane, number of rows) of each part
        self.lengths = [0] * num_lanes  # rows of each lane
        self.specs: list[UtteranceSpec] = []
        self.num_encoded = self.num_resets = 0
        self.closed = False

    def utterance(self, spec: UtteranceSpec) -> FakeUtterance:
        if self.needs_voice and spec.voice is None:
            raise InvalidRequest("This model needs the clip of a voice.", param="voice")
        if spec.language is not None and spec.language not in self.languages:
            raise InvalidRequest(f"This model does not speak '{spec.language}'.", param="language")
        utterance = FakeUtterance(spec, self.width)
        self.specs.append(spec)
        return utterance

    def encode_voice(self, samples: Floats) -> Floats:
        if len(samples) < SAMPLE_RATE:
            raise InvalidRequest("A voice needs a clip of at least 1 s.", param="voice")
        self.num_encoded += 1
        return np.full((1, self.width), np.abs(samples).max(), np.float32)

    def decode(self, parts: Sequence[tuple[int, int, Floats]]) -> list[int]:
        assert 0 < sum(len(rows) for _, _, rows in parts) <= self.max_rows
        assert len({lane for lane, _, _ in parts}) == len(parts)
        for lane, position, rows in parts:
            assert self.lengths[lane] == position and position + len(rows) <= LANE_CELLS
            assert len(rows) and rows.shape[1] == self.width and np.isfinite(rows).all()
            self.lengths[lane] += len(rows)
        self.steps.append([(lane, len(rows)) for lane, _, rows in parts])
        return list(range(len(parts)))

    def release(self, lane: int, start: int = 0) -> None:
        self.lengths[lane] = min(self.lengths[lane], start)

    def reset(self) -> None:
        self.lengths = [0] * self.num_lanes
        self.num_resets += 1

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True
