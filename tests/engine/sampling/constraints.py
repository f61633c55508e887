"""Output constraints for an engine that a test drives, and a fixture that compiles grammars."""

import pytest
from engine_driver import chat, end_of, text_of

from llamasrv.domain.params import SamplingParams
from llamasrv.engine.backend.fake import FakeVocabulary
from llamasrv.engine.base.native_pool import NativePool
from llamasrv.engine.sampling.grammar_compiler import GrammarCompiler
from llamasrv.engine.sampling.output_constraint import OutputConstraint

WORDS = 'start: ("one" | "two") " " /[0-9]{2}/ "!"\n'
CALLS = 'start: /(?s:[^#]*)/ | /(?s:[^#]*)/ "##" ("yes" | "no")\n'
WILD = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)


def constraint(driver, grammar=None, *, triggers=(), budget=None):
    compiled = driver.engine.grammars.compile(grammar, triggers) if grammar else None
    vocab = driver.backend.vocab
    texts = {token: text.encode() for text, token in vocab.controls.items()}
    return OutputConstraint(compiled and compiled.matcher(), budget, control_texts=texts, pieces=vocab.pieces)


def run(driver, prompt=None, **settings):
    stream = driver.submit(prompt or chat("hello"), **settings)
    driver.finish()
    items = stream.take()
    return text_of(items), end_of(items)


@pytest.fixture
def compiler():
    pool = NativePool()
    made = GrammarCompiler(pool)
    made.pool = pool
    made.open(FakeVocabulary())
    yield made
    made.close()
    pool.close()
