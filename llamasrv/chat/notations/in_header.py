"""Calls as messages to a tool: the name stands in the message's header, its body is the arguments as a JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llamasrv.chat.notations.base import Learned
from llamasrv.chat.notations.named import Named


@dataclass(frozen=True, slots=True)
class InHeader(Named):
    """As Named, but who reads the messages reads the name, too."""

    name: ClassVar[str] = "header"
    in_header: ClassVar[bool] = True

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        return None  # learned with the headers
