"""Sequences under a grammar or a bound on thinking, on FakeBackend; and grammars that are refused, kept, let go."""

import re
import threading

import numpy as np
import pytest
from engine_driver import GREEDY, chat, end_of, text_of

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import SamplingParams
from llamasrv.engine.fake import IM_END, FakeBackend, FakeVocabulary
from llamasrv.engine.native_pool import NativePool
from llamasrv.engine.sampling import grammar_matcher as constraint
from llamasrv.engine.sampling.grammar_matcher import Constraints, Guide, lark_of_gbnf
from llamasrv.engine.sampling.output_constraint import Steering
from llamasrv.engine.sampling.thinking_budget import ThinkingBudget
from llamasrv.errors import InvalidRequest, Unavailable

WORDS = 'start: ("one" | "two") " " /[0-9]{2}/ "!"\n'
CALLS = "start: /(?s:[^#]*)/ | /(?s:[^#]*)/ \"##\" (\"yes\" | \"no\")\n"
WILD = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)


def steering(driver, grammar=None, *, triggers=(), budget=None):
    compiled = driver.engine.constraints.grammar(grammar, triggers) if grammar else None
    vocab = driver.backend.vocab
    texts = {token: text.encode() for text, token in vocab.controls.items()}
    return Steering(compiled and compiled.guide(), budget, texts=texts, pieces=vocab.pieces)


def run(driver, prompt=None, **settings):
    stream = driver.submit(prompt or chat("hello"), **settings)
    driver.finish()
    items = stream.take()
    return text_of(items), end_of(items)


# ---------------------------------------------------------------- following a grammar


def test_an_answer_has_the_form_of_its_grammar(drive):
    driver = drive()
    text, end = run(driver, steering=steering(driver, WORDS), params=WILD)
    assert text[:3] in ("one", "two") and text[3] == " " and text[4:6].isdigit() and text[6:] == "!"
    assert end.reason is FinishReason.STOP


def test_it_ends_where_nothing_can_follow_without_a_token_for_it(drive):
    driver = drive()
    text, end = run(driver, steering=steering(driver, 'start: "ab"'))
    assert (text, end.reason, end.num_generated) == ("ab", FinishReason.STOP, 2)


def test_the_last_token_allowed_may_complete_it(drive):
    driver = drive()
    _, end = run(driver, steering=steering(driver, 'start: "ab"'), max_tokens=2)
    assert end.reason is FinishReason.STOP
    _, end = run(driver, steering=steering(driver, 'start: "abc"'), max_tokens=2)
    assert end.reason is FinishReason.LENGTH


def steps_of(driver, *arguments, **settings):
    before = driver.engine.metrics.steps
    return *run(driver, *arguments, **settings), driver.engine.metrics.steps - before


def test_what_must_come_first_is_computed_with_the_prompt(drive):
    driver = drive()
    text, _, steps = steps_of(driver, steering=steering(driver, f'start: "{"x" * 60}" /[ab]/'))
    assert text[:-1] == "x" * 60 and steps == 1


def test_what_must_come_later_is_computed_in_one_step(drive):
    driver = drive()
    text, _, steps = steps_of(driver, steering=steering(driver, f'start: /[ab]/ "{"x" * 60}" /[ab]/'))
    assert text[1:-1] == "x" * 60 and steps == 2


def test_an_answer_without_any_choice_takes_no_step_but_the_prompt_s(drive):
    driver = drive()
    text, end, steps = steps_of(driver, steering=steering(driver, 'start: "abc"'))
    assert (text, end.reason, end.num_generated, steps) == ("abc", FinishReason.STOP, 3, 1)


def test_what_has_no_room_beside_the_prompt_comes_in_the_next_step(drive):
    driver = drive(batch_size=64)
    text, end, steps = steps_of(driver, steering=steering(driver, f'start: "{"x" * 100}" /[ab]/'))
    assert text[:-1] == "x" * 100 and end.num_generated == 101 and steps == 2


def test_nobody_hears_of_it_before_the_prompt_is_computed(drive):
    driver = drive()
    driver.engine.scheduler.cost.learn(512, 0, 100.0)  # so slow that the prompt comes in pieces
    stream = driver.submit(chat("long " * 300), steering=steering(driver, 'start: "abc" /[ab]/'))
    driver.turn()
    assert driver.sequences[-1].num_foreseen == 3 and stream.take() == []
    driver.engine.cancel(stream)
    driver.finish()
    (end,) = stream.take()
    assert (end.reason, end.num_generated) == (FinishReason.CANCELLED, 0)


