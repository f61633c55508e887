"""POST /completion and /infill in llama.cpp's own words.

JSON in, GenerateRequest out; events in, JSON out. One prompt is answered with an object, several with a list of them. A
stream has an object for each piece of text and a full one at the end of each choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.events import Finished, Pace, PromptProgress, PromptWaits, Text, TokenLogprob
from llamasrv.domain.request import GenerateRequest, InfillPrompt, MixedPrompt, Prompt, TextPrompt, TokenPrompt
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.prompts import prompt_of, token_ids
from llamasrv.protocols.common.sampling import INT_MAX, SamplingSchema, extras_of, unless_negative
from llamasrv.protocols.common.schema import (
    Array,
    Bound,
    Count,
    Flag,
    Ignored,
    Invalid,
    Names,
    Number,
    Refused,
    String,
    WireField,
    WireSchema,
    check_length,
    expect,
    wrong_type,
)
from llamasrv.protocols.common.wire import dumps, logprob
from llamasrv.protocols.errors import llamacpp_body
from llamasrv.protocols.fold import FoldedChoice
from llamasrv.protocols.llamacpp.final import final_body, settings_of
from llamasrv.protocols.telemetry import Extras, Paces, progress_of
from llamasrv.protocols.writer import Writer


class Clamped(Number):
    """A number that is clamped to its bounds."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) in (int, float):
            value = min(max(float(value), self.low), self.high)
        return super()._deserialize(value, attr, data, **kwargs)


class NativePrompts(WireField):
    """A text, token ids, a mix of both, an object with a `prompt_string`, or an array of those."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Prompt, ...]:
        if type(value) is not list or (value and any(type(item) is int for item in value)):
            return (self._one(value),)
        if not value:
            raise Invalid("empty array.", code="empty_array")
        check_length(value, self.limits.prompts, "prompts")
        return tuple(self._one(item, i) for i, item in enumerate(value))

    def _one(self, value: Any, *path: int) -> Prompt:
        if type(value) is str:
            return TextPrompt(value)
        if type(value) is dict:
            return prompt_of(value, self.limits, "prompt", *path)
        expect(list, value, *path, what="a string, an array of token ids, or an array of prompts")
        if not any(type(item) is str for item in value):
            return TokenPrompt(token_ids(value, *path))
        for i, item in enumerate(value):
            if type(item) is int and not 0 <= item < 2**31:
                raise Invalid(f"token id {item} is out of range.", *path, i)
            if type(item) not in (int, str):
                raise wrong_type("a string or a token id", item, *path, i)
        return MixedPrompt(tuple(value))


class Lines(Array):
    """Extra texts of /infill: objects with a `text` and a `filename`."""

    expected = "an array of objects"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[tuple[str, str], ...]:
        check_length(value, self.limits.parts, "entries")
        out = []
        for i, entry in enumerate(value):
            expect(dict, entry, i, what="an object with a 'text'")
            text = expect(str, entry.get("text"), i, "text")
            out.append((expect(str, entry.get("filename", "tmp"), i, "filename"), text))
        return tuple(out)


class Stops(Names):
    """Empty strings among them are dropped, as llama.cpp drops them."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if type(value) in (str, list):
            value = [text for text in ([value] if type(value) is str else value) if text != ""]
        return super()._deserialize(value, attr, data, **kwargs)


class Length(Bound):
    """Max tokens of the answer; -1: no bound. llama-server reads the first of its names and no other."""

    def put(self, parts: dict[str, Any], value: int) -> None:
        parts.setdefault("max_tokens", unless_negative(value))


