"""POST /embedding: llama.cpp's own shape, a vector for each input or for each of its tokens; and /embeddings, which
answers a body of OpenAI's in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llamasrv.domain.computed import Embeddings
from llamasrv.domain.request import EmbedRequest
from llamasrv.errors import MissingParameter
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.prompts import Inputs
from llamasrv.protocols.common.schema import Count, String, WireSchema
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.embeddings import EmbeddingOptions, EmbeddingsEndpoint


class EmbeddingSchema(WireSchema):
    content = Inputs(
        "a text, texts, token ids of this model, or arrays of them", most="inputs", empty=False, to="prompts"
    )
    input = Inputs("the same as `content`", most="inputs", empty=False, to="prompts")
    model = String("a name or alias; absent: the model that is served", to="model")
    embd_normalize = Count(
        -1, 1000, "-1: none, 0: largest value, 2 (one vector: default): Euclidean, p: p-norm", to="normalise"
    )


class NativeEmbedding(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = EmbeddingSchema
    names = prompt_in("content")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[EmbedRequest, None]:
        data = self._load(body)
        if "prompts" not in data.parts:
            raise MissingParameter("content")
        return build(EmbedRequest, data, timeout=timeout, owner=owner), None

    def whole(self, options: None, made: Embeddings) -> bytes:
        body = [
            {"index": i, "embedding": vector if made.pooling == "none" else [vector]}
            for i, vector in enumerate(made.vectors)
        ]
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


class EitherEmbedding:
    """OpenAI clients whose base URL lacks the /v1 come here with `input`, llama.cpp's clients with `content`. Vectors
    of single tokens always have llama.cpp's shape: OpenAI's has no place for them."""

    names = prompt_in("input")

    def __init__(self, limits: Limits) -> None:
        self._openai, self._native = EmbeddingsEndpoint(limits), NativeEmbedding(limits)

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[EmbedRequest, EmbeddingOptions | None]:
        return self._meant(body).parse(body, owner=owner, timeout=timeout)

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        return self._meant(body).unheard(body)

    def _meant(self, body: Mapping[str, Any]) -> EmbeddingsEndpoint | NativeEmbedding:
        is_native = body.get("input") is None or body.get("content") is not None
        return self._native if is_native else self._openai

    def whole(self, options: EmbeddingOptions | None, made: Embeddings) -> bytes:
        if options is None or made.pooling == "none":
            return self._native.whole(None, made)
        return self._openai.whole(options, made)
