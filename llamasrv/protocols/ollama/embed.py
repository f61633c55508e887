"""POST /api/embed, and the older /api/embeddings: texts to vectors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from llamasrv.domain.computed import Embeddings
from llamasrv.domain.request import EmbedRequest, TextPrompt
from llamasrv.errors import MissingParameter
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import Count, Flag, String, WireField, check_length, expect
from llamasrv.protocols.ollama.fields import OllamaModelSchema, model_of
from llamasrv.protocols.ollama.wire import dumps, nanoseconds

AS_IT_IS, EUCLIDEAN = -1, 2


class OllamaInput(WireField):
    """A text, or several. An empty list is valid: the result then has no vectors."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if type(value) is str:
            return (value,) if value else ()
        expect(list, value, what="a string or an array of strings")
        check_length(value, self.limits.inputs, "texts")
        for i, text in enumerate(value):
            expect(str, text, i)
        return tuple(value)


class EmbedSchema(OllamaModelSchema):
    input = OllamaInput("a text or texts", to="prompts", via=lambda texts: tuple(map(TextPrompt, texts)))
    truncate = Flag("true if absent: a text that is too long is cut off", to="truncate", load_default=True)
    dimensions = Count(1, INT_MAX, "truncated to this many dimensions, then renormalised", to="dimensions")


class OllamaEmbeddingsSchema(OllamaModelSchema):
    prompt = String(
        "a text; its vector is not normalised",
        to="prompts",
        via=lambda text: (TextPrompt(text),) if text else (),
        load_default="",
    )


class OllamaEmbedOptions(NamedTuple):
    model: str
    arrived: float


class Embed(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = EmbedSchema
    names = prompt_in("input")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[EmbedRequest, OllamaEmbedOptions]:
        """A request without inputs gives no vectors."""
        data = self._load(body)
        if "input" not in data:
            raise MissingParameter("input")
        options = OllamaEmbedOptions(model_of(data), time.perf_counter())
        return build(EmbedRequest, data, normalise=EUCLIDEAN, timeout=timeout, owner=owner), options

    def whole(self, options: OllamaEmbedOptions, made: Embeddings) -> bytes:
        return dumps(
            {
                "model": options.model,
                "embeddings": [vector.tolist() for vector in made.vectors],
                "total_duration": nanoseconds(time.perf_counter() - options.arrived),
                "load_duration": 0,
                "prompt_eval_count": made.prompt_tokens,
            }
        )


class OllamaEmbeddings(SchemaEndpoint):
    """The older endpoint: one text, one vector."""

    schema = OllamaEmbeddingsSchema
    names = prompt_in("prompt")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[EmbedRequest, OllamaEmbedOptions]:
        data = self._load(body)
        options = OllamaEmbedOptions(model_of(data), time.perf_counter())
        request = build(EmbedRequest, data, normalise=AS_IT_IS, truncate=True, timeout=timeout, owner=owner)
        return request, options

    def whole(self, options: OllamaEmbedOptions, made: Embeddings) -> bytes:
        return dumps({"embedding": made.vectors[0].tolist() if made.vectors else []})
