"""Compiles grammars within limits and caches them.

A grammar is Lark text as llguidance takes it. Compiling gives up the GIL and is done by the native pool, so neither the
engine thread nor the HTTP side waits for a hostile schema longer than `COMPILE_SECONDS`. It cannot be stopped, though:
each owner has one at a time, what was refused is remembered, and a large grammar is compiled in another process first.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Generic, TypeVar

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from llamasrv.concurrency import Notice, native_lock
from llamasrv.engine.allocator import give_back
from llamasrv.engine.interface import Vocabulary
from llamasrv.engine.native_pool import NativePool
from llamasrv.engine.sampling.grammar_matcher import CompiledGrammar, reason_of
from llamasrv.engine.sampling.grammar_trial import LIMITS, TRIAL_SECONDS, fault_of
from llamasrv.errors import InvalidRequest, LlamasrvError, Unavailable

log = logging.getLogger("llamasrv.engine")

UNLOADED = "The model is being unloaded. Try again shortly."
COMPILE_SECONDS = 0.4  # that a request waits for its grammar once it is begun
WAIT_SECONDS = 2.0  # that it waits for others before that
COMPILERS = 2  # grammars compiled at once: that takes cores from the model
TRIALS = 2  # processes at once that try a large one
LARGE = 20 * 1024  # characters; longer ones are tried
REFUSED_SECONDS = 60.0  # that a grammar stays refused which could not be used
MAX_REMEMBERED = 10_000  # grammars that were refused, or tried
CACHE_BYTES = 64 << 20
TOKENIZER_SECONDS = 60.0  # that a request waits for the tokenizer that all grammars share
WITHOUT_SLICES = 64  # requests with a grammar, at most, before the vocabulary is sliced on a model that is never idle

R = TypeVar("R")
Key = tuple[str, bytes]
"""Who shares a grammar, and its digest: how long an answer takes must not tell what others have compiled."""


def lark_of_gbnf(text: str) -> str:
    """llama.cpp's notation as Lark. Takes the square of the rules that stand before those that they refer to. Raises
    InvalidRequest."""
    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise InvalidRequest("The grammar is nested too deeply.", param="content") from None
    except Exception as error:  # the converter's own kind is not part of its interface
        raise InvalidRequest(f"The grammar is not valid GBNF: {reason_of(str(error))}", param="content") from None


class GrammarCompiler:
    """One per model. Make it on the HTTP side's thread and `open` it with the vocabulary; then any thread may
    compile."""

    def __init__(self, pool: NativePool) -> None:
        self.kept_bytes = 0  # of the grammars in `_kept`
        self._vocab: Vocabulary | None = None
        self._control_texts: dict[int, bytes] = {}
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._is_sliced = False
        self._num_asked = 0  # requests with a grammar
        self._limits = llguidance.LLParserLimits(**LIMITS)
        self._lock = native_lock()
        self._kept: OrderedDict[Key, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[Key, tuple[float, LlamasrvError]] = OrderedDict()  # until when, and why
        self._tried: OrderedDict[bytes, None] = OrderedDict()  # digests of large grammars
        self._num_trials = 0  # running
        self._busy: set[str] = set()  # owners that have a job
        self._queue = pool.queue(COMPILERS)
        self._tokenizer_queue = pool.queue(1)
        self._making, self._closed = native_lock(), False
        self._notice = Notice()
        self._refusal: str | None = None  # why this vocabulary takes no grammars

    def open(self, vocab: Vocabulary) -> None:
        """Accept grammars for this vocabulary from now on."""
        self._control_texts = {token: text.encode() for text, token in vocab.controls.items()}
        self._vocab = vocab

    def prepare(self) -> bool:
        """Have the pool make what is missing of the tokenizer. False after `close`. Never waits.

        Making it holds the GIL: half a second for 150,000 tokens, in two pieces between which other threads can run. So
        it is not done before the model is ready, but when the model is idle, or for the first grammar. Slices of the
        vocabulary make masks cheaper and take twice the memory of the rest (35 MiB for 150,000 tokens, and 0.4 s): they
        are made once a grammar was asked for.
        """
        if self._closed:
            return False
        if self._vocab is None or self._refusal is not None:
            return True
        if self._tokenizer is None:
            return self._tokenizer_queue.put(self._make_tokenizer)
        return self._is_sliced or not self._num_asked or self._tokenizer_queue.put(self._slice)

    @property
    def _is_prepared(self) -> bool:
        return self._tokenizer is not None or self._refusal is not None

    def _make_tokenizer(self) -> None:
        """A vocabulary that llguidance cannot take leaves the model without grammars: `compile` then refuses them."""
        with self._making:
            if self._closed or self._is_prepared or self._vocab is None:
                return
            try:
                self._tokenizer = _tokenizer(self._vocab, self._control_texts)
            except BaseException as error:  # llguidance documents no exception types; a panic is no Exception
                self._refusal = reason_of(str(error)) or type(error).__name__
                log.warning("grammars are disabled: llguidance cannot use this model's vocabulary: %s", self._refusal)
        self._notice.tell()
        give_back()  # of what loading the model left, too: 20 MiB for 150,000 tokens

    def _slice(self) -> None:
        with self._making:
            tokenizer = self._tokenizer
            if self._closed or self._is_sliced or tokenizer is None:
                return
            self._tokenizer = tokenizer.with_slices(llguidance.LLTokenizer.general_slices())
            self._is_sliced = True
        del tokenizer
        with self._lock:  # the next request compiles them with slices
            self._kept.clear()
            self.kept_bytes = 0
        give_back()

    def _wait_until_prepared(self) -> None:
        if not self.prepare():
            raise Unavailable(UNLOADED)
        if not self._notice.wait(lambda: self._is_prepared or self._closed, TOKENIZER_SECONDS):
            raise Unavailable("The server is busy. Try again shortly.")

    def is_available(self) -> bool:
        """False: this model's vocabulary supports no grammars at all. Waits until that is known."""
        self._wait_until_prepared()
        return self._refusal is None

    def close(self) -> None:
        """Compile nothing more, and do not touch the vocabulary any more."""
        with self._making:
            self._closed = True
        self._notice.tell()
        with self._lock:
            self._tokenizer = None
            self._kept.clear()
            self.kept_bytes = 0

    def discard(self) -> None:
        """After `close`, once nobody waits for a grammar."""
        self._notice.close()

    def compile(
        self, text: str, triggers: tuple[str, ...] = (), *, owner: str = "", scope: str = ""
    ) -> CompiledGrammar:
        """The compiled grammar, from the cache if it is there. Waits at most `COMPILE_SECONDS` for it, and before that
        for others and for the trial of a large one.

        `owner` has one job at a time, "" as many as there are compilers; `scope`: who shares the cache. Raises
        InvalidRequest for a grammar that cannot be used or takes too long to compile.
        """
        self._num_asked += 1
        if not self._is_prepared:
            self._wait_until_prepared()
        if self._num_asked == WITHOUT_SLICES:
            self.prepare()
        if self._refusal is not None:
            raise InvalidRequest(
                "This model's vocabulary does not support schemas, grammars or forced tool calls "
                f"({self._refusal}). Remove them from the request.",
                param="content",
            )
        digest = sha256("\0".join((text, *triggers)).encode("utf-8", "surrogatepass")).digest()
        key = scope, digest
        if (found := self._look_up(key)) is not None:
            return found
        self._take_turn(owner)
        try:
            found = self._look_up(key)  # what was waited for may have been the same
            if found is None and len(text) > LARGE and digest not in self._tried:
                self._try(key, text)
        except BaseException:
            self._end_turn(owner)
            raise
        if found is not None:
            self._end_turn(owner)
            return found
        return self._do(_Job(owner, partial(self._compile, key, text, triggers)), key)

    def convert(self, text: str, act: Callable[[], R], *, owner: str = "", scope: str = "") -> R:
        """The result of a function that turns a client's grammar into another notation, within the same bounds. Raises
        what it raises."""
        key = scope, sha256(b"converted\0" + text.encode("utf-8", "surrogatepass")).digest()
        self._look_up(key)
        self._take_turn(owner)
        return self._do(_Job(owner, act), key)

    def _look_up(self, key: Key) -> CompiledGrammar | None:
        """Raises the error that a refused grammar had."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                if not found.is_spent:
                    self._kept.move_to_end(key)
                    return found
                self.kept_bytes -= self._kept.pop(key).size
            until, error = self._refused.get(key, (0.0, None))
        if error is not None and time.monotonic() < until:
            raise error.but()
        return None

    def _refuse(self, key: Key, error: LlamasrvError) -> None:
        with self._lock:
            self._refused[key] = time.monotonic() + REFUSED_SECONDS, error
            self._refused.move_to_end(key)
            if len(self._refused) > MAX_REMEMBERED:
                self._refused.popitem(last=False)

    def _take_turn(self, owner: str) -> None:
        def took() -> bool:
            with self._lock:
                if owner in self._busy:
                    return False
                if owner:
                    self._busy.add(owner)
                return True

        if not self._notice.wait(took, WAIT_SECONDS):
            raise Unavailable("Another schema or grammar of yours is still being compiled. Try again shortly.")

    def _end_turn(self, owner: str) -> None:
        with self._lock:
            self._busy.discard(owner)
        self._notice.tell()

    def _try(self, key: Key, text: str) -> None:
        """Compile it in another process. Raises if that process fails."""

        def began() -> bool:
            with self._lock:
                may = self._num_trials < TRIALS
                self._num_trials += may
                return may

        if not self._notice.wait(began, TRIAL_SECONDS):
            raise Unavailable("The server is busy compiling other schemas. Try again shortly.")
        try:
            fault = fault_of(text)
        finally:
            with self._lock:
                self._num_trials -= 1
            self._notice.tell()
        if fault is not None:
            error = _unusable(fault)
            self._refuse(key, error)
            raise error.but()
        with self._lock:
            self._tried[key[1]] = None
            if len(self._tried) > MAX_REMEMBERED:
                self._tried.popitem(last=False)

    def _do(self, job: _Job[R], key: Key) -> R:
        """Have the pool do it; its end ends the owner's turn. Raises if that takes too long."""
        if not self._queue.put(lambda: self._run(job)):
            self._end_turn(job.owner)
            raise Unavailable(UNLOADED)
        if not self._notice.wait(lambda: job.begun, WAIT_SECONDS):
            job.given_up = True
            raise Unavailable("The server is busy compiling other schemas. Try again shortly.")
        if not self._notice.wait(lambda: job.done, COMPILE_SECONDS):
            error = InvalidRequest(
                f"The schema or grammar is too complex: it took too long to compile (over {COMPILE_SECONDS:g} s).",
                param="content",
            )
            self._refuse(key, error)
            raise error.but()
        if job.error is not None:
            if isinstance(job.error, InvalidRequest):
                self._refuse(key, job.error)
            raise job.error.but()
        return job.result

    def _run(self, job: _Job[R]) -> None:
        if not job.given_up:
            job.begun = True
            self._notice.tell()
            try:
                job.result = job.act()
            except LlamasrvError as error:
                job.error = error
            except BaseException:  # llguidance's panics are no Exception
                log.exception("compiling a grammar failed")
                job.error = _unusable("it cannot be compiled")
        job.done = True
        self._end_turn(job.owner)

    def _compile(self, key: Key, text: str, triggers: tuple[str, ...]) -> CompiledGrammar:
        """Compile and keep it, also where nobody waits for it any more: whoever asks again has it at once."""
        tokenizer, vocab = self._tokenizer, self._vocab
        if tokenizer is None or vocab is None or not vocab.hold():
            raise Unavailable(UNLOADED)
        try:
            matcher = llguidance.LLMatcher(tokenizer, text, limits=self._limits, log_level=0)
            if matcher.is_error():
                raise _unusable(reason_of(matcher.get_error()))
            grammar = CompiledGrammar(matcher, triggers, vocab, self._control_texts, len(text))
            first = grammar.matcher()
            first.compute_mask()  # warms up what all copies share
            if first.error or (first.is_stuck and not first.may_end):
                raise _unusable(first.error or "nothing satisfies it")
        finally:
            vocab.release()
        with self._lock:
            if not self._closed:
                self._keep(key, grammar)
        return grammar

    def _keep(self, key: Key, grammar: CompiledGrammar) -> None:
        if key in self._kept:
            return
        self._kept[key] = grammar
        self.kept_bytes += grammar.size
        while self.kept_bytes > CACHE_BYTES and len(self._kept) > 1:
            self.kept_bytes -= self._kept.popitem(last=False)[1].size


