"""A compiled grammar, and the matcher that follows one sequence through it.

    CompiledGrammar   shared by sequences; may start at a trigger in the text
    GrammarMatcher    one per sequence: accepts its tokens, knows the allowed and the forced next tokens

Masks are computed on other threads (`masks.py`) while the model decodes. Knows no formats and no protocols.
"""

from __future__ import annotations

import re
import time

import llguidance
import numpy as np

from llamasrv.engine.base.arrays import Ids, Int32s
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.errors import EngineFailure, InvalidRequest, LlamasrvError

FEW = 4096  # tokens; listing fewer is cheaper than a pass over the vocabulary
FOLLOW_SECONDS = 0.01  # free CPU seconds per accepted token, while all wait; 600 optional properties take 0.008
MOST_FOLLOWING = 0.03  # max CPU seconds beyond that, per sequence; ambiguous grammars reached 0.06 a token (2 cores)
QUICK = 0.001  # max CPU seconds per token for drafts to be checked; ordinary grammars take 0.0003 (2 cores)
FIRST_DRAFTED = 4  # drafted tokens to check first, then twice as many: the cost may grow with the cube of their number
MASK_SECONDS = 0.01  # CPU seconds of a mask that every token may take; of 150,000 tokens without slices: 3 ms
SLOW_MASKS = 0.05  # CPU seconds beyond that, after which a sequence's masks yield the cores to the model
MOST_MASKS = (
    1.0  # the same, after which it ends: an ambiguous grammar's masks, slower with every token, took a core 17 s
)
LONG = 2048  # bytes; tokens of longer forced text are found on the masks' threads: 60,000 bytes take 30 ms
SLOW_SEARCH = 0.005  # CPU seconds of looking for forced text after which the grammar's is found on the masks' threads
_KEPT_BESIDE = 280_000  # bytes of a small grammar after use, measured
_KEPT_PER_CHARACTER = 40  # additional bytes per character

cpu_seconds = time.thread_time

_PLACE = re.compile(r"^(?:(?:at )?\d+\(\d+\): |at EOF: |(?:parser|lexer) error: )+", re.IGNORECASE)
_UNREADABLE = re.compile(r"\d+\((\d+)\): lexer error\n(?:.*\n)*? *\d+ \| (.*)\n *\^")
_LIMIT = re.compile(r"too many|max is|limit|fuel|too (?:complex|large|long)", re.IGNORECASE)
_READINGS = re.compile(r"too many items|current row has", re.IGNORECASE)
TOO_MANY_READINGS = "the text can be read in too many ways (ambiguous rules, or too many optional parts in a row)"
_MISMATCH = "doesn't satisfy the grammar"
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)


class CompiledGrammar:
    """Enforced from the first of the `triggers` in the text on; without triggers, from the start."""

    __slots__ = ("_matcher", "triggers", "vocab", "control_texts", "size", "eog", "is_spent", "few", "forces_slowly")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        triggers: tuple[str, ...],
        vocab: Vocabulary,
        control_texts: dict[int, bytes],
        length: int,
        few: int = FEW,
    ) -> None:
        """`control_texts`: texts of control tokens; `length`: characters of the grammar's text; `few`: max tokens of a
        mask that is a list."""
        self.few = few
        self._matcher = matcher
        self.triggers = tuple(trigger.encode() for trigger in triggers)
        self.vocab, self.control_texts = vocab, control_texts
        self.eog = np.array(sorted(vocab.eog), np.int64)
        self.size = _KEPT_BESIDE + _KEPT_PER_CHARACTER * length  # bytes
        # Set when a matcher fails: all copies share a lexer whose limits may be used up, so new ones would fail, too.
        self.is_spent = False
        self.forces_slowly = False  # looking for forced text is too slow for the engine's thread

    def matcher(self) -> GrammarMatcher:
        """A new matcher at the start of the grammar."""
        return GrammarMatcher(self._matcher.deep_copy(), self)


