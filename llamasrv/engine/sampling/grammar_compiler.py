"""Compiles grammars within limits and caches them.

A grammar is Lark text for llguidance. The native pool compiles it without the GIL, so no request waits for a hostile
schema longer than `compile_seconds`. A compilation cannot be stopped, though: each owner has one at a time, abandoned
ones do not count towards COMPILERS, refused grammars are remembered, and a large one is tried in another process
first. Compiling yields the cores to the model: a few hostile grammars would otherwise take most of them.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Generic, NamedTuple, TypeVar

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from llamasrv.concurrency import Notice, cpu_clock, native_lock
from llamasrv.engine.base.allocator import release_memory
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.engine.base.native_pool import JobQueue, NativePool
from llamasrv.engine.sampling.grammar_matcher import CompiledGrammar, cpu_seconds, reason_of
from llamasrv.engine.sampling.grammar_trial import LIMITS, TRIAL_SECONDS, fault_of
from llamasrv.errors import InvalidRequest, LlamasrvError, Unavailable

log = logging.getLogger("llamasrv.engine")

UNLOADED = "The model is being unloaded. Try again shortly."
COMPILERS = 2  # max compilations at once: they take cores from the model
LEFT = 2  # max compilations beside them that their requests have given up
SLOW_COMPILE = 0.02  # CPU seconds; such a grammar may be as slow to search for forced text later: 57 ms for one of 9 KB
TRIALS = 2  # max trial processes at once
LARGE = 20 * 1024  # characters; longer grammars get a trial
MAX_REMEMBERED = 10_000  # refused or tried grammars
TOKENIZER_SECONDS = 60.0  # max wait for the tokenizer that all grammars share

R = TypeVar("R")
Key = tuple[str, bytes]
"""Scope and digest of a grammar. Scopes do not share grammars: a quicker answer would reveal what others compiled."""


class CompileLimits(NamedTuple):
    compile_seconds: float = 0.4  # max CPU time of a compilation
    busy_seconds: float = 4.0  # max wait for it: on a busy machine it takes longer than its CPU time
    wait_seconds: float = 2.0  # max wait for other compilations before that
    refused_seconds: float = 60.0  # how long an unusable grammar stays refused
    cache_bytes: int = 64 << 20
    without_slices: int = 64  # requests with a grammar before the vocabulary is sliced even if the model is never idle
    cpu_clock: Callable[[], Callable[[], float]] = cpu_clock  # makes a clock of the calling thread's CPU time


COMPILE_LIMITS = CompileLimits()


def lark_of_gbnf(text: str) -> str:
    """Convert llama.cpp's notation to Lark. Takes quadratic time in rules that precede the rules they refer to. Raises
    InvalidRequest."""
    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise InvalidRequest("The grammar is nested too deeply.", param="content") from None
    except Exception as error:  # the converter's own kind is not part of its interface
        raise InvalidRequest(f"The grammar is not valid GBNF: {reason_of(str(error))}", param="content") from None


class GrammarCompiler:
    """One per model. Create it on the HTTP side's thread and `open` it with the vocabulary; then any thread may
    compile."""

    def __init__(self, pool: NativePool, limits: CompileLimits = COMPILE_LIMITS) -> None:
        self.limits = limits
        self.kept_bytes = 0  # of the grammars in `_kept`
        self._vocab: Vocabulary | None = None
        self._control_texts: dict[int, bytes] = {}
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._is_sliced = False
        self._num_asked = 0  # requests with a grammar
        self._parser_limits = llguidance.LLParserLimits(**LIMITS)
        self._lock = native_lock()
        self._kept: OrderedDict[Key, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[Key, tuple[float, LlamasrvError]] = OrderedDict()  # until when, and why
        self._tried: OrderedDict[bytes, None] = OrderedDict()  # digests of large grammars
        self._num_trials = 0  # running
        self._busy: set[str] = set()  # owners that have a job
        self._compilations = pool.queue(COMPILERS, yields=True)
        self._conversions = pool.queue(COMPILERS)  # in Python
        self._num_left = 0  # abandoned compilations that still run
        self._tokenizer_queue = pool.queue(1)
        self._making, self._closed = native_lock(), False
        self._notice = Notice()
        self._refusal: str | None = None  # why this vocabulary takes no grammars

    def open(self, vocab: Vocabulary) -> None:
        """Start accepting grammars, for this vocabulary."""
        self._control_texts = {token: text.encode() for text, token in vocab.controls.items()}
        self._vocab = vocab

    def prepare(self) -> bool:
        """Start building the missing parts of the tokenizer, on the pool. False after `close`. Never waits.

        Building it holds the GIL: half a second for 150,000 tokens, in two parts between which other threads can run.
        So it is built when the model is idle or for the first grammar, not before the model is ready. Slices of the
        vocabulary make masks cheaper and take twice the memory of the rest (35 MiB and 0.4 s for 150,000 tokens): they
        are built only after a request with a grammar.
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
        """If llguidance cannot use the vocabulary, the model has no grammars: `compile` refuses them all."""
        with self._making:
            if self._closed or self._is_prepared or self._vocab is None:
                return
            try:
                self._tokenizer = _tokenizer(self._vocab, self._control_texts)
            except BaseException as error:  # llguidance documents no exception types; a panic is no Exception
                self._refusal = reason_of(str(error)) or type(error).__name__
                log.warning("grammars are disabled: llguidance cannot use this model's vocabulary: %s", self._refusal)
        self._notice.tell()
        release_memory()  # includes 20 MiB left from loading the model, for 150,000 tokens

    def _slice(self) -> None:
        with self._making:
            tokenizer = self._tokenizer
            if self._closed or self._is_sliced or tokenizer is None:
                return
            self._tokenizer = tokenizer.with_slices(llguidance.LLTokenizer.general_slices())
            self._is_sliced = True
        del tokenizer
        with self._lock:  # cached grammars have no slices: compile them again on demand
            self._kept.clear()
            self.kept_bytes = 0
        release_memory()

    def _wait_until_prepared(self) -> None:
        if not self.prepare():
            raise Unavailable(UNLOADED)
        if not self._notice.wait(lambda: self._is_prepared or self._closed, TOKENIZER_SECONDS):
            raise Unavailable("The server is busy. Try again shortly.")

    def is_available(self) -> bool:
        """Whether this model's vocabulary supports grammars. Waits until that is known. Raises Unavailable."""
        self._wait_until_prepared()
        return self._refusal is None

    def close(self) -> None:
        """Stop compiling and using the vocabulary."""
        with self._making:
            self._closed = True
        self._notice.tell()
        with self._lock:
            self._tokenizer = None
            self._kept.clear()
            self.kept_bytes = 0

    def release(self) -> None:
        """Call it after `close`, when no request waits for a grammar any more."""
        self._notice.close()

    def compile(
        self, text: str, triggers: tuple[str, ...] = (), *, owner: str = "", scope: str = ""
    ) -> CompiledGrammar:
        """The compiled grammar, cached. Waits at most `compile_seconds`, plus `wait_seconds` for other compilations and
        TRIAL_SECONDS for the trial of a large grammar.

        An `owner` (a key's name or a client's address) has one job at a time; "" is unlimited. `scope`: requests that
        share the cache. Raises InvalidRequest for a grammar that is unusable or takes too long to compile, Unavailable
        if the server is too busy.
        """
        self._num_asked += 1
        if not self._is_prepared:
            self._wait_until_prepared()
        if self._num_asked == self.limits.without_slices:
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
            found = self._look_up(key)  # the compilation it waited for may have been this one
            if found is None and len(text) > LARGE and digest not in self._tried:
                self._try(key, text)
        except BaseException:
            self._end_turn(owner)
            raise
        if found is not None:
            self._end_turn(owner)
            return found
        return self._do(_Job(owner, partial(self._compile, key, text, triggers), self._compilations), key)

    def convert(self, text: str, act: Callable[[], R], *, owner: str = "", scope: str = "") -> R:
        """Call `act`, which converts a client's grammar `text`, within the same bounds. Raises what it raises."""
        key = scope, sha256(b"converted\0" + text.encode("utf-8", "surrogatepass")).digest()
        self._look_up(key)
        self._take_turn(owner)
        return self._do(_Job(owner, act, self._conversions), key)

    def _look_up(self, key: Key) -> CompiledGrammar | None:
        """The cached grammar, if any. Raises the error of a refused one."""
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
            self._refused[key] = time.monotonic() + self.limits.refused_seconds, error
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

        if not self._notice.wait(took, self.limits.wait_seconds):
            raise Unavailable("Another schema or grammar of yours is still being compiled. Try again shortly.")

    def _end_turn(self, owner: str) -> None:
        with self._lock:
            self._busy.discard(owner)
        self._notice.tell()

    def _try(self, key: Key, text: str) -> None:
        """Compile the grammar in another process first. Raises InvalidRequest if that process fails."""

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
        """Run a job on the pool; it ends the owner's turn. Raises if it takes too long."""
        if not job.queue.put(lambda: self._run(job)):
            self._end_turn(job.owner)
            raise Unavailable(UNLOADED)
        if not self._notice.wait(lambda: job.begun, self.limits.wait_seconds):
            job.given_up = True
            raise Unavailable("The server is busy compiling other schemas. Try again shortly.")
        until = time.monotonic() + self.limits.busy_seconds
        left = self.limits.compile_seconds
        while left > 0 and not self._notice.wait(lambda: job.done, max(left, 0.01)):
            if time.monotonic() >= until:
                self._abandon(job)
                raise Unavailable("The server is busy compiling other schemas. Try again shortly.")
            left = self.limits.compile_seconds - job.seconds()
        if not job.done:
            self._abandon(job)
            error = InvalidRequest(
                "The schema or grammar is too complex: it took too long to compile "
                f"(over {self.limits.compile_seconds:g} s).",
                param="content",
            )
            self._refuse(key, error)
            raise error.but()
        if job.error is not None:
            if isinstance(job.error, InvalidRequest):
                self._refuse(key, job.error)
            raise job.error.but()
        return job.result

    def _abandon(self, job: _Job[R]) -> None:
        """Let another job run beside an abandoned one."""
        with self._lock:
            if job.done or self._num_left >= LEFT:
                return
            job.is_left = True
            self._num_left += 1
        job.queue.widen(1)

    def _run(self, job: _Job[R]) -> None:
        if not job.given_up:
            job.clock = self.limits.cpu_clock()
            job.began = job.clock()
            job.begun = True
            self._notice.tell()
            try:
                job.result = job.act()
            except LlamasrvError as error:
                job.error = error
            except BaseException:  # llguidance's panics are not Exceptions
                log.exception("compiling a grammar failed")
                job.error = _unusable("it cannot be compiled")
        with self._lock:
            job.done = True
            self._num_left -= job.is_left
        if job.is_left:
            job.queue.widen(-1)
        self._end_turn(job.owner)

    def _compile(self, key: Key, text: str, triggers: tuple[str, ...]) -> CompiledGrammar:
        """Compile and cache a grammar, even if its request has given up: a retry then gets it at once."""
        tokenizer, vocab = self._tokenizer, self._vocab
        if tokenizer is None or vocab is None or not vocab.hold():
            raise Unavailable(UNLOADED)
        try:
            began = cpu_seconds()
            matcher = llguidance.LLMatcher(tokenizer, text, limits=self._parser_limits, log_level=0)
            took = cpu_seconds() - began
            if matcher.is_error():
                raise _unusable(reason_of(matcher.get_error()))
            grammar = CompiledGrammar(matcher, triggers, vocab, self._control_texts, len(text))
            grammar.forces_slowly = took > SLOW_COMPILE
            first = grammar.matcher()
            first.compute_mask()  # warms up the state that all copies share
            if first.error or (first.is_stuck and not first.may_end):
                raise _unusable(first.error or "nothing satisfies it")
            first.forced()  # notes whether the engine's thread may look for forced text
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
        while self.kept_bytes > self.limits.cache_bytes and len(self._kept) > 1:
            self.kept_bytes -= self._kept.popitem(last=False)[1].size


class _Job(Generic[R]):
    """A function to run for one owner, and its result."""

    __slots__ = ("owner", "act", "queue", "begun", "done", "given_up", "is_left", "result", "error", "clock", "began")

    def __init__(self, owner: str, act: Callable[[], R], queue: JobQueue) -> None:
        self.owner, self.act, self.queue = owner, act, queue
        self.begun = self.done = self.given_up = self.is_left = False
        self.result: R
        self.error: LlamasrvError | None = None
        self.clock: Callable[[], float] = time.monotonic  # the thread's, once it has begun
        self.began = 0.0

    def seconds(self) -> float:
        """CPU time since it has begun."""
        return self.clock() - self.began


def _unusable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"The schema or grammar cannot be used: {reason}.", param="content")


class _PythonTokenizer:
    """A vocabulary without a native tokenizer, as llguidance's interface."""

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
    # Tokens that are not text start with 0xff, so that no text of a grammar can match them.
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
