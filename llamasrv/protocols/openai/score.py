"""POST /v1/score: how well texts match, in vLLM's shape. JSON in, RerankRequest out; Ranking in, JSON out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import uuid4

import orjson

from llamasrv.domain.computed import Ranking
from llamasrv.domain.request import RerankRequest
from llamasrv.errors import InvalidRequest, MissingParameter
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import (
    Count,
    Ignored,
    Invalid,
    String,
    WireField,
    WireSchema,
    check_length,
    expect,
)


class Texts(WireField):
    """A text, or several."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if type(value) is str:
            return (value,)
        expect(list, value, what="a string or an array of strings")
        if not value:
            raise Invalid("empty array.", code="empty_array")
        check_length(value, self.limits.inputs, "texts")
        for i, text in enumerate(value):
            expect(str, text, i, what="a text")
        return tuple(value)


class ScoreSchema(WireSchema):
    text_1 = Texts("one text for all of `text_2`, or as many")
    text_2 = Texts("what it is compared with")
    queries = Texts("the same as `text_1`")
    documents = Texts("the same as `text_2`")
    data_1 = Texts("the same as `text_1`")
    data_2 = Texts("the same as `text_2`")
    model = String("a name or alias; absent: the model that is served", to="model")
    truncate_prompt_tokens = Count(
        -1,
        INT_MAX,
        "any number: a pair that is too long is cut; absent: it is refused",
        to="truncate",
        via=lambda _: True,
    )
    user = Ignored()
    priority = Ignored()


class ScoreOptions(NamedTuple):
    """Empty: nothing in the request shapes its reply."""


class ScoreEndpoint(SchemaEndpoint):
    schema = ScoreSchema
    names = prompt_in("text_2")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[RerankRequest, ScoreOptions]:
        data = self._load(body)
        first, second = (
            self._texts(data, names) for names in (("text_1", "queries", "data_1"), ("text_2", "documents", "data_2"))
        )
        if len(first) == 1:
            first *= len(second)
        if len(first) != len(second):
            raise InvalidRequest(
                f"Invalid 'text_1': expected one text or {len(second)}, as many as in 'text_2', but got {len(first)}.",
                param="text_1",
            )
        request = build(RerankRequest, data, pairs=tuple(zip(first, second)), timeout=timeout, owner=owner)
        return request, ScoreOptions()

    def _texts(self, data: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in data:
                texts: tuple[str, ...] = data[name]
                return texts
        raise MissingParameter(names[0])

    def whole(self, options: ScoreOptions, ranked: Ranking) -> bytes:
        data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(ranked.probabilities)]
        return orjson.dumps(listed("score", ranked.model, ranked.prompt_tokens, data))


def listed(kind: str, model: str, tokens: int, data: list[Any]) -> dict[str, Any]:
    """The results as vLLM's list."""
    return {
        "id": f"{kind}-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }
