"""Every field that the current SDKs can send has a verdict here: honoured, ignored because that is harmless, or refused.

A field that an SDK learns and this list does not know fails: it would be dropped without a word.
"""

from __future__ import annotations

import typing

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.messages import MessagesSchema
from llamasrv.protocols.common.schema import HONOURED, IGNORED, REFUSED, rows
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.batches import BatchSchema
from llamasrv.protocols.openai.chat import ChatCompletions, ChatSchema
from llamasrv.protocols.openai.completions import CompletionsSchema
from llamasrv.protocols.openai.conversations import ConversationSchema, ItemsSchema
from llamasrv.protocols.openai.embeddings import EmbeddingsSchema
from llamasrv.protocols.openai.responses import Responses
from llamasrv.protocols.openai.responses.schema import ResponsesSchema
from llamasrv.protocols.openai.speech import SpeechSchema
from llamasrv.protocols.openai.transcriptions import TranscriptionSchema

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

# Ignored although they ask for something, and why no answer is changed by that.
HARMLESS = {
    ChatSchema: {
        "audio", "metadata", "moderation",
        "safety_identifier", "store", "user",
    },
    CompletionsSchema: {"user"},
    ResponsesSchema: {
        "access_programs", "image", "max_tool_calls", "moderation",
        "stream_options",
    },
    MessagesSchema: {
        "betas", "billing_policy", "cache_control", "container", "fallback_credit_token",
        "fallbacks", "inference_geo", "service_tier", "speed", "user_profile_id", "workspace_id",
    },
}  # fmt: skip
REFUSALS = {
    ChatSchema: {"web_search_options"},
    CompletionsSchema: set(),
    ResponsesSchema: {"prompt"},
    MessagesSchema: {"mcp_servers"},
}


def fields_of(typed: type) -> set[str]:
    return set(typing.get_type_hints(typed))


def sdk_types() -> dict[type, list[type]]:
    from anthropic.types import message_create_params as messages
    from anthropic.types.beta import message_create_params as beta
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    return {
        ChatSchema: [chat.CompletionCreateParamsStreaming],
        CompletionsSchema: [completions.CompletionCreateParamsStreaming],
        ResponsesSchema: [responses.ResponseCreateParamsStreaming],
        MessagesSchema: [messages.MessageCreateParamsStreaming, beta.MessageCreateParamsStreaming],
    }


@pytest.mark.parametrize("schema", HARMLESS, ids=lambda schema: schema.__name__)
def test_every_field_of_the_sdk_has_its_verdict(schema):
    sent = set().union(*map(fields_of, sdk_types()[schema]))
    verdicts = {row.field: row.verdict for row in rows(schema)}
    assert sent - set(verdicts) == set(), "fields that would be dropped without a word"
    by_verdict = {name: {field for field in sent if verdicts[field] == name} for name in (HONOURED, IGNORED, REFUSED)}
    assert by_verdict[IGNORED] <= HARMLESS[schema]  # an older SDK knows fewer
    assert by_verdict[REFUSED] <= REFUSALS[schema]


SMALLER: dict[str, tuple[type, set[str]]] = {
    "openai.types.embedding_create_params.EmbeddingCreateParams": (EmbeddingsSchema, {"user"}),
    "openai.types.batch_create_params.BatchCreateParams": (BatchSchema, {"output_expires_after"}),
    "openai.types.audio.speech_create_params.SpeechCreateParams": (SpeechSchema, set()),
    "openai.types.audio.transcription_create_params.TranscriptionCreateParamsStreaming": (
        TranscriptionSchema,
        {"chunking_strategy", "keywords", "languages"},
    ),
    "openai.types.responses.response_compact_params.ResponseCompactParams": (ResponsesSchema, {"image"}),
    "openai.types.responses.input_token_count_params.InputTokenCountParams": (ResponsesSchema, {"personality"}),
    "openai.types.conversations.conversation_create_params.ConversationCreateParams": (ConversationSchema, set()),
    "openai.types.conversations.item_create_params.ItemCreateParams": (ItemsSchema, set()),
    "anthropic.types.message_count_tokens_params.MessageCountTokensParams": (
        MessagesSchema,
        HARMLESS[MessagesSchema],
    ),
    "anthropic.types.beta.message_count_tokens_params.MessageCountTokensParams": (
        MessagesSchema,
        HARMLESS[MessagesSchema],
    ),
}
"""By type of an SDK: the schema that reads it, and what of it has no effect and is named in a header."""
IN_THE_ADDRESS = {"include"}  # fields of these types that the SDKs send in the query


