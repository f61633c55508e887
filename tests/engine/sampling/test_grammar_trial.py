"""The trial of a large grammar: a crash of its process does not affect the server."""

import pytest

from llamasrv.engine.sampling.grammar_trial import fault_of


def chain(length):
    return "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(length)) + f'r{length}: "a"\n'


@pytest.mark.parametrize(
    "text", ['start: "a" <[151000]> /b+/', "start: nowhere", chain(2000), 'start: %json {"type": "object"}']
)
def test_a_trial_passes_any_grammar_that_does_not_crash(text):
    assert fault_of(text) is None


def test_a_stack_overflow_ends_only_the_trial():
    assert fault_of(chain(30_000), seconds=60.0, cpu_seconds=30) == "it is nested too deeply or too large to compile"


def test_an_endless_compilation_is_stopped():
    assert fault_of('start: a{1000}\na: "' + "ab" * 32_000 + '"') == "it took too long to compile"
