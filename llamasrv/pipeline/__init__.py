"""Where chat and engine meet: a GenerateRequest in, domain events out; the same for every protocol.

Finds the model, makes a Sequence per choice and submits them. Whatever is wrong with a request is raised by `submit`,
before anything runs. `served.py` knows a loaded model (prompts to tokens), `generation.py` a running request (tokens to
events). Knows no wire format and no HTTP.
"""

from __future__ import annotations

from dataclasses import fields

from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import EmbedRequest, GenerateRequest, RerankRequest
from llamasrv.domain.sequence import Sequence
from llamasrv.engine.channels import off_hub
from llamasrv.errors import Unavailable
from llamasrv.models.registry import Model, Registry
from llamasrv.pipeline.best_of import BestOf
from llamasrv.pipeline.embed import Embeddings, EmbeddingWork, Ranking, RankingWork
from llamasrv.pipeline.generation import Generation
from llamasrv.pipeline.served import Served

_PARAMS = tuple(f.name for f in fields(SamplingParams))


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
        prepared = served.prepare_all(request)
        prompts = [prompt.tokens for prompt in prepared]
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
        choices = [served.reader(prepared[seq.index // each], request, seq.index) for seq in sequences]
        generation = Generation(
            served, stream, lambda: engine.cancel(stream), choices=choices, each=each, prompts=prompts
        )
        if request.echo:
            generation.echo([served.text_of(prompt, tokens) for prompt, tokens in zip(request.prompts, prompts)])
        if best_of is None:
            return generation
        return BestOf(generation, best_of=best_of, n=request.n, with_logprobs=request.logprobs is not None)

    def submit_embed(self, request: EmbedRequest) -> EmbeddingWork:
        return EmbeddingWork(self.open(request.model), request)

    def submit_rerank(self, request: RerankRequest) -> RankingWork:
        return RankingWork(self.open(request.model), request)

    def embed(self, request: EmbedRequest) -> Embeddings:
        """Vectors for prompts. Waits for them; who wants to give up meanwhile takes `submit_embed`."""
        return self.submit_embed(request).result()

    def rerank(self, request: RerankRequest) -> Ranking:
        return self.submit_rerank(request).result()


def _least(asked: int | None, bound: int | None) -> int | None:
    return asked if bound is None else bound if asked is None else min(asked, bound)


def _reseeded(params: SamplingParams, k: int) -> SamplingParams:
    """The k-th choice of one prompt: with the first one's seed it would say the same."""
    if params.seed is None:
        return params
    values = {name: getattr(params, name) for name in _PARAMS}
    values["seed"] = (params.seed + k) % 0xFFFFFFFF
    return SamplingParams(**values)