def test_what_must_come_survives_that_its_sequence_gives_way(drive):
    driver = drive(num_cells=256, context=256, batch_size=64, parallel=6)
    forced = "abcdefghij" * 8
    grammar = f'start: "{forced}" /[xy]{{20}}/'
    streams = [driver.submit(chat(f"no {n}"), steering=steering(driver, grammar)) for n in range(6)]
    driver.finish()
    for stream in streams:
        items = stream.take()
        text = text_of(items)
        assert text[:80] == forced and re.fullmatch("[xy]{20}", text[80:]) and end_of(items).num_generated == 100
    assert driver.engine.metrics.preemptions


def test_stop_strings_are_found_in_what_must_come(drive):
    driver = drive()
    text, end = run(driver, steering=steering(driver, 'start: "abcdef" /[ab]/'), stop=("cd",))
    assert (text, end.reason, end.num_generated) == ("ab", FinishReason.STOP_STRING, 4)


def test_forced_tokens_have_log_probabilities_where_those_are_wanted(drive):
    driver = drive()
    stream = driver.submit(chat("x"), steering=steering(driver, 'start: "abc"'), logprobs=2)
    driver.finish()
    deltas = stream.take()[:-1]
    assert [d.logprobs.piece for d in deltas] == [b"a", b"b", b"c"]


def test_it_may_only_end_where_the_grammar_accepts(drive):
    """The model wants to end after its first words; the grammar wants more of them."""
    driver = drive()
    text, end = run(driver, chat(""), steering=steering(driver, "start: /(?s:.{30,40})/"))
    assert 30 <= len(text) <= 40 and end.reason is FinishReason.STOP


def test_bans_do_not_keep_a_complete_answer_from_ending(drive):
    driver = drive()
    params = SamplingParams(temperature=0, ignore_eos=True)
    text, end = run(driver, steering=steering(driver, 'start: "a" "b"?\n'), params=params, max_tokens=9)
    assert text in ("a", "ab") and end.reason is FinishReason.STOP


def test_a_bias_against_all_that_is_allowed_fails_the_request_alone(drive):
    driver = drive()
    other = driver.submit(chat("hello"))
    params = SamplingParams(temperature=0, logit_bias=((ord("a"), float("-inf")), (ord("b"), float("-inf"))))
    _, end = run(driver, steering=steering(driver, "start: /[ab]/"), params=params)
    assert end.reason is FinishReason.FAILED
    assert text_of(other.take()) == "You said: hello"


def test_many_under_grammars_do_not_disturb_each_other(drive):
    driver = drive()
    streams = [
        driver.submit(chat(f"no {n}"), steering=steering(driver, f'start: "{n}" /[a-z]{{5}}/') if n % 2 else None)
        for n in range(12)
    ]
    driver.finish()
    for n, stream in enumerate(streams):
        text = text_of(stream.take())
        assert (text[: len(str(n))] == str(n) and text[len(str(n)) :].isalpha()) if n % 2 else text == f"You said: no {n}"


def test_it_goes_on_after_its_lane_was_taken(drive):
    driver = drive(num_cells=512)
    stream = driver.submit(chat("x"), steering=steering(driver, "start: /[a-c]{20}/ /[x-z]{5}/"), params=WILD)
    for _ in range(6):
        driver.turn()
        driver.engine.preempt(driver.sequences[0])
    driver.finish()
    text = text_of(stream.take())
    assert re.fullmatch("[abc]{20}[xyz]{5}", text)


# ---------------------------------------------------------------- marks that begin it


def test_nothing_is_enforced_before_the_mark(drive):
    driver = drive()
    text, end = run(driver, chat("hello"), steering=steering(driver, CALLS, triggers=("##",)))
    assert text == "You said: hello" and end.reason is FinishReason.STOP


def test_all_is_enforced_behind_the_mark(drive):
    """The model says "maybe" behind it; the grammar knows yes and no."""
    driver = drive()
    text, _ = run(driver, chat("so ##maybe"), steering=steering(driver, CALLS, triggers=("##",)))
    assert text in ("You said: so ##yes", "You said: so ##no")


def test_no_token_runs_past_the_end_of_the_mark():
    """What may be the beginning of a mark binds already."""
    constraints = Constraints(NativePool())
    constraints.open(FakeVocabulary())
    guide = constraints.grammar(CALLS, ("##",)).guide()
    bound = []
    for byte in b"a#b##":
        assert guide.accept(byte) if byte != ord("b") else not guide.accept(byte)
        bound.append(guide.binding)
        if byte == ord("b"):
            break
    assert bound == [False, True, True]
    constraints.close()


