"""Google's decisions. JSON in, DecideRequest out; Decisions in, JSON out."""

from __future__ import annotations

import unicodedata
from typing import Any

import orjson

from llamasrv.domain.decide import Decided, DecisionOption, Decisions, Question
from llamasrv.domain.request import Message, Part, TextPart
from llamasrv.protocols.common.decisions import (
    OPTIONS,
    DecisionSchema,
    DecisionsEndpoint,
    Shown,
    chosen,
    level,
    missing,
    number_of,
    only,
    users,
)
from llamasrv.protocols.common.documents import document_at, document_of_data
from llamasrv.protocols.common.media import from_base64, from_url
from llamasrv.protocols.common.schema import (
    Invalid,
    Refusal,
    String,
    WireField,
    expect,
    expect_given,
    expect_or_none,
    wrong_type,
)

QUESTIONS = 1000
LEAST, MOST = 0.01, 0.99  # the range of a noul's probability that Google reports
REFUSED = "The model does not begin its reply with any of the answers."


class DecisionContents(WireField):
    """A text, a content, or a list of contents."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Message, ...]:
        if type(value) is str:
            return (Message("user", value),)
        if type(value) is dict:
            return users([_content(value, "input")])
        expect(list, value, what="a string, an object or an array of contents")
        number_of(value, 1, self.limits.parts, "contents")
        return users([_content(one, "input", at) for at, one in enumerate(value)])


def _content(wire: Any, field: str, *path: int | str) -> Part:
    if type(wire) is str:
        return TextPart(wire)
    expect(dict, wire, *path)
    kind = wire.get("type", "text" if "text" in wire else None)
    if kind == "text":
        if type(wire.get("text")) is not str:
            raise wrong_type("a string", wire.get("text"), *path, "text")
        return TextPart(wire["text"])
    if kind not in ("image", "audio", "document"):
        if kind == "video":
            raise Refusal("this server cannot read video.", *path)
        raise Invalid("expected 'text', 'image', 'document' or 'audio'.", *path, "type")
    data, uri = wire.get("data"), wire.get("uri")
    if data is None and uri is None:
        raise missing(*path, "data")
    if kind == "document":
        return document_at(uri, "", field, *path) if data is None else document_of_data(data, "", field, *path)
    if data is None:
        return from_url(uri, kind, field, *path)
    return from_base64(data, kind, field, *path, is_coarse=wire.get("resolution") == "low")


class NamedQuestions(WireField):
    """An object of nouls, choices and scores."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Shown:
        expect(dict, value, what="an object of questions")
        number_of(value, 1, QUESTIONS, "questions")
        return Shown(tuple(value), tuple(_question(wire, name) for name, wire in value.items()))


def _question(wire: Any, name: str) -> Question:
    only(wire, ("type", "instructions", "criteria"), name)
    kind, criteria = wire.get("type"), wire.get("criteria")
    parts = _instructions(wire.get("instructions"), name, "instructions")
    param = f"questions.{name}"
    where = (name, "criteria")
    if kind == "noul":
        given = only({} if criteria is None else criteria, ("true_description", "false_description"), *where)
        for key, text in given.items():
            expect_or_none(str, text, *where, key)
        yes, no = given.get("true_description") or "", given.get("false_description") or ""
        return Question("predicate", parts, (DecisionOption(True, yes), DecisionOption(False, no)), param)
    if kind == "choice":
        choices = expect_given(dict, criteria, *where, what="an object of strings")
        number_of(choices, 2, OPTIONS, "choices", *where)
        for option, text in choices.items():
            expect(str, text, *where, option)
            if not option or option != option.strip() or any(unicodedata.category(c) == "Cc" for c in option):
                raise Invalid(
                    "a name must not be empty, or have control characters or surrounding blanks.", *where, option[:64]
                )
        options = tuple(DecisionOption(option, text) for option, text in choices.items())
        return Question("choice", parts, options, param)
    if kind == "score":
        levels = expect_given(list, criteria, *where, what="an array of strings")
        number_of(levels, 2, OPTIONS, "levels", *where)
        for at, text in enumerate(levels):
            expect(str, text, *where, at)
        return Question("score", parts, tuple(map(DecisionOption, levels)), param)
    raise missing(name, "type") if kind is None else Invalid("expected 'noul', 'choice' or 'score'.", name, "type")


def _instructions(wire: Any, *path: int | str) -> tuple[Part, ...]:
    if wire is None:
        raise missing(*path)
    listed = wire if type(wire) is list else [wire]
    number_of(listed, 1, 1000, "contents", *path)
    parts = []
    for at, one in enumerate(listed):
        where = (*path, at) if type(wire) is list else path
        part = _content(one, "questions", *where)
        if not isinstance(part, TextPart):
            raise Invalid("expected text.", *where)
        parts.append(part)
    return tuple(parts)


class GeminiDecisionsSchema(DecisionSchema):
    model = String(
        "a name or alias, also after `models/`",
        required=True,
        to="model",
        via=lambda n: n.removeprefix("models/"),
    )
    input = DecisionContents("a text, a content or several: `text`, `image`, `document`, `audio`", required=True)
    questions = NamedQuestions("an object of `noul`, `choice` and `score`; at most 1,000", required=True)


class GeminiDecisions(DecisionsEndpoint):
    schema = GeminiDecisionsSchema

    def whole(self, options: Shown, made: Decisions) -> bytes:
        answers = {
            name: _answer(question, answer)
            for name, question, answer in zip(options.names, options.questions, made.answers)
            if not answer.refused
        }
        reply: dict[str, Any] = {"answers": answers}
        if not answers:
            reply = {"prompt_feedback": {"block_reason": "OTHER", "block_reason_message": REFUSED}}
        read, thought = made.prompt_tokens, made.reasoning_tokens
        reply["usage"] = {
            "total_input_tokens": read,
            "total_cached_tokens": made.cached_tokens,
            "total_output_tokens": 0,
            "total_thought_tokens": thought,
            "total_tokens": read + thought,
        }
        return orjson.dumps(reply)


def _answer(question: Question, answer: Decided) -> dict[str, Any]:
    mass = {"x_label_mass": answer.mass}
    found = answer.probabilities
    if question.kind == "predicate":
        p = min(MOST, max(LEAST, found[0]))
        return {"type": "noul", "noul": p, "confidence": max(p, 1 - p), **mass}
    if question.kind == "choice":
        values = [str(option.value) for option in question.options]
        reply = {"choice": values[chosen(answer)], "confidence": max(found), "probabilities": dict(zip(values, found))}
        return {"type": "choice", **reply, **mass}
    return {
        "type": "score",
        "score": level(answer),
        "confidence": max(found),
        "legend": {str(i): option.value for i, option in enumerate(question.options)},
        "probabilities": {str(i): p for i, p in enumerate(found)},
        **mass,
    }
