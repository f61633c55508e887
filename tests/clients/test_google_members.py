"""Every field that google-genai's types can send in a request is honoured, named in a header as ignored, or refused with
its path. A field that the SDK learns and these tables do not know fails."""

from __future__ import annotations

import importlib

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.gemini.embed import EmbedContent
from llamasrv.protocols.gemini.generate import GenerateContent, PathOptions
from llamasrv.protocols.gemini.interactions import InteractionConfig, Interactions, InteractionSchema
from llamasrv.protocols.limits import Limits

pytest.importorskip("google.genai")
from google.genai import types

HONOURED, NAMED, REFUSED = "honoured", "named in a header", "refused with its path"

TEXT = {"text": "Hi"}
IMAGE = {"data": "aGVsbG8=", "mimeType": "image/png"}
CALL = {"functionCall": {"name": "f", "args": {}}}
RESULT = {"name": "f", "response": {"output": "done"}}
SCHEMA = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}


def user(*parts):
    return {"contents": [{"role": "user", "parts": list(parts)}]}


def part(field, value):
    """A body with a part that has this field, besides what it needs."""
    return user(
        {"inlineData": IMAGE, field: value} if field.endswith(("Metadata", "Processing")) else {**TEXT, field: value}
    )


def answered(**result):
    turns = [{"role": "user", "parts": [TEXT]}, {"role": "model", "parts": [CALL]}]
    return {"contents": [*turns, {"role": "user", "parts": [{"functionResponse": {**RESULT, **result}}]}]}


def declaring(**declared):
    return {**user(TEXT), "tools": [{"functionDeclarations": [{"name": "f", **declared}]}]}


def calling(**calling):
    return {**declaring(), "toolConfig": {"functionCallingConfig": {"mode": "AUTO", **calling}}}


def configured(**config):
    return {**user(TEXT), "generationConfig": config}


