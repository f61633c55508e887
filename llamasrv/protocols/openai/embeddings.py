"""POST /v1/embeddings: texts or token ids to vectors.

JSON in, EmbedRequest out; Embeddings in, JSON out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.computed import Embeddings
from llamasrv.domain.request import EmbedRequest
from llamasrv.errors import Unsupported
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.prompts import Inputs
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import Count, Ignored, Invalid, String, WireSchema


class Encoding(String):
    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> str:
        if value not in ("float", "base64"):
            raise Invalid("expected 'float' or 'base64'.", code="unsupported_value")
        return value


class EmbeddingsSchema(WireSchema):
    input = Inputs(
        "a text, texts, token ids of this model, or arrays of them; none of them empty",
        most="inputs",
        empty=False,
        required=True,
        to="prompts",
    )
    model = String("a name or alias; absent: the model that is served", to="model")
    encoding_format = Encoding("float, or base64 of little-endian 32-bit floats")
    dimensions = Count(
        1, INT_MAX, "truncated to this many dimensions, then renormalised; at most the model's own", to="dimensions"
    )
    embd_normalize = Count(
        -1, 1000, "-1: none, 0: largest absolute value, 2 (default): Euclidean, p: the p-norm", to="normalise"
    )
    user = Ignored()


class EmbeddingOptions(NamedTuple):
    base64: bool = False


class EmbeddingsEndpoint(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = EmbeddingsSchema
    names = prompt_in("input")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[EmbedRequest, EmbeddingOptions]:
        data = self._load(body)
        request = build(EmbedRequest, data, timeout=timeout, owner=owner)
        return request, EmbeddingOptions(data.get("encoding_format") == "base64")

    def whole(self, options: EmbeddingOptions, made: Embeddings) -> bytes:
        if made.pooling == "none":
            raise Unsupported(
                "This model returns one vector per token (pooling none), which this endpoint cannot express: "
                "use /embedding.",
                param="model",
            )
        data = [
            {"object": "embedding", "index": i, "embedding": b64encode(v).decode() if options.base64 else v}
            for i, v in enumerate(made.vectors)
        ]
        tokens = made.prompt_tokens
        body = {
            "object": "list",
            "data": data,
            "model": made.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
