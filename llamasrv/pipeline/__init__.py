"""Where chat and engine meet: a GenerateRequest goes in, domain events come out; the same for every protocol.

Finds the model, makes a SequenceSpec per choice and submits them. Whatever is wrong with a request is raised by
`submit`, before anything runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from llamasrv.concurrency import off_hub
from llamasrv.domain.context_edits import AppliedEdit
from llamasrv.domain.decide import DecideRequest, Decisions
from llamasrv.domain.events import Usage
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import (
    ChatPrompt,
    ClassifyRequest,
    EmbedRequest,
    GenerateRequest,
    Message,
    RerankRequest,
)
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec
from llamasrv.domain.speech import SpeechRequest
from llamasrv.engine.base.channels import TokenStream
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.errors import LlamasrvError, Unavailable, Unsupported
from llamasrv.models.adapters import choose
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.pipeline.cache_report import CacheBook, CacheReport
from llamasrv.pipeline.compacted_run import CompactedRun, Shortened, in_background, shortened, write_ahead
from llamasrv.pipeline.compaction import LongConversation, SummaryBook
from llamasrv.pipeline.constraint import ConstraintBuilder
from llamasrv.pipeline.context_edits import edited
from llamasrv.pipeline.decide.book import DecisionBook
from llamasrv.pipeline.decide.work import DecisionWork
from llamasrv.pipeline.detokenizer import Detokenizer
from llamasrv.pipeline.documents import DocumentReader
from llamasrv.pipeline.embed import ClassificationWork, Embeddings, EmbeddingWork, Ranking, RankingWork, check_media
from llamasrv.pipeline.fingerprint import Fingerprint, fingerprint_of
from llamasrv.pipeline.load_wait import LoadWait
from llamasrv.pipeline.loaded_model import LoadedModel, TokenizedPrompt
from llamasrv.pipeline.media import NO_MEDIA, MediaOptions, MediaReader, RequestMedia
from llamasrv.pipeline.progress import Progress
from llamasrv.pipeline.read_aloud import ReadAloud, text_to_read
from llamasrv.pipeline.run import Run, RunInfo, Stage, Submitted
from llamasrv.pipeline.search_run import SearchRun
from llamasrv.pipeline.sizes import LONG_TEXT, check_parts, has_parts, is_long, is_long_form
from llamasrv.pipeline.speech import AnswerVoice, SpeechWork, VoiceBook
from llamasrv.pipeline.spoken_run import SpokenRun
from llamasrv.pipeline.stages import BestOf, Echo
from llamasrv.pipeline.unseen import described, of_tools


class _Owned(Protocol):
    """A request: who makes it, and the model that it names."""

    @property
    def owner(self) -> str: ...

    @property
    def model(self) -> str | None: ...


class Pipeline:
    """One per process. Safe to use from many greenlets or threads."""

    def __init__(self, registry: Registry, media: MediaOptions | None = None) -> None:
        self.registry = registry
        self.media = MediaReader(media)
        options = self.media.options
        self.voices = VoiceBook(options.voices, self.media.decoder, uploads=options.voice_uploads)
        self.documents = DocumentReader(self.media.decoder, self.media.options.sources, self.media.held.check)
        self.cache_book = CacheBook()
        self.decision_book = DecisionBook()
        self.summaries = SummaryBook()
        self.in_background = in_background
        self.permit: Callable[[str, Model], None] = lambda owner, model: None  # raises if the owner may not use it
        self._served: dict[Model, LoadedModel] = {}
        if registry.loader is not None:
            registry.loader.on_load.append(self._prepare)
            registry.loader.on_load.append(self._warm_decoder)
            registry.loader.on_unload.append(self._forget)

    def open(self, name: str | None, *, keep_alive: float | None = None, timeout: float | None = None) -> LoadedModel:
        """The model for that name, loaded; waits for loading. Raises ModelNotFound, or Unavailable. It may be unloaded
        again as soon as the caller waits for anything else: a caller that does has to hold a `lease`."""
        model = self.registry.for_request(name)
        model.touch(keep_alive)
        served = self._now(model)
        if served is not None:
            return served
        wait = self._load_wait(model, timeout)
        while True:
            with wait:
                wait.wait()
            served = self._now(model)
            if served is not None:
                return served

    def peek(self, name: str | None) -> LoadedModel | None:
        """The model for that name if it is loaded, for callers that only look: this neither loads it nor keeps it
        loaded. Raises ModelNotFound."""
        model = self.registry.for_request(name)
        if model.state != "loaded":
            return None
        served = self._current(model)
        if served is not None:
            return served
        model.acquire()
        try:
            return self._prepare(model)
        finally:
            model.release(used=False)

    def _current(self, model: Model) -> LoadedModel | None:
        """The LoadedModel of the model as it is loaded now."""
        served = self._served.get(model)
        if served is not None and served.engine is model.current and served.info is served.engine.info:
            return served
        return None

    @contextmanager
    def _lease_for(self, request: _Owned, *, keep_alive: float | None = None) -> Iterator[LoadedModel]:
        """As `lease`, for the model of a request whose owner may use it."""
        self.permit(request.owner, self.registry.for_request(request.model))
        with self.lease(request.model, keep_alive=keep_alive) as served:
            yield served

    @contextmanager
    def lease(self, name: str | None, *, keep_alive: float | None = None) -> Iterator[LoadedModel]:
        """As `open`, for a block in which the model stays loaded."""
        served = self.open(name, keep_alive=keep_alive)
        with served.model.lease():
            yield served

    def _now(self, model: Model) -> LoadedModel | None:
        """The model if it is loaded; None if not: then its loading has begun."""
        served = self._current(model)
        if served is not None:
            return served
        loader = self.registry.loader
        if loader is not None and (model.current is None or model.phase):
            if not loader.on_demand and not model.phase:
                raise model.not_loaded
            loader.load(model)
            return None
        status = model.engine.status
        if status.state == "loading":
            raise Unavailable("Loading model", code="model_loading")
        if status.state not in ("ready", "draining"):
            raise Unavailable(f"The model is not available: {status.reason or status.state}")
        with model.lease():
            return self._prepare(model)

    def _load_wait(self, model: Model, timeout: float | None) -> LoadWait:
        assert self.registry.loader is not None
        return LoadWait(self.registry.loader, model, timeout=timeout)

    def _prepare(self, model: Model) -> LoadedModel:
        served = self._served[model] = off_hub(LoadedModel.of, model)
        return served

    def _warm_decoder(self, model: Model) -> None:
        """Spare the first image the start of a process."""
        if model.details.projector is not None:
            self.media.decoder.warm()

    def _forget(self, model: Model) -> None:
        self._served.pop(model, None)

    def count(self, request: GenerateRequest, owner: str = "") -> int:
        """Tokens of the prompts that `submit` would take from that owner, including prompts that are too long."""
        with self._lease_for(replace(request, owner=owner)) as served:
            request = served.model.settings.chat_defaults.of(request)
            media = NO_MEDIA
            if has_parts(request.prompts):
                request, media = self._with_media(self._readable(request, served), served, to_count=True)
            request, _ = _edited(request, served, media)
            choice, prompts = request.tool_choice, request.prompts
            return off_hub(lambda: sum(len(served.encode(prompt, choice, media)) for prompt in prompts))

    def submit(
        self,
        request: GenerateRequest,
        *,
        on_start: Callable[[RunInfo], None] | None = None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None = None,
    ) -> Run:
        """Start a generation. Raises everything that can be known to be wrong. If the model is not loaded, its loading
        begins, and errors show as the run's first event. `on_start` is called when the engine has taken it, before
        there are events; `explain` rewords an error for the caller."""
        if request.speech is not None and request.speech.may_read and self._only_speaks(request.model):
            return self._read_aloud(request, on_start, explain)
        if request.speech is not None:
            voice = self._voice_for(request.speech, request.owner, explain)
            try:
                text = self.submit(replace(request, speech=None), on_start=on_start, explain=explain)
            except BaseException:
                voice.close()
                raise
            return SpokenRun(text, voice)
        model = self.registry.for_request(request.model)
        self.permit(request.owner, model)
        model.touch(request.keep_alive)
        if request.edits is not None and request.edits.compact is not None and _is_chat(request):
            starter_of = partial(RequestStarter, self, model)
            return CompactedRun(
                request, starter_of, book=self.summaries, ahead=self._look_ahead, on_start=on_start, explain=explain
            )
        if request.searches:
            return SearchRun(request, partial(RequestStarter, self, model), on_start=on_start, explain=explain)
        return Run(RequestStarter(self, model, request), on_start=on_start, explain=explain)

    def _submit(self, served: LoadedModel, request: GenerateRequest) -> Submitted:
        if request.session:
            served.engine.prefetch(request.session, request.owner)
        request = served.model.settings.chat_defaults.of(request)
        sent, media, windows = self._taken_apart(request, served)
        request, applied = _edited(sent, served, media)
        shorter = self._compacted(request, sent, served, media)
        request = shorter.request
        prepared = served.prepare_all(request, media)
        params = _params(served, request)
        drawn = request.n if request.best_of is None else max(request.n, request.best_of)
        cache_key = self._cache_key(served.model, request)
        cache = self._compare(served, prepared, request, cache_key)
        specs, constraints, choices = self._choices(served, prepared, request, params, cache_key, cache, drawn)
        engine, vocab = served.engine, served.vocab
        stream = engine.submit(specs, constraints)
        controlled = [c for c in constraints if c is not None and c.has_budget] if request.thinking_control else []
        if cache is not None:
            cache.num_reused = partial(_num_reused, stream, len(choices), drawn)
            cache.num_held = lambda: stream.num_held
        info = RunInfo(
            served.model.name,
            served.fingerprint,
            params,
            [prompt.tokens for prompt in prepared],
            request.n,
            sum([prompt.left_out for prompt in prepared]),
            vocab,
            cache,
            windows,
            (*applied, *shorter.edits),
            shorter.event,
        )
        return Submitted(
            info,
            engine,
            stream,
            choices,
            each=drawn,
            start_token=vocab.bos if vocab.add_bos else None,
            progress=Progress(progress=request.with_progress, pace=request.with_pace) if _progresses(request) else None,
            thinking=controlled,
            stages=_stages(served, prepared, request, drawn),
            time_limit=request.time_limit,
            summary=shorter.key,
            talk=shorter.talk,
            on_calls=partial(engine.hold_session, specs[0]) if request.session else None,
        )

    def _taken_apart(
        self, request: GenerateRequest, served: LoadedModel
    ) -> tuple[GenerateRequest, RequestMedia, Sequence[tuple[float, float]]]:
        """The request with documents and media as this model reads them, the media, and the windows of a sound that was
        cut."""
        if not has_parts(request.prompts):
            return request, NO_MEDIA, ()
        request = self._readable(request, served)
        if not request.in_windows:
            return *self._with_media(request, served), ()
        (prompt,) = request.prompts
        assert isinstance(prompt, ChatPrompt)
        prompts, media, windows = self.media.read_windows(prompt, served.projector)
        return replace(request, prompts=tuple(prompts)), media, windows

    def _choices(
        self,
        served: LoadedModel,
        prepared: list[TokenizedPrompt],
        request: GenerateRequest,
        params: SamplingParams,
        cache_key: CacheKey,
        cache: CacheReport | None,
        drawn: int,
    ) -> tuple[list[SequenceSpec], list[OutputConstraint | None], list[Detokenizer]]:
        """What the engine gets for each choice, `drawn` of each prompt, and what reads its tokens."""
        specs, constraints, readers = [], [], []
        prediction = _predicted(served, request.prediction)
        for p, ready in enumerate(prepared):
            first = self._spec(served, ready, request, params, p * drawn, cache_key, prediction)
            if request.pins:
                first = replace(first, pins=served.pins(ready, request.prompts[p], request.pins))
            if cache is not None and (change := cache.change()) is not None:
                first = replace(first, changed=str(change))
            builder = ConstraintBuilder(served, ready, request, request.prompts[p], scope=cache_key.scope)
            for k in range(drawn):
                reader = served.reader(ready, request, p * drawn + k)
                readers.append(reader)
                constraints.append(builder.build(in_reasoning=reader.in_reasoning))
                specs.append(replace(first, choice=p * drawn + k, params=_reseeded(params, k)) if k else first)
        return specs, constraints, readers

    def _compacted(
        self, request: GenerateRequest, sent: GenerateRequest, served: LoadedModel, media: RequestMedia
    ) -> Shortened:
        """The request continued from a summary, or the request for a summary that it needs first. `sent`: before other
        edits."""
        edits = request.edits
        if edits is None or edits.compact is None or not _is_chat(request):
            return Shortened(request)
        compact, prompt, before = edits.compact, request.prompts[0], sent.prompts[0]
        assert isinstance(prompt, ChatPrompt) and isinstance(before, ChatPrompt)

        def count(prompt: ChatPrompt) -> int:
            return len(served.encode(prompt, request.tool_choice, media))

        def planned() -> Shortened:
            talk = LongConversation(
                request, compact, self.summaries, sent=before.messages, model=served.model.name, context=served.context
            )
            return shortened(talk, count, pause=compact.pause)

        after = off_hub(planned) if is_long(prompt) else planned()
        if after.talk is not None and after.talk.is_behind:
            self._write_ahead(after.talk, None, is_urgent=True)
        return after

    def _look_ahead(self, talk: LongConversation, turn: Message, usage: Usage) -> None:
        """After an answer: if the conversation nears its limit, write its summary and compute the shortened prompt
        while the engine is idle, or beside others if it is urgent."""
        if talk.is_near(turn, usage):
            self._write_ahead(talk, turn, is_urgent=talk.is_urgent(turn, usage))

    def _write_ahead(self, talk: LongConversation, turn: Message | None, *, is_urgent: bool) -> None:
        self.in_background(partial(write_ahead, talk, turn, self.summaries, self.submit, is_urgent=is_urgent))

    def _readable(self, request: GenerateRequest, served: LoadedModel) -> GenerateRequest:
        """The request as this model can read it: documents as text, and a sentence in place of a tool's picture if the
        model cannot see."""
        check_parts(request.prompts)
        request = self.documents.read(request, sees=served.sees)
        prompts = tuple(described(prompt, served.projector) for prompt in request.prompts)
        return request if prompts == request.prompts else replace(request, prompts=prompts)

    def _with_media(
        self, request: GenerateRequest, served: LoadedModel, *, to_count: bool = False
    ) -> tuple[GenerateRequest, RequestMedia]:
        """The request, with a sentence in place of a tool's picture that cannot be read, and the measured media."""
        prompts, projector = request.prompts, served.projector
        media = self.media.read(prompts, projector, may_fail=of_tools(prompts), to_count=to_count)
        if media.unreadable:
            prompts = tuple(described(prompt, projector, media.unreadable) for prompt in prompts)
            request = replace(request, prompts=prompts)
        return request, media

    def _cache_key(self, model: Model, request: GenerateRequest) -> CacheKey:
        named = self.registry.adapter(request.model)
        adapters = choose(model.adapters, named, request.adapters, model.standing_adapters)
        return CacheKey(adapters, _scope(request, everybody=model.settings.shares_prefixes))

    def _compare(
        self, served: LoadedModel, prepared: list[TokenizedPrompt], request: GenerateRequest, cache_key: CacheKey
    ) -> CacheReport | None:
        """Compare with earlier requests of the same key. Requests of batches are not compared: no client waits for
        them."""
        if request.deferrable:
            return None
        prompt, tokens = request.prompts[0], prepared[0].tokens
        if len(prepared) > 1 or not isinstance(prompt, ChatPrompt) or not request.cache_prompt:
            return CacheReport(sum(len(ready.tokens) for ready in prepared))
        name, build, choice = served.model.name, served.fingerprint, request.tool_choice

        def made() -> Fingerprint:
            return fingerprint_of(prompt, tokens, model=name, build=build, cache_key=cache_key, choice=choice)

        fingerprint = off_hub(made) if is_long(prompt) or prepared[0].media else made()
        return self.cache_book.compare(request.owner, fingerprint, request.previous)

    def _spec(
        self,
        served: LoadedModel,
        ready: TokenizedPrompt,
        request: GenerateRequest,
        params: SamplingParams,
        choice: int,
        cache_key: CacheKey,
        prediction: array[int] | None,
    ) -> SequenceSpec:
        """The SequenceSpec of a prompt's first choice."""
        model = served.model
        wanted = model.num_predict if request.max_tokens is None else request.max_tokens
        logprobs = request.logprobs
        if logprobs is None and request.best_of is not None and request.best_of > request.n:
            logprobs = 0  # to rank by
        return SequenceSpec(
            array("i", ready.tokens),
            media=ready.media,
            params=params,
            choice=choice,
            max_tokens=_least(wanted, model.settings.max_tokens),
            stop=(*request.stop, *model.stop),
            logprobs=logprobs,
            prompt_logprobs=request.echo and request.logprobs is not None,
            cache_prompt=request.cache_prompt,
            boundaries=served.boundaries(ready),
            keep=request.keep,
            discard=request.discard,
            slot=None if request.slot is None else request.slot % served.engine.model.num_lanes,
            deadline=None if request.timeout is None else served.engine.clock() + request.timeout,
            owner=request.owner,
            session=request.session,
            priority=request.priority,
            deferrable=request.deferrable,
            cache_key=cache_key,
            sampled_probs=request.sampled_probs,
            reports_progress=_progresses(request),
            prediction=prediction,
        )

    def submit_embed(self, request: EmbedRequest) -> EmbeddingWork:
        with self._lease_for(request, keep_alive=request.keep_alive) as served:
            check_media(served, request)
            return EmbeddingWork(served, request, self.media.read(request.prompts, served.projector))

    def submit_decide(self, request: DecideRequest) -> DecisionWork:
        """Start to answer questions. Raises everything that can be known to be wrong."""
        with self._lease_for(request, keep_alive=request.keep_alive) as served:

            def read(carried: GenerateRequest) -> tuple[GenerateRequest, RequestMedia, CacheKey]:
                carried = served.model.settings.chat_defaults.of(carried)
                media = NO_MEDIA
                if has_parts(carried.prompts):
                    carried, media = self._with_media(self._readable(carried, served), served)
                return carried, media, self._cache_key(served.model, carried)

            return self.decision_book.submit(served, request, read)

    def decide(self, request: DecideRequest) -> Decisions:
        """The answers; waits for them. A caller that may want to cancel uses `submit_decide`."""
        return self.submit_decide(request).result()

    def submit_rerank(self, request: RerankRequest) -> RankingWork:
        with self._lease_for(request, keep_alive=request.keep_alive) as served:
            return RankingWork(served, request)

    def submit_speech(self, request: SpeechRequest) -> SpeechWork:
        """Start to speak. Raises everything that can be known to be wrong."""
        with self._lease_for(request) as served:
            return SpeechWork(served, request, self.voices)

    def _only_speaks(self, name: str | None) -> bool:
        return "speech" in self.registry.for_request(name).details.capabilities

    def _read_aloud(
        self,
        request: GenerateRequest,
        on_start: Callable[[RunInfo], None] | None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None,
    ) -> Run:
        """Waits for the model to be loaded. Fields in errors begin with `speech` where they are of the speech."""
        try:
            speech = text_to_read(request)
            try:
                with self._lease_for(speech) as served:
                    return ReadAloud(SpeechWork(served, speech, self.voices), served, on_start)
            except LlamasrvError as error:
                field = error.param
                raise error.but(param="prompt" if field == "input" else field and f"speech.{field}") from None
        except LlamasrvError as error:
            raise (error if explain is None else explain(error)) from None

    def _voice_for(
        self, speech: SpeechRequest, owner: str, explain: Callable[[LlamasrvError], LlamasrvError] | None
    ) -> AnswerVoice:
        """The voice of an answer; waits for its model to be loaded. Fields in errors begin with `speech`."""
        try:
            name = speech.model
            if name is None:
                speaking = self.speaking()
                if not speaking:
                    raise Unsupported(
                        "No model here speaks: answers are text only. The operator can serve a speech model "
                        "(Qwen3-TTS, Pocket TTS) beside this one."
                    )
                name = speaking[0].name
            self.permit(owner, self.registry.for_request(name))
            with self.lease(name) as served:
                return AnswerVoice(served, speech, self.voices)
        except LlamasrvError as error:
            own = error.but(param="speech" if error.param is None else f"speech.{error.param}")
            raise (own if explain is None else explain(own)) from None

    def speaking(self) -> list[Model]:
        """The models that speak."""
        return [model for model in self.registry.models if "speech" in model.details.capabilities]

    def voice_names(self, name: str | None) -> list[str]:
        """The voices that everybody may ask for. Loads nothing: the model's own are known while it is loaded. Raises
        ModelNotFound."""
        speaking = self.speaking()
        if name is None and speaking:
            name = speaking[0].name
        served = self.peek(name) if name is not None else None
        backend = None if served is None else served.engine.speaker.backend
        return self.voices.names(() if backend is None else backend.speakers)

    def embed(self, request: EmbedRequest) -> Embeddings:
        """Vectors for prompts; waits for them. A caller that may want to cancel uses `submit_embed`."""
        return self.submit_embed(request).result()

    def submit_classify(self, request: ClassifyRequest) -> ClassificationWork:
        """Start a classification. Raises everything that can be known to be wrong."""
        with self._lease_for(request, keep_alive=request.keep_alive) as served:
            return ClassificationWork(served, request)

    def rerank(self, request: RerankRequest) -> Ranking:
        return self.submit_rerank(request).result()


