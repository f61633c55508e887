"""Drafts change when tokens come, never which: streams are the same as without them, delta for delta."""

import random
from array import array

import pytest
from constraints import CALLS, constraint
from engine_driver import chat, end_of, text_of
from recording_backend import RecordingBackend

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.backend.fake import script_after
from llamasrv.engine.base.channels import End
from llamasrv.engine.base.interface import ATTENTION, HYBRID, Adapter, DecodeFailed, OutOfCells, Proposal
from llamasrv.engine.drafts.sequence_drafts import SequenceDrafts
from llamasrv.engine.sampling.thinking_budget import ThinkingBudget

LONG = "the same words again and again, and then the same words again and again, until it ends"
ASKED = chat(LONG)
SEEDED = SamplingParams(temperature=1.0, seed=11)
ANSWER = f"You said: {LONG}"

CASES = {
    "greedy": {},
    "seeded": {"params": SEEDED},
    "wild": {"params": SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=3), "max_tokens": 120},
    "penalties": {"params": SamplingParams(temperature=0.9, seed=4, repeat_penalty=1.3, presence_penalty=0.5)},
    "bias": {"params": SamplingParams(temperature=0, logit_bias=LogitBias(((ord("e"), -100.0), (ord("#"), 3.0))))},
    "minimum": {"params": SamplingParams(temperature=0, min_tokens=150), "max_tokens": 170},
    "no end": {"params": SamplingParams(temperature=0, ignore_eos=True), "max_tokens": 200},
    "limit": {"max_tokens": 37},
    "stop": {"stop": ("again, until",)},
    "stop that never comes": {"stop": ("and then?", "until it ended")},
    "log-probabilities": {"params": SEEDED, "logprobs": 3},
    "sampled probabilities": {"params": SEEDED, "logprobs": 3, "sampled_probs": True},
    "scored prompt": {"prompt_logprobs": True, "logprobs": 1},
    "no cache": {"cache_prompt": False},
}


def told(items):
    """The items that a client gets, without times, counts of drafts and slots."""
    return [item[:7] if isinstance(item, End) else item for item in items]


class ScriptedDrafts:
    """A draft model that knows the fake model's answer, and is wrong at every `wrong`-th token."""

    source = "draft"

    def __init__(self, wrong):
        self.wrong = wrong
        self.follows = True

    def follow(self, is_on):
        self.follows = is_on

    def lag(self, timeline):
        return 1

    def propose(self, timelines, most):
        return [self._propose(timeline.tokens.tolist(), most) for timeline in timelines]

    def _propose(self, tokens, most):
        script, said = script_after(tokens)
        guesses = script[said : said + most]
        places = range(len(tokens), len(tokens) + len(guesses))
        guesses = [(t + 1) % 256 if self.wrong and at % self.wrong == 0 else t for t, at in zip(guesses, places)]
        return Proposal(guesses, [3.0] * len(guesses))


WRONG = {"a draft model": 0, "one that is often wrong": 3, "one that is always wrong": 1}


@pytest.fixture(params=["auto", "a draft model", "one that is often wrong", "one that is always wrong"])
def drafts(request):
    return request.param


def drive_with(drive, drafts, **options):
    if drafts in ("off", "auto"):
        return drive(spec=drafts, **options)
    names = {"num_lanes", "num_cells", "context", "batch_size", "ubatch_size", "traits", "idle_cells"}
    backend = RecordingBackend(**{name: options.pop(name) for name in list(options) if name in names})
    backend.draft_model = ScriptedDrafts(WRONG[drafts])
    return drive(backend, spec="draft", **options)


def both(drive, submit, drafts="auto", **options):
    """The items without and with drafts, and the driver with."""
    heard = []
    for spec in ("off", drafts):
        driver = drive_with(drive, spec, **dict(options))
        streams = submit(driver)
        driver.finish()
        heard.append([told(stream.take()) for stream in streams])
    return (*heard, driver)


def accepted(driver):
    return sum(driver.engine.metrics.accepted_tokens.values())


