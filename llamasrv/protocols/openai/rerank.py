"""POST /v1/rerank: documents ordered by how well they answer a query.

Two shapes are in use, known by their field: `documents` of Jina and Cohere, `texts` of text-embeddings-inference.
JSON in, RerankRequest out; Ranking in, JSON out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.computed import Ranking
from llamasrv.domain.request import RerankRequest
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import (
    Array,
    Count,
    Flag,
    Ignored,
    Invalid,
    String,
    WireSchema,
    check_length,
    expect,
)


class Documents(Array):
    """Texts, or objects with a `text`."""

    expected = "an array of strings"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if not value:
            raise Invalid("empty array.", code="empty_array")
        check_length(value, self.limits.inputs, "documents")
        out = []
        for i, document in enumerate(value):
            text = document.get("text") if type(document) is dict else document
            out.append(expect(str, text, i, what="a string, or an object with a 'text'"))
        return tuple(out)


class RerankSchema(WireSchema):
    query = String("the question", required=True)
    documents = Documents("texts, or objects with a `text`; the reply has Jina's shape")
    texts = Documents("texts; the reply has the shape of text-embeddings-inference")
    model = String("a name or alias; absent: the model that is served", to="model")
    top_n = Count(1, INT_MAX, "return only the N best")
    return_documents = Flag("the reply repeats the documents; default false")
    return_text = Flag("the same with `texts`")
    raw_scores = Flag("with `texts`: what the model writes, instead of its sigmoid; default false")
    truncate = Flag("a pair that is too long is cut; default false: refused", to="truncate")
    user = Ignored()
    max_tokens_per_doc = Ignored()
    rank_fields = Ignored("of a document `text` is read")


class RerankOptions(NamedTuple):
    texts: Sequence[str]
    tei: bool = False
    top_n: int | None = None
    with_text: bool = False
    raw: bool = True


class RerankEndpoint(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = RerankSchema
    names = prompt_in("documents")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[RerankRequest, RerankOptions]:
        data = self._load(body)
        get = data.get
        if ("documents" in data) == ("texts" in data):
            what = "only one of both is allowed" if "texts" in data else "Missing required parameter: 'documents'"
            raise InvalidRequest(f"Invalid 'documents': {what}." if "texts" in data else f"{what}.", param="documents")
        tei = "texts" in data
        texts = data["texts"] if tei else data["documents"]
        options = RerankOptions(
            texts,
            tei=tei,
            top_n=get("top_n"),
            with_text=get("return_text" if tei else "return_documents", False),
            raw=get("raw_scores", not tei),
        )
        pairs = tuple((data["query"], text) for text in texts)
        return build(RerankRequest, data, pairs=pairs, timeout=timeout, owner=owner), options

    def whole(self, options: RerankOptions, ranked: Ranking) -> bytes:
        scores = ranked.scores if options.raw else ranked.probabilities
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[: options.top_n]
        if options.tei:
            found = [
                {"index": i, "score": scores[i], **({"text": options.texts[i]} if options.with_text else {})}
                for i in order
            ]
            return orjson.dumps(found)
        results = [
            {
                "index": i,
                "relevance_score": scores[i],
                **({"document": {"text": options.texts[i]}} if options.with_text else {}),
            }
            for i in order
        ]
        tokens = ranked.prompt_tokens
        return orjson.dumps(
            {
                "model": ranked.model,
                "object": "list",
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results,
            }
        )