PARTS = {
    "text": (user(TEXT), HONOURED),
    "inlineData": (user({"inlineData": IMAGE}), HONOURED),
    "fileData": (user({"fileData": {"fileUri": "data:image/png;base64,aGVsbG8=", "mimeType": "image/png"}}), HONOURED),
    "functionCall": ({"contents": [*user(TEXT)["contents"], {"role": "model", "parts": [CALL]},
                                   {"role": "user", "parts": [{"functionResponse": RESULT}]}]}, HONOURED),
    "functionResponse": (answered(), HONOURED),
    "thought": ({"contents": [{"role": "user", "parts": [TEXT]},
                              {"role": "model", "parts": [{"text": "hm", "thought": True}, TEXT]},
                              {"role": "user", "parts": [TEXT]}]}, HONOURED),
    "thoughtSignature": (part("thoughtSignature", "eA=="), HONOURED),
    **{kind: (user({kind: {}}), REFUSED) for kind in ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")},
    **{
        kind: (part(kind, {"key": 1}), NAMED)
        for kind in (
            "audioMetadata", "audioTranscription", "documentMetadata", "mediaProcessing", "mediaResolution",
            "partMetadata", "speechMetadata", "spreadsheetMetadata", "videoMetadata",
        )
    },
}  # fmt: skip
CALLS = {
    "id": (answered(id="c1"), HONOURED),
    "name": (answered(), HONOURED),
    "args": (answered(), HONOURED),
    **{
        field: (
            {
                "contents": [
                    {"role": "user", "parts": [TEXT]},
                    {"role": "model", "parts": [{"functionCall": {**CALL["functionCall"], field: [1]}}]},
                    {"role": "user", "parts": [{"functionResponse": RESULT}]},
                ]
            },
            NAMED,
        )
        for field in ("partialArgs", "willContinue")
    },
}
RESULTS = {
    "id": (answered(id="c1"), HONOURED),
    "name": (answered(), HONOURED),
    "response": (answered(), HONOURED),
    "parts": (answered(parts=[{"inlineData": IMAGE}]), HONOURED),
    "scheduling": (answered(scheduling="SILENT"), NAMED),
    "willContinue": (answered(willContinue=True), NAMED),
}
DECLARATIONS = {
    "name": (declaring(), HONOURED),
    "description": (declaring(description="d"), HONOURED),
    "parameters": (declaring(parameters=SCHEMA), HONOURED),
    "parametersJsonSchema": (declaring(parametersJsonSchema={"type": "object"}), HONOURED),
    "behavior": (declaring(behavior="NON_BLOCKING"), NAMED),
    "response": (declaring(response=SCHEMA), NAMED),
    "responseJsonSchema": (declaring(responseJsonSchema={"type": "object"}), NAMED),
}
TOOLS = {
    "functionDeclarations": (declaring(), HONOURED),
    **{
        kind: ({**user(TEXT), "tools": [{kind: {}}]}, REFUSED)
        for kind in (
            "codeExecution", "computerUse", "enterpriseWebSearch", "exaAiSearch", "fileSearch", "googleMaps",
            "googleSearch", "googleSearchRetrieval", "mcpServers", "parallelAiSearch", "retrieval", "urlContext",
        )
    },
}  # fmt: skip
TOOL_CONFIG = {
    "functionCallingConfig": (calling(), HONOURED),
    "includeServerSideToolInvocations": (
        {**declaring(), "toolConfig": {"includeServerSideToolInvocations": True}},
        NAMED,
    ),
    "retrievalConfig": ({**declaring(), "toolConfig": {"retrievalConfig": {"languageCode": "en"}}}, NAMED),
}
CALLING = {
    "mode": (calling(), HONOURED),
    "allowedFunctionNames": (calling(allowedFunctionNames=["f"]), HONOURED),
    "streamFunctionCallArguments": (calling(streamFunctionCallArguments=True), NAMED),
}
TEXT_FORM = {"text": {"mimeType": "application/json", "schema": {"type": "object"}}}
CONFIG = {
    **{
        field: (configured(**{field: value}), HONOURED)
        for field, value in {
            "temperature": 1, "topP": 0.5, "topK": 3, "candidateCount": 1, "maxOutputTokens": 9, "stopSequences": ["x"],
            "seed": 1, "presencePenalty": 1, "frequencyPenalty": 1, "responseLogprobs": True,
            "responseMimeType": "application/json", "responseSchema": SCHEMA, "responseJsonSchema": {"type": "object"},
            "responseFormat": [TEXT_FORM], "thinkingConfig": {"thinkingBudget": 5}, "responseModalities": ["TEXT"],
            "speechConfig": {"languageCode": "en"},
        }.items()
    },
    "logprobs": (configured(responseLogprobs=True, logprobs=2), HONOURED),
    **{
        field: (configured(**{field: value}), REFUSED)
        for field, value in {
            "imageConfig": {"aspectRatio": "1:1"}, "continuationToken": "eA==",
            "translationConfig": {"targetLanguageCode": "en"},
        }.items()
    },
    **{
        field: (configured(**{field: {"key": 1}}), NAMED)
        for field in (
            "audioTimestamp", "audioTranscriptionConfig", "mediaResolution", "modelSelectionConfig", "routingConfig",
            "enableEnhancedCivicAnswers", "enableAffectiveDialog",
        )
    },
}  # fmt: skip
THINKING = {
    "includeThoughts": (configured(thinkingConfig={"includeThoughts": True}), HONOURED),
    "thinkingBudget": (configured(thinkingConfig={"thinkingBudget": 9}), HONOURED),
    "thinkingLevel": (configured(thinkingConfig={"thinkingLevel": "LOW"}), HONOURED),
}
SCHEMAS = {
    **{
        field: (configured(responseSchema={"type": kind, field: value}), HONOURED)
        for field, kind, value in (
            ("type", "STRING", "STRING"), ("anyOf", "OBJECT", [SCHEMA]), ("default", "STRING", "x"),
            ("description", "STRING", "x"), ("enum", "STRING", ["x"]), ("format", "STRING", "date"),
            ("items", "ARRAY", SCHEMA), ("maxItems", "ARRAY", "3"), ("minItems", "ARRAY", 1),
            ("maxLength", "STRING", 3), ("minLength", "STRING", 1), ("maxProperties", "OBJECT", 3),
            ("minProperties", "OBJECT", 1), ("maximum", "INTEGER", 3), ("minimum", "INTEGER", 1),
            ("nullable", "STRING", True), ("pattern", "STRING", "x"), ("properties", "OBJECT", {}),
            ("required", "OBJECT", []), ("title", "STRING", "x"), ("additionalProperties", "OBJECT", False),
        )
    },
    "propertyOrdering": (configured(responseSchema={**SCHEMA, "propertyOrdering": ["a"]}), HONOURED),
    "defs": (configured(responseSchema={**SCHEMA, "defs": {"b": SCHEMA}}), HONOURED),
    "ref": (configured(responseSchema={"ref": "#/defs/b", "defs": {"b": SCHEMA}}), HONOURED),
    "example": (configured(responseSchema={**SCHEMA, "example": {"a": "x"}}), HONOURED),  # tells nothing that binds
}  # fmt: skip
BLOBS = {
    "data": (user({"inlineData": IMAGE}), HONOURED),
    "mimeType": (user({"inlineData": IMAGE}), HONOURED),
    "displayName": (user({"inlineData": {**IMAGE, "displayName": "x"}}), HONOURED),  # a label that the model never sees
}
TABLES = {
    types.Part: PARTS,
    types.FunctionCall: CALLS,
    types.FunctionResponse: RESULTS,
    types.FunctionDeclaration: DECLARATIONS,
    types.Tool: TOOLS,
    types.ToolConfig: TOOL_CONFIG,
    types.FunctionCallingConfig: CALLING,
    types.GenerationConfig: CONFIG,
    types.ThinkingConfig: THINKING,
    types.Schema: SCHEMAS,
    types.Blob: BLOBS,
}
CLIENTS_OWN = {
    "automaticContinuation",
    "automaticFunctionCalling",
    "generationOutputConfig",
    "httpOptions",
    "modelArmorConfig",
    "shouldReturnHttpResponse",
}
"""Of a config: what the SDK does itself, and what it sends to Vertex AI alone."""
BESIDE = {
    "cachedContent",
    "labels",
    "safetySettings",
    "serviceTier",
    "store",
    "systemInstruction",
    "toolConfig",
    "tools",
}
"""Of a config: what goes into the body beside `generationConfig`."""


def fields_of(model):
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize("model", TABLES, ids=lambda model: model.__name__)
def test_tables_have_every_field_of_the_type(model):
    assert fields_of(model) - set(TABLES[model]) == set()


def test_tables_have_every_field_of_a_request():
    assert fields_of(types.GenerateContentConfig) - set(CONFIG) - BESIDE - CLIENTS_OWN == set()
    assert set(GenerateContent(Limits()).schema().fields) >= BESIDE


CASES = [(model, field, *case) for model, table in TABLES.items() for field, case in table.items()]


@pytest.mark.parametrize("model, field, body, verdict", CASES, ids=lambda one: one if type(one) is str else "")
def test_each_field_has_its_verdict(model, field, body, verdict):
    endpoint = GenerateContent(Limits())
    if verdict is REFUSED:
        with pytest.raises(InvalidRequest) as caught:
            endpoint.parse(body, PathOptions("m"))
        place = caught.value.param
        assert field in place or field in str(caught.value) and place.startswith("contents[0].parts[0]")
        return
    endpoint.parse(body, PathOptions("m"))
    named = [name.rpartition(".")[2] for name in endpoint.unheard(body)]
    assert named == ([field] if verdict is NAMED else [])


def test_a_reference_of_a_schema_reaches_the_grammar():
    """`defs` and `ref` were dropped, and what they bind was free."""
    body = configured(responseSchema={"ref": "#/defs/b", "defs": {"b": SCHEMA}})
    request, _ = GenerateContent(Limits()).parse(body, PathOptions("m"))
    assert request.content.value["$ref"] == "#/$defs/b" and "a" in request.content.value["$defs"]["b"]["properties"]


def test_what_a_result_or_an_embedding_may_have_besides_is_named():
    endpoint = EmbedContent(Limits())
    body = {"requests": [{"content": {"parts": [TEXT]}, "task_type": "X", "model": "m"}]}
    endpoint.parse(body, model="m", batch=True)
    assert endpoint.unheard(body) == ["requests.taskType"]


INTERACTION_CONTENTS = {
    "text": ({"text": "Hi"}, HONOURED),
    "image": ({"mime_type": "image/png", "data": "aGVsbG8="}, HONOURED),
    "audio": ({"mime_type": "audio/wav", "data": "aGVsbG8="}, HONOURED),
    "document": ({"mime_type": "text/plain", "data": "aGVsbG8="}, HONOURED),
    "video": ({"uri": "x"}, REFUSED),
}
INTERACTION_STEPS = {
    "user_input": ({"content": [{"type": "text", "text": "Hi"}]}, HONOURED),
    "model_output": ({"content": [{"type": "text", "text": "Hi"}]}, HONOURED),
    "thought": ({"summary": [{"type": "text", "text": "Hi"}]}, HONOURED),
    "function_call": ({"id": "c", "name": "f", "arguments": {}}, HONOURED),
    "function_result": ({"call_id": "c", "result": "x"}, HONOURED),
    "tool_search_call": ({"id": "c", "arguments": {}}, HONOURED),
    "tool_search_result": ({"call_id": "c", "result": []}, HONOURED),
    **{
        f"{kind}_{part}": ({}, REFUSED)
        for kind in (
            "code_execution",
            "file_search",
            "google_maps",
            "google_search",
            "mcp_server_tool",
            "processing",
            "retrieval",
            "url_context",
        )
        for part in ("call", "result")
    },
}
INTERACTION_TOOLS = {
    "function": ({"name": "f"}, HONOURED),
    "tool_search": ({"execution": "client"}, HONOURED),
    **{
        kind: ({}, REFUSED)
        for kind in (
            "code_execution",
            "computer_use",
            "file_search",
            "google_maps",
            "google_search",
            "mcp_server",
            "retrieval",
            "url_context",
        )
    },
}


@pytest.mark.parametrize(
    ("module", "table", "place"),
    [
        ("content", INTERACTION_CONTENTS, "input"),
        ("step", INTERACTION_STEPS, "input"),
        ("tool", INTERACTION_TOOLS, "tools"),
    ],
)
def test_every_member_of_an_interactions_unions_has_a_verdict(module, table, place):
    known = importlib.import_module(f"google.genai._gaos.types.interactions.{module}")
    variants = getattr(known, f"_{module.upper()}_VARIANTS")
    assert variants.keys() == table.keys()
    endpoint = Interactions(Limits())
    for kind, (fields, verdict) in table.items():
        body = {"model": "m", "input": "Hi", place: [{"type": kind, **fields}]}
        if verdict is HONOURED:
            assert endpoint.as_response(body)[place] and endpoint.unheard(body) == []
        else:
            with pytest.raises(InvalidRequest) as caught:
                endpoint.as_response(body)
            assert caught.value.param == f"{place}[0].type"


@pytest.mark.parametrize(
    ("kind", "schema"),
    [("CreateModelInteraction", InteractionSchema), ("GenerationConfig", InteractionConfig)],
)
def test_every_field_of_an_interaction_is_known(kind, schema):
    types = importlib.import_module("google.genai._gaos.types.interactions")
    assert set(getattr(types, kind).model_fields) <= set(schema().fields)
