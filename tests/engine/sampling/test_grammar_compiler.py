import json
import os
import sys
import threading
import time

import llguidance
import pytest
from constraints import WORDS
from engine_driver import chat
from serving import wait_until

from llamasrv.engine.backend.fake import FakeVocabulary
from llamasrv.engine.base.native_pool import NICE, NativePool
from llamasrv.engine.sampling import grammar_compiler
from llamasrv.engine.sampling.grammar_compiler import CompileLimits, lark_of_gbnf
from llamasrv.errors import InvalidRequest, Unavailable


def wall():
    """A clock that counts waiting as work."""
    return time.monotonic


@pytest.mark.parametrize(
    "text, said",
    [
        ("start: nowhere", "nowhere"),
        ('%llguidance {}\nstart: %json {"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('%llguidance {}\nstart: %json {"$ref": "#"}', "nothing satisfies it"),
        ("start: /(?=a)b/", "look-around"),
    ],
)
def test_errors_are_one_sentence(compiler, text, said):
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(text)
    assert said in caught.value.message and "\n" not in caught.value.message
    assert caught.value.param == "content"


def test_a_grammar_is_compiled_once(compiler):
    assert compiler.compile(WORDS) is compiler.compile(WORDS)
    assert compiler.compile(WORDS) is not compiler.compile(WORDS, ("one",))


@pytest.mark.parametrize("slow", [False, True])
def test_the_engine_searches_no_forced_text_in_a_grammar_that_compiled_slowly(compiler, monkeypatch, slow):
    """The pattern `(a?){3000}a{3000}` behind other text took 70 ms to compile, and 50 ms of a step to search."""
    now = iter([0.0, grammar_compiler.SLOW_COMPILE * (1.1 if slow else 0.9)])
    monkeypatch.setattr(grammar_compiler, "cpu_seconds", lambda: next(now))
    matcher = compiler.compile('start: ("x" | "y") "abc"').matcher()
    assert matcher.accept(ord("x")) and bytes(matcher.forced()) == (b"" if slow else b"abc")
    matcher.compute_mask()
    assert bytes(matcher.forced()) == b"abc"


def test_old_grammars_are_evicted(compiler):
    compiler.limits = compiler.limits._replace(cache_bytes=1_000_000)
    first = compiler.compile('start: "0"')
    for n in range(1, 12):
        compiler.compile(f'start: "{n}"')
    assert compiler.compile('start: "11"') is compiler.compile('start: "11"')
    assert compiler.compile('start: "0"') is not first
    assert compiler.kept_bytes <= 1_000_000


def test_a_slow_grammar_is_refused_and_others_have_to_wait(compiler, monkeypatch):
    gate = threading.Event()
    compiler.limits = CompileLimits(compile_seconds=0.01, wait_seconds=0.5, cpu_clock=wall)
    compiled = llguidance.LLMatcher
    monkeypatch.setattr(llguidance, "LLMatcher", lambda *a, **k: gate.wait(20) and compiled(*a, **k))
    for n in range(grammar_compiler.COMPILERS + grammar_compiler.LEFT):
        with pytest.raises(InvalidRequest, match="took too long"):
            compiler.compile(f'start: "{n}"')
    with pytest.raises(Unavailable):
        compiler.compile(WORDS)
    gate.set()


def test_compilations_that_were_given_up_leave_room_for_others(compiler, held):
    """They went on and held both compilers: whoever came next was told that the server is busy."""
    gate, begun = held
    for n in range(grammar_compiler.COMPILERS):
        with pytest.raises(InvalidRequest, match="took too long"):
            compiler.compile(f'start: "held {n}"', owner=f"client {n}")
    assert compiler.compile(WORDS, owner="other")
    gate.set()
    wait_until(lambda: compiler._compilations.width == grammar_compiler.COMPILERS)


@pytest.fixture
def held(compiler, monkeypatch):
    """A gate for grammars whose text says "held", and the texts that were started."""
    gate, begun, compiled = threading.Event(), [], llguidance.LLMatcher

    def compile(tokenizer, text, **options):
        begun.append(text)
        if "held" in text:
            gate.wait(20)
        return compiled(tokenizer, text, **options)

    monkeypatch.setattr(llguidance, "LLMatcher", compile)
    compiler.limits = CompileLimits(compile_seconds=0.2, wait_seconds=0.2, cpu_clock=wall)
    yield gate, begun
    gate.set()


def test_an_owner_has_one_compilation_at_a_time(compiler, held):
    """Two connections that sent slow schemas one after another left no compiler for others: 30 of 32 small schemas were
    refused."""
    gate, begun = held
    with pytest.raises(InvalidRequest, match="took too long"):
        compiler.compile('start: "held 1"', owner="greedy")
    for n in range(2, 5):
        with pytest.raises(Unavailable, match="of yours"):
            compiler.compile(f'start: "held {n}"', owner="greedy")
    compiler.compile(WORDS, owner="other")
    assert begun == ['start: "held 1"', WORDS]
    gate.set()
    wait_until(lambda: compiler.compile(WORDS, owner="greedy", scope="greedy"))


def test_a_busy_machine_makes_no_grammar_too_complex(compiler, monkeypatch):
    """What counted was the time on the wall: under load, small schemas were refused as too complex for a minute."""
    compiled = llguidance.LLMatcher
    compiler.limits = CompileLimits(compile_seconds=0.05, cpu_clock=lambda: lambda: 0.0)  # the thread gets no core
    waits = iter((0.2, 30.0))
    gate = threading.Event()
    monkeypatch.setattr(llguidance, "LLMatcher", lambda *a, **k: [gate.wait(next(waits)), compiled(*a, **k)][1])
    assert compiler.compile(WORDS)
    compiler.limits = compiler.limits._replace(busy_seconds=0.1)
    with pytest.raises(Unavailable, match="busy"):
        compiler.compile('start: "other"')
    gate.set()


def test_a_refused_grammar_is_remembered_for_a_while(compiler, held):
    _, begun = held
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="took too long"):
            compiler.compile('start: "held"')
        with pytest.raises(InvalidRequest, match="nowhere"):
            compiler.compile("start: nowhere")
    assert begun == ['start: "held"', "start: nowhere"]
    compiler.limits = compiler.limits._replace(refused_seconds=0.0)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="elsewhere"):
            compiler.compile("start: elsewhere")
    assert begun.count("start: elsewhere") == 2


