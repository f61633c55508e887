"""Compiles grammars within limits and caches them.

A grammar is Lark text as llguidance takes it. Compiling gives up the GIL and is done by the native pool, so neither the
engine thread nor the HTTP side waits for a hostile schema longer than `COMPILE_SECONDS`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from hashlib import sha256

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from llamasrv.engine.allocator import give_back
from llamasrv.engine.channels import Notice, native_lock
from llamasrv.engine.interface import Vocabulary
from llamasrv.engine.native_pool import NativePool
from llamasrv.engine.sampling.grammar_matcher import CompiledGrammar, reason_of
from llamasrv.errors import InvalidRequest, Unavailable

log = logging.getLogger("llamasrv.engine")

UNLOADED = "The model is being unloaded. Try again shortly."
MAX_GBNF = 256 * 1024  # characters
COMPILE_SECONDS = 0.4  # that a request waits for its grammar
COMPILERS = 2  # grammars compiled at once: that takes cores from the model
CACHE_BYTES = 64 << 20
TOKENIZER_SECONDS = 60.0  # that a request waits for the tokenizer that all grammars share
WITHOUT_SLICES = 64  # requests with a grammar, at most, before the vocabulary is sliced on a model that is never idle


def lark_of_gbnf(text: str) -> str:
    """llama.cpp's notation as Lark. Raises InvalidRequest."""
    if len(text) > MAX_GBNF:
        raise InvalidRequest(f"The grammar is longer than {MAX_GBNF} characters.", param="content")
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
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        self._lock = native_lock()
        self._kept: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
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
            except Exception as error:  # llguidance documents no exception types
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

    def compile(self, text: str, triggers: tuple[str, ...] = ()) -> CompiledGrammar:
        """The compiled grammar, from the cache if it is there. Waits at most `COMPILE_SECONDS`.

        Raises InvalidRequest for a grammar that cannot be used or takes too long to compile.
        """
        self._num_asked += 1
        if not self._is_prepared:
            self._wait_until_prepared()
        if self._num_asked == WITHOUT_SLICES:
            self.prepare()
        if self._refusal is not None:
            raise InvalidRequest(
                "This model's vocabulary does not support schemas, grammars or forced tool calls "
                f"({self._refusal}). Remove them from the request.", param="content",
            )  # fmt: skip
        key = sha256("\0".join((text, *triggers)).encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        job = _Job(text, triggers)
        if not self._queue.put(lambda: self._run(job)):
            raise Unavailable(UNLOADED)
        if not self._notice.wait(lambda: job.done, COMPILE_SECONDS):
            job.given_up = True
            if not job.begun:
                raise Unavailable("The server is busy compiling other schemas. Try again shortly.")
            raise InvalidRequest(
                f"The schema or grammar is too complex: it took too long to compile (over {COMPILE_SECONDS:g} s).",
                param="content",
            )
        if job.grammar is None:
            raise InvalidRequest(f"The schema or grammar cannot be used: {job.error}.", param="content")
        with self._lock:
            self._keep(key, job.grammar)
        return job.grammar

    def _run(self, job: _Job) -> None:
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

    def _compile(self, job: _Job) -> None:
        tokenizer, vocab = self._tokenizer, self._vocab
        if tokenizer is None or vocab is None:
            job.error = "the model is being unloaded"
            return
        matcher = llguidance.LLMatcher(tokenizer, job.text, limits=self._limits, log_level=0)
        if matcher.is_error():
            job.error = reason_of(matcher.get_error())
            return
        grammar = CompiledGrammar(matcher, job.triggers, vocab, self._control_texts, len(job.text))
        first = grammar.matcher()
        first.compute_mask()  # warms up what all copies share
        if first.error or (first.is_stuck and not first.may_end):
            job.error = first.error or "nothing satisfies it"
        else:
            job.grammar = grammar

    def _keep(self, key: bytes, grammar: CompiledGrammar) -> None:
        if key in self._kept:
            return
        self._kept[key] = grammar
        self.kept_bytes += grammar.size
        while self.kept_bytes > CACHE_BYTES and len(self._kept) > 1:
            self.kept_bytes -= self._kept.popitem(last=False)[1].size


class _Job:
    """A grammar to be compiled."""

    __slots__ = ("text", "triggers", "begun", "done", "given_up", "grammar", "error")

    def __init__(self, text: str, triggers: tuple[str, ...]) -> None:
        self.text, self.triggers = text, triggers
        self.begun = self.done = self.given_up = False
        self.grammar: CompiledGrammar | None = None
        self.error = ""


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
    made: llguidance.LLTokenizer = llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
        tokens=tokens, vocab_ptr=pointer, tokenize_fptr=tokenize, eos_token=ends or [vocab.size - 1], slices=[]
    )
    return made
