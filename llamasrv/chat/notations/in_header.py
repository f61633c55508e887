"""Calls as messages to a tool: the name stands in the message's header, its body is the arguments as a JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from llamasrv.chat.notations.base import Learned
from llamasrv.chat.notations.named import Named
from llamasrv.chat.scanner import Steps

if TYPE_CHECKING:
    from llamasrv.chat.calls import CallReader


@dataclass(frozen=True, slots=True)
class InHeader(Named):
    """As Named, but who reads the messages reads the name, too."""

    name: ClassVar[str] = "header"
    in_header: ClassVar[bool] = True

    @classmethod
    def learn(cls, text: str, begin: int, number: int) -> Learned | None:
        return None  # learned with the headers


def read_body(reader: CallReader, name: str) -> Steps:
    """Read the arguments of a call whose name stood in the header of its message."""
    reader.start_call(name)
    if (yield from reader.json_value(reader.argue)):
        reader.complete_calls += 1