class RequestStarter:
    """A request on its way to the engine."""

    def __init__(self, pipeline: Pipeline, model: Model, request: GenerateRequest) -> None:
        self._pipeline, self._model, self._request = pipeline, model, request

    def start(self) -> Submitted | None:
        model = self._model
        model.acquire()  # until the engine knows of it
        try:
            served = self._pipeline._now(model)
            return None if served is None else self._pipeline._submit(served, self._request)
        finally:
            model.release()

    def wait(self) -> LoadWait:
        return self._pipeline._load_wait(self._model, self._request.timeout)


def _edited(
    request: GenerateRequest, served: LoadedModel, media: RequestMedia
) -> tuple[GenerateRequest, tuple[AppliedEdit, ...]]:
    """The request as its context edits leave it, and what they did."""
    edits, prompt = request.edits, request.prompts[0]
    if edits is None or not isinstance(prompt, ChatPrompt):
        return request, ()

    def count(prompt: ChatPrompt) -> int:
        return len(served.encode(prompt, request.tool_choice, media))

    def weigh(text: str) -> int:
        return len(served.vocab.tokenize(text, parse_special=False))

    def edit() -> tuple[ChatPrompt, tuple[AppliedEdit, ...]]:
        return edited(prompt, edits, count=count, weigh=weigh, context=served.context)

    after, applied = off_hub(edit) if is_long(prompt) else edit()
    return (replace(request, prompts=(after,)) if applied else request), applied


