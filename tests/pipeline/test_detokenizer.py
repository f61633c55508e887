"""What a model writes in a chat, as events: reasoning, calls and content, with their tokens counted and scored."""

from __future__ import annotations

import pytest
from serving import check_no_leaks, open_engine, pipeline_on, read

from llamasrv.chat.families import GENERIC_CALLS, THINK
from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.parser import Parser
from llamasrv.domain.events import (
    Finished,
    FinishReason,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from llamasrv.domain.request import ChatPrompt, Content, GenerateRequest, Message, TextPrompt, Tool, ToolChoice
from llamasrv.engine.base.channels import Delta
from llamasrv.errors import InvalidRequest
from llamasrv.pipeline.detokenizer import ChatDetokenizer

GREEDY = {"temperature": 0.0}
# The fake model says "You said: ..." after <|im_start|>assistant and a line; here these words are the thinking's.
THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
    "{# <think> </think> #}"
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]}
TOOLS = (Tool("count", "counts", SCHEMA), Tool("ping"))


@pytest.fixture
def engine():
    engine = open_engine(context=2048, num_cells=4096)
    yield engine
    engine.turn()
    check_no_leaks(engine)


@pytest.fixture
def run(engine):
    def go(text, *, template=None, tools=(), **request):
        pipeline = pipeline_on(engine, **({"chat_template": template} if template else {}))
        prompt = ChatPrompt((Message("user", text),), tools=tools)
        request = {"sampling": GREEDY, **request}
        return read(engine, pipeline.submit(GenerateRequest((prompt,), **request)))

    return go


def said(events):
    return "".join(event.text for event in events if isinstance(event, Text))


def thought(events):
    return "".join(event.text for event in events if isinstance(event, Reasoning))


def calls(events):
    made = [[event.name, ""] for event in events if isinstance(event, ToolCallStart)]
    for event in events:
        if isinstance(event, ToolCallArguments):
            made[event.call][1] += event.fragment
    return [tuple(call) for call in made]


def finish(events):
    return next(event for event in events if isinstance(event, Finished)).reason


# ---------------------------------------------------------------- calls


def test_a_call_is_reported_as_one(run):
    events = run('<tool_call>\n{"name": "count", "arguments": {"n": 3}}\n</tool_call>', tools=TOOLS)
    assert said(events).strip() == "You said:"
    assert calls(events) == [("count", '{"n": 3}')]
    assert finish(events) is FinishReason.TOOL_CALLS


def test_without_tools_nothing_is_a_call(run):
    text = '<tool_call>\n{"name": "count", "arguments": {"n": 3}}\n</tool_call>'
    assert said(run(text)) == "You said: " + text
    assert said(run(text, tools=TOOLS, tool_choice=ToolChoice("none"))) == "You said: " + text


def test_tools_that_may_not_be_called_are_left_out_of_the_prompt(engine):
    served = pipeline_on(engine).open(None)
    prompt = ChatPrompt((Message("user", "x"),), tools=TOOLS)
    without = served.encode(ChatPrompt((Message("user", "x"),)))
    assert served.encode(prompt, ToolChoice("none")) == without != served.encode(prompt)


def test_a_call_that_is_cut_off_is_no_reason_to_call(run):
    events = run('<tool_call>\n{"name": "count", "arguments": {"n": 3', tools=TOOLS, max_tokens=48)
    assert calls(events)[0][0] == "count" and not calls(events)[0][1].endswith("}")
    assert finish(events) is FinishReason.LENGTH


def test_a_call_that_must_come_comes(run):
    events = run("Hello", tools=TOOLS, tool_choice=ToolChoice("required", ("count",), parallel=False))
    ((name, arguments),) = calls(events)
    assert name == "count" and arguments.startswith("{") and not said(events)
    assert finish(events) is FinishReason.TOOL_CALLS


def test_only_allowed_tools_are_called(run):
    text = '<tool_call>\n{"name": "count", "arguments": {"n": 3}}\n</tool_call>'
    events = run(text, tools=TOOLS, tool_choice=ToolChoice("auto", ("ping",)))
    assert {name for name, _ in calls(events)} == {"ping"}


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("auto", ("nobody",))])
def test_a_choice_without_its_tool_is_refused(run, choice):
    with pytest.raises(InvalidRequest) as caught:
        run("Hello", tools=() if choice.mode == "required" else TOOLS, tool_choice=choice)
    assert caught.value.param == "tool_choice"


