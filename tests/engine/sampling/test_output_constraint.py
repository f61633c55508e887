"""Sequences under a grammar, on FakeBackend."""

import json
import re

from constraints import CALLS, WILD, WORDS, constraint, run
from engine_driver import chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.engine.sampling import grammar_trial


def test_an_answer_matches_its_grammar(drive):
    driver = drive()
    text, end = run(driver, constraint=constraint(driver, WORDS), params=WILD)
    assert text[:3] in ("one", "two") and text[3] == " " and text[4:6].isdigit() and text[6:] == "!"
    assert end.reason is FinishReason.STOP


def test_it_ends_without_an_end_token_if_nothing_can_follow(drive):
    driver = drive()
    text, end = run(driver, constraint=constraint(driver, 'start: "ab"'))
    assert (text, end.reason, end.num_generated) == ("ab", FinishReason.STOP, 2)


def test_the_last_token_allowed_may_complete_it(drive):
    driver = drive()
    _, end = run(driver, constraint=constraint(driver, 'start: "ab"'), max_tokens=2)
    assert end.reason is FinishReason.STOP
    _, end = run(driver, constraint=constraint(driver, 'start: "abc"'), max_tokens=2)
    assert end.reason is FinishReason.LENGTH


def steps_of(driver, *arguments, **settings):
    before = driver.engine.metrics.steps
    return *run(driver, *arguments, **settings), driver.engine.metrics.steps - before


def test_forced_first_tokens_are_computed_with_the_prompt(drive):
    driver = drive()
    text, _, steps = steps_of(driver, constraint=constraint(driver, f'start: "{"x" * 60}" /[ab]/'))
    assert text[:-1] == "x" * 60 and steps == 1


def test_later_forced_tokens_are_computed_in_one_step(drive):
    driver = drive()
    text, _, steps = steps_of(driver, constraint=constraint(driver, f'start: /[ab]/ "{"x" * 60}" /[ab]/'))
    assert text[1:-1] == "x" * 60 and steps == 2


def test_a_fully_forced_answer_takes_only_the_prompts_step(drive):
    driver = drive()
    text, end, steps = steps_of(driver, constraint=constraint(driver, 'start: "abc"'))
    assert (text, end.reason, end.num_generated, steps) == ("abc", FinishReason.STOP, 3, 1)


def test_forced_tokens_without_room_beside_the_prompt_come_in_the_next_step(drive):
    driver = drive(batch_size=64)
    text, end, steps = steps_of(driver, constraint=constraint(driver, f'start: "{"x" * 100}" /[ab]/'))
    assert text[:-1] == "x" * 100 and end.num_generated == 101 and steps == 2


def test_forced_tokens_are_delivered_only_after_the_prompt(drive):
    driver = drive()
    driver.core.scheduler.cost.learn(512, 0, 100.0)  # so slow that the prompt comes in pieces
    stream = driver.submit(chat("long " * 300), constraint=constraint(driver, 'start: "abc" /[ab]/'))
    driver.turn()
    assert driver.sequences[-1].num_undelivered == 3 and stream.take() == []
    driver.engine.cancel(stream)
    driver.finish()
    (end,) = stream.take()
    assert (end.reason, end.num_generated) == (FinishReason.CANCELLED, 0)


def test_forced_tokens_survive_a_preemption(drive):
    driver = drive(num_cells=256, context=256, batch_size=64, parallel=6)
    forced = "abcdefghij" * 8
    grammar = f'start: "{forced}" /[xy]{{20}}/'
    streams = [driver.submit(chat(f"no {n}"), constraint=constraint(driver, grammar)) for n in range(6)]
    driver.finish()
    for stream in streams:
        items = stream.take()
        text = text_of(items)
        assert text[:80] == forced and re.fullmatch("[xy]{20}", text[80:]) and end_of(items).num_generated == 100
    assert driver.engine.metrics.preemptions


def test_stop_strings_are_found_in_forced_tokens(drive):
    driver = drive()
    text, end = run(driver, constraint=constraint(driver, 'start: "abcdef" /[ab]/'), stop=("cd",))
    assert (text, end.reason, end.num_generated) == ("ab", FinishReason.STOP_STRING, 4)


def test_forced_tokens_have_log_probabilities_on_request(drive):
    driver = drive()
    stream = driver.submit(chat("x"), constraint=constraint(driver, 'start: "abc"'), logprobs=2)
    driver.finish()
    deltas = stream.take()[:-1]
    assert [d.logprobs.piece for d in deltas] == [b"a", b"b", b"c"]