def _is_chat(request: GenerateRequest) -> bool:
    """Whether it is one conversation with one answer: nothing else can be shortened."""
    return len(request.prompts) == 1 and isinstance(request.prompts[0], ChatPrompt) and request.n == 1


def _num_reused(stream: TokenStream, num_choices: int, each: int) -> int | None:
    """Tokens of the prompts that were cached; None until every prompt has a lane."""
    reused, total = stream.reused, 0
    if num_choices == 1:
        return reused.get(0)
    for start in range(0, num_choices, each):
        found = [reused[choice] for choice in range(start, start + each) if choice in reused]
        if not found:
            return None
        total += min(found)  # the choices of one prompt share it
    return total


def _params(served: LoadedModel, request: GenerateRequest) -> SamplingParams:
    sampling = request.sampling
    long = is_long_form(sampling.get("logit_bias"))  # its texts are tokenized
    return off_hub(served.params, sampling) if long else served.params(sampling)


def _predicted(served: LoadedModel, text: str | None) -> array[int] | None:
    """The tokens of a prediction, without control tokens and never more than the context holds."""
    if text is None:
        return None
    context = served.engine.context
    text = text[: 16 * context]  # characters; few tokens have more

    def tokens() -> array[int]:
        return array("i", served.vocab.tokenize(text, parse_special=False)[:context])

    return off_hub(tokens) if len(text) > LONG_TEXT else tokens()


def _stages(served: LoadedModel, prepared: list[TokenizedPrompt], request: GenerateRequest, drawn: int) -> list[Stage]:
    stages: list[Stage] = []
    if request.echo:
        texts = [served.text_of(prompt, ready.tokens) for prompt, ready in zip(request.prompts, prepared)]
        stages.append(Echo([text for text in texts for _ in range(drawn)]))
    if drawn > request.n:
        stages.append(BestOf(drawn=drawn, n=request.n, with_logprobs=request.logprobs is not None))
    return stages


def _progresses(request: GenerateRequest) -> bool:
    return request.with_progress or request.with_pace


def _scope(request: GenerateRequest, *, everybody: bool) -> str:
    """Who may learn from the reply time that a prompt was cached."""
    owner = "" if everybody else request.owner
    return f"{owner}\0{request.cache_salt}" if request.cache_salt else owner


def _least(asked: int | None, bound: int | None) -> int | None:
    return asked if bound is None else bound if asked is None else min(asked, bound)


def _reseeded(params: SamplingParams, k: int) -> SamplingParams:
    """The parameters of a prompt's k-th choice: with the seed of the first it would repeat the first."""
    if params.seed is None:
        return params
    return replace(params, seed=(params.seed + k) % 0xFFFFFFFF)
