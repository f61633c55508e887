"""The replies of generateContent: candidates, whole or streamed.

Calls are sent when they are complete, as Google does. What was thought before the first of them goes with it, sealed in
its signature, so that the next turn brings it back even where thoughts are not shown.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import (
    Finished,
    FinishReason,
    Reasoning,
    Spoken,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from llamasrv.domain.request import ToolCall
from llamasrv.errors import LlamasrvError
from llamasrv.protocols.common.wire import dumps, logprob, new_id
from llamasrv.protocols.errors import gemini_body
from llamasrv.protocols.fold import FoldedChoice
from llamasrv.protocols.gemini.contents import seal
from llamasrv.protocols.reply import RunFacts
from llamasrv.protocols.writer import Writer

PCM = "audio/L16;codec=pcm;rate=24000"  # little-endian, as Google sends it

_CUT = frozenset((FinishReason.LENGTH, FinishReason.CONTEXT))
_REASONS = {
    FinishReason.STOP: "STOP",
    FinishReason.STOP_STRING: "STOP",
    FinishReason.TOOL_CALLS: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.CONTEXT: "MAX_TOKENS",
}


class GeminiReplyOptions(NamedTuple):
    """How the reply is to look; nothing of it reaches the model."""

    thoughts: bool = False  # whether thoughts are shown
    top_logprobs: int | None = None  # None: no log-probabilities
    only_sound: bool = False  # the answer is only spoken, not shown


class _Turn:
    """What a stream has sent of one candidate."""

    __slots__ = ("thoughts", "call")

    def __init__(self) -> None:
        self.thoughts: list[str] = []  # thoughts that no signature has carried yet
        self.call: tuple[str, str, list[str]] | None = None  # id, name, fragments of the arguments


class GeminiReply(Writer):
    """One reply. `chunks` for a stream, in order; `whole` otherwise."""

    def __init__(self, options: GeminiReplyOptions) -> None:
        super().__init__()
        self._options = options
        self._about: dict[str, Any] = {}
        self._tail = b""
        self._turns: dict[int, _Turn] = {}
        self._ended: list[Finished] = []

    def start(self, info: RunFacts) -> None:
        super().start(info)
        self._about = {"modelVersion": info.model, "responseId": new_id("")}
        self._tail = orjson.dumps(self._about)[1:]

    # ------------------------------------------------------------ streaming

    def on_silence(self) -> None:
        self._write({**_content([{"text": ""}]), "index": 0})

    def on_text(self, event: Text) -> None:
        self._end_call(event.choice)
        if event.logprobs and self._options.top_logprobs is not None:
            result = self._logprobs(event.logprobs)
            self._write({**_content([{"text": event.text}]), "index": event.choice, "logprobsResult": result})
        elif event.text and not self._options.only_sound:
            self._out.append(
                b'{"candidates":[{"content":{"parts":[{"text":%b}],"role":"model"},"index":%d}],%b'
                % (dumps(event.text), event.choice, self._tail)
            )

    def on_spoken(self, event: Spoken) -> None:
        self._write({**_content([_sound(event.data)]), "index": event.choice})

    def on_reasoning(self, event: Reasoning) -> None:
        self._turn(event.choice).thoughts.append(event.text)
        if self._options.thoughts and event.text:
            self._write({**_content([{"text": event.text, "thought": True}]), "index": event.choice})

    def on_call(self, event: ToolCallStart) -> None:
        self._end_call(event.choice)
        self._turn(event.choice).call = event.id, event.name, []

    def on_arguments(self, event: ToolCallArguments) -> None:
        call = self._turn(event.choice).call
        if call is not None:
            call[2].append(event.fragment)

    def on_finished(self, event: Finished) -> None:
        self._end_call(event.choice, cut=event.reason in _CUT)
        self._ended.append(event)

    def on_usage(self, event: Usage) -> None:
        candidates = [
            {**_content([{"text": ""}]), "finishReason": _REASONS.get(end.reason, "OTHER"), "index": end.choice}
            for end in sorted(self._ended, key=lambda end: end.choice)
        ]
        self._out.append(dumps({"candidates": candidates, "usageMetadata": usage_body(event), **self._about}))

    def error(self, error: LlamasrvError) -> bytes:
        return gemini_body(error)

    def _turn(self, choice: int) -> _Turn:
        return self._turns.setdefault(choice, _Turn())

    def _end_call(self, choice: int, *, cut: bool = False) -> None:
        turn = self._turns.get(choice)
        if turn is None or turn.call is None:
            return
        (id, name, fragments), turn.call = turn.call, None
        parts = _calls([ToolCall(id, name, "".join(fragments))], turn.thoughts, cut=cut)
        turn.thoughts = []
        if parts:
            self._write({**_content(parts), "index": choice})

    def _write(self, candidate: dict[str, Any]) -> None:
        self._out.append(dumps({"candidates": [candidate], **self._about}))

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        candidates = [self._candidate(number, choice) for number, choice in enumerate(self.folded.choices)]
        usage = usage_body(self.folded.usage)
        return orjson.dumps({"candidates": candidates, "usageMetadata": usage, **self._about})

    def _candidate(self, number: int, choice: FoldedChoice) -> dict[str, Any]:
        parts: list[dict[str, Any]] = []
        if choice.reasoning and self._options.thoughts:
            parts.append({"text": "".join(choice.reasoning), "thought": True})
        calls = _calls(choice.tool_calls, choice.reasoning, cut=choice.reason in _CUT)
        text = "".join(choice.text)
        if choice.audio:
            parts.append(_sound(b"".join(choice.audio)))
        if not self._options.only_sound and text or not (calls or choice.audio):
            parts.append({"text": text})
        reason = FinishReason.STOP if choice.reason is None else choice.reason
        candidate = {**_content([*parts, *calls]), "finishReason": _REASONS.get(reason, "OTHER"), "index": number}
        if self._options.top_logprobs is not None:
            candidate["logprobsResult"] = self._logprobs(choice.logprobs)
            values = [logprob(entry.logprob) for entry in choice.logprobs]
            candidate["avgLogprobs"] = sum(values) / max(1, len(values))
        return candidate

    def _logprobs(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        most = self._options.top_logprobs or 0
        entries = tuple(entries)
        result: dict[str, Any] = {"chosenCandidates": [_token(one.token, one.piece, one.logprob) for one in entries]}
        if most:
            result["topCandidates"] = [
                {"candidates": [_token(other.token, other.piece, other.logprob) for other in one.top[:most]]}
                for one in entries
            ]
        return result


def _content(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": {"parts": parts, "role": "model"}}


def _sound(pcm: bytes) -> dict[str, Any]:
    return {"inlineData": {"mimeType": PCM, "data": b64encode(pcm).decode()}}


def _calls(calls: Iterable[ToolCall], thoughts: list[str], *, cut: bool) -> list[dict[str, Any]]:
    """The parts for calls, with arguments as objects; the first carries the thoughts. `cut`: the answer was cut off,
    perhaps inside the last call."""
    parts: list[dict[str, Any]] = []
    for call in calls:
        try:
            arguments = orjson.loads(call.arguments or "{}")
        except orjson.JSONDecodeError:
            if cut:
                continue
            arguments = {}
        if type(arguments) is not dict:  # clients accept nothing but objects
            arguments = {"value": arguments}
        parts.append({"functionCall": {"id": call.id, "name": call.name, "args": arguments}})
    if parts and thoughts:
        parts[0]["thoughtSignature"] = seal("".join(thoughts))
    return parts


def _token(token: int, piece: bytes, value: float | None) -> dict[str, Any]:
    return {"token": piece.decode("utf-8", "replace"), "tokenId": token, "logProbability": logprob(value)}


def usage_body(usage: Usage) -> dict[str, Any]:
    body: dict[str, Any] = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.prompt_tokens}],
    }
    if usage.audio_tokens:
        body["candidatesTokensDetails"] = [
            {"modality": "AUDIO", "tokenCount": usage.audio_tokens},
            {"modality": "TEXT", "tokenCount": body["candidatesTokenCount"] - usage.audio_tokens},
        ]
    if usage.cached_tokens:
        body["cachedContentTokenCount"] = usage.cached_tokens
    if usage.reasoning_tokens:
        body["thoughtsTokenCount"] = usage.reasoning_tokens
    return body