def test_a_grammar_compiled_too_late_is_cached_for_a_retry(compiler, held):
    gate, begun = held
    with pytest.raises(InvalidRequest, match="took too long"):
        compiler.compile('start: "held"')
    gate.set()
    wait_until(lambda: compiler.kept_bytes)
    assert compiler.compile('start: "held"') and len(begun) == 1


def test_keys_do_not_learn_what_others_compiled(compiler):
    """A quick answer revealed that another key had sent the same schema."""
    assert compiler.compile(WORDS, scope="a") is compiler.compile(WORDS, scope="a")
    assert compiler.compile(WORDS, scope="a") is not compiler.compile(WORDS, scope="b")


def test_a_spent_grammar_is_compiled_again(compiler):
    """All copies share a lexer: once its states were used up, the cached grammar failed for every request."""
    first = compiler.compile("start: /(a|b)*/")
    matcher = first.matcher()
    assert not matcher.accept(ord("c"))
    second = compiler.compile("start: /(a|b)*/")
    assert second is not first and second.matcher().accept(ord("a"))
    assert compiler.compile("start: /(a|b)*/") is second
    assert compiler.kept_bytes == second.size


def test_a_panic_is_a_refusal(compiler, monkeypatch):
    """The library's panics are no Exception: the thread ended, and its place in the queue was lost."""

    class Panic(BaseException):
        pass

    def panic(*_, **__):
        raise Panic

    with monkeypatch.context() as patched:
        patched.setattr(llguidance, "LLMatcher", panic)
        for n in range(grammar_compiler.COMPILERS + 1):
            with pytest.raises(InvalidRequest, match="cannot be compiled"):
                compiler.compile(f'start: "{n}"')
    assert compiler.compile(WORDS)


def test_a_large_grammar_is_tried_in_another_process_once(compiler, monkeypatch):
    tried = []
    monkeypatch.setattr(
        grammar_compiler, "fault_of", lambda text: tried.append(text) or ("it is bad" if "bad" in text else None)
    )
    choices = " | ".join(f'"{n}"' for n in range(4000))
    for scope in ("a", "b"):
        compiler.compile(f"start: {choices}", scope=scope)
        with pytest.raises(InvalidRequest, match="cannot be used: it is bad"):
            compiler.compile(f'start: "bad" | {choices}', scope=scope)
        compiler.compile(WORDS, scope=scope)
    assert [text[:12] for text in tried] == ['start: "0" |', 'start: "bad"', 'start: "bad"']
    assert compiler.compile(f"start: {choices}", ("x",), owner="a")  # its turn was given back


