"""POST /v1/decisions in OpenAI's shape. JSON in, DecideRequest out; Decisions in, JSON out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llamasrv.domain.decide import Decided, DecisionOption, Decisions, Question
from llamasrv.domain.request import Message, Part, TextPart
from llamasrv.protocols.common.decisions import (
    OPTIONS,
    DecisionSchema,
    DecisionsEndpoint,
    Shown,
    choice_confidence,
    chosen,
    level,
    missing,
    number_of,
    only,
    score_confidence,
)
from llamasrv.protocols.common.media import from_url
from llamasrv.protocols.common.schema import (
    Ignored,
    Invalid,
    String,
    WireField,
    check_length,
    expect,
    expect_given,
    expect_or_none,
    wrong_type,
)
from llamasrv.protocols.openai.responses.items import Turns
from llamasrv.protocols.openai.responses.tools import ToolSet

QUESTIONS = 400
LEVELS = 10
JSON_BYTES, JSON_DEPTH, JSON_VALUES = 2**18, 32, 10_000  # bounds of an `input_json`
_ITEMS = frozenset(("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"))
_FIELDS = {
    "predicate": ("type", "name", "instructions"),
    "choice": ("type", "name", "instructions", "choices"),
    "score": ("type", "name", "instructions", "levels"),
}


class DecisionInput(WireField):
    """A text, or items of a conversation as Responses has them; also `input_json`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Message, ...]:
        if type(value) is str:
            return (Message("user", value),)
        expect(list, value, what="a string or an array of input items")
        number_of(value, 1, self.limits.messages, "items")
        turns = Turns(ToolSet(0), self.limits)
        for at, item in enumerate(value):
            expect(dict, item, at)
            kind = item.get("type", "message")
            if type(kind) is not str or kind not in _ITEMS:
                raise Invalid(f"expected one of {', '.join(sorted(_ITEMS))}.", at, "type")
            key = "output" if kind.endswith("output") else "content"
            if type(item.get(key)) is list:
                check_length(item[key], self.limits.parts, "parts", at, key)
                item = {**item, key: [_plain(part, at, key, n) for n, part in enumerate(item[key])]}
            turns.add(item, at)
        return turns.messages


