"""Maps the neutral field of an error from below to the name that the endpoint uses for it.

Below the protocols a request has neutral parts: its prompt (`messages` or `input` to some endpoints) and the
form of its content. Each endpoint has fields of its own for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamasrv.errors import LlamasrvError

_PROMPT = ("prompt", "messages", "input")


def prompt_in(field: str) -> Mapping[str, str]:
    """The names for an endpoint whose prompt is in this field."""
    return dict.fromkeys(_PROMPT, field)


def named_for(error: LlamasrvError, names: Mapping[str, str], asked: Any) -> LlamasrvError:
    """The error with its field as the client named it. `asked` is the request, which knows where its form stood."""
    field = names.get(error.param or "")
    if error.param == "content":
        content = getattr(asked, "content", None)
        field = None if content is None else content.name
    return error if field is None or field == error.param else error.but(param=field)