class GrammarMatcher:
    """Follows one sequence. `accept` is for the engine thread; `compute_mask` runs while `pending`, on any thread."""

    __slots__ = (
        "binding", "pending", "ready", "error", "ids", "banned", "is_stuck", "is_complete", "_matcher", "_grammar",
        "_bits", "_bytes", "_tail", "_awaits_trigger", "_forces_long", "_long", "_takes_drafts", "_followed",
        "_overdrawn",
    )  # fmt: skip

    def __init__(self, matcher: llguidance.LLMatcher, grammar: CompiledGrammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._bits = np.zeros((grammar.vocab.size + 31) // 32, np.int32)
        self._bytes = self._bits.view(np.uint8)
        self._awaits_trigger = bool(grammar.triggers)
        self._tail = b""
        self.binding = not self._awaits_trigger  # whether the grammar restricts the next token
        self.pending = False  # a mask is being computed
        self.ready = False  # `ids` or `banned` are valid for the next token
        self.error = ""
        self._forces_long = False  # forced text is found together with the mask: LONG bytes or more, or slowly
        self._long: list[int] = []  # its tokens, once the mask is ready
        self._takes_drafts = True  # the last token was quick to accept
        self._followed = 0.0  # CPU seconds that its tokens have taken beyond FOLLOW_SECONDS each
        self._overdrawn = 0.0  # CPU seconds that its masks have taken beyond MASK_SECONDS each
        self.ids: Ids | None = None  # the allowed tokens, if they are few: int64 [n]
        self.banned: Ids | None = None  # else the banned ones: int64 [n] if they are few, or bool [n_vocab]
        self.is_stuck = False  # only an end token may follow
        self.is_complete = bool(matcher.is_stopped())  # nothing may follow; cached, since a mask may be in progress

    @property
    def is_slow(self) -> bool:
        """Whether its masks should yield the cores to the model."""
        return self._overdrawn > SLOW_MASKS

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def accept(self, token: int) -> bool:
        """Advance by one token. False if the grammar does not allow it: do not use the matcher after that."""
        self.ready = self._forces_long = False
        began = cpu_seconds()
        if not self._matcher.consume_token(token):
            self._fail(self._matcher.get_error())
            return False
        took = cpu_seconds() - began
        self._takes_drafts = took <= QUICK
        self._followed = max(0.0, self._followed + took - FOLLOW_SECONDS)
        if self._followed > MOST_FOLLOWING:
            self._fail("following it takes too long")
            return False
        self.is_complete = bool(self._matcher.is_stopped())
        if self._awaits_trigger:
            self._look_for_trigger(token)
        return True

    def _look_for_trigger(self, token: int) -> None:
        """Bind from the first token that may be part of a trigger, so that no token extends past its end."""
        grammar = self._grammar
        tail = self._tail + (grammar.control_texts.get(token) or grammar.vocab.pieces[token])
        if any(trigger in tail for trigger in grammar.triggers):
            self._awaits_trigger, self.binding = False, True
            return
        longest = max(map(len, grammar.triggers)) - 1
        self._tail = tail = tail[-longest:] if longest else b""
        self.binding = any(_ends_with_beginning(tail, trigger) for trigger in grammar.triggers)

    def forced(self) -> list[int]:
        """The forced next tokens; empty if there is a choice, or if they are many or found slowly and the mask is not
        ready."""
        if not self.binding or self.pending:
            return []
        if self._forces_long:
            return self._long if self.ready else []
        if self._grammar.forces_slowly or self._forces_many():
            self._forces_long, self.ready = True, False
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def _forces_many(self) -> bool:
        began = cpu_seconds()
        size = len(self._matcher.compute_ff_bytes())
        if cpu_seconds() - began > SLOW_SEARCH:
            self._grammar.forces_slowly = True
        return size >= LONG

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these tokens the grammar would accept in sequence, or fewer where that takes long to find out;
        does not advance."""
        if not self.binding:
            return len(tokens)
        allowed, far = 0, FIRST_DRAFTED
        while self._takes_drafts:
            began = cpu_seconds()
            allowed = int(self._matcher.validate_tokens(tokens[:far]))
            if cpu_seconds() - began > QUICK:
                self._takes_drafts = False
            if allowed < far or far >= len(tokens):
                break
            far *= 2
        return allowed

    def compute_mask(self) -> None:
        """Compute the allowed next tokens, as `ids` or `banned`."""
        vocab = self._grammar.vocab
        if not vocab.hold():  # forced text is tokenised with the model's vocabulary
            self.give_up_mask("the model is unloaded")
            return
        try:
            self._compute_mask()
        finally:
            vocab.release()

    def _compute_mask(self) -> None:
        began = cpu_seconds()
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._overdrawn = max(0.0, self._overdrawn + cpu_seconds() - began - MASK_SECONDS)
        if self._overdrawn > MOST_MASKS:
            self.give_up_mask("finding what may follow takes too long")
            return
        if self._matcher.is_error():  # the library's mask then allows the end
            self.give_up_mask(self._matcher.get_error())
            return
        if self._forces_long:
            self._long = self._matcher.compute_ff_tokens()
        self.ids = self.banned = None
        self.is_stuck = False
        size, few = self._grammar.vocab.size, self._grammar.few
        ids = _listed(self._bits, size, few)
        if ids is not None:
            self.ids = ids
            self.is_stuck = len(ids) <= len(self._grammar.eog) and bool(np.isin(ids, self._grammar.eog).all())
        else:
            np.invert(self._bits, out=self._bits)
            self.banned = _listed(self._bits, size, few)
            if self.banned is None:
                self.banned = np.unpackbits(self._bytes, count=size, bitorder="little").view(bool)
        self.ready = True
        self.pending = False

    def give_up_mask(self, error: str) -> None:
        """Fail: allow no token, because the mask cannot be computed."""
        self._fail(error)
        self.ids, self.banned = np.empty(0, np.int64), None
        self.ready, self.pending = True, False

    def _fail(self, error: str) -> None:
        self.error = reason_of(error) or "nothing can follow"
        self._grammar.is_spent = True

    def failure(self) -> LlamasrvError:
        """Why the answer cannot continue, for its client. Exceeding a limit is the request's fault."""
        if _LIMIT.search(self.error) and _MISMATCH not in self.error:
            said = f"The schema or grammar is too complex for what was written so far: {self.error}."
            return InvalidRequest(said, param="content")
        if not self.error or _MISMATCH in self.error:  # the library's message quotes the answer
            return EngineFailure("The grammar of this request rejects the chosen token.")
        return EngineFailure(f"The grammar of this request cannot be followed: {self.error}.")


def reason_of(error: str) -> str:
    """A library error in one line, without positions, which refer to a generated grammar."""
    line = _PLACE.sub("", error.strip().split("\n", 1)[0]).removeprefix("failed to compile JSON schema: ")
    if "parse error:" in line and (reason := _REASON.search(error)):
        line = f"a pattern cannot be used: {reason[1]}"
    if (found := _UNREADABLE.match(error)) is not None:
        rest = found[2].encode()[int(found[1]) - 1 :].decode("utf-8", "replace")
        line = f"it cannot be read from {rest[:40]!r} on" if rest else "a string or a pattern has no end"
    if line.startswith("NoExtension"):
        line = "nothing satisfies it"
    if _READINGS.search(line):  # the library's advice is about its own parser
        line = TOO_MANY_READINGS
    return line.strip().rstrip(".")[:400]


def _listed(bits: Int32s, size: int, few: int) -> Ids | None:
    """Indices of the set bits among the first `size`, if there are at most `few`; skips zero words."""
    words: Ids = bits.nonzero()[0]
    if len(words) > few:
        return None
    places = np.unpackbits(bits[words].view(np.uint8), bitorder="little").nonzero()[0]
    if len(places) > few:
        return None
    ids: Ids = words[places >> 5] * 32 + (places & 31)
    return ids if not len(ids) or ids[-1] < size else ids[ids < size]


def _ends_with_beginning(text: bytes, mark: bytes) -> bool:
    """Whether a text ends with a prefix of the mark."""
    return any(text.endswith(mark[:n]) for n in range(1, min(len(text), len(mark)) + 1))