def test_what_the_grammar_does_not_know_before_the_mark_lets_go_of_it(drive):
    """Free text may hold anything; a grammar that cannot follow it is given up, not the answer."""
    driver = drive()
    grammar = 'start: /[a-z ]*/ "##" "yes"\n'
    text, end = run(driver, chat("hello"), steering=steering(driver, grammar, triggers=("##",)))
    assert text == "You said: hello" and end.reason is FinishReason.STOP


# ---------------------------------------------------------------- masks that are late


def test_a_late_mask_holds_up_its_own_sequence_only(drive, monkeypatch):
    driver = drive()
    monkeypatch.setattr("llamasrv.engine.core.MASK_PATIENCE", 0.0)
    gate = threading.Event()
    compute = Guide.compute

    def slow(guide):
        gate.wait(20)
        compute(guide)

    slowed = steering(driver, "start: /[ab]{3}/")
    monkeypatch.setattr(Guide, "compute", slow)
    held = driver.submit(chat("x"), steering=slowed)
    other = driver.submit(chat("hello"))
    driver.turn(len("You said: hello") + 1)
    assert text_of(other.take()) == "You said: hello"
    assert not held.take()
    gate.set()
    driver.finish()
    assert re.fullmatch("[ab]{3}", text_of(held.take()))


@pytest.mark.parametrize("room", [1 << 20, 0])
@pytest.mark.parametrize("when", ["before it is back", "after it is back"])
def test_a_sequence_whose_mask_is_late_can_be_preempted(drive, monkeypatch, room, when):
    """Brought back whole, it owed nothing: it was in no plan any more and held its lane until its deadline."""
    driver = drive(swap_bytes=room)
    monkeypatch.setattr("llamasrv.engine.core.MASK_PATIENCE", 0.0)
    monkeypatch.setattr("llamasrv.engine.core.IDLE_CHECK", 0.01)
    gate = threading.Event()
    compute = Guide.compute

    def slow(guide):
        gate.wait(20)
        compute(guide)

    slowed = steering(driver, 'start: ("a" | "b") "cd" ("e" | "f")')
    monkeypatch.setattr(Guide, "compute", slow)
    held = driver.submit(chat("x"), steering=slowed)
    driver.turn(2)
    driver.engine.preempt(driver.sequences[0])
    if when == "after it is back":
        driver.turn(5)
        assert driver.engine.running == driver.sequences
    gate.set()
    driver.finish(most=200)
    items = held.take()
    assert re.fullmatch("[ab]cd[ef]", text_of(items)) and end_of(items).reason is FinishReason.STOP
    assert driver.engine.metrics.preemptions == 1


def test_a_sequence_whose_mask_is_late_can_be_cancelled(drive, monkeypatch):
    driver = drive()
    monkeypatch.setattr("llamasrv.engine.core.MASK_PATIENCE", 0.0)
    gate = threading.Event()
    slowed = steering(driver, "start: /[ab]{3}/")
    monkeypatch.setattr(Guide, "compute", lambda guide: gate.wait(20))
    held = driver.submit(chat("x"), steering=slowed)
    driver.turn()
    driver.engine.cancel(held)
    driver.turn(2)
    assert end_of(held.take()).reason is FinishReason.CANCELLED
    gate.set()


# ---------------------------------------------------------------- a bound on thinking


def budget(tokens, *, open=False, anywhere=False):
    end = "</think>\n"
    return ThinkingBudget(
        tokens, start=b"<think>", end=b"</think>", closing=list(end.encode()), open=open, anywhere=anywhere
    )


def test_a_block_is_closed_when_its_budget_is_used_up(drive):
    driver = drive()
    text, _ = run(driver, steering=steering(driver, budget=budget(5, open=True)), max_tokens=20)
    assert text.startswith("You s</think>\n")


def test_no_budget_closes_the_block_at_once(drive):
    driver = drive()
    text, _ = run(driver, steering=steering(driver, budget=budget(0, open=True)), max_tokens=20)
    assert text.startswith("</think>\n")


def test_a_block_is_not_closed_inside_a_character():
    bound = budget(2, open=True)
    bound.accept(b"a")
    bound.accept(b"\xe2")
    assert not bound.due()
    bound.accept(b"\x82")
    assert not bound.due()
    bound.accept(b"\xac")
    assert bound.due()


@pytest.mark.parametrize("cut", range(1, 9))
def test_marks_are_found_wherever_they_are_cut(cut):
    bound = budget(2)
    text = b"<think>ab"
    for piece in (text[:cut], text[cut:]):
        bound.accept(piece)
    bound.accept(b"c")
    bound.accept(b"d")
    assert bound.due()
    for piece in (b"</thi", b"nk>"):
        bound.accept(piece)
    assert not bound.due()


