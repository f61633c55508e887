"""Turns a request into a SequenceSpec for each choice, and submits them to the model's engine.

What is wrong with a request is raised here, before anything runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial

from llamasrv.concurrency import off_hub
from llamasrv.domain.context_edits import AppliedEdit
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import ChatPrompt, GenerateRequest
from llamasrv.domain.sequence_spec import CacheKey, SequenceSpec
from llamasrv.engine.base.channels import TokenStream
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.models.adapters import choose
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.pipeline.cache_report import CacheBook, CacheReport
from llamasrv.pipeline.compacted_run import Shortened, shortened
from llamasrv.pipeline.compaction import LongConversation, SummaryBook
from llamasrv.pipeline.constraint import ConstraintBuilder
from llamasrv.pipeline.context_edits import edited
from llamasrv.pipeline.detokenizer import Detokenizer
from llamasrv.pipeline.documents import DocumentReader
from llamasrv.pipeline.fingerprint import Fingerprint, fingerprint_of
from llamasrv.pipeline.load_wait import LoadWait
from llamasrv.pipeline.loaded_model import LoadedModel, TokenizedPrompt
from llamasrv.pipeline.loaded_models import LoadedModels
from llamasrv.pipeline.media import NO_MEDIA, MediaReader, RequestMedia
from llamasrv.pipeline.progress import Progress
from llamasrv.pipeline.run import RunInfo, Stage, Submission
from llamasrv.pipeline.sizes import LONG_TEXT, check_parts, has_parts, is_long, is_long_form
from llamasrv.pipeline.stages import BestOf, Echo
from llamasrv.pipeline.unseen import described, of_tools


class Submitter:
    """One per process. Safe to use from many greenlets or threads."""

    def __init__(
        self,
        registry: Registry,
        models: LoadedModels,
        *,
        media: MediaReader,
        documents: DocumentReader,
        cache_book: CacheBook,
        summaries: SummaryBook,
        fall_behind: Callable[[LongConversation], None],
    ) -> None:
        """`fall_behind` is called with a conversation that is beyond its limit, and answered as it is."""
        self.models = models
        self._fall_behind = fall_behind
        self._registry, self._media, self._documents = registry, media, documents
        self._cache_book, self._summaries = cache_book, summaries

    def submit(self, served: LoadedModel, request: GenerateRequest) -> Submission:
        if request.session:
            served.engine.prefetch(request.session, request.owner)
        request = served.model.settings.chat_defaults.of(request)
        sent, media, windows = self._taken_apart(request, served)
        request, applied = edited_request(sent, served, media)
        shorter = self._compacted(request, sent, served, media)
        request = shorter.request
        prepared = served.prepare_all(request, media)
        params = _params(served, request)
        drawn = request.n if request.best_of is None else max(request.n, request.best_of)
        cache_key = self.cache_key(served.model, request)
        if shorter.superseded and media is NO_MEDIA and not (request.pins or request.session):
            served.engine.supersede(array("i", shorter.superseded), cache_key)
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
        return Submission(
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
        request = self.readable(request, served)
        if not request.in_windows:
            return *self.with_media(request, served), ()
        (prompt,) = request.prompts
        assert isinstance(prompt, ChatPrompt)
        prompts, media, windows = self._media.read_windows(prompt, served.projector)
        return request._replace(prompts=tuple(prompts)), media, windows

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
                first = first._replace(pins=served.pins(ready, request.prompts[p], request.pins))
            if cache is not None and (change := cache.change()) is not None:
                first = first._replace(changed=str(change))
            builder = ConstraintBuilder(served, ready, request, request.prompts[p], scope=cache_key.scope)
            for k in range(drawn):
                reader = served.reader(ready, request, p * drawn + k)
                readers.append(reader)
                constraints.append(builder.build(in_reasoning=reader.in_reasoning))
                specs.append(first._replace(choice=p * drawn + k, params=_reseeded(params, k)) if k else first)
        return specs, constraints, readers

    def _compacted(
        self, request: GenerateRequest, sent: GenerateRequest, served: LoadedModel, media: RequestMedia
    ) -> Shortened:
        """The request continued from a summary, or the request for a summary that it needs first. `sent`: before other
        edits."""
        edits = request.edits
        if edits is None or edits.compact is None or not is_chat(request):
            return Shortened(request)
        compact, prompt, before = edits.compact, request.prompts[0], sent.prompts[0]
        assert isinstance(prompt, ChatPrompt) and isinstance(before, ChatPrompt)

        def encode(prompt: ChatPrompt) -> list[int]:
            return served.encode(prompt, request.tool_choice, media)

        def planned() -> Shortened:
            talk = LongConversation(
                request, compact, self._summaries, sent=before.messages, model=served.model.name, context=served.context
            )
            return shortened(talk, encode, pause=compact.pause)

        after = off_hub(planned) if is_long(prompt) else planned()
        if after.talk is not None and after.talk.is_behind:
            self._fall_behind(after.talk)
        return after

    def readable(self, request: GenerateRequest, served: LoadedModel) -> GenerateRequest:
        """The request as this model can read it: documents as text, and a sentence in place of a tool's picture if the
        model cannot see."""
        check_parts(request.prompts)
        request = self._documents.read(request, sees=served.sees)
        prompts = tuple(described(prompt, served.projector) for prompt in request.prompts)
        return request if prompts == request.prompts else request._replace(prompts=prompts)

    def with_media(
        self, request: GenerateRequest, served: LoadedModel, *, to_count: bool = False
    ) -> tuple[GenerateRequest, RequestMedia]:
        """The request, with a sentence in place of a tool's picture that cannot be read, and the measured media."""
        prompts, projector = request.prompts, served.projector
        media = self._media.read(prompts, projector, may_fail=of_tools(prompts), to_count=to_count)
        if media.unreadable:
            prompts = tuple(described(prompt, projector, media.unreadable) for prompt in prompts)
            request = request._replace(prompts=prompts)
        return request, media

    def cache_key(self, model: Model, request: GenerateRequest) -> CacheKey:
        named = self._registry.adapter(request.model)
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
        return self._cache_book.compare(request.owner, fingerprint, request.previous)

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


class RequestStarter:
    """A request on its way to the engine."""

    def __init__(self, submitter: Submitter, model: Model, request: GenerateRequest) -> None:
        self._submitter, self._model, self._request = submitter, model, request

    def start(self) -> Submission | None:
        model = self._model
        model.acquire()  # until the engine knows of it
        try:
            served = self._submitter.models.now(model)
            return None if served is None else self._submitter.submit(served, self._request)
        finally:
            model.release()

    def wait(self) -> LoadWait:
        return self._submitter.models.load_wait(self._model, self._request.timeout)


def edited_request(
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
    return (request._replace(prompts=(after,)) if applied else request), applied


def is_chat(request: GenerateRequest) -> bool:
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
    bias = sampling.get("logit_bias")  # its texts are tokenized
    return off_hub(served.params, sampling) if bias and is_long_form(bias) else served.params(sampling)


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
    return params._replace(seed=(params.seed + k) % 0xFFFFFFFF)
