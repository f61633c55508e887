"""Constraints: which tokens a sequence may write next.

    Constraints    one per model: compiles grammars within limits, and keeps them
    Grammar        one compiled grammar, with the marks that it begins to bind at
    Guide          one per sequence: follows its tokens, knows what may come next and what must

Owns llguidance. Compiling and masks give up the GIL; masks are computed on the threads of `masks.py`, while the model
decodes. Knows no formats and no protocols: a grammar is Lark text.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from hashlib import sha256
from typing import Any

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import gbnf_to_lark

from llamasrv.engine.channels import Notice, native_lock
from llamasrv.engine.interface import Vocabulary
from llamasrv.engine.native_pool import NativePool
from llamasrv.errors import InvalidRequest, Unavailable

log = logging.getLogger("llamasrv.engine")

MAX_GBNF = 256 * 1024  # characters
COMPILE_SECONDS = 0.4  # that a request waits for its grammar
COMPILERS = 2  # grammars compiled at once: that takes cores from the model
CACHE_BYTES = 64 << 20
FEW = 4096  # tokens: below, listing them is cheaper than passing over the vocabulary
_KEPT_BESIDE = 280_000  # bytes that a small grammar takes once it was used, as measured
_KEPT_PER_CHARACTER = 40  # and each character of a large one


def lark_of_gbnf(text: str) -> str:
    """llama.cpp's notation as Lark. Raises InvalidRequest."""
    if len(text) > MAX_GBNF:
        raise InvalidRequest(f"The grammar is longer than {MAX_GBNF} characters.", param="content")
    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise InvalidRequest("The grammar is nested too deeply.", param="content") from None
    except Exception as error:  # the converter's own kind is not part of its interface
        raise InvalidRequest(f"The grammar cannot be read: {_sentence(str(error))}", param="content") from None