def test_words_about_thinking_are_not_thinking():
    bound = budget(0)
    bound.accept(b"I write <think> now")
    assert not bound.due()
    bound = budget(0, anywhere=True)
    bound.accept(b"I write <think> now")
    assert bound.due()


def test_the_bound_and_a_grammar_agree(drive):
    driver = drive()
    both = steering(driver, 'start: thought /\\n{0,2}/ "yes"\nthought[lazy]: /(?s:.*)/ "</think>"\n',
                    budget=budget(4, open=True))  # fmt: skip
    text, end = run(driver, steering=both, max_tokens=60)
    assert text.startswith("You </think>") and text.endswith("yes") and end.reason is FinishReason.STOP


# ---------------------------------------------------------------- compiling


@pytest.fixture
def constraints():
    pool = NativePool()
    made = Constraints(pool)
    made.open(FakeVocabulary())
    yield made
    made.close()
    pool.close()


@pytest.mark.parametrize(
    "text, said",
    [
        ("start: nowhere", "nowhere"),
        ('%llguidance {}\nstart: %json {"type": "array", "uniqueItems": true}', "uniqueItems"),
        ('%llguidance {}\nstart: %json {"$ref": "#"}', "nothing satisfies it"),
        ("start: /(?=a)b/", "look-around"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(constraints, text, said):
    with pytest.raises(InvalidRequest) as caught:
        constraints.grammar(text)
    assert said in caught.value.message and "\n" not in caught.value.message
    assert caught.value.param == "content"


def test_a_grammar_is_compiled_once(constraints):
    assert constraints.grammar(WORDS) is constraints.grammar(WORDS)
    assert constraints.grammar(WORDS) is not constraints.grammar(WORDS, ("one",))


def test_old_grammars_make_room(constraints, monkeypatch):
    monkeypatch.setattr(constraint, "CACHE_BYTES", 1_000_000)
    first = constraints.grammar('start: "0"')
    for n in range(1, 12):
        constraints.grammar(f'start: "{n}"')
    assert constraints.grammar('start: "11"') is constraints.grammar('start: "11"')
    assert constraints.grammar('start: "0"') is not first
    assert constraints._kept_bytes <= 1_000_000


def test_a_grammar_that_takes_too_long_is_refused_and_others_are_asked_to_wait(constraints, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(constraint, "COMPILE_SECONDS", 0.01)
    monkeypatch.setattr(Constraints, "_compile", lambda self, job: gate.wait(20))
    for _ in range(constraint.COMPILERS):
        with pytest.raises(InvalidRequest, match="took too long"):
            constraints.grammar(WORDS)
    with pytest.raises(Unavailable):
        constraints.grammar(WORDS)
    gate.set()


@pytest.mark.parametrize("text", ["root ::= nowhere", 'root ::= "x', 'rule ::= "x"', "(" * 100_000, "x" * 300_000])
def test_a_broken_gbnf_is_refused(text):
    with pytest.raises(InvalidRequest) as caught:
        lark_of_gbnf(text)
    assert caught.value.param == "content" and len(caught.value.message) < 600


def test_only_few_candidates_are_listed(constraints):
    guide = constraints.grammar("start: /[a-c]/").guide()
    guide.compute()
    assert guide.ids.tolist() == [97, 98, 99] and guide.banned is None
    wide = constraints.grammar("start: /(?s:.)*/").guide()
    wide.compute()
    assert IM_END in wide.ids


def test_a_large_vocabulary_is_masked_by_what_is_banned_or_in_one_pass(constraints, monkeypatch):
    monkeypatch.setattr(constraint, "FEW", 8)
    few = constraints.grammar("start: /[^a-c]/").guide()
    monkeypatch.setattr(constraint, "FEW", 150)
    few.compute()
    assert few.ids is None and few.banned.dtype != bool and {97, 98, 99} <= set(few.banned.tolist())
    monkeypatch.setattr(constraint, "FEW", 3)
    few.compute()
    assert few.banned.dtype == bool and few.banned[97] and not few.banned[100]
    row = np.zeros(FakeVocabulary.size, np.float32)
    row[few.banned] = -np.inf
    assert row[98] == -np.inf and row[100] == 0


def test_wide_masks_hold_whatever_their_form(drive, monkeypatch):
    for few in (1, 200):
        monkeypatch.setattr(constraint, "FEW", few)
        driver = drive()
        text, _ = run(driver, steering=steering(driver, "start: /[^Y]{12}/"), params=GREEDY)
        assert len(text) == 12 and "Y" not in text


def test_the_fake_backend_refuses_nothing_of_this():
    assert FakeBackend().vocab.native is None
