"""POST /v1/chat/completions without a socket: what is read from a body, what is refused, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocols.openai.wire_client import add_up_chat, whole_chat
from started import started

from llamasrv.domain.events import Failed, Finished, FinishReason, Text, TokenLogprob, TopLogprob, Usage
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, TextPart, ToolCall
from llamasrv.errors import EngineFailure, InvalidRequest, Unsupported
from llamasrv.protocols.common.schema import HONOURED, REFUSED, rows
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions, ChatOptions, ChatReply, ChatSchema

DATA = Path(__file__).parent / "data"
HELLO = [{"role": "user", "content": "Hello"}]
LIMITS = Limits(messages=20, parts=4, stops=4, stop_chars=8, choices=8, logit_bias=3, max_tokens=1000)
endpoint = ChatCompletions(LIMITS)


def parse(**body):
    return endpoint.parse({"messages": HELLO, **body})


def asked(**body):
    return parse(**body)[0]


def refused(**body):
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    return caught.value


# ---------------------------------------------------------------- what is read


def test_it_reads_the_least_body():
    assert parse() == (GenerateRequest(prompts=(ChatPrompt((Message("user", "Hello"),)),)), ChatOptions())


def test_null_is_absent():
    everything = {row.field: None for row in rows(ChatSchema) if row.field != "messages"}
    assert parse(**everything) == parse()


def test_unknown_fields_are_ignored():
    assert parse(client_metadata={"a": 1}, brand_new=True) == parse()


def test_ignored_fields_have_no_effect():
    ignored = {row.field: object() for row in rows(ChatSchema) if row.verdict == "ignored"}
    assert len(ignored) > 10 and parse(**ignored) == parse()


def test_sampling_that_was_not_given_stays_away():
    assert asked(temperature=0.5, model="m").sampling == {"temperature": 0.5}


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 5.0}, {"top_k": 5}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.2}, {"repeat_penalty": 1.2}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": 2**32 - 1}, {"seed": 0}),
        ({"seed": -2}, {"seed": 2**32 - 3}),
        ({"logit_bias": {"12": -100, "3": 1.5}}, {"logit_bias": ((12, -100.0), (3, 1.5))}),
        ({"logit_bias": [[12, 200], ["text", False]]}, {"logit_bias": ((12, 200.0), ("text", float("-inf")))}),
        ({"samplers": ["top-k", "temp", "top_k"]}, {"samplers": ("top_k", "temperature")}),
        (
            {"samplers": "top-k;adaptive-p", "adaptive_target": 0.4, "adaptive_decay": 0.5},
            {"samplers": ("top_k", "adaptive_p"), "adaptive_target": 0.4, "adaptive_decay": 0.5},
        ),
        ({"samplers": ["top_k", "tfs_z", "top_p", "infill"]}, {"samplers": ("top_k", "top_p", "infill")}),
        ({"samplers": "kt"}, {"samplers": ("top_k", "temperature")}),
        ({"samplers": "penalties;nucleus"}, {"samplers": ("penalties", "top_p")}),
        ({"dry_sequence_breakers": "\n"}, {"dry_sequence_breakers": ("\n",)}),
        ({"mirostat": 2, "mirostat_tau": 4}, {"mirostat": 2, "mirostat_tau": 4.0}),
        ({"min_tokens": 3, "ignore_eos": True}, {"min_tokens": 3, "ignore_eos": True}),
    ],
)
def test_sampling_is_read(given, expected):
    assert asked(**given).sampling == expected


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 7, "n_predict": 8}, 7),
        ({"max_tokens": -1}, None),
        ({"max_tokens": -1, "n_predict": 3}, 3),
        ({}, None),
    ],
)
def test_the_tightest_of_all_lengths_holds(given, expected):
    assert asked(**given).max_tokens == expected


@pytest.mark.parametrize("given, expected", [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stops_are_one_or_several(given, expected):
    assert asked(stop=given).stop == expected


def test_logprobs_are_read_with_their_number():
    given = ({}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 3})
    assert [asked(**body).logprobs for body in given] == [None, 0, 3]


def test_options_of_the_reply_are_read():
    request, options = parse(
        stream=True, stream_options={"include_usage": True, "x": 1}, n=3, logprobs=True, service_tier="auto"
    )
    assert request.stream and request.n == 3
    assert options == ChatOptions(True, True, True, 0, 3, service_tier="default")


@pytest.mark.parametrize(
    "harmless",
    [
        {"tools": []},
        {"tool_choice": "auto"},
        {"reasoning_format": "auto"},
        {"reasoning_budget": -1},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"functions": []},
        {"function_call": "auto"},
        {"grammar": ""},
        {"web_search_options": None},
        {"stream": False, "stream_options": None},
        {"top_logprobs": 0},
    ],
)
def test_values_that_ask_for_nothing_are_harmless(harmless):
    request, _ = parse(**harmless)
    assert request == parse()[0]


def test_template_variables_are_handed_on():
    prompt = asked(chat_template_kwargs={"enable_thinking": True, "x": [1]}, reasoning_effort="low").prompts[0]
    assert prompt.template_kwargs == {"reasoning_effort": "low", "enable_thinking": True, "thinking": True, "x": [1]}


@pytest.mark.parametrize(
    "given, variables",
    [
        ({"think": False}, {"enable_thinking": False, "thinking": False}),
        ({"think": "high"}, {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
        ({"enable_thinking": True, "reasoning_effort": "none"}, {"enable_thinking": True, "thinking": True}),
        ({"reasoning_effort": "minimal"}, {"reasoning_effort": "minimal"}),
        ({"thinking_budget_tokens": 0}, {"enable_thinking": False, "thinking": False}),
        ({"thinking_budget_tokens": 9}, {}),
        (
            {"think": True, "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False, "thinking": True},
        ),
    ],
)
def test_thinking_is_switched_by_many_names(given, variables):
    assert asked(**given).prompts[0].template_kwargs == variables


@pytest.mark.parametrize(
    "name",
    [
        "thinking_budget_tokens",
        "reasoning_budget_tokens",
        "reasoning_budget",
        "thinking_budget",
        "thinking_token_budget",
    ],
)
def test_a_thinking_budget_is_read(name):
    assert asked(**{name: 20}).thinking_budget == 20
    assert asked(**{name: -1}).thinking_budget is None


def test_thinking_is_ended_from_outside_only_where_that_was_asked_for():
    assert asked(reasoning_control=True).thinking_control
    assert not asked().thinking_control and not asked(reasoning_control=False).thinking_control


def test_reasoning_can_stay_in_the_content():
    assert asked().split_reasoning is None and asked(reasoning_format="auto").split_reasoning is None
    assert asked(reasoning_format="deepseek").split_reasoning is True
    assert asked(reasoning_format="none").split_reasoning is False


def test_reasoning_can_be_continued():
    messages = [*HELLO, {"role": "assistant", "content": None, "reasoning_content": "Hm"}]
    prompt = asked(messages=messages, continue_final_message="reasoning_content").prompts[0]
    assert prompt.continue_final_message and prompt.messages[-1].reasoning == "Hm"
    answered = [*HELLO, {"role": "assistant", "content": "Yes", "reasoning_content": "Hm"}]
    assert refused(messages=answered, continue_final_message="reasoning_content").param == "continue_final_message"


@pytest.mark.parametrize(
    "content, continued", [(None, "content"), ("", "content"), ([{"type": "text", "text": ""}], True)]
)
def test_an_empty_answer_behind_a_finished_thought_can_be_continued(content, continued):
    """It went on inside the thought, even where the request named the content."""
    messages = [*HELLO, {"role": "assistant", "content": content, "reasoning_content": "Hm"}]
    last = asked(messages=messages, continue_final_message=continued).prompts[0].messages[-1]
    assert last.content == (TextPart(""),) and last.reasoning == "Hm"


def test_no_effort_switches_thinking_off():
    prompt = asked(reasoning_effort="none").prompts[0]
    assert prompt.template_kwargs["enable_thinking"] is False


def test_the_final_message_can_be_continued():
    messages = [*HELLO, {"role": "assistant", "content": "Once"}]
    prompt = asked(messages=messages, continue_final_message=True).prompts[0]
    assert prompt.continue_final_message and not prompt.add_generation_prompt


# ---------------------------------------------------------------- messages


def read(*messages):
    return asked(messages=list(messages)).prompts[0].messages


@pytest.mark.parametrize(
    "wire, message",
    [
        ({"role": "user", "content": ""}, Message("user", "")),
        ({"role": "developer", "content": "x"}, Message("developer", "x")),
        ({"role": "user", "content": "x", "name": "Ann"}, Message("user", "x", name="Ann")),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, Message("user", "x")),
        (
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
            Message("user", (TextPart("x"), TextPart("y"))),
        ),
        ({"role": "assistant", "content": None}, Message("assistant", None)),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, Message("assistant", "no")),
        ({"role": "assistant", "content": "x", "reasoning_content": "r"}, Message("assistant", "x", reasoning="r")),
        ({"role": "assistant", "content": "x", "reasoning": "r"}, Message("assistant", "x", reasoning="r")),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            Message("assistant", None, tool_calls=(ToolCall("c", "f", "{}"),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            Message("assistant", None, tool_calls=(ToolCall("call_0", "f", '{"a":1}'),)),
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            Message("assistant", None, tool_calls=(ToolCall("call_0", "f", "{}"),)),
        ),
        ({"role": "assistant", "content": "x", "tool_calls": None, "refusal": None}, Message("assistant", "x")),
    ],
)
def test_messages_are_read(wire, message):
    assert read(wire) == (message,)


def test_a_tools_answer_follows_its_call():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    answer = {"role": "tool", "tool_call_id": "c", "content": "42"}
    assert read(*HELLO, call, answer)[-1] == Message("tool", "42", tool_call_id="c")


@pytest.mark.parametrize(
    "messages, param, code",
    [
        ("Hello", "messages", "invalid_type"),
        ([], "messages", "empty_array"),
        (HELLO * 21, "messages", "invalid_value"),
        (["Hello"], "messages[0]", "invalid_type"),
        ([*HELLO, {"content": "x"}], "messages[1].role", "missing_required_parameter"),
        ([*HELLO, {"role": "robot", "content": "x"}], "messages[1].role", "invalid_value"),
        ([{"role": 1, "content": "x"}], "messages[0].role", "invalid_type"),
        ([{"role": "user"}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": None}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": 3}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": {}}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type", "invalid_value"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "invalid_type"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]", "invalid_type"),
        ([{"role": "user", "content": ["x"] * 5}], "messages[0].content", "invalid_value"),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name", "invalid_type"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls", "invalid_type"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function", "invalid_type"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
            "messages[0].tool_calls[0].function.name",
            "invalid_type",
        ),
        ([*HELLO, {"role": "tool", "tool_call_id": "c", "content": "x"}], "messages[1].role", "invalid_value"),
    ],
)
def test_wrong_messages_are_named(messages, param, code):
    error = refused(messages=messages)
    assert (error.param, error.code, error.status) == (param, code, 400)
    assert f"'{param}'" in error.message


@pytest.mark.parametrize("kind", ["input_video", "video_url"])
def test_media_that_the_model_lacks_is_refused(kind):
    error = refused(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": kind, kind: {}}]}])
    assert isinstance(error, Unsupported)
    assert error.param == "messages[0].content[1]" and kind in error.message


# ---------------------------------------------------------------- what is refused


def test_messages_are_required():
    with pytest.raises(InvalidRequest) as caught:
        endpoint.parse({"model": "m"})
    assert (caught.value.param, caught.value.code) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize(
    "body, param",
    [
        ({"model": 3}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": True}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1e30}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": "2"}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 1e300}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_completion_tokens": "5"}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"stop": 3}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": "123456789"}, "stop"),
        ({"logit_bias": {"x" * 20: 1, "1": "a"}}, "logit_bias.1"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
        ({"logit_bias": {str(i): 0 for i in range(4)}}, "logit_bias"),
        ({"logit_bias": [["x" * 65, 1]]}, "logit_bias[0]"),
        ({"logit_bias": {"x" * 65: 1}}, "logit_bias." + "x" * 20),
        ({"logit_bias": [[1]]}, "logit_bias[0]"),
        ({"logit_bias": [[1, True]]}, "logit_bias[0]"),
        ({"logit_bias": [[1, 1e300]]}, "logit_bias[0]"),
        ({"logit_bias": "x"}, "logit_bias"),
        ({"dry_sequence_breakers": ["x" * 33]}, "dry_sequence_breakers[0]"),
        ({"dry_sequence_breakers": [":"] * 17}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["x" * 30] * 5}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["\n", "e"]}, "dry_sequence_breakers[1]"),
        ({"dry_sequence_breakers": " "}, "dry_sequence_breakers[0]"),
        ({"samplers": ["no_such"]}, "samplers[0]"),
        ({"samplers": "kz"}, "samplers[1]"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {str(i): 1 for i in range(65)}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": "reasoning_content"}, "continue_final_message"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": 3}, "tool_choice"),
        ({"modalities": "text"}, "modalities"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ],
)
def test_wrong_values_are_named(body, param):
    error = refused(**body)
    assert error.status == 400 and error.param == param
    assert f"'{param}'" in error.message


@pytest.mark.parametrize(
    "body, param",
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"modalities": ["text", "video"]}, "modalities[1]"),
        ({"modalities": ["text", "audio"], "audio": {}}, "modalities"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
    ],
)
def test_what_cannot_be_kept_is_refused(body, param):
    error = refused(**body)
    assert isinstance(error, Unsupported)
    assert (error.param, error.code) == (param, "unsupported_parameter")


def test_continuing_and_a_new_turn_exclude_each_other():
    messages = [*HELLO, {"role": "assistant", "content": "Once"}]
    assert refused(messages=messages, continue_final_message=True, add_generation_prompt=True).param


def test_every_field_says_what_becomes_of_it():
    verdicts = {row.verdict for row in rows(ChatSchema)}
    assert verdicts == {"honoured", "ignored", "refused"}
    assert all(row.note for row in rows(ChatSchema) if row.verdict == REFUSED)
    assert {"messages", "temperature", "stop"} <= {row.field for row in rows(ChatSchema) if row.verdict == HONOURED}


# ---------------------------------------------------------------- what is written


def reply(**options):
    made = started(ChatReply(ChatOptions(**options)), model="some-model", fingerprint="fp_0")
    made.id, made.created = "chatcmpl-0", 1700000000
    return made


def whole_of(reply, events):
    """What is told without streaming."""
    reply.fold(events)
    return reply.whole()


def scored(piece, logprob, *others):
    top = tuple(TopLogprob(i, p, value) for i, (p, value) in enumerate(((piece, logprob), *others)))
    return TokenLogprob(0, piece, logprob, top)


USAGE = Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=3)
STOP = FinishReason.STOP
TRANSCRIPTS = {
    "plain": ({}, [Text(0, "Hel"), Text(0, 'lo "wörld"\n\u2028'), Finished(0, STOP), USAGE]),
    "usage": ({"include_usage": True}, [Text(0, "Hi"), Finished(0, FinishReason.LENGTH), USAGE]),
    "nothing": ({}, [Finished(0, STOP), USAGE]),
    "choices": (
        {"num_choices": 2},
        [
            Text(1, "b"),
            Text(0, "a"),
            Finished(1, FinishReason.STOP_STRING, "x"),
            Text(0, "A"),
            Finished(0, STOP),
            USAGE,
        ],
    ),
    "logprobs": (
        {"logprobs": True, "top_logprobs": 2},
        [
            Text(0, "é", (scored(b"\xc3", -0.5, (b"a", -1.0)), scored(b"\xa9", -0.25, (b"b", float("-inf"))))),
            Text(0, "!", (scored(b"!", -0.125, (b"?", -2.0), (b".", -3.0)),)),
            Finished(0, FinishReason.CONTEXT),
            USAGE,
        ],
    ),
    "service_tier": ({"service_tier": "default"}, [Text(0, "Hi"), Finished(0, STOP), USAGE]),
    "failure": ({}, [Text(0, "Hel"), Failed(0, EngineFailure("The model failed.")), USAGE]),
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_it_writes_what_the_transcript_says(name):
    options, events = TRANSCRIPTS[name]
    golden = (DATA / f"chat_{name}.txt").read_text("utf-8")
    chunks = reply(**options).chunks(events)
    written = "".join(f"{chunk.decode()}\n" for chunk in chunks)
    if name != "failure":
        written += "\n" + whole_of(reply(**options), events).decode() + "\n"
    assert written == golden


@pytest.mark.parametrize("name", sorted(set(TRANSCRIPTS) - {"failure"}))
def test_a_stream_adds_up_to_the_whole(name):
    options, events = TRANSCRIPTS[name]
    include_usage = options.get("include_usage", False)
    streamed, usage = add_up_chat(reply(**options).chunks(events), include_usage=include_usage)
    whole, whole_usage = whole_chat(whole_of(reply(**options), events))
    assert streamed == whole
    assert not include_usage or usage == whole_usage


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=8)), max_size=12), st.integers(0, 12), st.booleans())
def test_a_stream_adds_up_wherever_it_is_cut(said, cut, include_usage):
    events = [Text(i, text) for i, text in said] + [Finished(i, STOP) for i in range(3)] + [USAGE]
    options = {"num_choices": 3, "include_usage": include_usage}
    stream = reply(**options)
    chunks = stream.chunks(events[:cut]) + stream.chunks(events[cut:])
    whole = whole_chat(whole_of(reply(**options), events))[0]
    assert add_up_chat(chunks, include_usage=include_usage)[0] == whole


def test_a_stream_that_may_be_a_call_begins_with_no_text():
    """An empty text was shown as a part of its own before the call."""
    for tools, content in ((False, ""), (True, None)):
        first = json.loads(reply(tools=tools).chunks([Text(0, "Hi")])[0])
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": content}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert parse(tools=[tool])[1].tools
    assert not parse(tools=[tool], tool_choice="none")[1].tools and not parse()[1].tools


def test_a_failed_stream_says_nothing_after_the_error():
    stream = reply(num_choices=2)
    chunks = stream.chunks([Text(0, "a"), Failed(0, EngineFailure("broken")), Text(1, "b"), Finished(1, STOP)])
    assert stream.failed
    assert json.loads(chunks[-1]) == {
        "error": {"message": "broken", "type": "server_error", "param": None, "code": "engine_failure"}
    }


def test_ids_are_never_the_same():
    ids = {ChatReply(ChatOptions()).id for _ in range(100)}
    assert len(ids) == 100


def test_options_are_plain_values():
    """What a stream is written from must not hold the request."""
    assert all(isinstance(value, (bool, int, str, frozenset, tuple, dict)) for value in parse(service_tier="auto")[1])
    assert parse()[0]._asdict()


def test_no_character_looks_like_the_end_of_a_line():
    """Clients that cut a stream with `str.splitlines` would take U+2028, U+2029 or U+0085 for an end."""
    text = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1ee"
    for chunk in reply(logprobs=True).chunks([Text(0, text, (scored(text.encode(), -1.0),))]):
        assert len(chunk.decode().splitlines()) == 1
    assert json.loads(chunk)["choices"][0]["delta"]["content"] == text
