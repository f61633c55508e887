"""The items of a Realtime conversation, and the chat that a model gets from them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from typing import Any

from llamasrv.domain.speech import wav_head
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.openai.realtime.session import JSON, RATE

MOST_ITEMS = 1000
MOST_AUDIO = 48 << 20  # max bytes of users' sound to keep: a quarter of an hour
MOST_CHARS = 400_000  # max characters of an item
MOST_BASE64 = 1 << 26  # max characters of a sound
G711_GROWS = 6  # an octet at 8 kHz is three samples of two
MS_BYTES = 2 * RATE // 1000  # bytes per millisecond
SPOKEN_CHARS = 15  # estimated characters per second of speech, for cutting a transcript
Decode = Callable[[bytes], bytes]
"""Makes samples of what clients send."""

_PARTS = {
    "user": ("input_text", "input_audio", "input_image", "text"),
    "system": ("input_text", "text"),
    "assistant": ("output_text", "output_audio", "text", "audio"),
}


class ConversationItem:
    """`wire` is its current state; `audio` what the user said (16 bits, mono, at RATE)."""

    def __init__(self, wire: JSON, audio: bytes = b"") -> None:
        self.wire, self.audio = wire, audio
        self.spoken_bytes = 0  # bytes of an answer's sound sent so far

    @property
    def id(self) -> str:
        return str(self.wire["id"])

    @property
    def size(self) -> int:
        """Bytes of its sound, and characters of its texts and pictures."""
        wire = self.wire
        texts = [*wire.values(), *(value for part in wire.get("content", ()) for value in part.values())]
        return len(self.audio) + sum(len(text) for text in texts if type(text) is str)

    @property
    def transcript(self) -> str | None:
        """The transcript of the user's sound; None if there is none yet, or the item has no sound."""
        return next((part.get("transcript") for part in self.wire.get("content", ()) if _is_audio(part)), None)

    def write_down(self, transcript: str) -> None:
        for part in self.wire["content"]:
            if _is_audio(part):
                part["transcript"] = transcript

    def truncate(self, audio_end_ms: int) -> None:
        """Drop the part that was not heard. Raises InvalidRequest."""
        part = next((part for part in self.wire.get("content", ()) if part["type"] == "output_audio"), None)
        if part is None or self.wire.get("role") != "assistant":
            raise InvalidRequest("Only spoken messages of the assistant can be truncated.", param="item_id")
        sent = self.spoken_bytes / MS_BYTES
        if audio_end_ms > sent:
            raise InvalidRequest(
                f"Audio content of {sent:.0f}ms is already shorter than {audio_end_ms}ms.", param="audio_end_ms"
            )
        text = part["transcript"]
        # The text of a response that broke off was ahead of its sound.
        whole = sent if self.wire["status"] == "completed" else max(sent, 1000 * len(text) / SPOKEN_CHARS)
        cut = int(len(text) * audio_end_ms / whole) if whole else 0
        if 0 < cut < len(text) and not text[cut].isspace():
            cut = max(text.rfind(" ", 0, cut), 0)  # cut between words
        part["transcript"] = text[:cut].rstrip()
        self.spoken_bytes = int(audio_end_ms * MS_BYTES)


def new_item(given: Any, decode: Decode | None = None) -> ConversationItem:
    """An item that a client creates; `decode`: where its sound is not PCM. Raises InvalidRequest."""
    if type(given) is not dict:
        raise _invalid("expected an object.", "item")
    id, kind = given.get("id") or new_id("item_"), given.get("type")
    if type(id) is not str or len(id) > 64:
        raise _invalid("expected a string of at most 64 characters.", "item.id")
    common = {"id": id, "object": "realtime.item", "type": kind, "status": "completed"}
    if kind == "function_call":
        wire = {name: _string(given.get(name), f"item.{name}") for name in ("name", "arguments")}
        call = new_id("call_") if given.get("call_id") is None else _string(given["call_id"], "item.call_id")
        return ConversationItem({**common, **wire, "call_id": call})
    if kind == "function_call_output":
        wire = {name: _string(given.get(name), f"item.{name}") for name in ("call_id", "output")}
        return ConversationItem({**common, **wire})
    if kind != "message":
        raise _invalid("expected 'message', 'function_call' or 'function_call_output'.", "item.type")
    role = given.get("role")
    if type(role) is not str or role not in _PARTS:
        raise _invalid(f"expected one of {', '.join(_PARTS)}.", "item.role")
    if type(given.get("content")) is not list or not 0 < len(given["content"]) <= 100:
        raise _invalid("expected an array of 1 to 100 parts.", "item.content")
    audio, parts = b"", []
    for i, part in enumerate(given["content"]):
        made, sound = _part(part, role, f"item.content[{i}]", decode)
        audio += sound
        parts.append(made)
    return ConversationItem({**common, "role": role, "content": parts}, audio)


