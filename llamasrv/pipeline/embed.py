"""Embeddings and ranking: prompts become tokens, tokens go to the embedder, and its vectors become the answer.

Whatever is wrong with a request is raised when it is submitted, before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from llamasrv.concurrency import off_hub
from llamasrv.domain.computed import Classes, Embeddings, Ranking, sigmoid
from llamasrv.domain.media import MediaSpan
from llamasrv.domain.request import ClassifyRequest, EmbedRequest, MediaPart, MixedPrompt, RerankRequest, TextPrompt
from llamasrv.engine.base.interface import EmbeddingBackend
from llamasrv.engine.embedder import finished
from llamasrv.errors import InputTooLong, InvalidRequest, Unavailable, Unsupported
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.media import NO_MEDIA, RequestMedia
from llamasrv.pipeline.sizes import LONG_TEXT

Spans = dict[int, tuple[MediaSpan, ...]]
"""Images and sounds of inputs, by their place in the request."""

NOT_ENABLED = "This model was not started for embeddings. Start the server with --embeddings."
NO_RANKS = "This model cannot rank documents. Use a reranking model, or --pooling rank."
NO_CLASSES = "This model cannot classify texts: it has no classification head."


AS_IT_IS, EUCLIDEAN = -1, 2  # llama.cpp's numbers for how a vector is scaled


class Work:
    """Inputs that were handed to the embedder: wait for their numbers, or `cancel`. One reader."""

    def __init__(
        self, served: LoadedModel, inputs: list[list[int]], *, timeout: float | None, media: Spans | None = None
    ) -> None:
        engine = served.engine
        self.model = served.model.name
        self.num_prompt = sum(map(len, inputs))
        self.num_computed = 0  # tokens of the inputs that were answered
        self.cancelled = False
        self._lengths = list(map(len, inputs))
        self._count = len(inputs)
        self._embedder = engine.embedder
        self._stream = engine.embedder.submit(
            inputs, media=media or {}, deadline=None if timeout is None else engine.clock() + timeout
        )

    def cancel(self) -> None:
        """Cancel. May be called any number of times, at any time."""
        self.cancelled = True
        self._embedder.cancel(self._stream)

    def _wait(self) -> list[Any]:
        """The results in the order of the inputs. Raises what went wrong, and Unavailable after `cancel`."""
        numbers: list[Any] = [None] * self._count
        missing = self._count
        try:
            while missing:
                # A cancel from another greenlet puts nothing into the stream.
                if not self._stream.wait(0.5) and self.cancelled:
                    raise Unavailable("The request was cancelled.")
                for item in self._stream.take():
                    if item.error is not None:
                        raise item.error.but()  # a copy: other readers may get the same error
                    numbers[item.place] = item.vector
                    self.num_computed += self._lengths[item.place]
                    missing -= 1
        finally:
            if missing:
                self._embedder.cancel(self._stream)
        return numbers


class EmbeddingWork(Work):
    """An EmbedRequest in progress."""

    def __init__(self, served: LoadedModel, request: EmbedRequest, media: RequestMedia = NO_MEDIA) -> None:
        backend = _backend(served)
        if backend.pooling == "rank":
            raise Unsupported("This is a reranking model; it cannot make embeddings. Use /v1/rerank.", param="model")
        dimensions = request.dimensions
        if dimensions is not None and not 0 < dimensions <= backend.size:
            raise InvalidRequest(
                f"Invalid 'dimensions': this model's embeddings have {backend.size} dimensions, but got {dimensions}.",
                param="dimensions",
            )
        size = sum(len(prompt.text) for prompt in request.prompts if isinstance(prompt, TextPrompt))
        spans: Spans = {}
        encode = partial(_tokens, served, backend, request, media, spans)
        inputs = off_hub(encode) if size > LONG_TEXT else encode()
        super().__init__(served, inputs, timeout=request.timeout, media=spans)
        self._request, self._pooling, self._size = request, backend.pooling, dimensions or backend.size
        self._fingerprint, self._default = served.fingerprint, served.model.settings.embd_normalise

    def result(self) -> Embeddings:
        """Wait for it. Raises what went wrong."""
        request = self._request
        how = self._default if request.normalise is None else request.normalise
        if how is None:
            how = AS_IT_IS if self._pooling == "none" else EUCLIDEAN
        vectors = [finished(v, dimensions=request.dimensions, normalise=how) for v in self._wait()]
        return Embeddings(self.model, tuple(vectors), self._size, self._pooling, self.num_prompt, self._fingerprint)


class RankingWork(Work):
    """A RerankRequest in progress."""

    def __init__(self, served: LoadedModel, request: RerankRequest) -> None:
        backend = _backend(served, NO_RANKS)
        if backend.pooling != "rank":
            raise Unsupported(NO_RANKS, param="model")
        size = sum(len(query) + len(document) for query, document in request.pairs)
        encode = partial(_pairs, served, backend, request)
        inputs = off_hub(encode) if size > LONG_TEXT else encode()
        super().__init__(served, inputs, timeout=request.timeout)
        self._probable = _ends_in_softmax(served)

    def result(self) -> Ranking:
        """Wait for it. Raises what went wrong."""
        scores = tuple(float(numbers[0]) for numbers in self._wait())
        return Ranking(self.model, scores, self._probable, self.num_prompt)


class ClassificationWork(Work):
    """A ClassifyRequest in progress."""

    def __init__(self, served: LoadedModel, request: ClassifyRequest) -> None:
        backend = _backend(served, NO_CLASSES)
        if backend.pooling != "rank":
            raise Unsupported(NO_CLASSES, param="model")
        prompts = EmbedRequest(tuple(map(TextPrompt, request.texts)), truncate=request.truncate)
        encode = partial(_tokens, served, backend, prompts, NO_MEDIA, {})
        inputs = off_hub(encode) if sum(map(len, request.texts)) > LONG_TEXT else encode()
        super().__init__(served, inputs, timeout=request.timeout)
        self._labels = backend.labels
        self._probable = _ends_in_softmax(served)

    def result(self) -> Classes:
        """Wait for it. Raises what went wrong."""
        numbers = [[float(number) for number in row] for row in self._wait()]
        found = tuple(map(tuple, numbers)) if self._probable else tuple(map(_probabilities, numbers))
        return Classes(self.model, self._labels, found, self.num_prompt)


def _ends_in_softmax(served: LoadedModel) -> bool:
    """Whether llama.cpp's own graph applies a softmax for this kind of head."""
    return served.info.architecture in ("qwen3", "qwen3vl")