def test_an_answer_ends_only_where_the_grammar_accepts(drive):
    """The model wants to end after its first words; the grammar wants more of them."""
    driver = drive()
    text, end = run(driver, chat(""), constraint=constraint(driver, "start: /(?s:.{30,40})/"))
    assert 30 <= len(text) <= 40 and end.reason is FinishReason.STOP


def test_bans_do_not_keep_a_complete_answer_from_ending(drive):
    driver = drive()
    params = SamplingParams(temperature=0, ignore_eos=True)
    text, end = run(driver, constraint=constraint(driver, 'start: "a" "b"?\n'), params=params, max_tokens=9)
    assert text in ("a", "ab") and end.reason is FinishReason.STOP


def test_a_bias_against_all_allowed_tokens_fails_only_its_request(drive):
    driver = drive()
    other = driver.submit(chat("hello"))
    params = SamplingParams(temperature=0, logit_bias=LogitBias(((ord("a"), float("-inf")), (ord("b"), float("-inf")))))
    _, end = run(driver, constraint=constraint(driver, "start: /[ab]/"), params=params)
    assert end.reason is FinishReason.FAILED
    assert text_of(other.take()) == "You said: hello"


def test_many_under_grammars_do_not_disturb_each_other(drive):
    driver = drive()
    streams = [
        driver.submit(chat(f"no {n}"), constraint=constraint(driver, f'start: "{n}" /[a-z]{{5}}/') if n % 2 else None)
        for n in range(12)
    ]
    driver.finish()
    for n, stream in enumerate(streams):
        text = text_of(stream.take())
        assert (
            (text[: len(str(n))] == str(n) and text[len(str(n)) :].isalpha()) if n % 2 else text == f"You said: no {n}"
        )


def test_a_constrained_sequence_continues_after_preemption(drive):
    driver = drive(num_cells=512)
    stream = driver.submit(chat("x"), constraint=constraint(driver, "start: /[a-c]{20}/ /[x-z]{5}/"), params=WILD)
    for _ in range(6):
        driver.turn()
        driver.engine.preempt(driver.sequences[0])
    driver.finish()
    text = text_of(stream.take())
    assert re.fullmatch("[abc]{20}[xyz]{5}", text)


# triggers that a grammar begins at


def test_nothing_is_enforced_before_the_trigger(drive):
    driver = drive()
    text, end = run(driver, chat("hello"), constraint=constraint(driver, CALLS, triggers=("##",)))
    assert text == "You said: hello" and end.reason is FinishReason.STOP


def test_everything_is_enforced_after_the_trigger(drive):
    """The model answers "maybe" after it; the grammar allows yes and no."""
    driver = drive()
    text, _ = run(driver, chat("so ##maybe"), constraint=constraint(driver, CALLS, triggers=("##",)))
    assert text in ("You said: so ##yes", "You said: so ##no")


def test_text_that_the_grammar_cannot_follow_before_the_trigger_drops_it(drive):
    """Free text may contain anything: a grammar that cannot follow it is dropped, not the answer."""
    driver = drive()
    grammar = 'start: /[a-z ]*/ "##" "yes"\n'
    text, end = run(driver, chat("hello"), constraint=constraint(driver, grammar, triggers=("##",)))
    assert text == "You said: hello" and end.reason is FinishReason.STOP


def test_exceeding_a_grammar_limit_is_the_requests_fault(drive, monkeypatch):
    """It was a 500, "rejects the chosen token", and the log had no reason either."""
    monkeypatch.setitem(grammar_trial.LIMITS, "max_items_in_row", 2000)
    driver = drive()
    inner = {
        "type": "object",
        "properties": {f"p{n}": {"type": "integer"} for n in range(600)},
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "o": inner},
        "required": ["a", "o"],
        "additionalProperties": False,
    }
    held = constraint(driver, "start: %json " + json.dumps(schema))
    _, end = run(driver, constraint=held)
    assert end.reason is FinishReason.FAILED and end.error.status == 400 and end.error.param == "content"
    assert "too many ways" in end.error.message


def test_a_mask_that_cannot_be_computed_gives_a_reason(drive, monkeypatch):
    """The client heard that the model's logits contain no finite value."""
    driver = drive()
    held = constraint(driver, 'start: ("a" | "b") ("c" | "d")')
    monkeypatch.setattr(held.matcher, "_matcher", _Panicking(held.matcher._matcher))
    _, end = run(driver, constraint=held)
    assert end.reason is FinishReason.FAILED and "mask cannot be computed" in end.error.message
    assert driver.answer(chat("hello")) == "You said: hello"


class _Panicking:
    def __init__(self, matcher):
        self._matcher = matcher

    def unsafe_compute_mask_ptr(self, *_):
        raise BaseException("a panic")

    def __getattr__(self, name):
        return getattr(self._matcher, name)