class _Job(Generic[R]):
    """What is done for one owner."""

    __slots__ = ("owner", "act", "begun", "done", "given_up", "result", "error")

    def __init__(self, owner: str, act: Callable[[], R]) -> None:
        self.owner, self.act = owner, act
        self.begun = self.done = self.given_up = False
        self.result: R
        self.error: LlamasrvError | None = None


def _unusable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The schema or grammar cannot be used: {reason}.", param="content")


class _PythonTokenizer:
    """A vocabulary without a native tokenizer, in the form that llguidance wants."""

    def __init__(self, vocab: Vocabulary, tokens: list[bytes]) -> None:
        ends = sorted(vocab.eog)
        self.eos_token_id = ends[0] if ends else len(tokens) - 1
        self.bos_token_id = vocab.bos
        self.tokens = tokens
        self.special_token_ids = [t for t, text in enumerate(tokens) if text[:1] == b"\xff"]
        self._tokenize = vocab.tokenize

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenize(text.decode("utf-8", "replace") if isinstance(text, bytes) else text, parse_special=False)


def _tokenizer(vocab: Vocabulary, control_texts: dict[int, bytes]) -> llguidance.LLTokenizer:
    """The tokenizer without the slices of the vocabulary that speed up masks."""
    # A token that is not text begins with 0xff: then no text of a grammar can be written with it by mistake.
    tokens = [
        piece or (b"\xff" + (control_texts.get(t) or b"<%d>" % t) if vocab.is_control(t) else b"")
        for t, piece in enumerate(vocab.pieces.all())
    ]
    ends = sorted(vocab.eog)
    native = vocab.native
    if native is None:
        wrapper = llguidance.TokenizerWrapper(_PythonTokenizer(vocab, tokens))
        return llguidance.LLTokenizer(wrapper, eos_token=ends or None, slices=[])
    pointer, tokenize = native
    made: llguidance.LLTokenizer = llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # not in its stub
        tokens=tokens, vocab_ptr=pointer, tokenize_fptr=tokenize, eos_token=ends or [vocab.size - 1], slices=[]
    )
    return made
