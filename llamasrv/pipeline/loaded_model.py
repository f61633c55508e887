"""A loaded model as requests see it: template, vocabulary, defaults; turns prompts into tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llamasrv import __version__
from llamasrv.chat.media import media_of
from llamasrv.chat.parser import Parser
from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.template import ChatTemplate, Rendered, fallback_source
from llamasrv.concurrency import off_hub
from llamasrv.domain.media import MediaSpan
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import (
    ChatPrompt,
    GenerateRequest,
    InfillPrompt,
    MediaPart,
    Message,
    MixedPrompt,
    Pin,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolChoice,
)
from llamasrv.engine.base.interface import ModelInfo, Projector, Vocabulary
from llamasrv.engine.engine import Engine
from llamasrv.errors import ContextTooLong, InvalidRequest, Unsupported
from llamasrv.models.model import Model
from llamasrv.pipeline.boundaries import boundaries, pinned
from llamasrv.pipeline.chat_profile import ChatProfile
from llamasrv.pipeline.detokenizer import ChatDetokenizer, Detokenizer, NumberedDetokenizer
from llamasrv.pipeline.infill import encode_infill
from llamasrv.pipeline.media import NO_MEDIA, RequestMedia
from llamasrv.pipeline.sampling import defaults_of, merged
from llamasrv.pipeline.sizes import is_long, refuse_endless
from llamasrv.pipeline.unseen import described


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt as tokens, and for a chat what it takes to read the answer. Negative tokens are rows of `media`."""

    tokens: list[int]
    media: tuple[MediaSpan, ...] = ()
    profile: ChatProfile | None = None
    text: str = ""
    continues: str | None = None
    tools: tuple[Tool, ...] = ()  # the callable ones
    left_out: int = 0  # number of messages that did not fit


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A loaded model, with everything that is made once for it."""

    model: Model
    engine: Engine  # the one it was made for; its model may have another by now, or none
    info: ModelInfo
    vocab: Vocabulary
    control_texts: Mapping[int, bytes]
    context: int
    profile: ChatProfile | None
    tool_profile: ChatProfile | None  # where the model has a template of its own for conversations with tools
    template_error: str
    defaults: Mapping[str, Any]
    default_params: SamplingParams
    fingerprint: str

    @classmethod
    def of(cls, model: Model) -> LoadedModel:
        engine = model.engine
        info, vocab = engine.info, engine.vocab
        source = model.settings.chat_template or info.chat_template or fallback_source()
        profile, tool_profile, template_error = None, None, ""
        try:
            profile = tool_profile = ChatProfile.of(source, info, vocab)
            if model.settings.chat_template is None and "tool_use" in info.templates:
                tool_profile = ChatProfile.of(info.templates["tool_use"], info, vocab)
        except TemplateError as error:
            template_error = str(error)
        defaults = defaults_of(model, info.sampling_defaults, engine.context)
        sizes = (info.num_params, info.size_bytes, engine.context)
        facts: tuple[Any, ...] = (__version__, info.name, sizes, source, sorted(defaults.items()))
        if engine.options.mmproj_digest:
            facts += (engine.options.mmproj_digest,)
        return cls(
            model=model,
            engine=engine,
            info=info,
            vocab=vocab,
            control_texts={token: text.encode() for text, token in vocab.controls.items()},
            context=engine.context,
            profile=profile,
            tool_profile=tool_profile,
            template_error=template_error,
            defaults=defaults,
            default_params=SamplingParams(**defaults),
            # llama-server's clients look for its letter.
            fingerprint=f"b{__version__}-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12],
        )

    @property
    def projector(self) -> Projector | None:
        """Measures images and sounds; None if the model takes text only."""
        return self.engine.model.projector

    @property
    def sees(self) -> bool:
        projector = self.projector
        return projector is not None and projector.vision

    @property
    def template(self) -> ChatTemplate | None:
        return self.profile.template if self.profile is not None else None

    # ------------------------------------------------------------ parameters

    def params(self, given: Mapping[str, Any]) -> SamplingParams:
        """llama.cpp's defaults < the model's own < the operator's < the request's."""
        if not given:
            return self.default_params
        return merged(self.defaults, given, self.vocab, self.context)

    # ------------------------------------------------------------ prompts

    def prepare_all(self, request: GenerateRequest, media: RequestMedia = NO_MEDIA) -> list[TokenizedPrompt]:
        room = self.context if request.max_tokens == 0 else self.context - 1
        choice = request.tool_choice
        out = []
        for prompt in request.prompts:
            try:
                if is_long(prompt):
                    prepared = off_hub(self._fitting, prompt, choice, room, media)
                else:
                    prepared = self._fitting(prompt, choice, room, media)
            except ContextTooLong:
                if not request.shorten or not isinstance(prompt, ChatPrompt):
                    raise
                shortened = off_hub(self._shortened, prompt, choice, room - self._answer_room(request), media)
                if shortened is None:
                    raise
                prepared = shortened
            out.append(prepared)
        return out

    def _answer_room(self, request: GenerateRequest) -> int:
        """How many tokens a shortened prompt leaves for the answer."""
        wanted = self.context // 4 if request.max_tokens is None else request.max_tokens
        return min(wanted, self.context // 2)

    def _fitting(self, prompt: Prompt, choice: ToolChoice, room: int, media: RequestMedia) -> TokenizedPrompt:
        prepared = self.prepare(prompt, choice, media)
        if len(prepared.tokens) > room:
            raise ContextTooLong(num_prompt=len(prepared.tokens), context=self.context, param="prompt")
        return prepared

    def _shortened(
        self, prompt: ChatPrompt, choice: ToolChoice, room: int, media: RequestMedia
    ) -> TokenizedPrompt | None:
        """The prompt without its oldest turns, dropping as few as possible; None if even the last turn is too long."""
        shorter = _shorter(prompt.messages)
        found = None
        low, high = 0, len(shorter) - 1
        while low <= high:
            middle = (low + high) // 2
            try:
                prepared = self._fitting(replace(prompt, messages=tuple(shorter[middle])), choice, room, media)
            except ContextTooLong:
                low = middle + 1
                continue
            found = replace(prepared, left_out=len(prompt.messages) - len(shorter[middle]))
            high = middle - 1
        return found

    def encode(
        self, prompt: Prompt, tool_choice: ToolChoice | None = None, media: RequestMedia = NO_MEDIA
    ) -> list[int]:
        """The tokens of one prompt; never empty."""
        return self.prepare(prompt, tool_choice, media).tokens

    def prepare(
        self, prompt: Prompt, tool_choice: ToolChoice | None = None, media: RequestMedia = NO_MEDIA
    ) -> TokenizedPrompt:
        """One prompt, ready to be submitted. Tools that must not be called at all are left out."""
        if isinstance(prompt, ChatPrompt):
            prepared = self._prepare_chat(prompt, tool_choice or ToolChoice(), media)
        elif isinstance(prompt, TextPrompt):
            prepared = TokenizedPrompt(self._encode_text(prompt))
        elif isinstance(prompt, MixedPrompt):
            prepared = self._encode_mixed(prompt, media)
        elif isinstance(prompt, InfillPrompt):
            prepared = TokenizedPrompt(encode_infill(self.vocab, prompt, self.context))
        else:
            prepared = TokenizedPrompt(self._checked(prompt))
        if not prepared.tokens:
            start = self.vocab.bos if self.vocab.bos is not None else self.vocab.eos
            if start is None:
                raise InvalidRequest("The prompt is empty, and this model has no BOS token.", param="prompt")
            prepared.tokens.append(start)
        return prepared

    def boundaries(self, prepared: TokenizedPrompt) -> tuple[int, ...]:
        """Where its messages begin, if the engine can make use of that."""
        return self._boundaries(prepared) if self.engine.model.takes_checkpoints else ()

    def pins(self, prepared: TokenizedPrompt, prompt: Prompt, pins: tuple[Pin, ...]) -> tuple[tuple[int, float], ...]:
        """The prefix lengths to keep, in tokens, each with its time in seconds."""
        return pinned(pins, prompt, len(prepared.tokens), self._boundaries(prepared)) if pins else ()

    def _boundaries(self, prepared: TokenizedPrompt) -> tuple[int, ...]:
        return () if prepared.profile is None else boundaries(prepared.tokens, prepared.profile.marks)

    def reader(self, prepared: TokenizedPrompt, request: GenerateRequest, choice: int) -> Detokenizer:
        """Makes events from one choice's tokens."""
        profile = prepared.profile
        if profile is None:
            return NumberedDetokenizer() if request.with_tokens else Detokenizer()
        parser = Parser(
            profile.format,
            prompt=prepared.text,
            continues=prepared.continues,
            tools=prepared.tools,
            reasoning=request.split_reasoning is not False,
            json_content=request.content is not None and request.content.kind == "json",
            choice=choice,
        )
        return ChatDetokenizer(parser, profile.spoken)

    def render(self, prompt: ChatPrompt, media_marker: str = "") -> str:
        """The prompt's text as the model's template writes it, with a marker for each image or sound."""
        prompt = self.model.settings.chat_defaults.of_prompt(described(prompt, self.projector))
        template = self._profile(prompt).template
        rendered = off_hub(template.render, prompt) if is_long(prompt) else template.render(prompt)
        return "".join([media_marker if isinstance(part, int) else part[0] for part in rendered.segments])

    def _profile(self, prompt: ChatPrompt) -> ChatProfile:
        profile = self.tool_profile if prompt.tools or prompt.offered else self.profile
        if profile is None:
            raise InvalidRequest(f"This model's chat template cannot be used: {self.template_error}")
        return profile

    def _prepare_chat(self, prompt: ChatPrompt, choice: ToolChoice, media: RequestMedia) -> TokenizedPrompt:
        offered = prompt.offered
        if choice.mode == "none":
            offered = ()
            prompt = replace(prompt, tools=()) if prompt.tools and not choice.shown else prompt
        tools = _callable(offered, choice)
        rendered, profile = self.rendered(prompt)
        before = self._checked(TokenPrompt(prompt.before)) if prompt.before else []
        tokens, spans = self.tokens_of(rendered.segments, media_of(prompt), media, before=before)
        return TokenizedPrompt(tokens, spans, profile, rendered.text, rendered.continues, tools)

    def rendered(self, prompt: ChatPrompt) -> tuple[Rendered, ChatProfile]:
        """A conversation as the model's template writes it, and what is known of that template."""
        profile = self._profile(prompt)
        rendered = profile.template.render(prompt)
        refuse_endless(rendered.text, self.vocab, self.context)
        return rendered, profile

    def tokens_of(
        self,
        segments: Sequence[tuple[str, bool] | int],
        parts: Sequence[MediaPart],
        media: RequestMedia,
        tokens: Sequence[int] = (),
        *,
        before: Sequence[int] = (),
    ) -> tuple[list[int], tuple[MediaSpan, ...]]:
        """The tokens of a rendered conversation, and its images and sounds, which are among `parts`. `tokens`: those
        that it continues. `before`: of an earlier conversation."""
        tokens, spans = list(tokens), []
        for segment in segments:
            if isinstance(segment, int):
                tokens = tokens or self._start(before)
                spans += media.of(parts[segment]).append_to(tokens)
                continue
            text, trusted = segment
            more = self.vocab.tokenize(text, parse_special=trusted)
            # Most templates write the start token themselves; those that do not rely on the tokeniser for it.
            tokens += more if tokens else self._start(before, more)
        return tokens or self._start(before), tuple(spans)

    def _start(self, before: Sequence[int], tokens: list[int] | None = None) -> list[int]:
        """The first tokens of a conversation, after `before`; with the start token if the text does not bring it."""
        tokens = tokens or []
        vocab = self.vocab
        if vocab.add_bos and vocab.bos is not None and (not tokens or tokens[0] != vocab.bos):
            return [*before, vocab.bos, *tokens]
        return [*before, *tokens] if before else tokens

    def _encode_text(self, prompt: TextPrompt) -> list[int]:
        vocab = self.vocab
        refuse_endless(prompt.text, vocab, self.context)
        if prompt.suffix is None:
            tokens = vocab.tokenize(prompt.text, add_special=True, parse_special=True)
            if vocab.add_bos and len(tokens) > 1 and tokens[0] == tokens[1] == vocab.bos:
                del tokens[0]  # the text brought its own
            return tokens
        if vocab.fim_pre is None or vocab.fim_suf is None or vocab.fim_mid is None:
            raise Unsupported("This model cannot fill in the middle: its vocabulary lacks the tokens.", param="suffix")
        start = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        before = vocab.tokenize(prompt.text, parse_special=False)
        after = vocab.tokenize(prompt.suffix, parse_special=False)
        return [*start, vocab.fim_pre, *before, vocab.fim_suf, *after, vocab.fim_mid]

    def _encode_mixed(self, prompt: MixedPrompt, media: RequestMedia) -> TokenizedPrompt:
        self._checked(TokenPrompt(tuple(part for part in prompt.parts if isinstance(part, int))))
        tokens: list[int] = []
        spans: list[MediaSpan] = []
        for i, part in enumerate(prompt.parts):
            if isinstance(part, int):
                tokens.append(part)
            elif isinstance(part, MediaPart):
                tokens = tokens or self._start([])
                spans += media.of(part).append_to(tokens)
            else:
                refuse_endless(part, self.vocab, self.context)
                tokens += self.vocab.tokenize(part, add_special=i == 0)
        return TokenizedPrompt(tokens, tuple(spans))

    def _checked(self, prompt: TokenPrompt) -> list[int]:
        tokens = list(prompt.tokens)
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.vocab.size):
            at, token = next((i, t) for i, t in enumerate(tokens) if not 0 <= t < self.vocab.size)
            raise InvalidRequest(
                f"The token id {token} at position {at} is outside the vocabulary of {self.vocab.size} tokens.",
                param="prompt",
            )
        return tokens

    def text_of(self, prompt: Prompt, tokens: list[int]) -> str:
        """What an echo of the prompt shows."""
        if isinstance(prompt, TextPrompt):
            return prompt.text
        pieces = self.vocab.pieces
        return b"".join([pieces[token] for token in tokens if token >= 0]).decode("utf-8", "replace")


