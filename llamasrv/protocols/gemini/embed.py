"""embedContent and batchEmbedContents under /v1beta: texts to vectors. The path names the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from marshmallow import ValidationError

from llamasrv.domain.computed import Embeddings
from llamasrv.domain.request import EmbedRequest, TextPart, TextPrompt
from llamasrv.errors import Unsupported
from llamasrv.protocols.common.loader import loader_of
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import Array, Count, Ignored, Invalid, String, WireSchema, expect
from llamasrv.protocols.gemini.contents import Contents
from llamasrv.protocols.gemini.wire import camel
from llamasrv.protocols.limits import Limits


class EmbedText(Contents):
    """One content whose parts are texts."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:  # type: ignore[override]
        expect(dict, value)
        (message, *_) = super()._deserialize([value], attr, data, **kwargs) or (None,)
        content = None if message is None else message.content
        parts = (TextPart(content),) if isinstance(content, str) else content or ()
        text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
        if not text or not all(isinstance(part, TextPart) for part in parts):
            raise Invalid("expected parts with 'text'.", "parts")
        return text


class EmbedContentSchema(WireSchema):
    content = EmbedText("texts", required=True)
    outputDimensionality = Count(1, INT_MAX, "truncated to this many dimensions, then renormalised")
    taskType = Ignored("write the model's own prefix in front of the text")
    title = Ignored()
    model = String("the path names it, too")


class Requests(Array):
    """A list of embedContent requests."""

    def unheard_in(self, value: Any) -> Iterable[str]:
        loader, wires = loader_of(EmbedContentSchema, self.limits), value if type(value) is list else ()
        return dict.fromkeys(name for wire in wires if type(wire) is dict for name in loader.unheard(camel(wire)))

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[dict[str, Any]]:
        if not 0 < len(value) <= self.limits.inputs:
            raise Invalid(f"expected 1 to {self.limits.inputs} requests, but got {len(value)}.")
        load = loader_of(EmbedContentSchema, self.limits).checked
        out: list[dict[str, Any]] = []
        for i, wire in enumerate(value):
            expect(dict, wire, i)
            try:
                out.append(load(camel(wire)))
            except ValidationError as error:
                raise ValidationError({i: error.messages}) from None
        first = out[0].get("outputDimensionality")
        for i, asked in enumerate(out):
            if asked.get("outputDimensionality") != first:
                raise Invalid("must be the same in all requests.", i, "outputDimensionality")
        return out


class BatchEmbedSchema(WireSchema):
    requests = Requests("each as for embedContent, all of one size", required=True)


class GeminiEmbedOptions(NamedTuple):
    batch: bool = False


class EmbedContent:
    """Both endpoints, with their limits."""

    names = prompt_in("content")

    def __init__(self, limits: Limits) -> None:
        self._one, self._batch = loader_of(EmbedContentSchema, limits), loader_of(BatchEmbedSchema, limits)

    def parse(
        self, body: Mapping[str, Any], *, model: str, batch: bool, owner: str = "", timeout: float | None = None
    ) -> tuple[EmbedRequest, GeminiEmbedOptions]:
        given = camel(dict(body))
        asked = self._batch.load(given)["requests"] if batch else [self._one.load(given)]
        request = EmbedRequest(
            tuple(TextPrompt(one["content"]) for one in asked),
            model=model,
            dimensions=asked[0].get("outputDimensionality"),
            timeout=timeout,
            owner=owner,
        )
        return request, GeminiEmbedOptions(batch)

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        given = camel(dict(body))
        return (self._one if "content" in given else self._batch).unheard(given)

    def whole(self, options: GeminiEmbedOptions, made: Embeddings) -> bytes:
        if made.pooling == "none":
            raise Unsupported(
                "This model returns one vector per token (pooling none), which this endpoint cannot express: "
                "use /embedding."
            )
        found = [{"values": vector} for vector in made.vectors]
        body = {"embeddings": found} if options.batch else {"embedding": found[0]}
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
