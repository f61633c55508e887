"""Google's generateContent: what becomes of a request, and what is written of its events."""

from __future__ import annotations

import base64
import json

import pytest
from marshmallow import ValidationError
from started import started

from llamasrv.domain.events import (
    Failed,
    Finished,
    FinishReason,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
    TopLogprob,
    Usage,
)
from llamasrv.domain.request import Content, MediaPart, Message, TextPart, Tool, ToolCall, ToolChoice
from llamasrv.errors import ContextTooLong, EngineFailure, InvalidRequest, QueueFull, Unsupported
from llamasrv.protocols.errors import GEMINI, dialect
from llamasrv.protocols.gemini.contents import seal
from llamasrv.protocols.gemini.generate import GenerateContent, PathOptions
from llamasrv.protocols.gemini.models import GeminiModel, list_body, page_of
from llamasrv.protocols.gemini.reply import GeminiReply, GeminiReplyOptions
from llamasrv.protocols.gemini.schemas import json_schema
from llamasrv.protocols.limits import Limits

ENDPOINT = GenerateContent(Limits())
HELLO = [{"role": "user", "parts": [{"text": "Hello"}]}]
CALL = {"functionCall": {"name": "clock", "args": {"city": "Bern"}}}
RESULT = {"functionResponse": {"name": "clock", "response": {"result": "12:00"}}}
CLOCK = {"functionDeclarations": [{"name": "clock", "description": "d", "parameters": {"type": "OBJECT"}}]}


def parse(contents=HELLO, *, stream=False, **body):
    return ENDPOINT.parse({"contents": contents, **body}, PathOptions("m", stream))


def messages(*contents, **body):
    return parse(list(contents), **body)[0].prompts[0].messages


def user(*parts):
    return {"role": "user", "parts": list(parts)}


def model(*parts):
    return {"role": "model", "parts": list(parts)}


def configured(**config):
    return parse(generationConfig=config)[0]


def refused(error=InvalidRequest, **body):
    with pytest.raises(error) as caught:
        ENDPOINT.parse({"contents": HELLO, **body}, PathOptions("m"))
    return caught.value.param


# ---------------------------------------------------------------- contents


def test_turns_become_messages():
    assert messages(user({"text": "a"}), model({"text": "b"}), user({"text": "c"}, {"text": "d"})) == (
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", (TextPart("c"), TextPart("d"))),
    )
    system = {"parts": [{"text": "Be brief."}]}
    assert messages(HELLO[0], systemInstruction=system)[0] == Message("system", "Be brief.")


def test_what_stands_alone_needs_no_array_and_names_have_two_spellings():
    body = {
        "contents": {"parts": {"text": "Hello"}},
        "system_instruction": {"parts": {"text": "x"}},
        "generation_config": {"max_output_tokens": 5, "top_k": 3},
    }
    request, _ = ENDPOINT.parse(body, PathOptions("m"))
    assert request.prompts[0].messages == (Message("system", "x"), Message("user", "Hello"))
    assert (request.max_tokens, request.sampling) == (5, {"top_k": 3})


def test_what_the_model_said_in_many_chunks_is_one_turn():
    """Google's own client keeps each chunk of a stream as a content: the empty one at the end stood between a call and
    its result, and each word became a turn."""
    chunks = [
        model(CALL),
        model({"text": ""}),
        user(RESULT),
        model({"text": "It is"}),
        model({"text": " noon."}),
        HELLO[0],
    ]
    calling, result, answer, _ = messages(*chunks)
    (call,) = calling.tool_calls
    assert result == Message("tool", "12:00", name="clock", tool_call_id=call.id)
    assert answer == Message("assistant", "It is noon.")


def test_results_find_their_calls_by_id_or_by_name_and_order():
    one, two = ({"functionCall": {"id": id, "name": "clock", "args": {}}} for id in "ab")
    answered = {"functionResponse": {"id": "b", "name": "clock", "response": {"output": {"h": 1}}}}
    _, first, second, text = messages(model(one, two), user(answered, RESULT, {"text": "so?"}))
    assert (first.tool_call_id, first.content) == ("b", '{"h":1}')
    assert (second.tool_call_id, second.content) == ("a", "12:00")
    assert text == Message("user", "so?")
    assert refused(contents=[user(RESULT)]) == "contents[0].parts[0].functionResponse"


