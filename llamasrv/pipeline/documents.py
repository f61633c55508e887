"""Turns a request's documents into text, page by page, before anything else looks at it.

A page with next to no text is the picture that was scanned, where the model sees. In place of a document that a tool
returned and that cannot be read stands a sentence, as in `unseen` for pictures. A file may also be an image, which the
pipeline then treats like one in the body. What was read lately is kept: a
conversation brings its documents again with every turn. PDF is read in a child process.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from llamasrv.concurrency import off_hub
from llamasrv.domain.request import (
    ChatPrompt,
    DocumentPart,
    GenerateRequest,
    MediaPart,
    Message,
    Part,
    TextPart,
)
from llamasrv.errors import InvalidMedia, InvalidRequest, LlamasrvError, Unsupported
from llamasrv.media import sniff
from llamasrv.media.decoder import Check, Decoder
from llamasrv.media.limits import MediaLimits
from llamasrv.media.sources import Sources

KEPT = 32 << 20  # bytes of what was read lately
MOST = 32  # documents of one request

Pages = list[tuple[str, bytes | None]]
OpenFile = Callable[[str, str], bytes]
"""An owner and the id of a file to its content. Raises where it has none."""


class DocumentReader:
    """One per process. `check` raises if there is no room for that many bytes of pictures now; `open_file` is set by
    the part that stores files."""

    def __init__(self, decoder: Decoder, sources: Sources, check: Check | None = None) -> None:
        self.open_file: OpenFile | None = None
        self._decoder, self._sources, self._check = decoder, sources, check
        self._kept: OrderedDict[tuple[bytes, bool], Pages] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def read(self, request: GenerateRequest, *, sees: bool) -> GenerateRequest:
        """The same request without documents. Raises InvalidRequest for documents that cannot be read."""
        chats = [prompt for prompt in request.prompts if isinstance(prompt, ChatPrompt)]
        if not any(map(_count, chats)):
            return request
        read = iter(self.read_chats(chats, request.owner, sees=sees))
        prompts = tuple(next(read) if isinstance(prompt, ChatPrompt) else prompt for prompt in request.prompts)
        return request._replace(prompts=prompts)

    def read_chats(self, chats: Sequence[ChatPrompt], owner: str, *, sees: bool) -> Sequence[ChatPrompt]:
        """`read` for the chats of one request."""
        number = sum(map(_count, chats))
        if not number:
            return chats
        if number > MOST:
            raise InvalidMedia(f"There are {number} documents in this request; at most {MOST} are accepted.")
        left = _Left(self._decoder.limits, sum(_count(chat, MediaPart) for chat in chats))
        return [
            replace(chat, messages=tuple(self._message(message, owner, sees, left) for message in chat.messages))
            for chat in chats
        ]

    def _message(self, message: Message, owner: str, sees: bool, left: _Left) -> Message:
        if type(message.content) is not tuple:
            return message
        parts: list[Part] = []
        for part in message.content:
            if type(part) is not DocumentPart:
                parts.append(part)
                continue
            try:
                parts += self._parts(part, owner, sees, left)
            except InvalidRequest as error:
                if message.role != "tool" and part.result_of is None:
                    raise
                parts.append(TextPart(f"[a document that cannot be read: {error.message}]"))
        return replace(message, content=tuple(parts))

    def _parts(self, part: DocumentPart, owner: str, sees: bool, left: _Left) -> list[Part]:
        try:
            data = self._data(part, owner)
            if part.file is not None and sniff.kind(data) in sniff.PICTURES:
                return [MediaPart("image", data, param=part.param, result_of=part.result_of)]
            text = _plain(data)
            pages: Pages = [(text, None)] if text is not None else self._pages(data, sees, left)
        except InvalidRequest as error:
            about = ("image",) if part.is_image else error.about
            raise error.but(param=error.param or part.param, about=about) from None
        return _as_parts(part.name, pages, part.param)

    def _data(self, part: DocumentPart, owner: str) -> bytes:
        if part.data is not None:
            return part.data
        if part.url is not None:
            return self._sources.read(part.url)
        if self.open_file is None:
            raise Unsupported("This server stores no files; send the document itself.")
        assert part.file is not None
        try:
            return self.open_file(owner, part.file)
        except LlamasrvError as error:
            raise InvalidRequest(error.message, code=error.code) from None

    def _pages(self, data: bytes, sees: bool, left: _Left) -> Pages:
        if b"%PDF-" not in data[:1024]:
            raise InvalidMedia("this is neither PDF nor text", about=("damaged pdf",))
        place = hashlib.sha256(data).digest(), sees
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None:
                self._kept.move_to_end(place)
        if kept is not None:
            left.take(kept)
            return kept
        pages = self._decoder.pages(data, with_pictures=sees, left=left.limits, check=self._check)
        left.take(pages)
        size = _size(pages)
        if size <= KEPT // 4:
            with self._lock:
                if place not in self._kept:
                    self._kept[place] = pages
                    self._kept_bytes += size
                while self._kept_bytes > KEPT:
                    self._kept_bytes -= _size(self._kept.popitem(last=False)[1])
        return pages


class _Left:
    """What a request's documents may still have. Those that are read in the child get it along, so that it refuses what
    goes beyond before there is much of it."""

    def __init__(self, limits: MediaLimits, num_media: int) -> None:
        self.limits = replace(limits, count=max(0, limits.count - num_media))

    def take(self, pages: Pages) -> None:
        """Raises InvalidMedia if it is more than was left, which what was read for another request may be."""
        limits = self.limits
        shown = [picture for _, picture in pages if picture is not None]
        count = limits.count - len(shown)
        size = limits.picture_bytes - sum(map(len, _once(shown)))
        chars = limits.document_chars - sum(len(text) for text, _ in pages)
        if min(count, size, chars) < 0:
            raise InvalidMedia("the documents of this request have more text or scanned pages than are accepted")
        self.limits = replace(limits, count=count, picture_bytes=size, document_chars=chars)


def _once(pictures: list[bytes]) -> list[bytes]:
    """Several pages may show one picture, which is one object."""
    return list({id(picture): picture for picture in pictures}.values())


def _size(pages: Pages) -> int:
    pictures = _once([picture for _, picture in pages if picture is not None])
    return sum(len(text) * 2 + 100 for text, _ in pages) + sum(map(len, pictures))


def _count(prompt: ChatPrompt, kind: type[Part] = DocumentPart) -> int:
    contents = [message.content for message in prompt.messages if type(message.content) is tuple]
    return sum(type(part) is kind for content in contents for part in content)


def _plain(data: bytes) -> str | None:
    """The document's text, if it is plain text."""
    if b"%PDF-" in data[:1024] or b"\0" in data[:65_536]:
        return None
    try:
        return off_hub(data.decode, "utf-8-sig") if len(data) > 1 << 20 else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _as_parts(name: str, pages: Pages, param: str | None) -> list[Part]:
    """The document as the model reads it: its name, then its pages, numbered if there are several."""
    parts: list[Part] = []
    text = f"[{name}]\n" if name else ""
    for number, (words, picture) in enumerate(pages, 1):
        text += f"[page {number} of {len(pages)}]\n" if len(pages) > 1 else ""
        if picture is not None:
            parts += [TextPart(text)] if text else []
            parts.append(MediaPart("image", picture, param=param))
            text = ""
            continue
        text += words + "\n\n"
    if text.strip():
        parts.append(TextPart(text.rstrip() + "\n"))
    if not parts:
        raise InvalidMedia("the document contains no text")
    return parts
