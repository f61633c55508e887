"""What changed since an earlier request, as told of the fake model's prompts, turn by turn."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from serving import open_engine, pipeline_on, read

from llamasrv.domain.events import Usage
from llamasrv.domain.request import (
    ChatPrompt,
    GenerateRequest,
    MediaPart,
    Message,
    TextPart,
    TextPrompt,
    Tool,
    ToolChoice,
)
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.engine import EngineOptions
from llamasrv.pipeline.cache_report import CacheBook
from llamasrv.pipeline.fingerprint import BLOCK, fingerprint_of

SYSTEM = Message("system", "Be brief, and never say what is not so. " * 4)
LONG = Message("user", "Tell me of the house, of the garden behind it, and of the lane. " * 4)
TURNS = (SYSTEM, LONG)
ANSWERED = (*TURNS, Message("assistant", "You said: so"), Message("user", "And then?"))
TOOLS = (Tool("look", "looks", {"type": "object"}), Tool("go", "goes", {"type": "object"}))


@pytest.fixture
def ask():
    """The report of a request that was answered."""
    engine = open_engine(options=EngineOptions(parallel=8), num_cells=16_384, context=4_096, num_lanes=8)
    pipeline = pipeline_on(engine)

    def ask(messages=TURNS, *, tools=(), template_kwargs=None, **options):
        prompt = ChatPrompt(tuple(messages), tools=tools, template_kwargs=template_kwargs or {})
        request = GenerateRequest(prompts=(prompt,), **{"max_tokens": 4, **options})
        run = pipeline.submit(request)
        read(engine, run)
        return run.info.cache

    ask.pipeline, ask.engine = pipeline, engine
    return ask


def changed(report):
    change = report.change()
    return None if change is None else str(change)


def test_the_first_request_has_nothing_to_be_compared_with(ask):
    report = ask()
    assert changed(report) is None and report.num_reused() == 0
    assert str(report) == f"hit=0, prompt={report.num_prompt}"


def test_a_conversation_that_goes_on_has_not_changed(ask):
    first, second = ask(), ask(ANSWERED)
    assert changed(second) is None and second.num_reused() > first.num_prompt - BLOCK


def test_it_is_compared_with_one_that_may_share_its_prefix(ask):
    """It was said to have another scope than the latest request with the same messages."""
    ask(tools=TOOLS)
    ask(tools=TOOLS, cache_salt="a")
    assert changed(ask()) == "tools[0]"
    assert changed(ask(cache_salt="b")) == "scope"


def test_where_everything_was_found_nothing_has_changed(ask):
    """A developer's message after a system's, with the same tokens, was told as a change of the system prompt."""
    ask()
    report = ask((Message("developer", SYSTEM.content), LONG))
    assert report.num_reused() == report.num_prompt - 1 and changed(report) is None
    assert "changed" not in str(report)


@pytest.mark.parametrize(
    "options, part",
    [
        ({"messages": (Message("system", "Be kind."), *ANSWERED[1:])}, "system"),
        ({"messages": (*TURNS, Message("assistant", "Something else"), ANSWERED[-1])}, "messages[1]"),
        ({"messages": (SYSTEM, Message("user", "Another story"), *ANSWERED[2:])}, "messages[0]"),
        ({"tools": TOOLS[:1]}, "tools[1]"),
        ({"tools": (TOOLS[0], replace(TOOLS[1], description="runs"))}, "tools[1]"),
        ({"tools": TOOLS[::-1]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": ToolChoice("none")}, "tools[0]"),
        ({"template_kwargs": {"enable_thinking": True}}, None),  # the template does not read it: the same tokens
        ({"cache_salt": "mine"}, "scope"),
        ({}, None),
    ],
)
def test_it_names_what_changed_first(ask, options, part):
    ask(ANSWERED, tools=TOOLS)
    assert changed(ask(**{"messages": ANSWERED, "tools": TOOLS, **options})) == part


def test_adapters_and_models_are_told_apart():
    def made(**options):
        facts = {"model": "m", "build": "1", "cache_key": CacheKey(), "choice": ToolChoice(), **options}
        return fingerprint_of(ChatPrompt(TURNS), range(BLOCK), **facts)

    for options, part in (
        ({}, "None"),
        ({"model": "n"}, "model"),
        ({"build": "2"}, "model"),
        ({"cache_key": CacheKey(adapters=((0, 1.0),))}, "adapters"),
    ):
        book = CacheBook()
        book.compare("", made())
        assert str(book.compare("", made(**options)).change()) == part


def test_the_same_conversation_with_two_models_by_turns_has_not_changed():
    def made(model, messages):
        prompt = ChatPrompt(tuple(messages))
        return fingerprint_of(prompt, range(9), model=model, build="", cache_key=CacheKey(), choice=ToolChoice())

    book = CacheBook()
    book.compare("", made("a", TURNS))
    book.compare("", made("b", TURNS))
    assert book.compare("", made("a", ANSWERED)).change() is None


def test_a_picture_that_changed_is_a_message_that_changed():
    def made(data):
        prompt = ChatPrompt((Message("user", (TextPart("See"), MediaPart("image", data))),))
        return fingerprint_of(prompt, range(9), model="", build="", cache_key=CacheKey(), choice=ToolChoice())

    book = CacheBook()
    book.compare("", made(b"one"))
    assert book.compare("", made(b"one"), None).change() is None
    assert made(b"one").messages == made(b"one").messages != made(b"two").messages


def test_a_prompt_that_is_gone_from_the_cache_was_evicted(ask):
    ask()
    for lane in list(ask.engine.memory.lanes.resident):
        ask.engine.memory.drop(lane)
    report = ask()
    assert report.num_reused() == 0 and changed(report) == "evicted"


def test_what_was_never_computed_was_not_evicted(ask):
    """A client that left before its prompt was computed leaves nothing to be evicted."""
    given_up = ask.pipeline.submit(GenerateRequest(prompts=(ChatPrompt(TURNS),), max_tokens=4))
    given_up.cancel()
    read(ask.engine, given_up)
    assert changed(ask()) is None


def test_the_same_messages_in_other_words_are_the_template_s(ask, monkeypatch):
    """A template that tells the time writes another prompt each minute."""
    rewritten = [0]
    encode = ask.engine.vocab.tokenize

    def tokenize(self, text, **options):
        return encode(f"minute {rewritten[0]}", **options) + encode(text, **options)

    monkeypatch.setattr(type(ask.engine.vocab), "tokenize", tokenize)
    ask()
    rewritten[0] += 1
    assert changed(ask(ANSWERED)) == "template"


def test_one_key_hears_nothing_of_another(ask):
    ask(owner="ann")
    assert changed(ask(owner="bob")) is None
    assert changed(ask((SYSTEM, Message("user", "Other"), *ANSWERED[2:]), owner="bob")) == "messages[0]"


def test_a_reply_s_id_says_what_to_compare_with(ask):
    report = ask()
    report.answered_as("msg_1")
    ask(ANSWERED)
    other = ask((SYSTEM, Message("user", "Other")), previous="msg_1")
    assert other.was_found and str(other.change()) == "messages[0]"
    assert 0 < other.num_missed <= report.num_prompt
    assert not ask(previous="msg_2").was_found
    assert not ask(previous="msg_1", owner="bob").was_found


def test_of_texts_without_messages_only_the_tokens_are_reported(ask):
    request = GenerateRequest(prompts=(TextPrompt("Once"), TextPrompt("Twice")), max_tokens=1)
    run = ask.pipeline.submit(request)
    assert str(run.info.cache) == f"prompt={run.info.num_prompt}"
    read(ask.engine, run)
    assert str(run.info.cache) == f"hit=0, prompt={run.info.num_prompt}"


def test_a_request_without_a_cache_and_those_of_batches_are_compared_with_nothing(ask):
    ask()
    other = (SYSTEM, Message("user", "Other"))
    assert changed(ask(other, cache_prompt=False)) is None
    assert ask(other, deferrable=True) is None


def test_changes_are_counted_by_model_and_reason(ask):
    ask()
    ask((SYSTEM, Message("user", "Other")))
    ask((SYSTEM, Message("user", "Third")))
    assert ask.pipeline.cache_book.changes == {("fake", "messages"): 2}


def test_the_view_tells_what_changed(ask):
    ask()
    prompt = ChatPrompt((SYSTEM, Message("user", "Other")))
    run = ask.pipeline.submit(GenerateRequest(prompts=(prompt,), max_tokens=64))
    for _ in range(3):
        ask.engine.turn()
    assert [row["changed"] for row in ask.engine.snapshot()["running"]] == ["messages[0]"]
    read(ask.engine, run)


# ---------------------------------------------------------------- bounds


def simple(text, tokens=0):
    prompt = ChatPrompt((Message("user", text),))
    return fingerprint_of(prompt, range(tokens), model="", build="", cache_key=CacheKey(), choice=ToolChoice())


def test_the_number_of_requests_kept_for_a_key_is_bounded():
    book = CacheBook(max_requests=4)
    for n in range(20):
        book.compare("", simple(f"{n}")).answered_as(f"m{n}")
    assert [book.compare("", simple("x"), id).was_found for id in ("m19", "m16", "m15")] == [True, False, False]


def test_long_prompts_push_others_out():
    book = CacheBook(max_hashes=100)
    book.compare("", simple("a", 40 * BLOCK)).answered_as("a")
    book.compare("", simple("b", 80 * BLOCK)).answered_as("b")
    assert not book.compare("", simple("c", 0), "a").was_found
    assert book.compare("", simple("c", 0), "b").was_found


def test_the_number_of_keys_is_bounded():
    book = CacheBook(max_keys=2)
    for owner in "abc":
        book.compare(owner, simple("x")).answered_as(owner)
    assert [book.compare(owner, simple("x"), owner).was_found for owner in "ca"] == [True, False]


def test_a_request_that_was_evicted_gets_no_name():
    book = CacheBook(max_requests=1)
    late = book.compare("", simple("x"))
    book.compare("", simple("y"))
    late.answered_as("late")
    late.ended(Usage(prompt_tokens=0))
    assert not book.compare("", simple("x"), "late").was_found


def test_odd_contents_have_fingerprints_too():
    deep = {}
    for _ in range(400):
        deep = {"a": deep}
    for prompt in (
        ChatPrompt((Message("user", "\ud800"),)),
        ChatPrompt((Message("assistant", None, reasoning="\ud800"),)),
        ChatPrompt((Message("user", "x"),), tools=(Tool("t", parameters=deep),)),
    ):
        fingerprint_of(prompt, [], model="", build="", cache_key=CacheKey(), choice=ToolChoice())


def test_a_short_chat_costs_microseconds():
    """It is done on the hub, for each request."""
    book, tokens = CacheBook(), list(range(120))
    prompt = ChatPrompt(ANSWERED)

    def once():
        started = time.process_time()
        for _ in range(100):
            made = fingerprint_of(prompt, tokens, model="", build="", cache_key=CacheKey(), choice=ToolChoice())
            str(book.compare("", made))
        return (time.process_time() - started) / 100

    assert min(once() for _ in range(10)) < 200e-6  # some 20 on a machine of 2024
