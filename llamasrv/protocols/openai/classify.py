"""POST /v1/classify: the class of each text, in vLLM's shape.

JSON in, ClassifyRequest out; Classes in, JSON out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.computed import Classes
from llamasrv.domain.request import ClassifyRequest
from llamasrv.protocols.common.loader import SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import Count, Ignored, String, WireSchema
from llamasrv.protocols.openai.score import Texts, listed


class ClassifySchema(WireSchema):
    input = Texts("a text, or several", required=True, to="texts")
    model = String("a name or alias; absent: the model that is served", to="model")
    truncate_prompt_tokens = Count(
        -1,
        INT_MAX,
        "any number: a text that is too long is cut; absent: it is refused",
        to="truncate",
        via=lambda _: True,
    )
    user = Ignored()
    priority = Ignored()


class ClassifyOptions(NamedTuple):
    """Empty: nothing in the request shapes its reply."""


class ClassifyEndpoint(SchemaEndpoint):
    schema = ClassifySchema
    names = prompt_in("input")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[ClassifyRequest, ClassifyOptions]:
        return build(ClassifyRequest, self._load(body), timeout=timeout, owner=owner), ClassifyOptions()

    def whole(self, options: ClassifyOptions, found: Classes) -> bytes:
        data = []
        for index, probabilities in enumerate(found.probabilities):
            best = max(range(len(probabilities)), key=probabilities.__getitem__)
            data.append(
                {
                    "index": index,
                    "label": found.labels[best],
                    "probs": probabilities,
                    "num_classes": len(probabilities),
                }
            )
        return orjson.dumps(listed("classify", found.model, found.prompt_tokens, data))