class Constraints:
    """Of one model. Make it on the HTTP side's thread; `open` it with the vocabulary; then any thread may ask."""

    def __init__(self, pool: NativePool) -> None:
        self._vocab: Vocabulary
        self._texts: dict[int, bytes] = {}
        self._tokenizer: Any = None
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        self._lock = native_lock()
        self._kept: OrderedDict[bytes, Grammar] = OrderedDict()
        self._kept_bytes = 0
        self._queue = pool.queue(COMPILERS)
        self._notice = Notice()

    def open(self, vocab: Vocabulary) -> None:
        """Make the tokenizer. That holds the GIL, for 150,000 tokens half a second, so it is done while loading and in
        two pieces, between which other threads have their turn."""
        self._vocab = vocab
        self._texts = {token: text.encode() for text, token in vocab.controls.items()}
        tokenizer = _tokenizer(vocab, self._texts)
        self._tokenizer = tokenizer.with_slices(llguidance.LLTokenizer.general_slices())

    def close(self) -> None:
        """Nothing is compiled any more."""
        with self._lock:
            self._tokenizer = None
            self._kept.clear()
            self._kept_bytes = 0

    def discard(self) -> None:
        """After it has closed."""
        self._notice.close()

    def grammar(self, text: str, triggers: tuple[str, ...] = ()) -> Grammar:
        """Compiled, or as it was kept. Raises InvalidRequest for what cannot be, or takes too long."""
        key = sha256("\0".join((text, *triggers)).encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        job = _Job(text, triggers)
        if not self._queue.put(lambda: self._serve(job)):
            raise Unavailable("The model is being unloaded. Try again shortly.")
        if not self._notice.wait(lambda: job.done, COMPILE_SECONDS):
            job.given_up = True
            if not job.begun:
                raise Unavailable("Other schemas are being compiled. Try again shortly.")
            raise InvalidRequest("The schema or grammar is too complex: it took too long to compile.", param="content")
        if job.grammar is None:
            raise InvalidRequest(f"The schema or grammar cannot be used: {job.error}.", param="content")
        with self._lock:
            self._keep(key, job.grammar)
        return job.grammar

    def _serve(self, job: _Job) -> None:
        if job.given_up:
            return
        job.begun = True
        try:
            self._compile(job)
        except Exception:
            log.exception("compiling a grammar failed")
            job.error = "it cannot be compiled"
        job.done = True
        self._notice.tell()

    def _keep(self, key: bytes, grammar: Grammar) -> None:
        if key in self._kept:
            return
        self._kept[key] = grammar
        self._kept_bytes += grammar.size
        while self._kept_bytes > CACHE_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size

    def _compile(self, job: _Job) -> None:
        tokenizer = self._tokenizer
        if tokenizer is None:
            job.error = "the model is gone"
            return
        matcher = llguidance.LLMatcher(tokenizer, job.text, limits=self._limits, log_level=0)
        if matcher.is_error():
            job.error = _sentence(matcher.get_error())
            return
        grammar = Grammar(matcher, job.triggers, self._vocab, self._texts, len(job.text))
        first = grammar.guide()
        first.compute()  # warms up what all copies share
        if first.error or (first.is_stuck and not first.may_end):
            job.error = first.error or "nothing satisfies it"
        else:
            job.grammar = grammar


class _Job:
    """A grammar to be compiled."""

    __slots__ = ("text", "triggers", "begun", "done", "given_up", "grammar", "error")

    def __init__(self, text: str, triggers: tuple[str, ...]) -> None:
        self.text, self.triggers = text, triggers
        self.begun = self.done = self.given_up = False
        self.grammar: Grammar | None = None
        self.error = ""


class Grammar:
    """A compiled grammar. Before one of the `triggers` is written, nothing is enforced; without any, all is."""

    __slots__ = ("_matcher", "triggers", "vocab", "texts", "size", "eog")

    def __init__(
        self, matcher: Any, triggers: tuple[str, ...], vocab: Vocabulary, texts: dict[int, bytes], length: int
    ) -> None:
        self._matcher = matcher
        self.triggers = tuple(trigger.encode() for trigger in triggers)
        self.vocab, self.texts = vocab, texts
        self.eog = np.array(sorted(vocab.eog), np.int64)
        self.size = _KEPT_BESIDE + _KEPT_PER_CHARACTER * length

    def guide(self) -> Guide:
        return Guide(self._matcher.deep_copy(), self)


class Guide:
    """Follows one sequence. `accept` belongs to the engine thread; `compute` runs while `pending`, on any thread."""

    __slots__ = (
        "binding", "pending", "ready", "error", "ids", "banned", "is_stuck", "_matcher", "_grammar", "_bits", "_bytes",
        "_tail", "_free",
    )  # fmt: skip

    def __init__(self, matcher: Any, grammar: Grammar) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._bits = np.zeros((grammar.vocab.size + 31) // 32, np.int32)
        self._bytes = self._bits.view(np.uint8)
        self._free = bool(grammar.triggers)  # no trigger has been written yet
        self._tail = b""
        self.binding = not self._free  # whether the next token must be one of those allowed
        self.pending = False  # a mask is being computed
        self.ready = False  # `ids` or `banned` hold for the next token
        self.error = ""
        self.ids: np.ndarray | None = None  # those allowed, if they are few
        self.banned: np.ndarray | None = None  # else those that are not: ids if they are few, or a mask
        self.is_stuck = False  # nothing may follow but an end

    @property
    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow any more."""
        return bool(self._matcher.is_stopped())

    def accept(self, token: int) -> bool:
        """One more token. False where the grammar does not allow it; before a trigger that only means no guidance."""
        self.ready = False
        if not self._matcher.consume_token(token):
            self.error = _sentence(self._matcher.get_error())
            return False
        if self._free:
            self._look_for_trigger(token)
        return True

    def _look_for_trigger(self, token: int) -> None:
        """Bind from the first token on that may be part of a trigger, so that none runs past its end."""
        grammar = self._grammar
        tail = self._tail + (grammar.texts.get(token) or grammar.vocab.pieces[token])
        if any(trigger in tail for trigger in grammar.triggers):
            self._free, self.binding = False, True
            return
        longest = max(map(len, grammar.triggers)) - 1
        self._tail = tail = tail[-longest:] if longest else b""
        self.binding = any(_overlap(tail, trigger) for trigger in grammar.triggers)

    def forced(self) -> list[int]:
        """The tokens that must come next; none where there is a choice."""
        if not self.binding:
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def compute(self) -> None:
        """What may come next."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            self.error = _sentence(self._matcher.get_error()) or "nothing can follow"
        self.ids = self.banned = None
        self.is_stuck = False
        size = self._grammar.vocab.size
        ids = _listed(self._bits, size)
        if ids is not None:
            self.ids = ids
            self.is_stuck = len(ids) <= len(self._grammar.eog) and bool(np.isin(ids, self._grammar.eog).all())
        else:
            np.invert(self._bits, out=self._bits)
            self.banned = _listed(self._bits, size)
            if self.banned is None:
                self.banned = np.unpackbits(self._bytes, count=size, bitorder="little").view(bool)
        self.ready = True
        self.pending = False

def _listed(bits: np.ndarray, size: int) -> np.ndarray | None:
    """The numbers of the bits that are set among the first `size`, if they are few; most words need no look then."""
    words = bits.nonzero()[0]
    if len(words) > FEW:
        return None
    places = np.unpackbits(bits[words].view(np.uint8), bitorder="little").nonzero()[0]
    if len(places) > FEW:
        return None
    ids = words[places >> 5] * 32 + (places & 31)
    return ids if not len(ids) or ids[-1] < size else ids[ids < size]


def _overlap(text: bytes, mark: bytes) -> bool:
    """Whether a text ends with a beginning of the mark."""
    return any(text.endswith(mark[:n]) for n in range(1, min(len(text), len(mark)) + 1))


class _Wrapped:
    """A vocabulary without a native tokenizer, as llguidance wants one."""

    def __init__(self, vocab: Vocabulary, tokens: list[bytes]) -> None:
        ends = sorted(vocab.eog)
        self.eos_token_id = ends[0] if ends else len(tokens) - 1
        self.bos_token_id = vocab.bos
        self.tokens = tokens
        self.special_token_ids = [t for t, text in enumerate(tokens) if text[:1] == b"\xff"]
        self._tokenize = vocab.tokenize

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text, parse_special=False)


def _tokenizer(vocab: Vocabulary, texts: dict[int, bytes]) -> Any:
    """Without the slices of the vocabulary that make masks quick."""
    # A token that is not text begins with 0xff: then no text of a grammar can be written with it by mistake.
    tokens = [
        b"\xff" + (texts.get(t) or b"<%d>" % t) if vocab.is_control(t) else piece
        for t, piece in enumerate(vocab.pieces)
    ]
    ends = sorted(vocab.eog)
    native = vocab.native
    if native is None:
        wrapper = llguidance.TokenizerWrapper(_Wrapped(vocab, tokens))
        return llguidance.LLTokenizer(wrapper, eos_token=ends or None, slices=[])
    pointer, tokenize = native
    return llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
        tokens=tokens, vocab_ptr=pointer, tokenize_fptr=tokenize, eos_token=ends or [vocab.size - 1], slices=[]
    )


_PLACE = re.compile(r"^at \d+\(\d+\): ")
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)


def _sentence(error: str) -> str:
    """What is wrong, in one line, without its place in a grammar that the client never saw."""
    line = _PLACE.sub("", error.strip().split("\n", 1)[0]).removeprefix("failed to compile JSON schema: ")
    if "parse error:" in line and (reason := _REASON.search(error)):
        line = f"a pattern cannot be used: {reason[1]}"
    if line.startswith("NoExtension"):
        line = "nothing satisfies it"
    return line.strip().rstrip(".")[:400]
