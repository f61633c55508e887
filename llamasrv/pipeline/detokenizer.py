"""Turns one choice's bytes into events: whole characters, and in a chat reasoning, content or calls.

A chat is parsed only while it may contain more than content: if the format has only content left, the parser is dropped
after the first words.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping
from typing import Any

from llamasrv.chat.emitter import joined
from llamasrv.chat.parser import Parser
from llamasrv.domain.events import Event, Reasoning, Text, TokenLogprob
from llamasrv.engine.base.channels import Delta

_utf8 = getincrementaldecoder("utf-8")


class Detokenizer:
    """For a choice whose text is all content. An incomplete character is held back, with its log-probabilities."""

    __slots__ = ("num_reasoning", "_decode", "_pending", "_text", "_logprobs")

    def __init__(self) -> None:
        decoder = _utf8(errors="replace")
        self.num_reasoning = 0  # tokens
        self._decode = decoder.decode
        self._pending = decoder.getstate
        self._text = ""
        self._logprobs: list[TokenLogprob] = []

    @property
    def made_calls(self) -> bool:
        """Whether there were calls, and all are complete."""
        return False

    @property
    def in_reasoning(self) -> bool:
        """Whether the text that comes next is thinking."""
        return False

    def say(self, deltas: list[Delta], out: list[Event]) -> None:
        """Add tokens without log-probabilities."""
        text = self._decode(deltas[0].data if len(deltas) == 1 else b"".join([delta.data for delta in deltas]))
        if text:
            out.append(Text(deltas[0].choice, text))

    def hold(self, delta: Delta, out: list[Event]) -> None:
        """Add one token with log-probabilities."""
        self._text += self._decode(delta.data)
        self._logprobs.append(delta.logprobs)  # type: ignore[arg-type]
        if not self._pending()[0]:
            self._flush(delta.choice, out)

    def finish(self, choice: int, out: list[Event], *, cut: bool = False) -> None:
        self._text += self._decode(b"", True)
        if self._text or self._logprobs:
            self._flush(choice, out)

    def _flush(self, choice: int, out: list[Event]) -> None:
        out.append(Text(choice, self._text, tuple(self._logprobs)))
        self._text = ""
        self._logprobs = []


class NumberedDetokenizer(Detokenizer):
    """The same, with the ids of the tokens that each text came from."""

    __slots__ = ("_tokens",)

    def __init__(self) -> None:
        super().__init__()
        self._tokens: list[int] = []

    def say(self, deltas: list[Delta], out: list[Event]) -> None:
        start = len(out)
        self._tokens += [delta.token for delta in deltas]
        super().say(deltas, out)
        self._number(out, start)

    def hold(self, delta: Delta, out: list[Event]) -> None:
        start = len(out)
        self._tokens.append(delta.token)
        super().hold(delta, out)
        self._number(out, start)

    def finish(self, choice: int, out: list[Event], *, cut: bool = False) -> None:
        start = len(out)
        super().finish(choice, out, cut=cut)
        if self._tokens and len(out) == start:
            out.append(Text(choice, ""))
        self._number(out, start)

    def _number(self, out: list[Event], start: int) -> None:
        if len(out) > start:
            text = out[start]
            assert isinstance(text, Text)
            out[start] = Text(text.choice, text.text, text.logprobs, tuple(self._tokens))
            self._tokens = []


class ChatDetokenizer(Detokenizer):
    """For a choice whose text goes through a parser. `spoken`: the texts of control tokens that are part of its
    marks."""

    __slots__ = ("_parser", "_spoken", "_waiting", "_held")

    def __init__(self, parser: Parser, spoken: Mapping[int, bytes]) -> None:
        super().__init__()
        self._parser: Parser | None = parser
        self._spoken = spoken
        self._waiting: list[tuple[bytes, TokenLogprob]] = []  # tokens whose text has not been emitted yet
        self._held: list[Any] = []  # events whose tokens are not complete

    @property
    def made_calls(self) -> bool:
        parser = self._parser
        return parser is not None and parser.complete_calls > 0 and not parser.in_call

    @property
    def in_reasoning(self) -> bool:
        return self._parser is not None and self._parser.in_reasoning

    def say(self, deltas: list[Delta], out: list[Event]) -> None:
        parser = self._parser
        if parser is None:
            super().say(deltas, out)
            return
        spoken = self._spoken
        if parser.in_content:
            text = self._decode(b"".join([spoken.get(delta.token, delta.data) for delta in deltas]))
            events = parser.feed(text) if text else []
        else:
            events = []
            for delta in deltas:
                events += self._feed(parser, spoken.get(delta.token, delta.data))
            if len(events) > 1:
                events = joined(events)
        out += events
        if parser.passes:
            self._parser = None

    def _feed(self, parser: Parser, data: bytes) -> list[Any]:
        before = parser.in_reasoning
        text = self._decode(data)
        events = parser.feed(text) if text else []
        if before or parser.in_reasoning:
            self.num_reasoning += 1
        return events

    def hold(self, delta: Delta, out: list[Event]) -> None:
        parser = self._parser
        if parser is None:
            super().hold(delta, out)
            return
        data = self._spoken.get(delta.token, delta.data)
        self._waiting.append((data, delta.logprobs))  # type: ignore[arg-type]
        self._held += self._feed(parser, data)
        self._let_go(out, everything=False)
        if parser.passes and not self._waiting:
            self._parser = None

    def _let_go(self, out: list[Event], *, everything: bool) -> None:
        """Pass on events with the tokens that their text came from. A text that ends inside a token waits for the
        rest."""
        held = self._held
        if len(held) > 1:
            held = joined(held)
        for n, event in enumerate(held):
            if isinstance(event, (Text, Reasoning)):
                taken, own, is_cut = self._tokens_of(event.text)
                if is_cut and not everything and n == len(held) - 1:
                    self._held = [event]
                    return
                del self._waiting[:taken]
                event = type(event)(event.choice, event.text, own)
            out.append(event)
        self._held = []

    def _tokens_of(self, text: str) -> tuple[int, tuple[TokenLogprob, ...], bool]:
        """How many of the waiting tokens this text uses up, which of them it came from, and whether it ends inside the
        last.

        The text was preceded by marks or white space only.
        """
        waiting, said = self._waiting, text.encode("utf-8", "replace")
        start = max(0, b"".join([data for data, _ in waiting]).find(said))
        end = start + len(said)
        at = taken = 0
        own: list[TokenLogprob] = []
        for data, entry in waiting:
            if at >= end:
                break
            if at + len(data) > start:
                own.append(entry)
            at += len(data)
            taken += 1
        return taken, tuple(own), at > end

    def finish(self, choice: int, out: list[Event], *, cut: bool = False) -> None:
        parser = self._parser
        if parser is None:
            super().finish(choice, out, cut=cut)
            return
        text = self._decode(b"", True)
        events = (parser.feed(text) if text else []) + parser.finish(cut=cut)
        if self._waiting or self._held:
            self._held += events
            self._let_go(out, everything=True)
        else:
            out += events