def _part(part: Any, role: str, path: str, decode: Decode | None) -> tuple[JSON, bytes]:
    kind = part.get("type") if type(part) is dict else None
    if kind not in _PARTS[role]:
        raise _invalid(f"expected one of {', '.join(_PARTS[role])} for the role '{role}'.", f"{path}.type")
    if kind == "input_image":
        return {"type": kind, "image_url": _string(part.get("image_url"), f"{path}.image_url", 1 << 26)}, b""
    if kind == "input_audio":
        transcript = part.get("transcript")
        return {"type": kind, "transcript": transcript if type(transcript) is str else None}, pcm_of(
            part.get("audio"), f"{path}.audio", decode
        )
    if kind in ("output_audio", "audio"):
        return {"type": "output_audio", "transcript": _string(part.get("transcript"), f"{path}.transcript")}, b""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": _string(part.get("text"), f"{path}.text")}, b""


def pcm_of(text: Any, path: str, decode: Decode | None = None) -> bytes:
    """Samples from base64. Raises InvalidRequest."""
    most = MOST_BASE64 if decode is None else MOST_BASE64 // G711_GROWS
    try:
        data = b64decode(_string(text, path, most), validate=True)
    except ValueError:
        raise _invalid("expected base64.", path) from None
    if decode is not None:
        return decode(data)
    if len(data) % 2:
        raise _invalid("expected samples of 16 bits: the number of bytes is odd.", path)
    return data


class RealtimeConversation:
    """Items in their order. Bounded."""

    def __init__(self, *, most_items: int = MOST_ITEMS, most_audio: int = MOST_AUDIO) -> None:
        self.id = new_id("conv_")
        self._most_items, self._most_audio = most_items, most_audio
        self._sizes: dict[str, int] = {}  # sizes by item id, as counted when added
        self.size = 0
        self._items: list[ConversationItem] = []

    def add(self, item: ConversationItem, after: str | None = None) -> str | None:
        """`after`: the id of the item before it, or "root"; None: at the end. Returns that id. Raises
        InvalidRequest."""
        if any(one.id == item.id for one in self._items):
            raise InvalidRequest(f"An item with the id '{item.id}' exists already.", param="item.id")
        if len(self._items) >= self._most_items:
            raise InvalidRequest(
                f"A conversation has at most {self._most_items} items. Delete some.", code="too_many_items"
            )
        if after is None:
            at = len(self._items)
        else:
            at = 0 if after == "root" else self._items.index(self.find(after, "previous_item_id")) + 1
        self._items.insert(at, item)
        self._sizes[item.id] = item.size
        self.size += item.size
        self._bound_audio()
        return self._items[at - 1].id if at else None

    def find(self, id: Any, param: str = "item_id") -> ConversationItem:
        """Raises InvalidRequest."""
        for item in self._items:
            if item.id == id:
                return item
        raise InvalidRequest(f"There is no item '{str(id)[:80]}'.", param=param, code="item_not_found")

    def delete(self, id: Any) -> None:
        self._items.remove(self.find(id))
        self.size -= self._sizes.pop(id)

    def _bound_audio(self) -> None:
        """Drop the oldest sounds; their transcripts remain."""
        total = sum(len(item.audio) for item in self._items)
        for item in self._items:
            if total <= self._most_audio:
                return
            total -= len(item.audio)
            self._sizes[item.id] -= len(item.audio)
            self.size -= len(item.audio)
            item.audio = b""

    def messages(self, instructions: str) -> list[JSON]:
        return chat_messages(self._items, instructions)


def chat_messages(items: Iterable[ConversationItem], instructions: str) -> list[JSON]:
    """The conversation in the form of chat completions. The user's sound is text if it was transcribed."""
    out: list[JSON] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        wire = item.wire
        if wire["type"] == "function_call":
            call = {
                "id": wire["call_id"],
                "type": "function",
                "function": {"name": wire["name"], "arguments": wire["arguments"] or "{}"},
            }
            if not out or out[-1]["role"] != "assistant":
                out.append({"role": "assistant", "content": None})
            out[-1].setdefault("tool_calls", []).append(call)
        elif wire["type"] == "function_call_output":
            out.append({"role": "tool", "tool_call_id": wire["call_id"], "content": wire["output"]})
        elif parts := [part for one in wire["content"] for part in _chat_part(one, item)]:
            texts = [part["text"] for part in parts if part["type"] == "text"]
            out.append({"role": wire["role"], "content": "\n".join(texts) if len(texts) == len(parts) else parts})
    return out


def _chat_part(part: JSON, item: ConversationItem) -> list[JSON]:
    if part["type"] == "input_image":
        return [{"type": "image_url", "image_url": {"url": part["image_url"]}}]
    if part["type"] == "input_audio" and part.get("transcript") is None:
        if not item.audio:
            return []
        data = b64encode(wav_of(item.audio)).decode()
        return [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
    text = part.get("text", part.get("transcript"))
    return [{"type": "text", "text": text}] if text else []


def wav_of(pcm: bytes) -> bytes:
    return wav_head(RATE, len(pcm)) + pcm


def _is_audio(part: JSON) -> bool:
    return part.get("type") == "input_audio"


def _string(value: Any, path: str, most: int = MOST_CHARS) -> str:
    if type(value) is not str:
        raise _invalid("expected a string.", path)
    if len(value) > most:
        raise _invalid(f"string too long. Expected at most {most} characters.", path)
    return value


def _invalid(text: str, path: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': {text}", param=path, code="invalid_value")
