"""The marks that begin, end and separate calls in a ChatFormat, in the form that readers search for."""

from __future__ import annotations

from llamasrv.chat.formats import Calls, pieces


def _strip_bracket(words: tuple[str, ...], calls: Calls, bracket: str) -> tuple[str, ...]:
    """The brackets of lists are read on their own, not as part of a mark."""
    if not calls.lists:
        return words
    stripped = (word.removesuffix("[") if bracket == "[" else word.removeprefix("]") for word in words)
    return tuple(word.strip() for word in stripped if word.strip())


def openers_of(calls: Calls) -> tuple[str, ...]:
    """The marks that may begin a call."""
    words = _strip_bracket(pieces(calls.section_start) + pieces(calls.call_start), calls, "[")
    return tuple(dict.fromkeys(words))


def closers(calls: Calls) -> tuple[str, ...]:
    """The marks that may follow a call."""
    words = _strip_bracket(pieces(calls.call_end) + pieces(calls.section_end), calls, "]")
    fence = ("```",) if any("```" in word for word in words) else ()
    return tuple(dict.fromkeys((*words, *fence)))


def call_ends(calls: Calls) -> tuple[str, ...]:
    return (pieces(calls.call_end) or closers(calls))[:1]


def ready_mark(calls: Calls) -> str:
    """The mark that a name follows."""
    words = pieces(calls.call_start)
    return words[-1] if words else ""


def opens_call(prompt: str, calls: Calls) -> bool:
    ready = ready_mark(calls)
    return bool(ready) and prompt.endswith(ready)
