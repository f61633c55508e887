"""Voices that clients upload: clips in a folder of each API key's own, beside what their owner said of the consent.

    FOLDER/uploaded/KEY/ID.wav    the clip: mono, 16 bits, SAMPLE_RATE
    FOLDER/uploaded/KEY/ID.json   id, name, created_at, consent

Only the key that uploaded a voice sees it and speaks with it. All methods read or write files: call them off the hub.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path
from typing import NamedTuple

from llamasrv.atomic_file import replacing
from llamasrv.domain.speech import SAMPLE_RATE, wav_head
from llamasrv.errors import InvalidRequest, NotFound
from llamasrv.pipeline.voices import Clip

SHORTEST, LONGEST = 1.0, 60.0  # seconds of a clip
FOLDER = "uploaded"
_ID = re.compile(r"voice_[0-9a-f]{8,40}")


class UploadedVoice(NamedTuple):
    id: str
    name: str
    created_at: int


class UploadedVoices:
    def __init__(self, folder: Path | None, most: int) -> None:
        """`most`: of each key; 0: none may be uploaded."""
        self._folder = None if folder is None else folder / FOLDER
        self.most = most

    def _home(self, owner: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(owner.encode()).hexdigest()[:32]

    def all(self, owner: str) -> list[UploadedVoice]:
        """Oldest first. Voices stay usable where no new ones may be uploaded."""
        if self._folder is None:
            return []
        found = []
        for path in self._home(owner).glob("voice_*.json"):
            try:
                known = json.loads(path.read_bytes())
                found.append(UploadedVoice(path.stem, str(known["name"]), int(known["created_at"])))
            except (OSError, ValueError, KeyError):
                continue  # it is being deleted, or was not written by us
        return sorted(found, key=lambda voice: (voice.created_at, voice.id))

    def clip(self, owner: str, name: str) -> Clip | None:
        """By id or name; the latest of that name."""
        for voice in reversed(self.all(owner)):
            if name in (voice.id, voice.name):
                return Clip(voice.name, self._home(owner) / f"{voice.id}.wav", voice.id)
        return None

    def check_room(self, owner: str) -> None:
        """Raises InvalidRequest."""
        if len(self.all(owner)) >= self.most:
            text = f"This key has {self.most} voices already. Delete one that is no longer needed."
            raise InvalidRequest(text, code="too_many_voices")

    def add(self, owner: str, id: str, name: str, consent: str, pcm: bytes) -> UploadedVoice:
        """`pcm`: 16 bits, mono, at SAMPLE_RATE. Raises InvalidRequest, OSError."""
        seconds = len(pcm) / 2 / SAMPLE_RATE
        if not SHORTEST <= seconds <= LONGEST:
            raise InvalidRequest(
                f"The clip must last {SHORTEST:g} to {LONGEST:g} s, but this one lasts {seconds:.1f} s.",
                param="audio_sample",
            )
        self.check_room(owner)
        voice = UploadedVoice(id, name, int(time.time()))
        home = self._home(owner)
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(home / f"{id}.wav") as file:
            file.write(wav_head(SAMPLE_RATE, len(pcm)) + pcm)
        with replacing(home / f"{id}.json") as file:
            file.write(json.dumps({**voice._asdict(), "consent": consent}).encode())
        return voice

    def delete(self, owner: str, id: str) -> None:
        """Raises NotFound."""
        path = None if self._folder is None or not _ID.fullmatch(id) else self._home(owner) / f"{id}.json"
        if path is None or not path.exists():
            raise NotFound(f"There is no voice '{id[:80]}' of yours.", param="voice_id", code="voice_not_found")
        path.unlink(missing_ok=True)
        path.with_suffix(".wav").unlink(missing_ok=True)