def test_thoughts_come_back_as_parts_or_in_the_signature_of_a_call():
    said, *_ = messages(model({"text": "hm", "thought": True}, {"text": "yes"}), HELLO[0])
    assert said == Message("assistant", "yes", reasoning="hm")
    for signature in (seal("höm?>"), seal("höm?>").replace("+", "-").replace("/", "_").rstrip("=")):
        said, *_ = messages(model({**CALL, "thoughtSignature": signature}), user(RESULT))
        assert said.reasoning == "höm?>"
    said, *_ = messages(model({**CALL, "thoughtSignature": base64.b64encode(b"\xff another's").decode()}), user(RESULT))
    assert said.reasoning is None


def test_images_sounds_and_texts_are_read_from_base64_and_by_url():
    data = base64.b64encode(b"abc").decode()
    (message,) = messages(
        user(
            {"inlineData": {"mimeType": "image/png", "data": data}},
            {"inline_data": {"mime_type": "audio/wav", "data": data}},
            {"fileData": {"mimeType": "image/png", "fileUri": "https://x/y.png"}},
            {"inlineData": {"mimeType": "text/plain", "data": data}},
        )
    )
    assert message.content == (
        MediaPart("image", b"abc"),
        MediaPart("audio", b"abc"),
        MediaPart("image", url="https://x/y.png"),
        TextPart("abc"),
    )
    pdf = user({"inlineData": {"mimeType": "application/pdf", "data": data}})
    assert refused(Unsupported, contents=[pdf]) == "contents[0].parts[0].inlineData.mimeType"


def test_an_answer_that_was_begun_is_continued():
    prompt = parse([HELLO[0], model({"text": "Well"})])[0].prompts[0]
    assert prompt.continue_final_message and not prompt.add_generation_prompt
    assert refused(contents=[HELLO[0], model(CALL)]) == "contents"


@pytest.mark.parametrize(
    "contents, param",
    [
        ("x", "contents"),
        ([], "contents"),
        ([{"role": "assistant", "parts": []}], "contents[0].role"),
        ([{"parts": "x"}], "contents[0].parts"),
        ([user({})], "contents[0].parts[0]"),
        ([user({"text": "a", "functionCall": {}})], "contents[0].parts[0]"),
        ([user({"text": 1})], "contents[0].parts[0].text"),
        ([user(CALL)], "contents[0].parts[0]"),
        ([model({"executableCode": {}})], "contents[0].parts[0]"),
        ([model({"functionCall": {"name": "f", "args": []}})], "contents[0].parts[0].functionCall.args"),
    ],
)
def test_what_is_wrong_in_a_content_is_named(contents, param):
    assert refused(contents=contents) == param


# ---------------------------------------------------------------- configuration


def test_the_configuration_reaches_the_engine():
    request = configured(
        temperature=0.5,
        topP=0.9,
        topK=40.0,
        candidateCount=2,
        maxOutputTokens=7,
        stopSequences=["x"],
        seed=-1,
        presencePenalty=1,
        frequencyPenalty=-1,
        responseLogprobs=True,
        logprobs=3,
    )
    assert request.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 0xFFFFFFFE,
        "presence_penalty": 1,
        "frequency_penalty": -1,
    }
    assert (request.n, request.max_tokens, request.stop, request.logprobs) == (2, 7, ("x",), 3)
    assert (request.model, request.stream) == ("m", False) and parse(stream=True)[0].stream


@pytest.mark.parametrize(
    "config, param",
    [
        ({"temperature": 3}, "generationConfig.temperature"),
        ({"topK": "x"}, "generationConfig.topK"),
        ({"logprobs": 2}, "generationConfig.logprobs"),
        ({"responseMimeType": "image/png"}, "generationConfig.responseMimeType"),
        ({"responseMimeType": "text/x.enum"}, "generationConfig.responseSchema"),
        ({"responseSchema": {"type": "DATE"}}, "generationConfig.responseSchema.type"),
        ({"thinkingConfig": {"thinkingLevel": "HUGE"}}, "generationConfig.thinkingConfig.thinkingLevel"),
        ({"thinkingConfig": {"thinkingBudget": -2}}, "generationConfig.thinkingConfig.thinkingBudget"),
        (5, "generationConfig"),
    ],
)
def test_what_is_wrong_in_the_configuration_is_named(config, param):
    assert refused(generationConfig=config) == param


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"googleSearch": {}}]},
        {"generationConfig": {"responseModalities": ["IMAGE"]}},
        {"generationConfig": {"responseFormat": [{"image": {}}]}},
        {"generationConfig": {"speechConfig": {"multiSpeakerVoiceConfig": {"speakerVoiceConfigs": []}}}},
    ],
)
def test_what_cannot_be_done_is_refused(body):
    refused(Unsupported, **body)