@pytest.mark.parametrize("case", CASES)
def test_drafts_change_nothing_for_a_sequence_alone(drive, drafts, case):
    off, on, driver = both(drive, lambda driver: [driver.submit(ASKED, **CASES[case])], drafts)
    assert on == off
    assert accepted(driver) > 0 or case in ("wild", "bias") or drafts == "one that is always wrong"
    assert driver.engine.metrics.drafted_tokens


@pytest.mark.parametrize("case", CASES)
def test_drafts_change_nothing_among_others(drive, drafts, case):
    def submit(driver):
        rng = random.Random(1)
        words = ["one", "two", "three", "four"]
        others = [chat(" ".join(rng.choices(words, k=20))) for _ in range(4)]
        return [driver.submit(prompt, **CASES[case]) for prompt in (ASKED, *others, ASKED)]

    off, on, driver = both(drive, submit, drafts, parallel=4)
    assert on == off


@pytest.mark.parametrize("rollback", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_memory_of_states(drive, case, rollback):
    """Rollback is limited to a few tokens of the last decode, and so are drafts."""

    def submit(driver):
        prompts = (ASKED, ASKED, chat(LONG + " again"), chat("again and again " * 5))
        return [driver.submit(prompt, **CASES[case]) for prompt in prompts]

    states = {"traits": HYBRID, "max_rollback": rollback}
    off, on, driver = both(drive, submit, parallel=3, **states)
    assert on == off and driver.engine.metrics.drafted_tokens


def test_it_takes_fewer_steps(drive):
    steps = {}
    for spec in ("off", "auto"):
        driver = drive(spec=spec)
        assert driver.answer(ASKED) == ANSWER
        steps[spec] = driver.engine.metrics.steps
    assert steps["auto"] < steps["off"] / 3


def test_choices_of_one_request(drive, drafts):
    def submit(driver):
        specs = [driver.spec(ASKED, choice=i, params=SamplingParams(temperature=1.5, seed=i)) for i in range(4)]
        return [driver.engine.submit(specs)]

    off, on, driver = both(drive, submit, drafts)
    by_choice = [[[item for item in heard if item[0] == i] for i in range(4)] for (heard,) in (off, on)]
    assert by_choice[0] == by_choice[1] and driver.engine.metrics.drafted_tokens


GRAMMARS = {
    "choice at the end": CALLS,
    "what the prompt says": 'start: "You said: " /[a-z ]+/ "," /[a-z ]*/ "."\n',
    "against the prompt": 'start: /[A-Z]{4,40}/ "the same words again and again!"\n',
    "json": 'start: "{" "\\"" /[a-z ]{10,60}/ "\\"" ":" /[0-9]{3}/ "}"\n',
}


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_forced_tokens_are_drafted_when_logprobs_are_requested(drive, stop):
    """Log-probabilities need a row of logits per token, so forced tokens go as drafts, all accepted."""

    def submit(driver):
        driver.core.outputs.mask_patience = 60.0
        grammar = constraint(
            driver, 'start: "the first fixed words: " /[a-c]{3}/ ", and then the second fixed words."\n'
        )
        return [driver.submit(ASKED, constraint=grammar, logprobs=2, max_tokens=100, stop=stop)]

    off, on, driver = both(drive, submit)
    metrics = driver.engine.metrics
    assert on == off and text_of(on[0]).endswith(" words.")
    assert metrics.drafted_tokens["grammar"] == metrics.accepted_tokens["grammar"] > 30
    assert metrics.steps < 30


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_drafts_change_nothing_under_a_grammar(drive, drafts, grammar, logprobs):
    def submit(driver):
        return [
            driver.submit(
                ASKED,
                constraint=constraint(driver, GRAMMARS[grammar]),
                logprobs=logprobs,
                max_tokens=120,
                params=SamplingParams(temperature=0.8, seed=seed),
            )
            for seed in range(3)
        ]

    off, on, _ = both(drive, submit, drafts)
    assert on == off


def test_a_grammar_with_a_trigger(drive):
    def submit(driver):
        text = "call ##yes or call ##no or call ##yes or call ##no"
        return [
            driver.submit(
                chat(text),
                constraint=constraint(driver, 'start: "##" ("yes" | "no") "."\n', triggers=("##",)),
                params=SamplingParams(temperature=0.2, seed=seed),
            )
            for seed in range(3)
        ]

    off, on, driver = both(drive, submit)
    assert on == off and accepted(driver) > 0


def test_drafts_change_nothing_where_masks_come_late(drive, drafts):
    """A row without its mask is kept; the rest of the draft is dropped."""

    def submit(driver):
        driver.core.outputs.mask_patience = 0.0
        return [driver.submit(ASKED, constraint=constraint(driver, GRAMMARS["what the prompt says"]), max_tokens=90)]

    off, on, _ = both(drive, submit, drafts)
    assert on == off


@pytest.mark.parametrize("tokens", [0, 5, 17])
def test_a_thinking_budget(drive, drafts, tokens):
    """The budget closes the block in the middle of a draft that continues thinking."""

    def submit(driver):
        budget = ThinkingBudget(
            tokens, start=b"<think>", end=b"</think>", closing=list(b" so.</think>"), open=True, anywhere=False
        )
        return [driver.submit(ASKED, constraint=constraint(driver, budget=budget), max_tokens=100)]

    off, on, driver = both(drive, submit, drafts)
    assert on == off and driver.engine.metrics.drafted_tokens


def test_drafts_change_nothing_with_adapters(drive, drafts):
    def run(spec):
        backend = RecordingBackend(adapters=(Adapter("one", "one.gguf"), Adapter("two", "two.gguf")))
        if spec not in ("off", "auto"):
            backend.draft_model, spec = ScriptedDrafts(WRONG[spec]), "draft"
        driver = drive(backend, spec=spec)
        streams = []
        for adapters in ((), ((0, 1.0),), ((1, 0.5),)):
            given = array("i", driver.backend.vocab.tokenize(ASKED))
            spec_ = driver.spec(given, adapters=adapters)
            assert spec_.cache_key == CacheKey(adapters)
            streams.append(driver.engine.submit([spec_]))
        driver.finish()
        return [told(stream.take()) for stream in streams], accepted(driver)

    (off, none), (on, some) = run("off"), run(drafts)
    assert on == off and not none and (some > 0 or drafts == "one that is always wrong")


@pytest.mark.parametrize("traits", [ATTENTION, ATTENTION._replace(can_share=False)], ids=["shared", "apart"])
def test_preempted_again_and_again(drive, drafts, traits):
    heard = []
    for spec in ("off", drafts):
        driver = drive_with(drive, spec, traits=traits, swap_bytes=2_000)
        streams = [driver.submit(ASKED, params=SamplingParams(temperature=0.7, seed=i)) for i in range(4)]
        for turn in range(60):
            driver.turn()
            if turn % 3 == 0 and driver.core.running:
                driver.engine.preempt(driver.core.running[turn % len(driver.core.running)])
            driver.core.memory.lanes.check()
        driver.finish()
        heard.append([told(stream.take())[:-1] for stream in streams])
    assert heard[0] == heard[1] and driver.engine.metrics.drafted_tokens


@pytest.mark.parametrize("drafts", ["auto", "a draft model", "one that is often wrong"])
def test_cancelled_in_the_middle(drive, drafts):
    driver = drive_with(drive, drafts)
    stream, other = driver.submit(ASKED), driver.submit(ASKED)
    while not accepted(driver):
        driver.turn()
    driver.engine.cancel(stream)
    driver.finish()
    items = stream.take()
    assert end_of(items).reason is FinishReason.CANCELLED and ANSWER.startswith(text_of(items))
    assert text_of(other.take()) == ANSWER


def test_its_lane_is_a_prefix_for_others(drive):
    """The lane of a sequence that ended inside a draft holds only accepted tokens."""
    driver = drive(spec="auto", idle_cells=4096)
    first = driver.submit(ASKED, stop=("again, until",))
    driver.finish()
    said = text_of(first.take())
    again = driver.submit(f"{ASKED}{said}")
    driver.finish()
    end = end_of(again.take())
    assert end.num_reused >= len(driver.backend.vocab.tokenize(ASKED)) + len(said) - 1


def test_a_lack_of_cells_for_drafts_preempts_no_sequence(drive):
    driver = drive(spec="auto", num_cells=420, context=400, parallel=2)
    streams = [driver.submit(chat(LONG[:60] * 1), max_tokens=90) for _ in range(2)]
    driver.finish()
    assert {text_of(stream.take()) for stream in streams} == {f"You said: {LONG[:60]}"}
    assert driver.engine.metrics.preemptions == 0 and accepted(driver) > 0


def test_when_the_library_runs_out_of_cells_drafts_go_first(drive):
    driver = drive(spec="auto")
    stream = driver.submit(ASKED)
    while not accepted(driver):
        driver.turn()
    driver.backend.fail_next = [OutOfCells()]
    driver.finish()
    assert text_of(stream.take()) == ANSWER and driver.engine.metrics.preemptions == 0


def test_a_failed_step_with_drafts_fails_only_its_sequences(drive):
    driver = drive(spec="auto")
    stream = driver.submit(ASKED)
    while not accepted(driver):
        driver.turn()
    driver.backend.fail_next = [DecodeFailed("no")]
    driver.finish()
    assert end_of(stream.take()).reason is FinishReason.FAILED
    assert driver.answer(ASKED) == ANSWER


def test_drafts_never_exceed_rows_or_outputs(drive):
    """A context has 64 outputs, and every prompt that ends needs one, too. The back end asserts where the library would
    abort."""
    driver = drive(spec="auto", num_lanes=64, num_cells=20_000, parallel=60, batch_size=80, context=600)
    streams = [driver.submit(chat(f"{i} {LONG}"), prompt_logprobs=i % 7 == 0) for i in range(70)]
    most = 0
    while driver.engine.num_open:
        driver.turn()
        most = max(most, driver.backend.batch.num_rows)
    assert [text_of(stream.take()) for stream in streams] == [f"You said: {i} {LONG}" for i in range(70)]
    assert accepted(driver) > 0 and most <= 80


def test_drafts_keep_a_step_of_decodes_under_64_rows(drive):
    driver = drive(spec="auto", parallel=8)
    for _ in range(8):
        driver.submit(ASKED)
    driver.turn(3)  # the prompts
    rows = []
    while driver.engine.num_open:
        driver.turn()
        rows.append(driver.backend.batch.num_rows)
    assert accepted(driver) > 0 and 32 < max(rows) <= driver.backend.max_outputs


def test_the_context_is_not_exceeded(drive):
    driver = drive(spec="auto", num_cells=300, context=150)
    stream = driver.submit(chat(LONG[:50]), params=SamplingParams(temperature=0, ignore_eos=True))
    driver.finish()
    end = end_of(stream.take())
    assert end.reason is FinishReason.CONTEXT and end.num_prompt + end.num_generated == 150


@pytest.mark.parametrize("options", [{"deterministic": True}, {"traits": HYBRID}, {"spec": "off"}])
def test_cases_without_drafts(drive, options):
    driver = drive(**({"spec": "auto"} | options))
    assert driver.answer(ASKED) == ANSWER
    assert not driver.engine.metrics.drafted_tokens


def test_drafts_stop_when_rows_are_expensive(drive):
    """If each further row costs a whole step more, no draft pays."""
    driver = drive(spec="auto")
    for rows in (1, 2, 3, *range(4, 65, 4)):
        for _ in range(8):
            driver.core.scheduler.cost.rows.learn(rows, 0.01 * rows)
    assert driver.answer(ASKED) == ANSWER
    assert driver.engine.metrics.drafts <= 2


def test_chains_never_see_rejected_tokens(drive):
    """Penalties count accepted tokens, not tried ones."""
    chains = []
    for spec in ("off", "auto"):
        driver = drive(spec=spec)
        driver.answer(ASKED, params=SamplingParams(temperature=0.8, seed=2, repeat_penalty=1.1))
        chains.append(driver.backend.chains[0].accepted)
    assert chains[0] == chains[1]


def test_tokens_are_charged_to_their_owner(drive):
    driver = drive(spec="auto")
    stream = driver.submit(ASKED, owner="a")
    driver.finish()
    assert accepted(driver) > 0
    end = end_of(stream.take())
    assert driver.core.scheduler.served["a"] >= end.num_prompt + end.num_generated - 1


@pytest.mark.parametrize("keep", [0, 20])
def test_a_context_that_shifts(drive, keep):
    """The draft is settled before the timeline is shifted."""

    def submit(driver):
        params = SamplingParams(temperature=0, ignore_eos=True)
        return [driver.submit(chat(LONG[:40]), params=params, max_tokens=400) for _ in range(2)]

    off, on, driver = both(drive, submit, context=140, context_shift=True, keep=keep)
    assert on == off and accepted(driver) > 0 and driver.engine.metrics.context_shifts > 2


PREDICTIONS = {
    "right": ANSWER,
    "changed": ANSWER.replace("again, until", "for ever, until"),
    "shorter": ANSWER[:30],
    "longer": ANSWER + " and more" * 9,
    "another": "nothing of this will ever be said" * 3,
    "empty": "",
}


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_prediction_changes_no_token(drive, prediction):
    text = PREDICTIONS[prediction]

    def submit(driver):
        tokens = array("i", list(text.encode()))
        return [driver.submit(ASKED, prediction=tokens, params=SEEDED), driver.submit(ASKED, params=SEEDED)]

    off, on, driver = both(drive, submit)
    assert on == off
    metrics = driver.engine.metrics
    assert (metrics.accepted_tokens.get("prediction", 0) > 20) == (
        prediction in ("right", "changed", "shorter", "longer")
    )


def test_counts_of_a_prediction_are_exact(drive):
    driver = drive(spec="auto")
    tokens = array("i", list(PREDICTIONS["changed"].encode()))
    stream = driver.submit(ASKED, prediction=tokens)
    driver.finish()
    counts, metrics = end_of(stream.take()).drafts, driver.engine.metrics
    assert (
        counts.predicted == metrics.drafted_tokens["prediction"] and counts.predicted > counts.predicted_accepted > 40
    )
    assert counts.predicted_accepted == metrics.accepted_tokens["prediction"]
    assert counts.drafted == sum(metrics.drafted_tokens.values()) and counts.accepted == accepted(driver)


def test_without_a_prediction_its_counts_are_none(drive):
    driver = drive(spec="auto")
    streams = [driver.submit(ASKED), driver.submit(ASKED, prediction=array("i"))]
    driver.finish()
    none, empty = (end_of(stream.take()).drafts for stream in streams)
    assert none.predicted is None and none.accepted > 0 and empty.predicted == 0


def slow_to_ask(driver, monkeypatch):
    """Asking takes half a millisecond. Returns the sequences that were asked, in order."""
    asked, propose = [], SequenceDrafts.propose

    def slowly(drafts, seq, most):
        asked.append(seq)
        driver.now += 0.0005
        return propose(drafts, seq, most)

    monkeypatch.setattr(SequenceDrafts, "propose", slowly)
    return asked


def test_asking_sources_takes_a_small_share_of_the_time(drive, monkeypatch):
    """Sequences without a draft were asked again in every step: only drafts counted as cost."""
    driver = drive(spec="auto")
    asked = slow_to_ask(driver, monkeypatch)
    wild = SamplingParams(temperature=50.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    driver.submit([*range(40)], params=wild, max_tokens=150)
    driver.finish()
    assert 2 < len(asked) < 60


def test_a_prediction_is_used_from_the_first_step(drive, monkeypatch):
    driver = drive(spec="auto")
    asked = slow_to_ask(driver, monkeypatch)
    for text, settings in (("abc", {}), ("def", {}), ("ghi", {"prediction": array("i", list(b"You said: ghi"))})):
        driver.submit(chat(text), **settings)
        for _ in range(3):
            driver.engine.turn()  # no time passes but that for asking
    first, second, third = driver.sequences
    assert first in asked and second not in asked and third in asked
    driver.finish()


def test_drafts_do_not_lengthen_a_step_beyond_its_target(drive):
    """While others used the cores, eight streams had steps of 64 rows, and waited 600 ms for each."""

    steps = []

    class Slow(RecordingBackend):
        def decode(self):
            steps.append(0.004 + 0.006 * self.batch.num_rows)
            driver.now += steps[-1]
            super().decode()

    driver = drive(Slow(num_lanes=8), parallel=8, step_target=0.2)
    for n in range(8):
        driver.submit(chat(f"{n} {LONG} {LONG}"))
    driver.finish()
    assert max(steps) > 0.1 and sum(step > 1.1 * 0.2 for step in steps) < 5  # each size has to be tried once