def _callable(tools: tuple[Tool, ...], choice: ToolChoice) -> tuple[Tool, ...]:
    """The tools that may be called. Raises for a name that no tool has."""
    if choice.mode == "required" and not tools:
        raise InvalidRequest("'tool_choice' requires a tool call, but no tools were given.", param="tool_choice")
    if not choice.names:
        return tools
    known = {tool.name: tool for tool in tools}
    for name in choice.names:
        if name not in known:
            raise InvalidRequest(f"The tool '{name[:64]}' is not in 'tools'.", param="tool_choice")
    return tuple(known[name] for name in dict.fromkeys(choice.names))


def _shorter(messages: tuple[Message, ...]) -> list[list[Message]]:
    """The conversation with more and more of its beginning left out. System messages stay. A turn begins at a user
    message; of the last turn the user's message stays, and calls stay together with their results."""

    def since(start: int) -> list[Message]:
        return [m for at, m in enumerate(messages) if at >= start or m.role in ("system", "developer")]

    turns = [
        at
        for at, message in enumerate(messages)
        if message.role == "user" and (at == 0 or messages[at - 1].role != "user")
    ]
    out = [since(start) for start in turns[1:]]
    if turns:
        steps = [at for at in range(turns[-1] + 1, len(messages)) if messages[at].role == "assistant"]
        said = [m for m in messages[turns[-1] : steps[0]] if m.role == "user"] if steps else []
        for start in steps[1:]:
            kept = since(start)
            first = next(at for at, m in enumerate(kept) if m is messages[start])
            out.append([*kept[:first], *said, *kept[first:]])
    return out
