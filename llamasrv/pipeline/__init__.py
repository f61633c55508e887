"""Where chat and engine meet: a GenerateRequest in, domain events out; the same for every protocol.

Finds the model, makes a SequenceSpec per choice and submits them. Whatever is wrong with a request is raised by
`submit`, before anything runs. `served.py` knows a loaded model (prompts to tokens), `generation.py` a running request
(tokens to events). Knows no wire format and no HTTP.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import EmbedRequest, GenerateRequest, RerankRequest
from llamasrv.domain.sequence_spec import Realm, SequenceSpec
from llamasrv.engine.channels import off_hub
from llamasrv.errors import Unavailable
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.pipeline.adapters import chosen
from llamasrv.pipeline.best_of import BestOf
from llamasrv.pipeline.constraint import ConstraintBuilder
from llamasrv.pipeline.embed import Embeddings, EmbeddingWork, Ranking, RankingWork
from llamasrv.pipeline.generation import Generation
from llamasrv.pipeline.hasty import Hasty
from llamasrv.pipeline.loading import Loading
from llamasrv.pipeline.served import Served

_PARAMS = tuple(f.name for f in fields(SamplingParams))


class Pipeline:
    """One per process. Safe to use from many greenlets or threads."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._served: dict[Model, Served] = {}
        if registry.loader is not None:
            registry.loader.on_load.append(self._prepare)
            registry.loader.on_unload.append(self._forget)

    def open(self, name: str | None, *, keep_alive: float | None = None, timeout: float | None = None) -> Served:
        """The model for that name, loaded; waits until it is. Raises ModelNotFound, or Unavailable.

        It may be unloaded again as soon as the caller waits for anything else: who does holds a `lease`.
        """
        model = self.registry.for_request(name)
        model.touch(keep_alive)
        loading: Loading | None = None
        while True:
            try:
                return self._now(model, timeout)
            except Loading as on_its_way:
                loading = loading or on_its_way.with_traceback(None)
            with loading:
                loading.wait()

    def peek(self, name: str | None) -> Served | None:
        """The model for that name if it is loaded, for whoever only looks: it is not loaded for that, and does not
        stay longer. Raises ModelNotFound."""
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

    def _current(self, model: Model) -> Served | None:
        """What was made for the model as it is loaded now."""
        served = self._served.get(model)
        if served is not None and served.engine is model.current and served.info is served.engine.info:
            return served
        return None

    @contextmanager
    def lease(self, name: str | None, *, keep_alive: float | None = None) -> Iterator[Served]:
        """The same for a block, in which it stays loaded."""
        served = self.open(name, keep_alive=keep_alive)
        with served.model.lease():
            yield served

    def _now(self, model: Model, timeout: float | None = None) -> Served:
        """Raises Loading where it is not loaded."""
        served = self._current(model)
        if served is not None:
            return served
        loader = self.registry.loader
        if loader is not None and (model.current is None or model.phase):
            loader.load(model)
            raise Loading(loader, model, timeout=timeout)
        status = model.engine.status
        if status.state == "loading":
            raise Unavailable("Loading model", code="model_loading")
        if status.state not in ("ready", "draining"):
            raise Unavailable(f"The model is not available: {status.reason or status.state}")
        with model.lease():
            return self._prepare(model)

    def _prepare(self, model: Model) -> Served:
        served = self._served[model] = off_hub(Served.of, model)
        return served

    def _forget(self, model: Model) -> None:
        self._served.pop(model, None)

    def count(self, request: GenerateRequest) -> int:
        """Tokens of the prompts that `submit` would take, also of those that are too long."""
        with self.lease(request.model) as served:
            return off_hub(lambda: sum(len(served.encode(prompt, request.tool_choice)) for prompt in request.prompts))

    def submit(self, request: GenerateRequest, *, wait: bool = True) -> Generation | BestOf | Hasty:
        """Start a generation. Everything that can be known to be wrong is raised here. Where the model is not loaded,
        it is waited for, or Loading is raised without `wait`."""
        model = self.registry.for_request(request.model)
        model.touch(request.keep_alive)
        if wait:
            self.open(request.model, keep_alive=request.keep_alive, timeout=request.timeout)
        model.acquire()  # until the engine knows of it
        try:
            return self._start(self._now(model, request.timeout), request)
        finally:
            model.release()

    def _start(self, served: Served, request: GenerateRequest) -> Generation | BestOf | Hasty:
        prepared = served.prepare_all(request)
        prompts = [prompt.tokens for prompt in prepared]
        params = served.params(request.sampling)
        named = self.registry.adapter(request.model)
        adapters = chosen(served.model.adapters, named, request.adapters, served.model.standing_adapters)
        deadline = None if request.timeout is None else served.engine.clock() + request.timeout
        best_of = request.best_of if request.best_of is not None and request.best_of > request.n else None
        each = best_of or request.n
        logprobs = request.logprobs
        if best_of is not None and logprobs is None:
            logprobs = 0  # to rank by
        wanted = served.model.num_predict if request.max_tokens is None else request.max_tokens
        realm = Realm(adapters, _scope(request, everybody=served.model.shares_prefixes))
        specs, constraints, choices = [], [], []
        for p, ready in enumerate(prepared):
            builder = ConstraintBuilder(served, ready, request, request.prompts[p])
            tokens = array("i", ready.tokens)
            for k in range(each):
                reader = served.reader(ready, request, p * each + k)
                choices.append(reader)
                constraints.append(builder.build(in_reasoning=reader.in_reasoning))
                specs.append(
                    SequenceSpec(
                        tokens,
                        params=params if k == 0 else _reseeded(params, k),
                        index=p * each + k,
                        max_tokens=_least(wanted, served.model.max_tokens),
                        stop=(*request.stop, *served.model.stop),
                        logprobs=logprobs,
                        prompt_logprobs=request.echo and request.logprobs is not None,
                        cache_prompt=request.cache_prompt,
                        deadline=deadline,
                        owner=request.owner,
                        priority=request.priority,
                        realm=realm,
                        sampled_probs=request.sampled_probs,
                        reports_progress=request.with_progress or request.with_pace,
                    )
                )
        engine = served.engine
        stream = engine.submit(specs, constraints)
        generation = Generation(
            served, stream, lambda: engine.cancel(stream), choices=choices, each=each, prompts=prompts,
            params=params, left_out=sum(prompt.left_out for prompt in prepared),
        )  # fmt: skip
        if request.with_progress or request.with_pace:
            generation.tell_progress(progress=request.with_progress, pace=request.with_pace)
        if request.echo:
            generation.echo([served.text_of(prompt, tokens) for prompt, tokens in zip(request.prompts, prompts)])
        if best_of is None and request.patience is not None:
            return Hasty(generation, request.patience, num_choices=len(specs))
        if best_of is None:
            return generation
        return BestOf(generation, best_of=best_of, n=request.n, with_logprobs=request.logprobs is not None)

    def submit_embed(self, request: EmbedRequest) -> EmbeddingWork:
        with self.lease(request.model, keep_alive=request.keep_alive) as served:
            return EmbeddingWork(served, request)

    def submit_rerank(self, request: RerankRequest) -> RankingWork:
        with self.lease(request.model, keep_alive=request.keep_alive) as served:
            return RankingWork(served, request)

    def embed(self, request: EmbedRequest) -> Embeddings:
        """Vectors for prompts. Waits for them; who wants to give up meanwhile takes `submit_embed`."""
        return self.submit_embed(request).result()

    def rerank(self, request: RerankRequest) -> Ranking:
        return self.submit_rerank(request).result()


def _scope(request: GenerateRequest, *, everybody: bool) -> str:
    """Who may know of a prompt by how soon it is answered."""
    owner = "" if everybody else request.owner
    return f"{owner}\0{request.cache_salt}" if request.cache_salt else owner


def _least(asked: int | None, bound: int | None) -> int | None:
    return asked if bound is None else bound if asked is None else min(asked, bound)


def _reseeded(params: SamplingParams, k: int) -> SamplingParams:
    """The k-th choice of one prompt: with the first one's seed it would say the same."""
    if params.seed is None:
        return params
    values = {name: getattr(params, name) for name in _PARAMS}
    values["seed"] = (params.seed + k) % 0xFFFFFFFF
    return SamplingParams(**values)