class Paths(Names):
    """Paths of the reply. An empty one selects nothing, so that a client that only warms the cache gets `{}`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        given = [value] if type(value) is str else value
        if type(given) is not list or "" not in given:
            return super()._deserialize(value, attr, data, **kwargs)
        return ("", *super()._deserialize([path for path in given if path != ""], attr, data, **kwargs))


class NativeSchema(SamplingSchema):
    """The fields that both endpoints understand. Numbers that llama.cpp clamps are clamped here, too."""

    temperature = Clamped(0, 1e6, "absent: the model's own default", to="sampling.temperature")
    top_p = Clamped(0, 1, "absent: the model's own default", to="sampling.top_p")
    min_p = Clamped(0, 1, to="sampling.min_p")
    stop = Stops("stops", "stop_chars", "a string or an array; in addition to the model's own end", to="stop")
    n_predict = Length(
        0, "max_tokens", "-1, absent: until the model ends; 0: only the prompt is computed", to="max_tokens"
    )
    max_tokens = Length(0, "max_tokens", "the same as `n_predict`", to="max_tokens")
    max_completion_tokens = Length(0, "max_tokens", "the same as `n_predict`", to="max_tokens")
    n_cmpl = Count(1, "choices", "choices for each prompt; the same as `n`")
    n_probs = Count(
        0,
        "top_logprobs",
        "log-probabilities of the N most likely tokens",
        to="logprobs",
        via=lambda n: n or None,
    )
    logprobs = Count(0, "top_logprobs", "the same as `n_probs`", to="logprobs", via=lambda n: n or None)
    presence_penalty = Number(-1e6, 1e6, to="sampling.presence_penalty")
    frequency_penalty = Number(-1e6, 1e6, to="sampling.frequency_penalty")
    return_tokens = Flag("the ids of the answer's tokens; a stream has them always")  # type: ignore[assignment]
    response_fields = Paths("stops", 256, "paths of the reply, like `timings/prompt_n`: only these are sent")
    post_sampling_probs = Flag(
        "with `n_probs`: probabilities as the samplers left them, not the model's own", to="sampled_probs"
    )
    grammar_lazy = Refused("a grammar holds from the first token")
    grammar_triggers = Refused("a grammar holds from the first token")
    preserved_tokens = Ignored("only matter to `grammar_triggers`")
    n_keep = Count(
        0,
        INT_MAX,
        "with `--context-shift`: first tokens to keep; -1: the prompt; absent: as `--keep` says",
        also=(-1,),
        to="keep",
    )
    n_discard = Count(
        0, INT_MAX, "with `--context-shift`: tokens to forget at a time; 0: half of those not kept", to="discard"
    )
    n_indent = Ignored()
    n_cache_reuse = Ignored("whole prefixes are reused")
    t_max_prompt_ms = Ignored()
    t_max_predict_ms = Count(
        0,
        INT_MAX,
        "milliseconds after which the answer ends with its line; -1: never",
        also=(-1,),
        to="time_limit",
        via=lambda ms: None if ms < 0 else ms / 1000,
    )
    backend_sampling = Ignored()
    sse_ping_interval = Ignored("set for the server")
    verbose = Ignored()


class CompletionSchema(NativeSchema):
    prompt = NativePrompts(
        "a text, token ids, both mixed, an object with `prompt_string`, or an array of those", required=True
    )


class InfillSchema(NativeSchema):
    input_prefix = String("the text before the gap", required=True)
    input_suffix = String("what is after it", required=True)
    input_extra = Lines("further texts: objects with `text` and `filename`")
    prompt = String("the text that is in the gap already")


class NativeOptions(NamedTuple):
    """How the reply is to look; nothing of it reaches the model."""

    stream: bool = False
    probs: int | None = None
    tokens: bool = False
    several: bool = False  # a list of replies
    fields: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}  # the request's settings, which generation_settings repeats
    extras: Extras = Extras()


class NativeCompletion(SchemaEndpoint):
    """POST /completion, with its limits."""

    schema: type[WireSchema] = CompletionSchema
    names = prompt_in("prompt")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, NativeOptions]:
        data = self._load(body)
        get, prompts = data.get, self._prompts(data)
        n = get("n_cmpl", get("n", 1))
        if len(prompts) * n > self._limits.choices:
            text = f"Invalid 'n': at most {self._limits.choices} choices for all prompts together."
            raise InvalidRequest(text, param="n")
        tokens = get("return_tokens", False)
        with_tokens = tokens or get("stream", False)
        request = build(
            GenerateRequest, data, prompts=prompts, n=n, with_tokens=with_tokens, timeout=timeout, owner=owner
        )
        options = NativeOptions(
            request.stream,
            request.logprobs,
            tokens,
            len(prompts) * n > 1,
            get("response_fields", ()),
            settings_of(request),
            extras_of(data),
        )
        return request, options

    def _prompts(self, data: Loaded) -> tuple[Prompt, ...]:
        prompts: tuple[Prompt, ...] = data["prompt"]
        return prompts

    def reply(self, options: NativeOptions) -> NativeReply:
        return NativeReply(options)


class Infill(NativeCompletion):
    """POST /infill."""

    schema = InfillSchema
    names = prompt_in("input_prefix")

    def _prompts(self, data: Loaded) -> tuple[Prompt, ...]:
        typed, extra = data.get("prompt", ""), data.get("input_extra", ())
        return (InfillPrompt(data["input_prefix"], data["input_suffix"], typed, extra),)


class NativeReply(Writer):
    """One reply. `chunks` for a stream, in order; `whole` otherwise."""

    def __init__(self, options: NativeOptions) -> None:
        super().__init__()
        self._options = options
        self._states: dict[int, _State] = {}
        self._paces = Paces()

    # ------------------------------------------------------------ streaming

    def on_text(self, event: Text) -> None:
        state = self._state(event.choice)
        state.num_tokens += len(event.tokens)
        state.has_new_line = state.has_new_line or "\n" in event.text
        body: dict[str, Any] = {
            "index": event.choice,
            "content": event.text,
            "tokens": event.tokens,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": state.num_tokens,
            "tokens_evaluated": state.num_prompt,
        }
        if self._options.probs is not None and event.logprobs:
            body["completion_probabilities"] = self._probabilities(event.logprobs)
        self._out.append(self._with_pace(dumps(body), event.choice))

    def on_pace(self, event: Pace) -> None:
        self._paces.note(event)

    def on_progress(self, event: PromptWaits | PromptProgress) -> None:
        body = {
            "index": event.choice,
            "content": "",
            "tokens": [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": 0,
            "tokens_evaluated": self._state(event.choice).num_prompt,
            **progress_of(event),
        }
        self._out.append(self._with_pace(orjson.dumps(body), event.choice))

    def on_finished(self, event: Finished) -> None:
        state = self._state(event.choice)
        self._out.append(dumps(self._shown(self._final(event, "", [], state.has_new_line))))

    def error(self, error: LlamasrvError) -> bytes:
        return llamacpp_body(error)

    def _state(self, choice: int) -> _State:
        return self._states.setdefault(choice, _State(self.info.num_prompt_of(choice)))

    def _with_pace(self, chunk: bytes, choice: int) -> bytes:
        return chunk[:-1] + self._paces.of(choice) + b"}"

    # ------------------------------------------------------------ whole

    def whole(self) -> bytes:
        bodies = [self._whole(number, choice) for number, choice in enumerate(self.folded.choices)]
        return orjson.dumps(bodies if self._options.several else bodies[0])

    def _whole(self, number: int, choice: FoldedChoice) -> Any:
        text = "".join(choice.text)
        body = self._final(choice.finished(number), text, choice.tokens if self._options.tokens else [], "\n" in text)
        if self._options.probs is not None:
            body["completion_probabilities"] = self._probabilities(choice.logprobs)
        return self._shown(body)

    def _final(self, event: Finished, text: str, tokens: list[int], has_new_line: bool) -> dict[str, Any]:
        return final_body(
            event,
            self.info,
            self._options.settings,
            text=text,
            tokens=tokens,
            has_new_line=has_new_line,
        )

    def _probabilities(self, entries: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        most = self._options.probs or 0
        sampled = self._options.settings.get("post_sampling_probs", False)
        write, others = (_sampled, "top_probs") if sampled else (_token, "top_logprobs")
        return [
            {
                **write(entry.token, entry.piece, entry.logprob),
                others: [write(other.token, other.piece, other.logprob) for other in entry.top[:most]],
            }
            for entry in entries
        ]

    def _shown(self, body: dict[str, Any]) -> dict[str, Any]:
        """Only the requested fields, each under its full path."""
        if not self._options.fields:
            return body
        out = {}
        for path in self._options.fields:
            value: Any = body
            for name in path.split("/"):
                value = value.get(name, _MISSING) if type(value) is dict else _MISSING
            if value is not _MISSING:
                out[path] = value
        return out


_MISSING = object()


class _State:
    """What a stream has sent of one choice."""

    __slots__ = ("num_prompt", "num_tokens", "has_new_line")

    def __init__(self, num_prompt: int) -> None:
        self.num_prompt = num_prompt
        self.num_tokens = 0
        self.has_new_line = False


def _token(token: int, piece: bytes, value: float | None) -> dict[str, Any]:
    return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob(value)}


def _sampled(token: int, piece: bytes, value: float | None) -> dict[str, Any]:
    prob = 0.0 if value is None else math.exp(value)
    return {"id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece), "prob": prob}
