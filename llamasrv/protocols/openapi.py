"""The API as an OpenAPI document, generated from the schemas that requests are loaded with.

Each field has its verdict (`x-verdict`: honoured, ignored or refused), its note and its bounds. The routes come from
the caller; `operations.py` says what each is for and which schema its body has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from llamasrv.protocols.common.schema import Array, Count, Flag, Names, Number, Object, String, WireField, WireSchema
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.operations import OPERATIONS, Operation


class Route(NamedTuple):
    """A route as it is served. `names`: all paths to the same view, this one included."""

    method: str
    path: str
    names: tuple[str, ...]


_PROTOCOLS = (
    ("Operation", r"/(admin|metrics|health|livez|readyz|debug|openapi|ui|v1/usage|v1/loads|loads|version)\b"),
    ("Anthropic", r"/v1/messages\b"),
    ("Gemini", r"/v1beta/"),
    ("Other servers", r"/(api/v0|api/status|predict|(open|close)_session|tokenizer_info|cors-proxy)\b"),
    ("Other servers", r"/v1/(systemone|score|classify|(un)?load_lora_adapter)\b"),
    ("Ollama", r"/api/"),
    ("OpenAI", r"/v1/(?!streams?\b)"),
    ("llama.cpp", ""),
)
"""Whose operations are whose, by path; the first that fits."""

_KINDS: dict[str, tuple[str, ...]] = {
    "AnthropicMessages": ("array",), "Assets": ("object",), "CacheControl": ("object",),
    "CacheRetention": ("string",), "ChatMessages": ("array",), "ChatToolChoice": ("string", "object"),
    "ChatTools": ("array",), "Choices": ("array",), "Contents": ("array", "object"),
    "Continue": ("boolean", "string"), "ConversationField": ("string", "object"),
    "DecisionContents": ("string", "object", "array"), "DecisionInput": ("string", "array"), "EmbedText": ("object",),
    "Format": ("string", "object"), "FunctionChoice": ("string", "object"), "Functions": ("array",),
    "GeminiTools": ("array",), "Grammar": ("string",), "Images": ("array",), "Inputs": ("string", "array"),
    "InteractionForm": ("object", "array"), "InteractionInput": ("string", "object", "array"),
    "InteractionModalities": ("array",), "InteractionToolChoice": ("string", "object"), "InteractionTools": ("array",),
    "Items": ("array",), "JsonSchema": ("object", "string", "boolean"), "KeepAlive": ("string", "number"),
    "License": ("string", "array"), "LogitBiasField": ("object", "array"), "Modalities": ("array",),
    "NamedQuestions": ("object",), "NativePrompts": ("string", "array", "object"), "OllamaInput": ("string", "array"),
    "OllamaMessages": ("array",), "OllamaThink": ("boolean", "string"), "OneOf": ("string",),
    "OutputFormat": ("object",), "Pattern": ("string",), "Prompts": ("string", "array"), "Questions": ("array",),
    "QuestionsById": ("object",), "ReasoningFormat": ("string",), "ResponseFormat": ("object",),
    "ResponseFormatField": ("array", "object"),
    "ResponseInput": ("string", "array"), "ResponseModalities": ("array",), "Samplers": ("array", "string"),
    "SchemaField": ("object",), "SomeOf": ("array",), "SpokenText": ("string",), "State": ("string", "array", "object"),
    "StructuredOutputs": ("object",), "System": ("string", "array"), "SystemInstruction": ("string", "array"),
    "SystemOneImages": ("array",), "TextOrTokens": ("string", "array"), "Texts": ("string", "array"),
    "SessionMetadata": ("object",), "Think": ("boolean", "string"), "ThinkingConfigField": ("object",),
    "ThinkingField": ("object",),
    "ThreadField": ("object",), "ToolChoiceField": ("string", "object"), "ToolConfig": ("object",),
    "Truncation": ("string",), "Upload": ("string",), "VoiceName": ("string", "object"),
}  # fmt: skip
"""Types of JSON that fields of these classes take."""


def document(
    routes: Iterable[Route], *, version: str, limits: Limits, replies: Mapping[str, Any] | None = None
) -> bytes:
    """The whole document, as JSON. `replies`: an example of each operation's reply, JSON or the text of a stream."""
    plugin = MarshmallowPlugin(schema_name_resolver=lambda schema: _name(type(schema)))
    spec = APISpec(
        title="llamasrv",
        version=version,
        openapi_version="3.1.0",
        info={"description": "GGUF models behind the APIs that applications already speak."},
        plugins=[plugin],
        security=[{"bearer": []}, {"key": []}],
    )
    spec.components.security_scheme("bearer", {"type": "http", "scheme": "bearer"})
    spec.components.security_scheme("key", {"type": "apiKey", "in": "header", "name": "x-api-key"})
    assert plugin.converter is not None
    plugin.converter.add_attribute_function(lambda _, field, **kwargs: _described(field, limits))
    known: dict[type[WireSchema], WireSchema] = {}
    for route in routes:
        operation = operation_of(route)
        if operation is not None:
            described = _operation(route, operation, known, limits)
            described["tags"] = [protocol_of(_key(route).split()[1])]
            _add_reply(described, (replies or {}).get(_key(route)))
            spec.path(path=_readable(route.path), operations={route.method.lower(): described})
    return orjson.dumps(spec.to_dict())


