"""Decisions through the pipeline on the fake model, which knows bytes only: `yes` is a tree of three nodes."""

import math
from dataclasses import replace

import pytest
from decisions import asked, choice, predicate, score
from serving import RunningService, wait_until

from llamasrv.domain.decide import DecisionSettings, Fit
from llamasrv.domain.events import Text
from llamasrv.domain.request import GenerateRequest, Message, TokenPrompt
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import BodyTooLarge, ContextTooLong, InvalidRequest, Unavailable
from llamasrv.pipeline.decide import book

INPUT = "The same input for all of them. " * 4
ALL = (predicate("Is it so?"), choice("Which?", "a", "b", "c"), score("How much?", *map(str, range(12))))


@pytest.fixture
def serve():
    """`serve(min_mass=..., fits=..., deterministic=...)`: a running service."""
    started = []

    def start(min_mass=0.0, fits=(), template=None, **options):
        options = EngineOptions(**{"parallel": 8, **options})
        settings = {"decisions": DecisionSettings(min_mass, dict(fits)), "chat_template": template}
        started.append(RunningService(model=settings, options=options, num_cells=16384))
        return started[-1]

    yield start
    for service in started:
        service.close()


def decide(served, *questions, text=INPUT, **settings):
    return served.service.pipeline.submit_decide(asked(text, *questions, **settings)).result()


def forced(served, tokens, label):
    """The log-probability of a label after a prompt, computed as a scored prompt."""
    prompt = TokenPrompt((*tokens, *label))
    run = served.service.pipeline.submit(GenerateRequest((prompt,), echo=True, logprobs=0, max_tokens=0))
    scores = []
    while not run.done:
        scores += [item for event in run.events() if isinstance(event, Text) for item in event.logprobs]
    return sum(score.logprob for score in scores[-len(label) :])


def test_probabilities_are_those_of_teacher_forced_labels(serve):
    served = serve()
    answer = decide(served, ALL[0]).answers[0]
    prompt = min((seq.spec.tokens for seq in served.engine.arrived), key=len)
    yes, no = (math.exp(forced(served, prompt, word.encode())) for word in ("yes", "no"))
    assert answer.probabilities == pytest.approx((yes / (yes + no), no / (yes + no)), abs=1e-4)
    assert answer.mass == pytest.approx(yes + no, rel=1e-4)


def test_no_answer_depends_on_the_other_questions(serve):
    together = decide(serve(), *ALL).answers
    backwards = decide(serve(), *ALL[::-1]).answers
    alone = [decide(serve(), question).answers[0] for question in ALL]
    assert together == backwards[::-1] == tuple(alone)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_request_has_the_same_answers(serve, deterministic):
    served = serve(deterministic=deterministic)
    assert decide(served, *ALL).answers == decide(served, *ALL).answers


def test_the_input_is_computed_once(serve):
    served = serve()
    questions = [predicate(f"Is it {n}?") for n in range(40)]
    before = served.engine.metrics.prompt_tokens
    made = decide(served, *questions)
    computed = served.engine.metrics.prompt_tokens - before
    forks = len(served.engine.arrived)
    assert computed <= made.prompt_tokens + 8 * forks
    assert made.cached_tokens == 0
    again = decide(served, *questions)
    assert again.prompt_tokens == made.prompt_tokens and again.cached_tokens >= len(INPUT)


def test_every_question_counts_its_own_tokens(serve):
    served = serve()
    first, second = (decide(served, question).prompt_tokens for question in ALL[:2])
    head = len(served.service.pipeline.peek(None).vocab.tokenize(f"<|im_start|>user\n{INPUT}\n\n"))
    assert decide(served, *ALL[:2]).prompt_tokens == first + second - head


def test_permuted_options_have_permuted_probabilities(serve):
    served = serve()
    values = ("b", True, "a", "d", "c")
    one, other = (decide(served, choice("Which?", *shown), orders=3).answers[0] for shown in (values, values[::-1]))
    assert one.probabilities == pytest.approx(other.probabilities[::-1], abs=1e-6)
    assert one.mass == pytest.approx(other.mass)


def test_a_fit_of_the_operator_changes_probabilities_only(serve):
    plain = decide(serve(), ALL[1]).answers[0]
    flat = decide(serve(fits={"choice": Fit(20.0)}), ALL[1]).answers[0]
    assert max(flat.probabilities) < max(plain.probabilities) and flat.mass == plain.mass


@pytest.mark.parametrize(("bound", "refused"), [(0.0, False), (1.0, True)])
def test_too_little_mass_refuses_each_question_by_itself(serve, bound, refused):
    assert [a.refused for a in decide(serve(bound), *ALL).answers] == [refused] * 3


def test_one_option_is_certain(serve):
    assert decide(serve(), choice("Which?", "only")).answers[0].probabilities == (1.0,)


def test_a_question_that_does_not_fit_is_named(serve):
    with pytest.raises(ContextTooLong) as caught:
        decide(serve(), predicate("so?" * 500))
    assert caught.value.param == "questions"


