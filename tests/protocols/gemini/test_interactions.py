"""Google's Interactions as requests to Responses: what becomes of inputs, steps, tools and settings, and of errors."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.gemini.interactions import Interactions, in_words_of_interactions
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.responses import Responses

ENDPOINT, RESPONSES = Interactions(Limits()), Responses(Limits())
CLOCK = {"type": "function", "name": "clock", "description": "d", "parameters": {"type": "object"}}
PIXEL = {"type": "image", "mime_type": "image/png", "data": "aGVsbG8="}


def body(given="Hello", **others):
    return {"model": "models/m", "input": given, **others}


def made(given="Hello", **others):
    return ENDPOINT.as_response(body(given, **others))


def parsed(given="Hello", **others):
    """The request that the engine's side gets."""
    asked = body(given, **others)
    request = ENDPOINT.as_response(asked)
    with in_words_of_interactions(asked):
        return RESPONSES.parse(request)[0]


def messages(given):
    return [(m.role, m.content) for m in parsed(given).prompts[0].messages]


def complaint(given="Hello", **others):
    with pytest.raises(InvalidRequest) as caught:
        parsed(given, **others)
    return caught.value


def test_a_text_a_content_contents_and_steps_are_one_conversation():
    text = {"type": "text", "text": "Hello"}
    assert messages("Hello") == [("user", "Hello")]
    for given in (text, [text], [{"type": "user_input", "content": [text]}]):
        assert messages(given) == [("user", "Hello")]
    steps = [
        {"type": "user_input", "content": "What time is it?"},
        {"type": "thought", "summary": [{"type": "text", "text": "A clock."}]},
        {"type": "model_output", "content": [{"type": "text", "text": "I look."}]},
        {"type": "function_call", "id": "c1", "name": "clock", "arguments": {"city": "Bern"}},
        {"type": "function_result", "call_id": "c1", "result": {"hour": 12}},
    ]
    user, answer, result = parsed(steps).prompts[0].messages
    assert (user.role, answer.reasoning, answer.content) == ("user", "A clock.", "I look.")
    assert [(c.id, c.name, c.arguments) for c in answer.tool_calls] == [("c1", "clock", '{"city":"Bern"}')]
    assert (result.role, result.tool_call_id, result.content) == ("tool", "c1", '{"hour":12}')


def test_a_signature_brings_a_thought_back():
    """It is the base64 text of what the server sealed, as the SDK's types want it."""
    thought = {"type": "thought", "signature": "QSBjbG9jay4=", "summary": []}
    said = {"type": "model_output", "content": [{"type": "text", "text": "Noon."}]}
    ask = {"type": "user_input", "content": "And now?"}
    assert parsed([ask, thought, said, ask]).prompts[0].messages[1].reasoning == "A clock."


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (PIXEL, {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}),
        ({"type": "image", "uri": "http://x/y.png"}, {"type": "input_image", "image_url": "http://x/y.png"}),
        (
            {"type": "audio", "mime_type": "audio/mpeg", "data": "aa"},
            {"type": "input_audio", "input_audio": {"data": "aa", "format": "mp3"}},
        ),
        (
            {"type": "document", "mime_type": "application/pdf", "data": "aa"},
            {"type": "input_file", "filename": "document", "file_data": "data:application/pdf;base64,aa"},
        ),
    ],
)
def test_media_are_parts_of_the_user(content, part):
    (item,) = made(content)["input"]
    assert item["content"] == [part]


def test_settings_have_the_names_of_responses():
    config = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "max_output_tokens": 7,
        "stop_sequences": ["x"],
        "thinking_level": "low",
        "thinking_summaries": "auto",
        "tool_choice": "any",
    }
    request = made(
        tools=[CLOCK], generation_config=config, system_instruction="Be kind.", service_tier="flex", store=False
    )
    assert request["model"] == "m" and request["instructions"] == "Be kind." and request["store"] is False
    assert request["reasoning"] == {"effort": "low", "summary": "auto"} and request["service_tier"] == "flex"
    assert (request["seed"], request["max_output_tokens"], request["stop"]) == (3, 7, ["x"])
    asked = parsed(tools=[CLOCK], generation_config=config)
    assert asked.tool_choice.mode == "required" and asked.stop == ("x",) and asked.max_tokens == 7


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("validated", "auto"),
        ({"allowed_tools": {"mode": "none", "tools": ["clock"]}}, "none"),
        (
            {"allowed_tools": {"mode": "any", "tools": ["clock"]}},
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
        ),
    ],
)
def test_tools_that_may_be_called(choice, wanted):
    assert made(tools=[CLOCK], generation_config={"tool_choice": choice})["tool_choice"] == wanted


@pytest.mark.parametrize(
    "others",
    [
        {"response_format": {"type": "text", "mime_type": "application/json", "schema": {"type": "object"}}},
        {"response_format": [{"type": "text", "schema": {"type": "object"}}]},
        {"response_mime_type": "application/json"},
    ],
)
def test_a_form_is_enforced(others):
    assert parsed(**others).content.kind == "json"


@pytest.mark.parametrize(
    ("given", "others", "field"),
    [
        ("x", {"tools": [{"type": "google_search"}]}, "tools[0].type"),
        ("x", {"tools": [CLOCK, {**CLOCK, "name": ""}]}, "tools[1].name"),
        ("x", {"agent": "deep-research"}, "agent"),
        ("x", {"response_modalities": ["image"]}, "response_modalities[0]"),
        ("x", {"response_format": {"type": "image"}}, "response_format.type"),
        ("x", {"generation_config": {"max_output_tokens": 0}}, "generation_config.max_output_tokens"),
        ("x", {"generation_config": {"tool_choice": "some"}}, "generation_config.tool_choice"),
        ("x", {"background": True, "store": False}, "background"),
        ([{"type": "video", "uri": "x"}], {}, "input[0].type"),
        ([{"type": "google_search_call", "id": "1"}], {}, "input[0].type"),
        ([{"type": "user_input", "content": [{"type": "odd"}]}], {}, "input[0].content[0].type"),
        ([{"type": "text", "text": "x"}, {"type": "image", "data": 3}], {}, "input[1].data"),
        ([{"type": "function_result", "call_id": "c9", "result": "x"}], {}, "input[0].call_id"),
        ([], {}, "input"),
    ],
)
def test_errors_name_the_field_in_googles_words(given, others, field):
    error = complaint(given, **others)
    assert error.param == field and (isinstance(error, Unsupported) or f"'{field}'" in error.message)


def test_errors_of_responses_are_worded_as_googles():
    with pytest.raises(InvalidRequest) as caught, in_words_of_interactions(body([PIXEL])):
        raise InvalidRequest("Invalid 'input[0].content[0].image_url': no.", param="input[0].content[0].image_url")
    assert caught.value.param == "input[0].image_url" and "'input[0].image_url'" in caught.value.message
    with pytest.raises(InvalidRequest) as caught, in_words_of_interactions(body()):
        raise InvalidRequest("Previous response with id 'x' not found.", param="previous_response_id")
    assert caught.value.param == "previous_interaction_id"
    assert caught.value.message == "Previous interaction with id 'x' not found."


def test_what_has_no_effect_is_named():
    given = [{"type": "function_result", "call_id": "c", "result": "x", "is_error": True}]
    unheard = ENDPOINT.unheard(body(given, labels={"a": "b"}, tools=[{**CLOCK, "short_description": "s"}]))
    assert set(unheard) == {"labels", "input.is_error", "tools.short_description"}