@pytest.mark.parametrize("path", SMALLER)
def test_every_field_of_a_smaller_request_has_its_verdict(path):
    schema, without_effect = SMALLER[path]
    module, _, name = path.rpartition(".")
    verdicts = {row.field: row.verdict for row in rows(schema)}
    sent = fields_of(getattr(pytest.importorskip(module), name))
    if "include" not in verdicts:
        sent -= IN_THE_ADDRESS
    assert {field for field in sent if verdicts.get(field, IGNORED) == IGNORED} <= without_effect


NESTED = {
    ("openai.types.chat.chat_completion_stream_options_param", "ChatCompletionStreamOptionsParam"):
        {"include_usage": HONOURED, "include_obfuscation": IGNORED},
    ("openai.types.responses.response_create_params", "StreamOptions"): {"include_obfuscation": IGNORED},
    ("openai.types.responses.response_text_config_param", "ResponseTextConfigParam"):
        {"format": HONOURED, "verbosity": HONOURED},
    ("openai.types.shared_params.reasoning", "Reasoning"):
        {"effort": HONOURED, "summary": HONOURED, "generate_summary": HONOURED, "mode": IGNORED, "context": IGNORED},
    ("openai.types.shared_params.function_definition", "FunctionDefinition"):
        {"name": HONOURED, "description": HONOURED, "parameters": HONOURED, "strict": HONOURED},
    ("anthropic.types.beta.beta_output_config_param", "BetaOutputConfigParam"):
        {"effort": HONOURED, "format": HONOURED, "task_budget": IGNORED},
    ("anthropic.types.beta.beta_thinking_config_enabled_param", "BetaThinkingConfigEnabledParam"):
        {"type": HONOURED, "budget_tokens": HONOURED, "display": HONOURED, "block_binding": IGNORED},
}  # fmt: skip
"""By type of an SDK: what its fields come to. Those that are ignored are told so in the notes of their parents."""


@pytest.mark.parametrize("place", NESTED, ids=lambda place: place[1])
def test_every_field_inside_another_has_its_verdict(place):
    module, name = place
    typed = getattr(pytest.importorskip(module), name)
    assert fields_of(typed) <= set(NESTED[place])


CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
BLOCKS = {"model": "omni-moderation-latest", "policy": {"output": {"mode": "block"}}}
SCORES = {"model": "omni-moderation-latest", "policy": {"input": {"mode": "score"}}}


def test_moderation_that_would_block_is_refused_and_scores_are_not_given():
    limits = Limits()
    ChatCompletions(limits).parse({**CHAT, "moderation": SCORES})
    Responses(limits).parse({"input": "Hi", "moderation": SCORES})
    with pytest.raises(InvalidRequest, match="moderat") as error:
        ChatCompletions(limits).parse({**CHAT, "moderation": BLOCKS})
    assert error.value.param == "moderation"
    with pytest.raises(InvalidRequest, match="moderat"):
        Responses(limits).parse({"input": "Hi", "moderation": BLOCKS})


def test_verbosity_reaches_the_template():
    limits = Limits()
    (prompt,) = ChatCompletions(limits).parse({**CHAT, "verbosity": "low"})[0].prompts
    assert prompt.template_kwargs["verbosity"] == "low"
    (prompt,) = Responses(limits).parse({"input": "Hi", "text": {"verbosity": "high"}})[0].prompts
    assert prompt.template_kwargs["verbosity"] == "high"