def test_thinking_is_switched_bounded_and_shown():
    def thinking(**config):
        request, options = parse(generationConfig={"thinkingConfig": config})
        return request.prompts[0].template_kwargs.get("enable_thinking"), request.thinking_budget, options.thoughts

    assert thinking() == (None, None, False)
    assert thinking(thinkingBudget=0) == (False, None, False)
    assert thinking(thinkingBudget=-1, includeThoughts=True) == (None, None, True)
    assert thinking(thinkingBudget=9) == (True, 9, False)
    assert thinking(thinkingLevel="HIGH")[0] is True
    kwargs = parse(generationConfig={"thinkingConfig": {"thinkingLevel": "low"}})[0].prompts[0].template_kwargs
    assert kwargs["reasoning_effort"] == "low"


SCHEMA = {"type": "OBJECT", "properties": {"b": {"type": "STRING"}, "a": {"type": "INTEGER", "format": "int32"}}}


def test_the_answer_may_have_to_fit_a_form():
    plain = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
    assert configured(responseMimeType="application/json").content == Content("json", None)
    assert configured(responseMimeType="application/json", responseSchema=SCHEMA).content == Content("json", plain)
    assert configured(responseMimeType="application/json", responseJsonSchema=plain).content == Content("json", plain)
    enum = {"type": "STRING", "enum": ["yes", "no"]}
    assert configured(responseMimeType="text/x.enum", responseSchema=enum).content == Content("choice", ("yes", "no"))
    assert configured(responseMimeType="text/plain").content is None


def test_googles_schemas_become_json_schemas():
    wire = {
        "type": "OBJECT",
        "propertyOrdering": ["b", "a"],
        "required": ["a"],
        "properties": {
            "a": {"type": "ARRAY", "items": {"type": "NUMBER", "format": "float", "minimum": 1}, "minItems": "2"},
            "b": {"type": "STRING", "nullable": True, "format": "date-time", "description": "when", "example": "x"},
            "c": {"any_of": [{"type": "BOOLEAN"}, {"type": "STRING", "enum": ["x"]}]},
        },
    }
    found = json_schema(wire)
    assert list(found["properties"]) == ["b", "a", "c"]
    assert found == {
        "type": "object",
        "required": ["a"],
        "properties": {
            "a": {"type": "array", "items": {"type": "number", "minimum": 1}, "minItems": 2},
            "b": {"description": "when", "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
            "c": {"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["x"]}]},
        },
    }


def test_keywords_of_json_schema_are_read_in_googles_too():
    """A schema in `additionalProperties` kept its types in capitals, which no grammar takes; `allOf` and others were
    dropped without a word."""
    a, plain = (
        {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}},
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
        },
    )
    for name in ("additionalProperties", "not", "items", "unevaluatedProperties"):
        assert json_schema({"type": "OBJECT", name: a}) == {"type": "object", name: plain}
    for name in ("allOf", "oneOf", "anyOf", "prefixItems"):
        assert json_schema({name: [a, a]}) == {name: [plain, plain]}
    assert json_schema({"patternProperties": {"^x": a}}) == {"patternProperties": {"^x": plain}}
    assert json_schema({**a, "additionalProperties": False}) == {**plain, "additionalProperties": False}
    assert json_schema({"const": 1, "exclusiveMinimum": 0}) == {"const": 1, "exclusiveMinimum": 0}
    with pytest.raises(ValidationError):
        json_schema({"allOf": [{"type": "WAT"}]})


# ---------------------------------------------------------------- tools


def test_functions_are_declared_in_either_kind_of_schema():
    declared = [
        {"name": "f", "parameters": SCHEMA},
        {"name": "g", "parametersJsonSchema": {"type": "object"}},
        {"name": "h"},
    ]
    tools = parse(tools=[{"functionDeclarations": declared}])[0].prompts[0].tools
    assert [tool.name for tool in tools] == ["f", "g", "h"]
    assert list(tools[0].parameters["properties"]) == ["b", "a"] and tools[1] == Tool("g", "", {"type": "object"})