def test_questions_behind_one_that_does_not_fit_are_not_tokenised(serve, monkeypatch):
    """400 questions of 10 KB were all tokenised before the first was refused."""
    served, read = serve(), []
    tokenize = served.service.pipeline.peek(None).vocab.tokenize
    monkeypatch.setattr(
        served.service.pipeline.peek(None).vocab,
        "tokenize",
        lambda text, **settings: read.append(text) or tokenize(text, **settings),
    )
    with pytest.raises(ContextTooLong):
        decide(served, *[predicate(f"Question {n}? " * 400) for n in range(50)])
    assert sum("Question" in text for text in read) == 1


def test_all_rows_together_are_bounded(serve):
    with pytest.raises(BodyTooLarge):
        decide(serve(), *ALL, most_tokens=200)


def test_a_cancelled_request_leaves_nothing(serve):
    served = serve()
    work = served.service.pipeline.submit_decide(asked(INPUT, *[predicate(f"{n}?") for n in range(100)]))
    work.cancel()
    with pytest.raises(Unavailable):
        work.result()
    wait_until(lambda: served.engine.num_open == 0)


def test_a_decision_about_a_conversation_finds_its_prefix(serve):
    served = serve()
    talk = (Message("user", INPUT), Message("assistant", "Yes."))
    request = asked("", *ALL[:1])

    def decide_about(request):
        return served.service.pipeline.submit_decide(request).result()

    decide_about(type(request)(talk, ALL[:1]))
    made = decide_about(type(request)((*talk, Message("user", "And now?")), ALL[:1]))
    assert made.cached_tokens > len(INPUT)


THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def read_prompts(served):
    """What stood before the answers, once for each question."""
    texts = {bytes(t for t in seq.spec.tokens if t < 256).decode() for seq in served.engine.arrived if seq.spec.reads}
    return sorted(text for text in texts if text.endswith("\n</think>\n\n"))


def test_a_thought_ends_with_its_budget(serve):
    served = serve(template=THINKS)
    made = decide(served, *ALL, thinking=10)
    (first, *_), thoughts = read_prompts(served), [text.rpartition("<think>\n")[2] for text in read_prompts(served)]
    assert made.reasoning_tokens == 30 and len(thoughts) == 3 and made.cached_tokens == 0
    assert set(thoughts) == {": The same\n</think>\n\n"} and first.startswith("user\n" + INPUT)


def test_a_thought_ends_by_itself(serve):
    """The fake model repeats the words of the user, from the ninth character of its answer on; here the end mark."""
    served = serve(template=THINKS)
    made = decide(served, ALL[0], text="Hm. </think> so", thinking=200)
    assert read_prompts(served)[0].endswith("<think>\n: Hm.\n</think>\n\n")
    assert made.reasoning_tokens < 40


def test_probabilities_after_a_thought_are_those_of_teacher_forced_labels(serve):
    served = serve(template=THINKS)
    answer = decide(served, ALL[0], thinking=10).answers[0]
    prompt = min((seq.spec.tokens for seq in served.engine.arrived if seq.spec.reads), key=len)
    yes, no = (math.exp(forced(served, prompt, word.encode())) for word in ("yes", "no"))
    assert answer.probabilities == pytest.approx((yes / (yes + no), no / (yes + no)), abs=1e-4)


def test_without_a_budget_there_is_no_thought(serve):
    served = serve(template=THINKS)
    assert decide(served, ALL[0]).reasoning_tokens == 0
    assert all(text.endswith("<think>\n\n</think>\n\n") for text in read_prompts(served))


def test_a_model_without_thoughts_refuses_to_think(serve):
    with pytest.raises(InvalidRequest) as caught:
        decide(serve(), ALL[0], thinking=10)
    assert caught.value.param == "x_thinking_tokens"


def test_thoughts_count_towards_the_bounds(serve):
    with pytest.raises(ContextTooLong):
        decide(serve(template=THINKS), ALL[0], thinking=1000)
    with pytest.raises(BodyTooLarge):
        decide(serve(template=THINKS), *ALL, thinking=300, most_tokens=1000)


MUCH = "word " * 5000


@pytest.mark.parametrize(
    "question",
    [predicate(MUCH), choice("Which?", MUCH, "b"), predicate("Is it?", true=MUCH)],
    ids=["asked", "option", "described"],
)
def test_a_long_question_is_worked_on_beside_the_hub(serve, question, monkeypatch):
    served, beside = serve(), []
    monkeypatch.setattr(book, "off_hub", lambda function: beside.append(function) or function())
    with pytest.raises(ContextTooLong):
        decide(served, predicate("Is it so?"), question)
    assert len(beside) == 1
    decide(served, predicate("Is it so?"))
    assert len(beside) == 1


def test_a_question_far_too_long_is_refused_by_its_place_before_it_is_read_whole(serve, monkeypatch):
    served, read = serve(), []
    vocab, tokenize = served.service.pipeline.peek(None).vocab, type(served.service.pipeline.peek(None).vocab).tokenize
    monkeypatch.setattr(type(vocab), "tokenize", lambda *a, **k: read.append(len(a[1])) or tokenize(*a, **k))
    with pytest.raises(ContextTooLong) as caught:
        decide(served, predicate("Is it so?"), replace(predicate("word " * 200_000), param="questions[1]"))
    assert caught.value.param == "questions[1]" and sum(read) < 500_000