def _probabilities(numbers: Sequence[float]) -> tuple[float, ...]:
    """A softmax over several classes; for a single number, its probability."""
    if len(numbers) == 1:
        return (sigmoid(numbers[0]),)
    top = max(numbers)
    weights = [math.exp(number - top) for number in numbers]
    return tuple(weight / sum(weights) for weight in weights)


def _backend(served: LoadedModel, without: str = NOT_ENABLED) -> EmbeddingBackend:
    """`without` is the error for a model that only generates. Raises Unsupported."""
    backend = served.engine.embedder.backend
    if backend is None:
        raise Unsupported(without, param="model")
    return backend


def check_media(served: LoadedModel, request: EmbedRequest) -> None:
    """Raises Unsupported for images and sounds that the model cannot embed, before they are read."""
    if served.projector is None or _backend(served).most_rows:
        return  # the model takes them, or reading them raises what it lacks
    for prompt in request.prompts:
        if isinstance(prompt, MixedPrompt):
            for part in prompt.parts:
                if isinstance(part, MediaPart):
                    name = served.model.name
                    raise Unsupported(f"The model '{name}' makes embeddings of text only.", param=part.param)


def _tokens(
    served: LoadedModel, backend: EmbeddingBackend, request: EmbedRequest, media: RequestMedia, spans: Spans
) -> list[list[int]]:
    """The tokens of each input, with the ones that the model wants around it. Images and sounds are added to
    `spans`."""
    out = []
    for i, prompt in enumerate(request.prompts):
        if request.truncate and isinstance(prompt, TextPrompt):
            # No real text has as many characters a token; what is cut off here would be cut off later.
            text = prompt.text[: backend.context * 32]
            tokens = served.vocab.tokenize(text, add_special=True) or served.encode(prompt)
        else:
            prepared = served.prepare(prompt, media=media)
            tokens = prepared.tokens
            if prepared.media:
                spans[i] = prepared.media
        # A text is cut at its end; there, an image cannot be.
        out.append(_bounded(tokens, served, backend, truncate=request.truncate and i not in spans))
    return out


def _pairs(served: LoadedModel, backend: EmbeddingBackend, request: RerankRequest) -> list[list[int]]:
    return [
        _bounded(_pair(served, query, document), served, backend, truncate=request.truncate)
        for query, document in request.pairs
    ]


def _bounded(tokens: list[int], served: LoadedModel, backend: EmbeddingBackend, *, truncate: bool) -> list[int]:
    most = backend.context
    if len(tokens) <= most:
        return tokens
    if not truncate:
        raise InputTooLong(num_prompt=len(tokens), context=most, param="prompt")
    end = tokens[-1:] if served.vocab.is_control(tokens[-1]) else []  # the mark that closes the input stays
    return tokens[: most - len(end)] + end


def _pair(served: LoadedModel, query: str, document: str) -> list[int]:
    """Query and document as one input: by the model's own template, else with the separators its vocabulary asks
    for."""
    vocab = served.vocab
    template = served.info.templates.get("rerank")
    if template is not None:
        tokens: list[int] = []
        for text, trusted in _filled(template, query, document):
            tokens += vocab.tokenize(text, parse_special=trusted)
        return tokens
    end = vocab.eos if vocab.eos is not None else vocab.sep
    close = [end] if vocab.add_eos and end is not None else []
    between = [vocab.sep] if vocab.add_sep and vocab.sep is not None else []
    start = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
    first, second = (vocab.tokenize(text, parse_special=False) for text in (query, document))
    return [*start, *first, *close, *between, *second, *close]


def _filled(template: str, query: str, document: str) -> Sequence[tuple[str, bool]]:
    """The template filled in: its own text is trusted, so its marks are tokens; the client's text is not."""
    out: list[tuple[str, bool]] = []
    rest = template
    while rest:
        found = [(at, name) for name in ("{query}", "{document}") if (at := rest.find(name)) >= 0]
        if not found:
            out.append((rest, True))
            break
        at, name = min(found)
        if at:
            out.append((rest[:at], True))
        out.append((query if name == "{query}" else document, False))
        rest = rest[at + len(name) :]
    return out
