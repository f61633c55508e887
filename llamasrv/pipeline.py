"""Where chat and engine meet: a GenerateRequest in, domain events out; the same for every protocol.

Finds the model, renders and tokenises the prompts, merges the sampling parameters, makes a Sequence per choice and
submits them; then turns what the engine says into events, whole characters at a time. Whatever is wrong with a request
is raised by `submit`, before anything runs. Knows no wire format and no HTTP.
"""

from __future__ import annotations

import hashlib
import math
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from llamasrv import __version__
from llamasrv.chat.template import ChatTemplate, TemplateError, fallback_source
from llamasrv.domain.events import Event, Failed, Finished, FinishReason, Text, TokenLogprob, Usage
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Prompt, TextPrompt, TokenPrompt
from llamasrv.domain.sequence import Sequence
from llamasrv.engine.channels import Delta, End, PromptScored, Stream, off_hub
from llamasrv.engine.interface import ModelInfo, Vocabulary
from llamasrv.errors import ContextTooLong, EngineFailure, InvalidRequest, Unavailable, Unsupported
from llamasrv.models.registry import Model, Registry

LONG_TEXT = 20_000  # characters, some 10 ms; beyond, rendering and tokenising go to a native thread
_CHARS_A_TOKEN = 6  # no real text has as many; beyond, a prompt is counted in slices until it is too long
_SLICE = 8192

_PARAMS = frozenset(f.name for f in fields(SamplingParams))
_utf8 = getincrementaldecoder("utf-8")


