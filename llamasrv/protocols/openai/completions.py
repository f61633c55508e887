"""POST /v1/completions: raw prompts, as text or token ids.

JSON in, GenerateRequest out; events in, JSON out. The prompt is given to the model as it is: no template, and special
tokens in it are parsed.
"""

from __future__ import annotations

import time
from codecs import getincrementaldecoder
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import Finished, Text, TokenLogprob
from llamasrv.domain.request import GenerateRequest, Prompt, TextPrompt
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.prompts import Prompts
from llamasrv.protocols.common.sampling import SamplingSchema, extras_of
from llamasrv.protocols.common.schema import Bound, Count, Flag, String
from llamasrv.protocols.common.wire import FINISH, dumps, logprob, new_id, usage_body
from llamasrv.protocols.errors import openai_body
from llamasrv.protocols.llamacpp.final import settings_of
from llamasrv.protocols.openai.chunks import ChunkReply
from llamasrv.protocols.telemetry import Extras

_utf8 = getincrementaldecoder("utf-8")
_NO_PROMPT = TextPrompt("")


class CompletionsSchema(SamplingSchema):
    prompt = Prompts("text, texts, token ids or arrays of them; absent: the start of a text")
    suffix = String("by the model's own tokens for filling in; refused where it has none")
    max_tokens = Bound(0, "max_tokens", "absent: until the model ends; 0 with `echo`: only score", to="max_tokens")
    max_completion_tokens = Bound(0, "max_tokens", "the smaller of both", to="max_tokens")
    echo = Flag("with `logprobs` the prompt is scored too", to="echo")
    logprobs = Count(0, "top_logprobs", to="logprobs")
    best_of = Count(1, "choices", "by log-probability per token; not with `stream`", to="best_of")
    verbose = Flag("llama.cpp's: `__verbose` shows the prompt and how tokens were chosen; not with `best_of`")


class CompletionsOptions(NamedTuple):
    """How the reply is to look; nothing of it reaches the model."""

    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    num_choices: int = 1
    extras: Extras = Extras()
    settings: Mapping[str, Any] = {}  # the request's settings, which `__verbose` repeats


class Completions(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = CompletionsSchema
    names = prompt_in("prompt")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, CompletionsOptions]:
        data = self._load(body)
        get = data.get
        prompts = get("prompt", (_NO_PROMPT,))
        n, stream, best_of = get("n", 1), get("stream", False), get("best_of")
        extras = extras_of(data)
        if best_of is not None:
            if best_of < n:
                raise InvalidRequest(f"Invalid 'best_of': must be at least 'n' ({n}), not {best_of}.", param="best_of")
            if stream and best_of > n:
                raise InvalidRequest("Invalid 'best_of': not allowed together with 'stream'.", param="best_of")
            if extras.verbose and best_of > n:
                raise InvalidRequest("Invalid 'verbose': not allowed together with 'best_of'.", param="verbose")
        if len(prompts) * (best_of or n) > self._limits.choices:
            param = "n" if best_of is None else "best_of"
            text = f"Invalid '{param}': at most {self._limits.choices} choices for all prompts together."
            raise InvalidRequest(text, param=param)
        if "suffix" in data:
            prompts = self._with_suffix(prompts, data)
        request = build(GenerateRequest, data, prompts=prompts, timeout=timeout, owner=owner)
        options = CompletionsOptions(
            stream,
            get("stream_options", False),
            "logprobs" in data,
            len(prompts) * n,
            extras,
            settings_of(request) if extras.verbose else {},
        )
        return request, options

    def _with_suffix(self, prompts: tuple[Prompt, ...], data: dict[str, Any]) -> tuple[Prompt, ...]:
        if data.get("echo"):
            raise InvalidRequest("Invalid 'suffix': not allowed together with 'echo'.", param="suffix")
        out = []
        for prompt in prompts:
            if not isinstance(prompt, TextPrompt):
                raise InvalidRequest("Invalid 'suffix': the prompt must be text.", param="suffix")
            out.append(TextPrompt(prompt.text, suffix=data["suffix"]))
        return tuple(out)

    def reply(self, options: CompletionsOptions) -> CompletionsReply:
        return CompletionsReply(options)


class CompletionsReply(ChunkReply):
    """One reply. `chunks` for a stream, in order; `whole` otherwise."""

    NO_CONTENT = b'""'

    def __init__(self, options: CompletionsOptions) -> None:
        super().__init__(options)
        self._options = options
        self.id, self.created = new_id("cmpl-"), int(time.time())
        self._logprobs = [_Logprobs() for _ in range(options.num_choices)] if options.logprobs else []

    def _fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.info.model,
            "system_fingerprint": self.info.fingerprint,
        }

    # ------------------------------------------------------------ streaming

    def on_begin(self) -> None:
        self._begin_chunks(self._fields())

    def on_text(self, event: Text) -> None:
        logprobs = b"null"
        if event.logprobs and self._options.logprobs:
            logprobs = dumps(self._logprobs[event.choice].body(event.logprobs))
        self._out.append(self._chunk(event.choice, dumps(event.text), logprobs, b"null"))

    def on_finished(self, event: Finished) -> None:
        self._end(event, FINISH[event.reason])

    def error(self, error: LlamasrvError) -> bytes:
        return openai_body(error)

    def _chunk(self, choice: int, content: bytes, logprobs: bytes, reason: bytes, extra: bytes | None = None) -> bytes:
        return b'%b{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b%b%b}' % (
            self._head,
            content,
            choice,
            logprobs,
            reason,
            self._tail,
            self._paces.of(choice) if extra is None else extra,
        )

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        choices = [
            {
                "text": "".join(choice.text),
                "index": number,
                "logprobs": self._logprobs[number].body(choice.logprobs) if self._options.logprobs else None,
                "finish_reason": FINISH[choice.reason],  # type: ignore[index]
            }
            for number, choice in enumerate(self.folded.choices)
        ]
        usage = usage_body(self.folded.usage)
        return orjson.dumps({**self._fields(), "choices": choices, "usage": usage, **self._whole_figures()})


class _Logprobs:
    """The four lists of one choice. Offsets count characters of the choice's text, across chunks."""

    def __init__(self) -> None:
        self._offset = 0
        self._decode = _utf8(errors="replace").decode

    def body(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for entry in entries:
            name = _name(entry.piece)
            tokens.append(name)
            offsets.append(self._offset)
            self._offset += len(self._decode(entry.piece))
            if entry.logprob is None:  # the first token of a prompt follows nothing
                values.append(None)
                tops.append(None)
                continue
            value = logprob(entry.logprob)
            values.append(value)
            top = {_name(other.piece): logprob(other.logprob) for other in reversed(entry.top)}
            top.setdefault(name, value)
            tops.append(top)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _name(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