def test_compiling_threads_have_stack_for_deep_grammars(compiler):
    """3,000 rules, each referring to the next, overflowed a stack of 8 MiB. Client input is bounded far below that."""
    text = "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(5000)) + 'r5000: "a"\n'
    before = threading.stack_size()
    assert compiler.compile(text).matcher().accept(ord("a")) and threading.stack_size() == before


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_compiling_leaves_the_cores_to_the_model(compiler, monkeypatch):
    """Four hostile schemas at once took most of two cores, and a step three times as long: streams had gaps of 0.6 s."""

    def priority(*_, **__):
        priorities.append(os.getpriority(os.PRIO_PROCESS, 0))
        raise InvalidRequest("no", param="content")

    priorities = [os.getpriority(os.PRIO_PROCESS, 0)]
    monkeypatch.setattr(llguidance, "LLMatcher", priority)
    with pytest.raises(InvalidRequest, match="no"):
        compiler.compile(WORDS)
    with pytest.raises(InvalidRequest, match="no"):
        compiler.convert("x", priority)  # holds the GIL: the hub would wait with it for a core
    own, compiling, converting = priorities
    assert compiling == min(own + NICE, 19) and converting == own


def test_a_conversion_has_the_same_bounds(compiler):
    assert compiler.convert("x", lambda: "y", owner="a") == "y"
    calls = []

    def refuse():
        calls.append(1)
        raise InvalidRequest("no", param="content")

    for _ in range(2):
        with pytest.raises(InvalidRequest, match="no"):
            compiler.convert("z", refuse, owner="a")
    assert len(calls) == 1
    gate = threading.Event()
    compiler.limits = CompileLimits(compile_seconds=0.05, cpu_clock=wall)
    with pytest.raises(InvalidRequest, match="took too long"):
        compiler.convert("slow", lambda: gate.wait(20), owner="a")
    gate.set()


def test_500_optional_properties_are_followed_to_their_end(compiler):
    """An answer under a schema within all bounds ended with a 500: "rejects the chosen token"."""
    inner = {
        "type": "object",
        "properties": {f"p{n}": {"type": "integer"} for n in range(600)},
        "additionalProperties": False,
    }
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "o": inner}, "required": ["a", "o"]}
    matcher = compiler.compile("start: %json " + json.dumps(schema)).matcher()
    for byte in b'{"a":"x","o":{"p7":1':
        assert matcher.accept(byte), matcher.error


def test_the_work_for_one_mask_is_bounded(compiler):
    """The library's own limits allowed masks that take minutes."""
    # Otherwise the bound on compiling comes first where that is slow.
    compiler.limits = compiler.limits._replace(compile_seconds=10.0, busy_seconds=60.0)
    with pytest.raises(InvalidRequest, match="the text can be read in too many ways"):
        compiler.compile("start: " + '"a"? ' * 4000 + '"b"')


class CountedVocabulary(FakeVocabulary):
    """Counts its holders, and records what was called without one."""

    def __init__(self):
        super().__init__()
        self.held, self.most, self.is_gone = 0, 0, False

    def hold(self):
        if self.is_gone:
            return False
        self.held += 1
        self.most = max(self.most, self.held)
        return True

    def release(self):
        self.held -= 1

    def tokenize(self, *arguments, **options):
        assert self.held, "the model may have been freed"
        return super().tokenize(*arguments, **options)


def test_the_vocabulary_is_held_while_it_is_read():
    """A compilation that went on after its request was refused read the vocabulary of a model that had been unloaded
    meanwhile: the worker ended with SIGSEGV."""
    pool, vocab = NativePool(), CountedVocabulary()
    compiler = grammar_compiler.GrammarCompiler(pool)
    compiler.open(vocab)
    grammar = compiler.compile('start: "forced text" /[a-z]/')
    assert vocab.most and not vocab.held
    matcher = grammar.matcher()
    matcher.compute_mask()
    assert not matcher.error and not vocab.held
    vocab.is_gone = True
    late = grammar.matcher()
    late.compute_mask()
    assert late.error == "the model is unloaded" and late.ready and not len(late.ids)
    with pytest.raises(Unavailable, match="unloaded"):
        compiler.compile('start: "another"')
    compiler.close()
    pool.close()


