"""The events of one Realtime response, from the chunks of the chat completion that answers it.

    begin     response.created
    chunk     an item is opened by its first delta: a message (text, or sound with its transcript), a function call
    end       the ends of all open items, then response.done

Items go into the conversation as they are opened. Sound may lag behind its text, and behind calls.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.openai.realtime.items import ConversationItem, RealtimeConversation
from llamasrv.protocols.openai.realtime.session import JSON

Send = Callable[..., None]
"""Sends an event: its type, then its fields."""


class SoundEncoder(Protocol):
    """Encodes samples in the client's format."""

    def encode(self, pcm: bytes) -> bytes: ...

    def end(self) -> bytes: ...


_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class RealtimeResponse:
    def __init__(
        self,
        send: Send,
        settings: Mapping[str, Any],
        conversation: RealtimeConversation,
        *,
        is_apart: bool,
        encoder: SoundEncoder | None = None,
    ) -> None:
        """`is_apart`: its items do not become part of the conversation; `encoder`: where its sound is not PCM."""
        self.id = new_id("resp_")
        self._send, self._settings, self._is_apart = send, settings, is_apart
        self._conversation, self._encoder = conversation, encoder
        self._speaks = settings["output_modalities"] == ["audio"]
        self._items: list[ConversationItem] = []
        self._message: int | None = None  # index of the message item
        self._before: dict[str, str | None] = {}  # by item id: the item before it
        self._calls: dict[int, int] = {}  # by number of the call: the index of its item
        self._reason: str | None = None
        self._usage: JSON | None = None
        self._failure: JSON | None = None

    def begin(self) -> None:
        self._send("response.created", response=self._wire("in_progress", None))

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error") is not None:
            self.fail(chunk["error"])
            return
        if chunk.get("usage"):
            self._usage = _usage(chunk["usage"])
        for choice in chunk.get("choices", ()):
            delta = choice["delta"]
            audio = delta.get("audio") or {}
            if text := delta.get("content") or audio.get("transcript"):
                self._text(text)
            if audio.get("data"):
                self._sound(audio["data"])
            for call in delta.get("tool_calls", ()):
                self._call(call)
            self._reason = choice.get("finish_reason") or self._reason

    def fail(self, error: Mapping[str, Any]) -> None:
        self._failure = {"type": error.get("type"), "code": error.get("code"), "message": error.get("message")}

    def end(self, cancelled: str | None = None) -> None:
        """Close all open items and end the response; `cancelled`: the reason, if it was cancelled."""
        if cancelled is not None:
            status = "cancelled"
            details: JSON | None = {"type": "cancelled", "reason": cancelled}
        elif self._failure is not None:
            status, details = "failed", {"type": "failed", "error": self._failure}
        elif self._reason in _REASONS:
            status, details = "incomplete", {"type": "incomplete", "reason": _REASONS[self._reason]}
        else:
            status, details = "completed", None
        for index, item in enumerate(self._items):
            item.wire["status"] = "completed" if status == "completed" else "incomplete"
            if index == self._message:
                self._end_message(item, index)
            else:
                self._to(
                    item,
                    index,
                    "response.function_call_arguments.done",
                    call_id=item.wire["call_id"],
                    name=item.wire["name"],
                    arguments=item.wire["arguments"],
                )
            self._send("response.output_item.done", response_id=self.id, output_index=index, item=item.wire)
            if not self._is_apart:
                self._send("conversation.item.done", previous_item_id=self._before.get(item.id), item=item.wire)
        self._send("response.done", response=self._wire(status, details))

    # ------------------------------------------------------------ items

    def _open(self, wire: JSON) -> int:
        item = ConversationItem({"id": new_id("item_"), "object": "realtime.item", "status": "in_progress", **wire})
        index = len(self._items)
        self._items.append(item)
        self._send("response.output_item.added", response_id=self.id, output_index=index, item=item.wire)
        if not self._is_apart:
            try:
                self._before[item.id] = self._conversation.add(item)
            except InvalidRequest as error:  # there is no room
                self.fail({"type": "invalid_request_error", "code": error.code, "message": error.message})
            else:
                self._send("conversation.item.added", previous_item_id=self._before[item.id], item=item.wire)
        return index

    def _text(self, text: str) -> None:
        item, index = self._opened_message()
        part = item.wire["content"][0]
        key = "transcript" if self._speaks else "text"
        part[key] += text
        kind = "response.output_audio_transcript.delta" if self._speaks else "response.output_text.delta"
        self._to(item, index, kind, content_index=0, delta=text)

    def _sound(self, data: str) -> None:
        item, index = self._opened_message()
        pcm = b64decode(data)
        item.spoken_bytes += len(pcm)
        if self._encoder is not None:
            self._encoded(item, index, self._encoder.encode(pcm))
        else:
            self._to(item, index, "response.output_audio.delta", content_index=0, delta=data)

    def _encoded(self, item: ConversationItem, index: int, sound: bytes) -> None:
        if sound:
            self._to(item, index, "response.output_audio.delta", content_index=0, delta=b64encode(sound).decode())

    def _opened_message(self) -> tuple[ConversationItem, int]:
        if self._message is None:
            self._message = index = self._open({"type": "message", "role": "assistant", "content": []})
            item = self._items[index]
            item.wire["content"].append(
                {"type": "output_audio", "transcript": ""} if self._speaks else {"type": "output_text", "text": ""}
            )
            self._to(item, index, "response.content_part.added", content_index=0, part=self._part(item))
        return self._items[self._message], self._message

    def _part(self, item: ConversationItem) -> JSON:
        part = item.wire["content"][0]
        if self._speaks:
            return {"type": "audio", "transcript": part["transcript"]}
        return {"type": "text", "text": part["text"]}

    def _end_message(self, item: ConversationItem, index: int) -> None:
        part = self._part(item)
        if self._speaks:
            if self._encoder is not None:
                self._encoded(item, index, self._encoder.end())
            self._to(item, index, "response.output_audio.done", content_index=0)
            self._to(
                item, index, "response.output_audio_transcript.done", content_index=0, transcript=part["transcript"]
            )
        else:
            self._to(item, index, "response.output_text.done", content_index=0, text=part["text"])
        self._to(item, index, "response.content_part.done", content_index=0, part=part)

    def _call(self, call: Mapping[str, Any]) -> None:
        number, function = call["index"], call["function"]
        if number not in self._calls:
            wire = {"type": "function_call", "name": function["name"], "call_id": call["id"], "arguments": ""}
            self._calls[number] = self._open(wire)
        index = self._calls[number]
        item, text = self._items[index], function.get("arguments") or ""
        if text:
            item.wire["arguments"] += text
            kind = "response.function_call_arguments.delta"
            self._to(item, index, kind, call_id=item.wire["call_id"], delta=text)

    def _to(self, item: ConversationItem, index: int, kind: str, **fields: Any) -> None:
        self._send(kind, response_id=self.id, item_id=item.id, output_index=index, **fields)

    def _wire(self, status: str, details: JSON | None) -> JSON:
        settings = self._settings
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.wire for item in self._items],
            "conversation_id": None if self._is_apart else self._conversation.id,
            "output_modalities": settings["output_modalities"],
            "max_output_tokens": settings["max_output_tokens"],
            "audio": {"output": {name: settings["output"][name] for name in ("format", "voice")}},
            "usage": self._usage,
            "metadata": settings.get("metadata"),
        }


def _usage(usage: Mapping[str, Any]) -> JSON:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    spoken = usage["completion_tokens_details"].get("audio_tokens", 0)
    return {
        "total_tokens": usage["total_tokens"],
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "input_token_details": {
            "text_tokens": usage["prompt_tokens"],
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage["completion_tokens"] - spoken, "audio_tokens": spoken},
    }