class Pipeline:
    """One per process. Safe to use from many greenlets or threads."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._served: dict[Model, Served] = {}

    def open(self, name: str | None) -> Served:
        """The model of that name, ready to use. Raises ModelNotFound, or Unavailable while it loads."""
        model = self.registry.find(name)
        served = self._served.get(model)
        if served is not None and served.info is model.engine.info:
            return served
        status = model.engine.status
        if status.state == "loading":
            raise Unavailable("Loading model", code="model_loading")
        if status.state not in ("ready", "draining"):
            raise Unavailable(f"The model is not available: {status.reason or status.state}")
        served = self._served[model] = off_hub(Served.of, model)
        return served

    def submit(self, request: GenerateRequest) -> Generation | BestOf:
        """Start a generation. Everything that can be known to be wrong is raised here."""
        served = self.open(request.model)
        prompts = served.encode_all(request)
        params = served.params(request.sampling)
        deadline = None if request.timeout is None else served.model.engine.clock() + request.timeout
        best_of = request.best_of if request.best_of is not None and request.best_of > request.n else None
        each = best_of or request.n
        logprobs = request.logprobs
        if best_of is not None and logprobs is None:
            logprobs = 0  # to rank by
        sequences = []
        for p, tokens in enumerate(prompts):
            for k in range(each):
                sequences.append(
                    Sequence(
                        tokens,
                        params=params if k == 0 else _reseeded(params, k),
                        index=p * each + k,
                        max_tokens=_least(request.max_tokens, served.model.max_tokens),
                        stop=request.stop,
                        logprobs=logprobs,
                        prompt_logprobs=request.echo and request.logprobs is not None,
                        cache_prompt=request.cache_prompt,
                        deadline=deadline,
                        owner=request.owner,
                        priority=request.priority,
                    )
                )
        engine = served.model.engine
        stream = engine.submit(sequences)
        generation = Generation(
            served, stream, lambda: engine.cancel(stream), num_sequences=len(sequences), each=each, prompts=prompts
        )
        if request.echo:
            generation.echo([served.text_of(prompt, tokens) for prompt, tokens in zip(request.prompts, prompts)])
        if best_of is None:
            return generation
        return BestOf(generation, best_of=best_of, n=request.n, with_logprobs=request.logprobs is not None)


def _least(asked: int | None, bound: int | None) -> int | None:
    return asked if bound is None else bound if asked is None else min(asked, bound)


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded model, with what is made once for it."""

    model: Model
    info: ModelInfo
    vocab: Vocabulary
    context: int
    template: ChatTemplate | None
    template_error: str
    defaults: Mapping[str, Any]
    default_params: SamplingParams
    fingerprint: str

    @classmethod
    def of(cls, model: Model) -> Served:
        engine = model.engine
        info, vocab = engine.info, engine.vocab
        source = model.chat_template or info.chat_template or fallback_source()
        template, template_error = None, ""
        try:
            template = ChatTemplate(source, info.bos_token, info.eos_token, vocab.specials)
            _ = template.traits  # finds out once what it accepts, so that no request waits for it
        except TemplateError as error:
            template, template_error = None, str(error)
        defaults = {**info.sampling_defaults, **model.sampling}
        defaults = {name: _frozen(value) for name, value in defaults.items() if name in _PARAMS and value is not None}
        _bound_windows(defaults, engine.context)
        sizes = (info.num_params, info.size_bytes, engine.context)
        facts = (__version__, info.name, sizes, source, sorted(defaults.items()))
        return cls(
            model=model,
            info=info,
            vocab=vocab,
            context=engine.context,
            template=template,
            template_error=template_error,
            defaults=defaults,
            default_params=SamplingParams(**defaults),
            fingerprint="fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12],
        )

    # ------------------------------------------------------------ parameters

    def params(self, given: Mapping[str, Any]) -> SamplingParams:
        """llama.cpp's defaults < the model's own < the operator's < the request's."""
        if not given:
            return self.default_params
        merged = {**self.defaults, **given}
        _bound_windows(merged, self.context)
        if "logit_bias" in given:
            merged["logit_bias"] = self._bias(given["logit_bias"], spared=not merged.get("ignore_eos", False))
        return SamplingParams(**merged)

    def _bias(self, entries: tuple[tuple[int | str, float], ...], *, spared: bool) -> tuple[tuple[int, float], ...]:
        """By token. `spared`: the tokens that end an answer are not banned anyway."""
        out = []
        for key, bias in entries:
            if isinstance(key, str):  # a text: each of its tokens
                out += [(token, bias) for token in self.vocab.tokenize(key, parse_special=True)]
            elif 0 <= key < self.vocab.size:
                out.append((key, bias))
            else:
                raise InvalidRequest(
                    f"Invalid 'logit_bias': token id {key} is outside the vocabulary of {self.vocab.size} tokens.",
                    param="logit_bias",
                )
        banned = {token for token, bias in out if bias == -math.inf}
        if banned and len(banned if spared else banned | self.vocab.eog) >= self.vocab.size:
            raise InvalidRequest("Invalid 'logit_bias': every token is banned.", param="logit_bias")
        return tuple(out)

    # ------------------------------------------------------------ prompts

    def encode_all(self, request: GenerateRequest) -> list[list[int]]:
        room = self.context if request.max_tokens == 0 else self.context - 1
        out = []
        for prompt in request.prompts:
            tokens = off_hub(self.encode, prompt) if _size(prompt) > LONG_TEXT else self.encode(prompt)
            if len(tokens) > room:
                raise ContextTooLong(num_prompt=len(tokens), context=self.context, param="prompt")
            out.append(tokens)
        return out

    def encode(self, prompt: Prompt) -> list[int]:
        """The tokens of one prompt; never none."""
        if isinstance(prompt, ChatPrompt):
            tokens = self._encode_chat(prompt)
        elif isinstance(prompt, TextPrompt):
            tokens = self._encode_text(prompt)
        else:
            tokens = self._checked(prompt)
        if not tokens:
            start = self.vocab.bos if self.vocab.bos is not None else self.vocab.eos
            if start is None:
                raise InvalidRequest("The prompt is empty, and this model has no token to start from.", param="prompt")
            tokens = [start]
        return tokens

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt's text as the model's template writes it."""
        return self._usable_template().render(prompt).text

    def _usable_template(self) -> ChatTemplate:
        if self.template is None:
            raise InvalidRequest(f"This model's chat template cannot be used: {self.template_error}")
        return self.template

    def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
        tokenize = self.vocab.tokenize
        rendered = self._usable_template().render(prompt)
        self._refuse_endless(rendered.text)
        segments = rendered.segments
        if len(segments) == 1:
            text, trusted = segments[0]
            tokens = tokenize(text, parse_special=trusted)
        else:
            tokens = [token for text, trusted in segments for token in tokenize(text, parse_special=trusted)]
        # Most templates write the start token themselves; those that do not rely on the tokeniser for it.
        if self.vocab.add_bos and self.vocab.bos is not None and (not tokens or tokens[0] != self.vocab.bos):
            tokens.insert(0, self.vocab.bos)
        return tokens

    def _encode_text(self, prompt: TextPrompt) -> list[int]:
        vocab = self.vocab
        self._refuse_endless(prompt.text)
        if prompt.suffix is None:
            tokens = vocab.tokenize(prompt.text, add_special=True, parse_special=True)
            if vocab.add_bos and len(tokens) > 1 and tokens[0] == tokens[1] == vocab.bos:
                del tokens[0]  # the text brought its own
            return tokens
        if vocab.fim_pre is None or vocab.fim_suf is None or vocab.fim_mid is None:
            raise Unsupported("This model cannot fill in the middle: it has no tokens for it.", param="suffix")
        start = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        before = vocab.tokenize(prompt.text, parse_special=False)
        after = vocab.tokenize(prompt.suffix, parse_special=False)
        return [*start, vocab.fim_pre, *before, vocab.fim_suf, *after, vocab.fim_mid]

    def _refuse_endless(self, text: str) -> None:
        """Raises for a text that is far too long, without reading all of it. The number it tells is an estimate."""
        if len(text) <= self.context * _CHARS_A_TOKEN or len(text) <= LONG_TEXT:
            return
        count = 0
        for start in range(0, len(text), _SLICE):
            count += len(self.vocab.tokenize(text[start : start + _SLICE], parse_special=False))
            if count > self.context * 1.1 + 64:  # cutting may cost a token a slice
                raise ContextTooLong(
                    num_prompt=count * len(text) // (start + _SLICE), context=self.context, param="prompt"
                )

    def _checked(self, prompt: TokenPrompt) -> list[int]:
        tokens = list(prompt.tokens)
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab.size):
            at, token = next((i, t) for i, t in enumerate(tokens) if not 0 <= t < self.vocab.size)
            raise InvalidRequest(
                f"Invalid 'prompt': token id {token} at position {at} is outside the vocabulary "
                f"of {self.vocab.size} tokens.",
                param="prompt",
            )
        return tokens

    def text_of(self, prompt: Prompt, tokens: list[int]) -> str:
        """What an echo of the prompt shows."""
        if isinstance(prompt, TextPrompt):
            return prompt.text
        pieces = self.vocab.pieces
        return b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")


class Generation:
    """A running request: read `events` until `done`, or `cancel` it. One reader."""

    def __init__(
        self,
        served: Served,
        stream: Stream,
        cancel: Callable[[], None],
        *,
        num_sequences: int,
        each: int,
        prompts: list[list[int]],
    ) -> None:
        self.model = served.model.name
        self.fingerprint = served.fingerprint
        self.num_prompt = sum(map(len, prompts))
        self.usage: Usage | None = None
        self.done = False
        self.cancelled = False
        self._served = served
        self._stream = stream
        self._cancel = cancel
        self._each = each
        self._prompts = prompts
        self._choices = [_Choice() for _ in range(num_sequences)]
        self._ends: list[End] = []

    def echo(self, texts: list[str]) -> None:
        """Let every choice begin with its prompt."""
        for i, choice in enumerate(self._choices):
            choice.echo = texts[i // self._each]

    def cancel(self) -> None:
        """Give up. The events still end, with FinishReason.CANCELLED. Any number of times, at any time."""
        if not self.done and not self.cancelled:
            self.cancelled = True
            self._cancel()

    def events(self, timeout: float | None = None) -> list[Event]:
        """What has happened since the last call; waits for something. [] after `timeout` seconds without."""
        stream = self._stream
        give_up = None
        while not self.done:
            if not stream.wait(timeout):
                break
            events = self._convert(stream.take())
            if events:
                return events
            # Half a character, or tokens without text: nothing to tell yet.
            if timeout is not None:
                now = time.monotonic()
                give_up = give_up or now + timeout
                if now >= give_up:
                    break
                timeout = give_up - now
        return []

    def _convert(self, items: list[Any]) -> list[Event]:
        """The events of one wake. Tokens without log-probabilities become one text per choice."""
        out: list[Event] = []
        choices = self._choices
        said: dict[int, list[bytes]] = {}
        for item in items:
            kind = type(item)
            if kind is Delta:
                if item.logprobs is not None:
                    choices[item.index].hold(item, out)
                elif item.index in said:
                    said[item.index].append(item.data)
                else:
                    said[item.index] = [item.data]
                continue
            if item.index in said:
                choices[item.index].say(item.index, said.pop(item.index), out)
            if kind is End:
                self._end(item, out)
            elif kind is PromptScored:
                self._scored(item, out)
        for index, data in said.items():
            choices[index].say(index, data, out)
        return out

    def _scored(self, item: PromptScored, out: list[Event]) -> None:
        choice = self._choices[item.index]
        logprobs = item.logprobs
        vocab = self._served.vocab
        if choice.echo and vocab.add_bos and len(logprobs) > 1 and logprobs[0].token == vocab.bos:
            logprobs = logprobs[1:]  # the start token is no part of the text that is echoed
        out.append(Text(item.index, choice.echo or "", tuple(logprobs)))
        choice.echo = None

    def _end(self, end: End, out: list[Event]) -> None:
        index = end.index
        self._choices[index].finish(index, out)
        if end.error is not None:
            out.append(Failed(index, end.error))
        elif end.reason is FinishReason.CANCELLED and not self.cancelled:
            out.append(Failed(index, Unavailable("The server is stopping.")))
        elif end.reason is FinishReason.FAILED:
            out.append(Failed(index, EngineFailure("The model failed to compute this request.")))
        else:
            out.append(Finished(index, end.reason, end.stop))
        self._ends.append(end)
        if len(self._ends) == len(self._choices):
            self.usage = _usage(self._ends, self._prompts, self._each)
            out.append(self.usage)
            self.done = True


class _Choice:
    """Bytes to text for one choice. An incomplete character is kept back, with the log-probabilities it belongs to."""

    __slots__ = ("echo", "_decode", "_pending", "_text", "_logprobs")

    def __init__(self) -> None:
        decoder = _utf8(errors="replace")
        self.echo: str | None = None
        self._decode = decoder.decode
        self._pending = decoder.getstate
        self._text = ""
        self._logprobs: list[TokenLogprob] = []

    def say(self, index: int, data: list[bytes], out: list[Event]) -> None:
        text = self._decode(data[0] if len(data) == 1 else b"".join(data))
        if self.echo is not None:
            text, self.echo = self.echo + text, None
        if text:
            out.append(Text(index, text))

    def hold(self, delta: Delta, out: list[Event]) -> None:
        self._text += self._decode(delta.data)
        self._logprobs.append(delta.logprobs)  # type: ignore[arg-type]
        if not self._pending()[0]:
            self._flush(delta.index, out)

    def finish(self, index: int, out: list[Event]) -> None:
        self._text += self._decode(b"", True)
        if self._text or self._logprobs or self.echo:
            self._flush(index, out)

    def _flush(self, index: int, out: list[Event]) -> None:
        if self.echo is not None:
            self._text, self.echo = self.echo + self._text, None
        out.append(Text(index, self._text, tuple(self._logprobs)))
        self._text = ""
        self._logprobs = []


class BestOf:
    """A generation of more choices than were asked for: keeps everything back until all have ended, then tells the
    `n` of each prompt with the highest log-probability per token. Reads like a Generation."""

    def __init__(self, generation: Generation, *, best_of: int, n: int, with_logprobs: bool) -> None:
        self._generation = generation
        self._best_of, self._n, self._with_logprobs = best_of, n, with_logprobs
        self._kept: list[Event] = []
        self.model = generation.model
        self.fingerprint = generation.fingerprint
        self.num_prompt = generation.num_prompt
        self.cancel = generation.cancel

    @property
    def done(self) -> bool:
        return self._generation.done

    @property
    def cancelled(self) -> bool:
        return self._generation.cancelled

    @property
    def usage(self) -> Usage | None:
        return self._generation.usage

    def events(self, timeout: float | None = None) -> list[Event]:
        """[] until all choices have ended, then everything."""
        self._kept += self._generation.events(timeout)
        return self._chosen() if self._generation.done else []

    def _chosen(self) -> list[Event]:
        by_choice: dict[int, list[Any]] = {}
        for event in self._kept[:-1]:
            by_choice.setdefault(event.index, []).append(event)  # type: ignore[union-attr]
        out: list[Event] = []
        for first in range(0, len(by_choice), self._best_of):
            group = range(first, first + self._best_of)
            best = sorted(group, key=lambda index: -_mean_logprob(by_choice[index]))[: self._n]
            for place, index in enumerate(best):
                new = first // self._best_of * self._n + place
                out += [self._renumbered(event, new) for event in by_choice[index]]
        return [*out, self._kept[-1]]

    def _renumbered(self, event: Any, index: int) -> Event:
        if isinstance(event, Text):
            return Text(index, event.text, event.logprobs if self._with_logprobs else ())
        if isinstance(event, Finished):
            return Finished(index, event.reason, event.stop)
        return Failed(index, event.error)


def _mean_logprob(events: list[Any]) -> float:
    values = [t.logprob for e in events if isinstance(e, Text) for t in e.logprobs if t.logprob is not None]
    return sum(values) / len(values) if values else float("-inf")


def _usage(ends: list[End], prompts: list[list[int]], each: int) -> Usage:
    reused = [min((e.num_reused for e in ends if e.index // each == p), default=0) for p in range(len(prompts))]
    return Usage(
        prompt_tokens=sum(map(len, prompts)),
        cached_tokens=sum(reused),  # the choices of one prompt share it: it was cached if it was for all of them
        completion_tokens=sum(e.num_generated for e in ends),
        queue_seconds=max(e.queue_seconds for e in ends),
        prefill_seconds=max(e.prefill_seconds for e in ends),
        decode_seconds=max(e.decode_seconds for e in ends),
    )


def _reseeded(params: SamplingParams, k: int) -> SamplingParams:
    """The k-th choice of one prompt: with the first one's seed it would say the same."""
    if params.seed is None:
        return params
    values = {name: getattr(params, name) for name in _PARAMS}
    values["seed"] = (params.seed + k) % 0xFFFFFFFF
    return SamplingParams(**values)


def _bound_windows(params: dict[str, Any], context: int) -> None:
    """Samplers make room for as many tokens as they are told to look back over: never more than there can be."""
    for name in ("repeat_last_n", "dry_penalty_last_n"):
        if name in params and not 0 <= params[name] <= context:
            params[name] = context


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _size(prompt: Prompt) -> int:
    if isinstance(prompt, ChatPrompt):
        contents = [message.content for message in prompt.messages if message.content]
        return sum(len(c) if isinstance(c, str) else sum(len(part.text) for part in c) for c in contents)
    if isinstance(prompt, TextPrompt):
        return len(prompt.text) + len(prompt.suffix or "")
    return 0