# ---------------------------------------------------------------- reasoning


def test_thinking_is_reported_separately(run):
    events = run("</think>\n\nHi", template=THINKS)
    assert (thought(events), said(events)) == (":", "Hi")  # the fake model takes the mark for its first words
    assert events[-1].reasoning_tokens > 4


def test_thinking_can_stay_in_the_text(run):
    events = run("</think>Hi", template=THINKS, split_reasoning=False)
    assert not thought(events) and "</think>Hi" in said(events)


def test_a_budget_closes_the_block(run):
    events = run("a very long way to think about it", template=THINKS, thinking_budget=6, max_tokens=60)
    assert 1 <= len(thought(events)) <= 6 and said(events)
    assert events[-1].reasoning_tokens <= 6 + len("</think>") + 2


def test_a_form_holds_behind_thinking(run):
    content = Content("choice", ("yes", "no"))
    events = run("Hello", template=THINKS, content=content, thinking_budget=5)
    assert said(events) in ("yes", "no") and thought(events)


def test_a_form_and_calls_go_together(run):
    events = run("Hello", tools=TOOLS, content=Content("json", SCHEMA))
    assert calls(events) or said(events).startswith("{")


# ---------------------------------------------------------------- raw prompts


def test_a_raw_prompt_has_a_form_but_nothing_is_read_into_it(engine):
    pipeline = pipeline_on(engine)
    request = GenerateRequest((TextPrompt("x"),), sampling=GREEDY, content=Content("regex", "<think>[ab]{4}"))
    assert said(read(engine, pipeline.submit(request)))[:7] == "<think>"


# ---------------------------------------------------------------- log-probabilities


def feed(parsed, pieces):
    events = []
    for piece in pieces:
        parsed.hold(Delta(0, 0, piece, TokenLogprob(0, piece, -1.0)), events)
    parsed.finish(0, events)
    return events


def parsed(tools=()):
    return ChatDetokenizer(Parser(ChatFormat("x", reasoning=THINK, calls=GENERIC_CALLS), tools=tools), {})


@pytest.mark.parametrize(
    "pieces",
    [
        [b"<think>", b"\n", b"Hm", b" so", b"\n", b"</think>", b"\n\n", b"Yes", b", \xc3", b"\xa9", b"!"],
        [b"Yes", b" <", b"b", b"> ", b"no"],
        [b"<th", b"ink>Hm", b"</think>", b"Yes"],
    ],
)
def test_log_probabilities_stay_with_their_text(pieces):
    events = feed(parsed(TOOLS), pieces)
    for event in events:
        if isinstance(event, Text):
            assert b"".join(entry.piece for entry in event.logprobs).decode() == event.text
    assert said(events)


def test_marks_have_no_log_probabilities():
    events = feed(parsed(), [b"<think>", b"Hm", b"</think>", b"Yes"])
    assert [entry.piece for e in events if isinstance(e, Text) for entry in e.logprobs] == [b"Yes"]


# ---------------------------------------------------------------- cost


def test_a_parser_that_can_find_nothing_more_is_left_behind(monkeypatch):
    """Plain chat costs what raw text costs, but for the first words."""
    choice, events = parsed(), []
    choice.say([Delta(0, 0, b"Hello")], events)
    choice.say([Delta(0, 0, b" <think>"), Delta(0, 0, b" you")], events)
    monkeypatch.setattr(Parser, "feed", lambda self, text: pytest.fail("it is still asked"))
    choice.say([Delta(0, 0, b" again")], events)
    assert said(events) == "Hello <think> you again"


def test_control_tokens_that_are_marks_are_read():
    choice, events = ChatDetokenizer(Parser(ChatFormat("x", reasoning=THINK)), {7: b"<think>", 8: b"</think>"}), []
    choice.say([Delta(0, 7, b""), Delta(0, 1, b"Hm"), Delta(0, 8, b""), Delta(0, 9, b""), Delta(0, 1, b"Yes")], events)
    choice.finish(0, events)
    assert (thought(events), said(events), choice.num_reasoning) == ("Hm", "Yes", 3)
