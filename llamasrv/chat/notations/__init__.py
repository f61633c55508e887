"""Tool-call notations, one file each: how it is written, read, constrained by a grammar, and learned.

To add one, write its file, a Notation of base.py, and put it into the list here. The first that learns a template wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llamasrv.chat.formats import Calls
from llamasrv.chat.notations.base import Core, Notation
from llamasrv.chat.notations.braces import Braces
from llamasrv.chat.notations.harmony import Harmony
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.named import Named
from llamasrv.chat.notations.python_call import PythonCall
from llamasrv.chat.notations.tagged import Tagged

NOTATIONS: Mapping[str, Notation] = {
    notation.name: notation for notation in (JsonObject(), Named(), Tagged(), PythonCall(), Braces(), Harmony())
}

Call = tuple[str, str]  # name, arguments as JSON text


def notation_of(calls: Calls) -> Notation:
    return NOTATIONS[calls.notation]


def write_calls(calls: Calls, made: Sequence[Call]) -> str:
    """Calls as the model would write them: for templates that do not show calls of earlier turns."""
    write = notation_of(calls).write
    written = (
        calls.header.replace("{name}", name) + calls.call_start + write(calls, name, arguments, place) + calls.call_end
        for place, (name, arguments) in enumerate(made)
    )
    return calls.section_start + calls.separator.join(written) + calls.section_end


def learn(text: str, begin: int, number: int) -> Core | None:
    """How the trial call of this number, whose words are known, is written; None if no notation matches."""
    for notation in NOTATIONS.values():
        core = notation.learn(text, begin, number)
        if core is not None:
            return core
    return None