@pytest.mark.parametrize(
    "config, choice",
    [
        ({}, ToolChoice()),
        ({"mode": "AUTO"}, ToolChoice()),
        ({"mode": "ANY"}, ToolChoice("required")),
        ({"mode": "any", "allowedFunctionNames": ["clock"]}, ToolChoice("required", ("clock",))),
        ({"mode": "NONE"}, ToolChoice("none")),
        ({"mode": "VALIDATED"}, ToolChoice("auto")),
    ],
)
def test_a_function_may_or_must_be_called(config, choice):
    assert parse(tools=[CLOCK], toolConfig={"functionCallingConfig": config})[0].tool_choice == choice


@pytest.mark.parametrize(
    "tools, config, param",
    [
        ([CLOCK], {"mode": "SOME"}, "toolConfig.functionCallingConfig.mode"),
        ([], {"mode": "ANY"}, "toolConfig.functionCallingConfig.mode"),
        ([CLOCK], {"allowedFunctionNames": ["x"]}, "toolConfig.functionCallingConfig.allowedFunctionNames[0]"),
        ([CLOCK, CLOCK], {}, "tools[1].functionDeclarations[0].name"),
        ([{"functionDeclarations": [{}]}], {}, "tools[0].functionDeclarations[0].name"),
    ],
)
def test_what_is_wrong_with_tools_is_named(tools, config, param):
    assert refused(tools=tools, toolConfig={"functionCallingConfig": config}) == param


def test_only_a_prompt_is_counted_as_such_or_inside_a_request():
    inside = {"generateContentRequest": {"model": "models/m", "contents": HELLO}}
    assert ENDPOINT.parse_count(inside, PathOptions("m")) == ENDPOINT.parse_count({"contents": HELLO}, PathOptions("m"))


# ---------------------------------------------------------------- replies

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=7, reasoning_tokens=2)
EVENTS = [
    Reasoning(0, "Hm, "),
    Reasoning(0, "well."),
    Text(0, "Let me "),
    Text(0, "look."),
    ToolCallStart(0, 0, "call_a", "clock"),
    ToolCallArguments(0, 0, '{"city":'),
    ToolCallArguments(0, 0, '"Bern"}'),
    ToolCallStart(0, 1, "call_b", "now"),
    Finished(0, FinishReason.TOOL_CALLS),
    USAGE,
]
CALLS = [
    {
        "functionCall": {"id": "call_a", "name": "clock", "args": {"city": "Bern"}},
        "thoughtSignature": seal("Hm, well."),
    },
    {"functionCall": {"id": "call_b", "name": "now", "args": {}}},
]


def whole(events, **options):
    reply = started(GeminiReply(GeminiReplyOptions(**options)))
    reply.fold(events)
    return json.loads(reply.whole())


def streamed(events, **options):
    """The parts of the first candidate as they came, and the last chunk."""
    reply = started(GeminiReply(GeminiReplyOptions(**options)))
    chunks = [json.loads(chunk) for event in events for chunk in reply.chunks([event])]
    assert {chunk["modelVersion"] for chunk in chunks} == {"m"} and len({chunk["responseId"] for chunk in chunks}) == 1
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    return parts, chunks[-1]


@pytest.mark.parametrize("shown", [False, True])
def test_a_reply_is_reported_whole(shown):
    body = whole(EVENTS, thoughts=shown)
    (candidate,) = body["candidates"]
    thoughts = [{"text": "Hm, well.", "thought": True}] if shown else []
    assert candidate["content"] == {"role": "model", "parts": [*thoughts, {"text": "Let me look."}, *CALLS]}
    assert (candidate["finishReason"], candidate["index"], body["modelVersion"]) == ("STOP", 0, "m")
    assert body["usageMetadata"] == {
        "promptTokenCount": 10,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 17,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 10}],
    }


@pytest.mark.parametrize("shown", [False, True])
def test_a_stream_tells_the_same_piece_by_piece(shown):
    parts, last = streamed(EVENTS, thoughts=shown)
    thoughts = [{"text": "Hm, ", "thought": True}, {"text": "well.", "thought": True}] if shown else []
    assert parts == [*thoughts, {"text": "Let me "}, {"text": "look."}, *CALLS, {"text": ""}]
    assert last["candidates"][0]["finishReason"] == "STOP"
    assert last["usageMetadata"] == whole(EVENTS)["usageMetadata"]