def operation_of(route: Route) -> Operation | None:
    return OPERATIONS.get(_key(route))


def protocol_of(path: str) -> str:
    """The protocol of an operation, by its path in the table."""
    return next(name for name, pattern in _PROTOCOLS if re.match(pattern, path))


def _key(route: Route) -> str:
    """The key of its operation in the table; "" for none."""
    names = (f"{route.method} {path}" for path in (route.path, *route.names))
    return next((name for name in names if name in OPERATIONS), "")


def _add_reply(described: dict[str, Any], reply: Any) -> None:
    for response in described["responses"].values():
        content = response.get("content", {})
        kind = next((kind for kind in content if (kind == "application/json") != isinstance(reply, str)), None)
        if reply is not None and kind is not None and response is not described["responses"]["default"]:
            content[kind]["example"] = reply


def _name(schema: type) -> str:
    """`openai.Chat` for `llamasrv.protocols.openai.chat.ChatSchema`; `ollama.Chat` for `OllamaChatSchema`."""
    protocol = schema.__module__.split(".")[2]
    return f"{protocol}.{schema.__name__.removesuffix('Schema').removeprefix(protocol.capitalize())}"


def _readable(path: str) -> str:
    """`/models/{name}` for `/models/<path:name>`."""
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", path)


def _operation(
    route: Route, operation: Operation, known: dict[type[WireSchema], WireSchema], limits: Limits
) -> dict[str, Any]:
    ok: dict[str, Any] = {"description": operation.summary}
    if operation.status < 300 and operation.status != 204:
        kinds = [operation.answers, *([operation.streams] if operation.streams else [])]
        ok["content"] = {kind: {"schema": {}} for kind in kinds}
    out: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            str(operation.status): ok,
            "default": {
                "description": "What went wrong, in the form of this route's protocol.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
        },
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", _readable(route.path))
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in operation.query
    ]
    if parameters:
        out["parameters"] = parameters
    if operation.schema is not None or operation.example is not None:
        content: dict[str, Any] = {"schema": {"type": "array" if isinstance(operation.example, list) else "object"}}
        if operation.schema is not None:
            content["schema"] = known.setdefault(operation.schema, operation.schema(limits))
        if operation.example is not None:
            content["example"] = operation.example
        kind = "multipart/form-data" if operation.form else "application/json"
        out["requestBody"] = {"required": True, "content": {kind: content}}
    return out


def _described(field: Any, limits: Limits) -> dict[str, Any]:
    if not isinstance(field, WireField):
        return {}
    out: dict[str, Any] = {"x-verdict": field.metadata["verdict"]}
    if field.metadata["note"]:
        out["description"] = field.metadata["note"]
    return out | _shape(field, limits)


def _shape(field: WireField, limits: Limits) -> dict[str, Any]:
    if isinstance(field, Count):
        high = getattr(limits, field.high) if isinstance(field.high, str) else field.high
        return {"type": "integer", "minimum": min(field.low, *field.also, field.low), "maximum": high}
    if isinstance(field, Number):
        return {"type": "number", "exclusiveMinimum" if field.above else "minimum": field.low, "maximum": field.high}
    if isinstance(field, Names):
        return _one_of(("string", "array"))
    for kind, name in ((String, "string"), (Flag, "boolean"), (Object, "object"), (Array, "array")):
        if isinstance(field, kind):
            return _one_of((name,))
    return _one_of(_KINDS.get(type(field).__name__, ()))


def _one_of(kinds: tuple[str, ...]) -> dict[str, Any]:
    if not kinds:
        return {}
    shapes = [{"type": kind, "items": {}} if kind == "array" else {"type": kind} for kind in kinds]
    return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