class Questions(WireField):
    """A list of predicates, choices and scores."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Shown:
        expect(list, value, what="an array of questions")
        number_of(value, 1, QUESTIONS, "questions")
        read = [question(one, at) for at, one in enumerate(value)]
        return Shown(tuple(name for name, _ in read), tuple(each for _, each in read))


def question(wire: Any, at: int) -> tuple[str | None, Question]:
    expect(dict, wire, at)
    kind = expect_given(str, wire.get("type"), at, "type")
    if kind not in _FIELDS:
        raise Invalid("expected 'predicate', 'choice' or 'score'.", at, "type")
    only(wire, _FIELDS[kind], at)
    name = expect_or_none(str, wire.get("name"), at, "name")
    parts = _instructions(wire.get("instructions"), at, "instructions")
    if kind == "predicate":
        options: tuple[DecisionOption, ...] = (DecisionOption(True), DecisionOption(False))
        return name, Question("predicate", parts, options, f"questions[{at}]")
    if kind == "choice":
        return name, Question("choice", parts, _choices(wire.get("choices"), at, "choices"), f"questions[{at}]")
    return name, Question("score", parts, _levels(wire.get("levels"), at, "levels"), f"questions[{at}]")


def _choices(wire: Any, *path: int | str) -> tuple[DecisionOption, ...]:
    found: dict[tuple[type, Any], DecisionOption] = {}
    for at, one in enumerate(_listed(wire, 2, OPTIONS, "choices", *path)):
        only(one, ("value", "description"), *path, at)
        value = one.get("value")
        if type(value) is not str and type(value) is not bool:
            where = (*path, at, "value")
            raise missing(*where) if value is None else wrong_type("a string or a boolean", value, *where)
        if (type(value), value) in found:
            raise Invalid("two choices have this value.", *path, at, "value")
        found[type(value), value] = DecisionOption(value, _optional(one, "description", *path, at))
    return tuple(found.values())


def _levels(wire: Any, *path: int | str) -> tuple[DecisionOption, ...]:
    found = []
    for at, one in enumerate(_listed(wire, 2, LEVELS, "levels", *path)):
        only(one, ("label", "description"), *path, at)
        label = expect_given(str, one.get("label"), *path, at, "label")
        found.append(DecisionOption(label, _optional(one, "description", *path, at)))
    return tuple(found)


def _listed(wire: Any, low: int, high: int, what: str, *path: int | str) -> list[Any]:
    listed: list[Any] = expect_given(list, wire, *path, what=f"an array of {what}")
    number_of(listed, low, high, what, *path)
    return listed


def _optional(wire: Mapping[str, Any], key: str, *path: int | str) -> str:
    return expect_or_none(str, wire.get(key), *path, key) or ""


def _instructions(wire: Any, *path: int | str) -> tuple[Part, ...]:
    if wire is None:
        raise missing(*path)
    if type(wire) is str:
        return (TextPart(wire),)
    expect(list, wire, *path, what="a string or an array of parts")
    number_of(wire, 1, 1000, "parts", *path)
    return tuple(_part(part, *path, at) for at, part in enumerate(wire))


def _part(wire: Any, *path: int | str) -> Part:
    plain = _plain(wire, *path)
    kind = plain.get("type")
    if kind == "input_text":
        if type(plain.get("text")) is not str:
            raise wrong_type("a string", plain.get("text"), *path, "text")
        return TextPart(plain["text"])
    if kind == "input_image":
        if plain.get("image_url") is None:
            raise missing(*path, "image_url")
        is_coarse = plain.get("detail") == "low"
        return from_url(plain["image_url"], "image", "questions", *path, "image_url", is_coarse=is_coarse)
    raise Invalid("expected 'input_text', 'input_image' or 'input_json'.", *path, "type")


def _plain(part: Any, *path: int | str) -> dict[str, Any]:
    """A part in the form of Responses: `input_json` becomes text."""
    wire: dict[str, Any] = expect(dict, part, *path)
    if wire.get("type") != "input_json":
        return wire
    value = wire.get("data")
    if type(value) is not dict and not (type(value) is list and all(type(one) is dict for one in value)):
        raise wrong_type("an object or an array of objects", value, *path, "data")
    text = orjson.dumps(value)
    if len(text) > JSON_BYTES:
        raise Invalid(f"too large. Expected at most {JSON_BYTES} bytes, but got {len(text)}.", *path, "data")
    depth, values = _size(value)
    if depth > JSON_DEPTH or values > JSON_VALUES:
        text_ = f"expected at most {JSON_DEPTH} levels and {JSON_VALUES} values, but got {depth} and {values}."
        raise Invalid(text_, *path, "data")
    return {"type": "input_text", "text": text.decode()}


def _size(value: Any) -> tuple[int, int]:
    """Levels and values of JSON; neither is counted far beyond its bound."""
    rows, depth, count = [value], 0, 0
    while rows and depth <= JSON_DEPTH and count <= JSON_VALUES:
        inside: list[Any] = []
        for one in rows:
            count += 1
            if type(one) is dict:
                inside += one.values()
            elif type(one) is list:
                inside += one
        rows, depth = inside, depth + 1
    return depth, count


class DecisionsSchema(DecisionSchema):
    model = String("a name or alias", required=True, to="model")
    input = DecisionInput(
        "a text, or items as in Responses: messages, calls and their outputs; also `input_json`", required=True
    )
    questions = Questions("`predicate`, `choice` or `score`; at most 400", required=True)
    prompt_cache_key = String("prefixes are shared only with requests that have the same", to="cache_salt")
    prompt_cache_options = Ignored("prefixes are found by their tokens")
    safety_identifier = Ignored()


class OpenAIDecisions(DecisionsEndpoint):
    schema = DecisionsSchema

    def whole(self, options: Shown, made: Decisions) -> bytes:
        answers = [_answer(*each) for each in zip(options.names, options.questions, made.answers)]
        read, thought = made.prompt_tokens, made.reasoning_tokens
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": made.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": thought,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": read + thought,
        }
        return orjson.dumps({"model": made.model, "answers": answers, "usage": usage})


def _answer(name: str | None, question: Question, answer: Decided) -> dict[str, Any]:
    mass = {"x_label_mass": answer.mass}
    if answer.refused:
        return {"type": "refusal", "name": name, **mass}
    found = answer.probabilities
    if question.kind == "predicate":
        return {"type": "predicate", "name": name, "probability": found[0], **mass}
    if question.kind == "choice":
        values = [option.value for option in question.options]
        shares = [{"value": value, "probability": p} for value, p in zip(values, found)]
        best = values[chosen(answer)]
        return {
            "type": "choice",
            "name": name,
            "choice": best,
            "confidence": choice_confidence(answer),
            "probabilities": shares,
            **mass,
        }
    levels = [
        {"value": i, "label": option.value, "probability": p}
        for i, (option, p) in enumerate(zip(question.options, found))
    ]
    return {
        "type": "score",
        "name": name,
        "score": level(answer),
        "confidence": score_confidence(answer),
        "probabilities": levels,
        **mass,
    }