def test_a_closed_compiler_asks_to_try_again(compiler):
    compiler.compile(WORDS)
    compiler.close()
    compiler.pool.close()
    with pytest.raises(Unavailable, match="unloaded"):
        compiler.compile(WORDS)


@pytest.mark.parametrize("text", ["root ::= nowhere", 'root ::= "x', 'rule ::= "x"', "(" * 100_000])
def test_a_broken_gbnf_is_refused(text):
    with pytest.raises(InvalidRequest) as caught:
        lark_of_gbnf(text)
    assert caught.value.param == "content" and len(caught.value.message) < 600


def test_a_vocabulary_that_llguidance_cannot_take_only_refuses_grammars(drive, monkeypatch):
    """llguidance rejected some vocabularies, and that failed the whole load: the model could not be served at all."""

    def refuse(*_, **__):
        raise ValueError("could not find a good sentinel token")

    monkeypatch.setattr(llguidance, "TokenizerWrapper", refuse)
    driver = drive()
    assert driver.answer(chat("hello")) == "You said: hello"
    with pytest.raises(InvalidRequest, match="could not find a good sentinel token") as caught:
        driver.engine.grammars.compile(WORDS)
    assert caught.value.param == "content"


def test_the_tokenizer_is_made_for_the_first_grammar_and_once(drive, monkeypatch):
    """It was built before the model was ready: with 150,000 tokens half a second of the start, even if it was not
    needed."""
    made, make = [], grammar_compiler._tokenizer
    monkeypatch.setattr(grammar_compiler, "_tokenizer", lambda *given: made.append(1) or make(*given))
    driver = drive()
    assert driver.answer(chat("hello")) == "You said: hello" and not made
    for _ in range(2):
        driver.engine.grammars.compile(WORDS)
        assert driver.engine.grammars.is_available() and driver.engine.grammars.prepare() and len(made) == 1


@pytest.fixture
def sliced(monkeypatch):
    """The tokenizers of this test that were sliced; engines of earlier tests may still be slicing theirs."""
    own, sliced = [], []
    make, slice_ = grammar_compiler._tokenizer, llguidance.LLTokenizer.with_slices
    monkeypatch.setattr(grammar_compiler, "_tokenizer", lambda *given: own.append(make(*given)) or own[-1])

    def with_slices(tokenizer, slices):
        sliced.extend(one for one in own if one is tokenizer)
        return slice_(tokenizer, slices)

    monkeypatch.setattr(llguidance.LLTokenizer, "with_slices", with_slices)
    return sliced


def test_the_vocabulary_is_sliced_after_a_request_with_a_grammar(compiler, sliced):
    """Slices of 150,000 tokens took 35 MiB of every model that was idle for a second, even without grammars."""
    compiler.prepare()
    assert compiler.is_available() and compiler.prepare() and not sliced
    first = compiler.compile(WORDS)
    assert not sliced  # it would hold up whoever is being answered
    assert compiler.prepare()
    wait_until(lambda: compiler.compile(WORDS) is not first)  # compiled again, with slices
    assert compiler.prepare() and compiler.compile(WORDS) is compiler.compile(WORDS) and len(sliced) == 1


def test_the_vocabulary_is_sliced_even_if_the_model_is_never_idle(compiler, sliced):
    compiler.limits = compiler.limits._replace(without_slices=3)
    first = compiler.compile(WORDS)
    assert compiler.compile(WORDS) is first and not sliced
    compiler.compile(WORDS)
    wait_until(lambda: compiler.compile(WORDS) is not first)
    assert len(sliced) == 1


def test_a_closed_compiler_builds_no_tokenizer(compiler, monkeypatch):
    """The library's vocabulary may be freed."""
    monkeypatch.setattr(grammar_compiler, "_tokenizer", None)
    compiler.close()
    assert not compiler.prepare()
    for ask in (compiler.is_available, lambda: compiler.compile(WORDS)):
        with pytest.raises(Unavailable, match="unloaded"):
            ask()
