"""The required form of an answer, in the words of OpenAI, llama.cpp and vLLM: all become one Content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llamasrv.domain.request import Content
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.json_text import from_text
from llamasrv.protocols.common.schema import Invalid, WireField, expect, wrong_type
from llamasrv.protocols.common.structural_tag import structural_tag
from llamasrv.protocols.limits import Limits


class Form(WireField):
    """Base of the fields that ask for a form. Two different forms are an error."""

    def __init__(self, note: str) -> None:
        super().__init__(note, to="content")

    def put(self, parts: dict[str, Any], value: Content | None) -> None:
        if value is None:
            return
        form = replace(value, name=str(self.name))
        first = parts.setdefault("content", form)
        if form != first:
            raise InvalidRequest(f"Invalid '{form.name}': not allowed together with '{first.name}'.", param=form.name)


class JsonSchema(Form):
    """A JSON schema, as an object, a boolean or the text of one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content:
        return Content("json", schema_of(value, self.limits))


class Pattern(Form):
    """A regular expression that the whole answer must match."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content:
        return Content("regex", _text(value))


class Choices(Form):
    """The answers to choose from."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content:
        return Content("choice", _choices(value))


class Grammar(Form):
    """A grammar in llama.cpp's notation, or in Lark's if it looks like that."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content | None:
        return _grammar(value) if value != "" else None


class ResponseFormat(Form):
    """OpenAI's text, json_object and json_schema; json_object with a schema as llama.cpp and Hugging Face's clients
    write it; text-generation-inference's json and regex; vLLM's structural_tag."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content | None:
        expect(dict, value)
        kind = value.get("type")
        if kind == "text":
            return None
        if kind == "json_object" or kind == "json":
            return _json_object(value, self.limits)
        if kind == "regex":
            return Content("regex", _text(value.get("value"), "value"))
        if kind == "json_schema":
            wrapped = value.get("json_schema")
            if wrapped is None and "schema" in value:
                wrapped = value
            elif type(wrapped) is not dict:
                raise wrong_type("an object with a 'schema'", wrapped, "json_schema")
            if wrapped.get("schema") is None:
                missing = "missing_required_parameter"
                raise Invalid("missing. A schema is needed.", "json_schema", "schema", code=missing)
            return Content("json", schema_of(wrapped["schema"], self.limits, "json_schema", "schema"))
        if kind == "structural_tag":
            return structural_tag(value, self.limits)
        raise Invalid("expected 'text', 'json_object' or 'json_schema'.", "type")


def _json_object(value: dict[str, Any], limits: Limits) -> Content:
    """Any object, or one that follows the schema beside the type, under whatever name."""
    found: Content | None = None
    for name in ("schema", "value", "json_schema"):
        schema = value.get(name)
        if schema is None:
            continue
        if found is not None:
            raise Invalid("only one schema may be given.", name)
        if name == "json_schema" and type(schema) is dict and "schema" in schema:
            found = Content("json", schema_of(schema["schema"], limits, name, "schema"))
        else:
            found = Content("json", schema_of(schema, limits, name))
    return found or Content("json")


class StructuredOutputs(Form):
    """vLLM's object: exactly one of json, regex, choice, grammar, json_object, structural_tag."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content | None:
        expect(dict, value)
        given = {name: form for name, form in value.items() if form is not None and form is not False}
        known = [name for name in given if name in _STRUCTURED]
        if not known:
            return None
        if len(known) > 1:
            raise Invalid(f"only one of {', '.join(_STRUCTURED)} may be given.", known[1])
        content: Content = _STRUCTURED[known[0]](given[known[0]], self.limits, known[0])
        return content


def schema_of(value: Any, limits: Limits, *path: str) -> Any:
    """`limits` hold where it is given as text."""
    if type(value) is str:
        value = from_text(value, limits, *path)
    if type(value) is not dict and type(value) is not bool:
        raise wrong_type("a JSON schema", value, *path)
    return value


def _text(value: Any, *path: str) -> str:
    text = expect(str, value, *path)
    if not text:
        raise Invalid("must not be an empty string.", *path)
    return text


def _choices(value: Any, *path: str) -> tuple[str, ...]:
    expect(list, value, *path, what="an array of strings")
    if not value:
        raise Invalid("empty array. Expected an array with at least one choice.", *path, code="empty_array")
    for i, choice in enumerate(value):
        expect(str, choice, *path, i)
        if not choice:
            raise Invalid("must not be an empty string.", *path, i)
    return tuple(dict.fromkeys(value))


def _grammar(value: Any, *path: str) -> Content:
    text = _text(value, *path)
    return Content("gbnf" if "::=" in text else "lark", text)


_STRUCTURED: Mapping[str, Any] = {
    "json": lambda value, limits, name: Content("json", schema_of(value, limits, name)),
    "regex": lambda value, limits, name: Content("regex", _text(value, name)),
    "choice": lambda value, limits, name: Content("choice", _choices(value, name)),
    "grammar": lambda value, limits, name: _grammar(value, name),
    "json_object": lambda value, limits, name: Content("json"),
    "structural_tag": lambda value, limits, name: structural_tag(value, limits, name),
}

CLOSED = "objects that declare properties are closed unless they say `additionalProperties`"
"""For the fields that take a schema."""
