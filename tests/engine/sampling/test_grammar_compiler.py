import threading

import llguidance
import pytest
from constraints import WORDS
from engine_driver import chat
from serving import wait_until

from llamasrv.engine.sampling import grammar_compiler
from llamasrv.engine.sampling.grammar_compiler import lark_of_gbnf
from llamasrv.errors import InvalidRequest, Unavailable


@pytest.mark.parametrize(
    "text, said",
    [
        ("start: nowhere", "nowhere"),
        ('%llguidance {}\nstart: %json {"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('%llguidance {}\nstart: %json {"$ref": "#"}', "nothing satisfies it"),
        ("start: /(?=a)b/", "look-around"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(compiler, text, said):
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(text)
    assert said in caught.value.message and "\n" not in caught.value.message
    assert caught.value.param == "content"


def test_a_grammar_is_compiled_once(compiler):
    assert compiler.compile(WORDS) is compiler.compile(WORDS)
    assert compiler.compile(WORDS) is not compiler.compile(WORDS, ("one",))


def test_old_grammars_make_room(compiler, monkeypatch):
    monkeypatch.setattr(grammar_compiler, "CACHE_BYTES", 1_000_000)
    first = compiler.compile('start: "0"')
    for n in range(1, 12):
        compiler.compile(f'start: "{n}"')
    assert compiler.compile('start: "11"') is compiler.compile('start: "11"')
    assert compiler.compile('start: "0"') is not first
    assert compiler.kept_bytes <= 1_000_000


def test_a_grammar_that_takes_too_long_is_refused_and_others_are_asked_to_wait(compiler, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(grammar_compiler, "COMPILE_SECONDS", 0.01)
    compiled = llguidance.LLMatcher
    monkeypatch.setattr(llguidance, "LLMatcher", lambda *a, **k: gate.wait(20) and compiled(*a, **k))
    for _ in range(grammar_compiler.COMPILERS):
        with pytest.raises(InvalidRequest, match="took too long"):
            compiler.compile(WORDS)
    with pytest.raises(Unavailable):
        compiler.compile(WORDS)
    gate.set()


def test_a_closed_compiler_asks_to_try_again(compiler):
    compiler.compile(WORDS)
    compiler.close()
    compiler.pool.close()
    with pytest.raises(Unavailable, match="unloaded"):
        compiler.compile(WORDS)


@pytest.mark.parametrize("text", ["root ::= nowhere", 'root ::= "x', 'rule ::= "x"', "(" * 100_000, "x" * 300_000])
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
    """It was made before a model was ready: with 150,000 tokens half a second of the start, also for who needs none."""
    made, make = [], grammar_compiler._tokenizer
    monkeypatch.setattr(grammar_compiler, "_tokenizer", lambda *given: made.append(1) or make(*given))
    driver = drive()
    assert driver.answer(chat("hello")) == "You said: hello" and not made
    for _ in range(2):
        driver.engine.grammars.compile(WORDS)
        assert driver.engine.grammars.is_available() and driver.engine.grammars.prepare() and len(made) == 1


@pytest.fixture
def sliced(monkeypatch):
    """The tokenizers of this test that got slices: engines of earlier tests may still be at theirs."""
    own, sliced = [], []
    make, slice_ = grammar_compiler._tokenizer, llguidance.LLTokenizer.with_slices
    monkeypatch.setattr(grammar_compiler, "_tokenizer", lambda *given: own.append(make(*given)) or own[-1])

    def with_slices(tokenizer, slices):
        sliced.extend(one for one in own if one is tokenizer)
        return slice_(tokenizer, slices)

    monkeypatch.setattr(llguidance.LLTokenizer, "with_slices", with_slices)
    return sliced


def test_the_vocabulary_is_sliced_once_a_grammar_was_asked_for(compiler, sliced):
    """Slices of 150,000 tokens took 35 MiB of every model that had been idle for a second, also without grammars."""
    compiler.prepare()
    assert compiler.is_available() and compiler.prepare() and not sliced
    first = compiler.compile(WORDS)
    assert not sliced  # it would hold up whoever is being answered
    assert compiler.prepare()
    wait_until(lambda: compiler.compile(WORDS) is not first)  # compiled again, with slices
    assert compiler.prepare() and compiler.compile(WORDS) is compiler.compile(WORDS) and len(sliced) == 1


def test_the_vocabulary_is_sliced_also_if_the_model_is_never_idle(compiler, sliced, monkeypatch):
    monkeypatch.setattr(grammar_compiler, "WITHOUT_SLICES", 3)
    first = compiler.compile(WORDS)
    assert compiler.compile(WORDS) is first and not sliced
    compiler.compile(WORDS)
    wait_until(lambda: compiler.compile(WORDS) is not first)
    assert len(sliced) == 1


def test_what_was_closed_makes_no_tokenizer_any_more(compiler, monkeypatch):
    """The library's vocabulary may be gone."""
    monkeypatch.setattr(grammar_compiler, "_tokenizer", None)
    compiler.close()
    assert not compiler.prepare()
    for ask in (compiler.is_available, lambda: compiler.compile(WORDS)):
        with pytest.raises(Unavailable, match="unloaded"):
            ask()
