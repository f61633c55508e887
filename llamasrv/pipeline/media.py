"""Fetches and decodes a request's images and audio, and has the model's projector measure them.

This happens before a prompt is rendered, so that invalid media are refused before anything runs. Recently decoded media
are kept: a conversation sends its images again with every turn. Runs on the caller's greenlet, which waits; child
processes do the work.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llamasrv.chat.media import media_of
from llamasrv.concurrency import off_hub
from llamasrv.domain.media import Measured, MediaInput
from llamasrv.domain.request import ChatPrompt, MediaPart, MixedPrompt, Prompt
from llamasrv.engine.base.interface import Projector
from llamasrv.errors import InvalidMedia, InvalidRequest, Unsupported
from llamasrv.media import sniff
from llamasrv.media.decoder import Decoder
from llamasrv.media.limits import MediaLimits
from llamasrv.media.sources import Sources
from llamasrv.pipeline.held_media import HeldMedia

_LARGE = 1 << 18  # bytes; hashing more would block the hub for too long
WINDOW = 29.5  # seconds per window of a long recording: projectors take 30
MOST_WINDOWS = 120
_NEEDS = {
    "image": "vision projector; it cannot take images. Start it with --mmproj",
    "audio": "audio projector; it cannot take audio. Start it with --mmproj",
}


class RequestMedia:
    """What the projector measured for each part of a request. Parts that are missing cannot be used."""

    def __init__(self) -> None:
        self._measured: dict[int, Measured] = {}  # by the identity of the part
        self.unreadable: set[int] = set()  # the same, for parts that were left out

    def of(self, part: MediaPart) -> Measured:
        measured = self._measured.get(id(part))
        if measured is None:
            raise Unsupported("This endpoint does not take images or audio.", param=part.param)
        return measured

    def add(self, part: MediaPart, measured: Measured) -> None:
        self._measured[id(part)] = measured


NO_MEDIA = RequestMedia()


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """Where media may come from, and how large they may be."""

    limits: MediaLimits = MediaLimits()
    sources: Sources = Sources()
    voices: Path | None = None  # folder of voice clips for speech models
    voice_uploads: int = 0  # max clips that each key may add to it


class MediaReader:
    """One per process."""

    def __init__(self, options: MediaOptions | None = None) -> None:
        self.options = options or MediaOptions()
        self.decoder = Decoder(self.options.limits)
        self._kept: OrderedDict[tuple[bytes, int | None], MediaInput] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self.held = HeldMedia(self.options.limits.held_bytes, self._let_go)

    def read(
        self,
        prompts: Sequence[Prompt],
        projector: Projector | None,
        *,
        may_fail: Collection[int] = (),
        to_count: bool = False,
    ) -> RequestMedia:
        """Raises InvalidRequest for what the model cannot take and for what cannot be decoded; of the parts with the
        identities `may_fail`, those that cannot be decoded are left out instead. `to_count`: images are not decoded,
        only their size is read."""
        parts = [part for prompt in prompts for part in _parts(prompt)]
        if not parts:
            return NO_MEDIA
        limits = self.options.limits
        if len(parts) > limits.count:
            text = f"There are {len(parts)} images and audio clips in this request; at most {limits.count} are allowed."
            raise InvalidMedia(text, param=parts[limits.count].param, about=_about(parts[limits.count]))
        found, size = RequestMedia(), 0
        for part in parts:
            try:
                _check_taken(part.kind, projector)  # before anything is fetched for it
                assert projector is not None
                try:
                    media = self._input(part, projector, to_count)
                except InvalidMedia:
                    if id(part) not in may_fail:
                        raise
                    found.unreadable.add(id(part))
                    continue
                size += len(media.data or b"")
                if size > limits.decoded_bytes:
                    raise InvalidMedia(
                        f"the images and audio of this request take more than {limits.decoded_bytes} bytes when decoded"
                    )
                found.add(part, self._measured(projector, media))
            except InvalidRequest as error:
                raise _placed(error, part) from None
        return found

    def read_windows(
        self, prompt: ChatPrompt, projector: Projector | None
    ) -> tuple[list[ChatPrompt], RequestMedia, list[tuple[float, float]]]:
        """The only sound of a prompt, cut into windows: for each a prompt, what was measured, and its begin and end in
        seconds."""
        (part,) = media_of(prompt)
        found, prompts, times = RequestMedia(), [], []
        try:
            _check_taken("audio", projector)
            assert projector is not None and projector.sample_rate is not None
            rate = projector.sample_rate
            data = self._bytes(part)
            sound, cuts = self.decoder.windows(data, rate, longest=WINDOW, most=MOST_WINDOWS)
            of_file = off_hub(_hash, b"audio windows ", data)
            self.held.check(2 * len(sound))  # the whole, until all windows are cut
            edges = [0, *cuts, len(sound) // 4]
            for number, (start, end) in enumerate(zip(edges, edges[1:])):
                key = _hash(b"%d " % number, of_file)
                window = self.held.add(MediaInput("audio", key, sound[4 * start : 4 * end], num_samples=end - start))
                piece = MediaPart("audio", b"", param=part.param)
                prompts.append(_with(prompt, piece))
                found.add(piece, self._measured(projector, window))
                times.append((start / rate, end / rate))
        except InvalidRequest as error:
            raise _placed(error, part) from None
        return prompts, found, times

    def close(self) -> None:
        self.decoder.close()

    def _bytes(self, part: MediaPart) -> bytes:
        if part.data is not None:
            return part.data
        assert part.url is not None
        return self.options.sources.read(part.url)

    def _measured(self, projector: Projector, media: MediaInput) -> Measured:
        return off_hub(projector.measure, media) if media.kind == "audio" else projector.measure(media)

    def _input(self, part: MediaPart, projector: Projector, to_count: bool) -> MediaInput:
        data = self._bytes(part)
        kind = part.kind or ("audio" if sniff.kind(data) in (*sniff.SOUNDS, *sniff.CONTAINERS) else "image")
        _check_taken(kind, projector)
        how = b"%s %d " % (kind.encode(), part.is_coarse)
        key = off_hub(_hash, how, data) if len(data) > _LARGE else _hash(how, data)
        rate = projector.sample_rate
        place = (key, rate if kind == "audio" else None)
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None:
                self._kept.move_to_end(place)
                return kept
        self.held.check(0 if to_count else 1)  # nothing is decoded while there is no room at all
        if kind == "audio":
            assert rate is not None
            sound = self.decoder.samples(data, rate)
            media = MediaInput("audio", key, sound, num_samples=len(sound) // 4)
        elif to_count:
            width, height = self.decoder.size(data, is_coarse=part.is_coarse)
            return MediaInput("image", key, None, width, height)
        else:
            width, height, pixels = self.decoder.pixels(data, is_coarse=part.is_coarse)
            media = MediaInput("image", key, pixels, width, height)
        self._keep(place, self.held.add(media))
        return media

    def _let_go(self) -> None:
        """Release media that are only kept for later."""
        with self._lock:
            self._kept.clear()
            self._kept_bytes = 0

    def _keep(self, place: tuple[bytes, int | None], media: MediaInput) -> None:
        size = len(media.data or b"")
        most = self.options.limits.kept_bytes
        if size > most // 4:
            return
        with self._lock:
            if place not in self._kept:
                self._kept[place] = media
                self._kept_bytes += size
            while self._kept_bytes > most:
                _, gone = self._kept.popitem(last=False)
                self._kept_bytes -= len(gone.data or b"")


def _parts(prompt: Prompt) -> Iterator[MediaPart]:
    if isinstance(prompt, ChatPrompt):
        yield from media_of(prompt)
    elif isinstance(prompt, MixedPrompt):
        yield from (part for part in prompt.parts if isinstance(part, MediaPart))


def _with(prompt: ChatPrompt, sound: MediaPart) -> ChatPrompt:
    """The prompt with this sound in place of its own."""
    messages = []
    for message in prompt.messages:
        if type(message.content) is tuple:
            parts = tuple(sound if isinstance(part, MediaPart) else part for part in message.content)
            message = replace(message, content=parts)
        messages.append(message)
    return replace(prompt, messages=tuple(messages))


def _placed(error: InvalidRequest, part: MediaPart) -> InvalidRequest:
    """The error with the place in the request that it is about."""
    if not isinstance(error, InvalidMedia):
        return error.but(param=part.param, about=_about(part))
    text = f"Invalid '{part.param or part.kind or 'media'}': {error.message}."
    return InvalidMedia(text, param=part.param, about=_about(part))


def _about(part: MediaPart) -> tuple[str, ...]:
    return (part.kind or "image",)


def _hash(how: bytes, data: bytes) -> bytes:
    """The key of decoded media: the bytes, and how they are decoded."""
    return hashlib.sha256(how + data).digest()


def takes(kind: str | None, projector: Projector | None) -> bool:
    """Whether a model with this projector takes that kind; None: one to be found from its bytes."""
    able = {} if projector is None else {"image": projector.vision, "audio": projector.audio, None: True}
    return able.get(kind, False)


def _check_taken(kind: str | None, projector: Projector | None) -> None:
    if not takes(kind, projector):
        raise Unsupported(f"This model has no {_NEEDS[kind or 'image']}.")