def test_a_call_that_was_cut_off_is_not_reported():
    cut = [
        ToolCallStart(0, 0, "call_a", "clock"),
        ToolCallArguments(0, 0, '{"ci'),
        Finished(0, FinishReason.LENGTH),
        USAGE,
    ]
    parts, last = streamed(cut)
    assert parts == [{"text": ""}] and last["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert whole(cut)["candidates"][0]["content"]["parts"] == [{"text": ""}]


def test_candidates_have_their_index():
    events = [Text(1, "b"), Finished(1, FinishReason.STOP), Text(0, "a"), Finished(0, FinishReason.LENGTH), USAGE]
    _, last = streamed(events)
    assert [(c["index"], c["finishReason"]) for c in last["candidates"]] == [(0, "MAX_TOKENS"), (1, "STOP")]
    assert [c["content"]["parts"][0]["text"] for c in whole(events)["candidates"]] == ["a", "b"]


def test_log_probabilities_are_reported_with_their_alternatives():
    entry = TokenLogprob(5, b"a", -0.5, (TopLogprob(5, b"a", -0.5), TopLogprob(6, b"b", -1.0)))
    events = [Text(0, "a", (entry,)), Finished(0, FinishReason.STOP), USAGE]
    told = {
        "chosenCandidates": [{"token": "a", "tokenId": 5, "logProbability": -0.5}],
        "topCandidates": [{"candidates": [{"token": "a", "tokenId": 5, "logProbability": -0.5}]}],
    }
    (candidate,) = whole(events, top_logprobs=1)["candidates"]
    assert candidate["logprobsResult"] == told and candidate["avgLogprobs"] == -0.5
    reply = started(GeminiReply(GeminiReplyOptions(top_logprobs=1)))
    assert json.loads(reply.chunks(events)[0])["candidates"][0]["logprobsResult"] == told


def test_in_a_silence_an_empty_text_is_reported():
    """Google's client stumbles over the comments that other streams get."""
    (chunk,) = started(GeminiReply(GeminiReplyOptions())).chunks([])
    assert json.loads(chunk)["candidates"] == [{"content": {"parts": [{"text": ""}], "role": "model"}, "index": 0}]


def test_a_failure_is_the_last_chunk():
    reply = started(GeminiReply(GeminiReplyOptions()))
    assert json.loads(reply.chunks([Failed(0, EngineFailure("x"))])[0])["error"]["status"] == "INTERNAL"
    assert reply.failed


# ---------------------------------------------------------------- errors and models


def test_errors_have_googles_shape():
    def told(error):
        return json.loads(GEMINI.body(error, "req-1"))["error"]

    invalid = told(InvalidRequest("wrong", param="contents[0]"))
    assert (invalid["code"], invalid["status"], invalid["message"]) == (400, "INVALID_ARGUMENT", "wrong")
    assert invalid["details"][0]["fieldViolations"] == [{"field": "contents[0]", "description": "wrong"}]
    full = QueueFull("full")
    full.retry_after = 2.0
    assert told(full)["status"] == "RESOURCE_EXHAUSTED" and told(full)["details"][0]["retryDelay"] == "2s"
    assert "token count (300) exceeds" in told(ContextTooLong(num_prompt=300, context=200))["message"]
    assert dialect("/v1beta/models/m:generateContent") is GEMINI


def test_models_come_in_pages():
    cards = [GeminiModel(f"m{n}", 100, n > 0, True) for n in range(3)]
    first = json.loads(list_body(cards, *page_of("2", None)))
    assert [model["name"] for model in first["models"]] == ["models/m0", "models/m1"]
    assert first["models"][0]["supportedGenerationMethods"] == [] and first["models"][1]["inputTokenLimit"] == 100
    rest = json.loads(list_body(cards, *page_of("2", first["nextPageToken"])))
    assert [model["name"] for model in rest["models"]] == ["models/m2"] and "nextPageToken" not in rest
    with pytest.raises(InvalidRequest, match="pageToken"):
        page_of(None, "x")


def test_a_call_keeps_its_name_and_arguments():
    (said, _) = messages(model(CALL), user(RESULT))
    assert said.tool_calls == (ToolCall("call_0_0", "clock", '{"city":"Bern"}'),)
