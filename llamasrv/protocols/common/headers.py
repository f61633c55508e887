"""Names that a client sent, as the value of a response header: few, short, and in letters that every proxy passes."""

from __future__ import annotations

import re
from collections.abc import Iterable

LEFT_OUT = "x-llamasrv-tools-left-out"
"""Types of the tools that were left out because they run on the provider's servers."""

IGNORED = "x-llamasrv-ignored"
"""Fields of the request, and types of blocks in it, that had no effect: misspelt ones, and those of other servers."""

MAX_NAMES = 16
MAX_CHARS = 48  # max characters of a name

_ODD = re.compile(r"[^A-Za-z0-9_.-]")


def header_of(names: Iterable[str]) -> str:
    """The names, each once. "..." ends a list that is longer."""
    once = dict.fromkeys(_ODD.sub("?", name[:MAX_CHARS]) or "?" for name in names)
    shown = list(once)[:MAX_NAMES]
    return ", ".join([*shown, "..."] if len(once) > MAX_NAMES else shown)
