"""POST /v1/systemone: TypeSafe's System One. JSON in, DecideRequest out; Decisions in, JSON out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
from marshmallow import ValidationError

from llamasrv.domain.decide import Decided, DecideRequest, DecisionOption, Decisions, Question
from llamasrv.domain.request import MediaPart, Message, Part, TextPart
from llamasrv.protocols.common.decisions import (
    OPTIONS,
    DecisionSchema,
    Shown,
    choice_confidence,
    chosen,
    level,
    missing,
    number_of,
    only,
    request_of,
    score_confidence,
    text_of,
    users,
)
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, invalid_request
from llamasrv.protocols.common.media import from_base64, from_url
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.schema import (
    Array,
    Invalid,
    Object,
    Refusal,
    String,
    WireField,
    expect,
    expect_given,
    wrong_type,
)

QUESTIONS = 400
LEVELS = 10
IMAGES = 128  # max images
LONGEST_REFERENCE = 256  # max characters

Files = Mapping[str, bytes]
"""The files of a form, by the names of its parts."""


class State(WireField):
    """A text, an object or an array."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if type(value) not in (str, dict, list):
            raise wrong_type("a string, an object or an array", value)
        return text_of(value)


class Assets(Object):
    """References that stand for images, wherever they are in a text."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        number_of(value, 0, IMAGES, "assets")
        for reference, asset in value.items():
            if not 0 < len(reference) <= LONGEST_REFERENCE:
                raise Invalid(f"a reference has 1 to {LONGEST_REFERENCE} characters.", reference[:64])
            expect(dict, asset, reference)
            if asset.get("type") != "image":
                raise Invalid("expected 'image'.", reference, "type")
        return dict(value)


class SystemOneImages(Array):
    """data: URLs, base64, or objects with `base64`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[MediaPart, ...]:
        number_of(value, 0, IMAGES, "images")
        found = []
        for at, image in enumerate(value):
            if type(image) is dict:
                found.append(from_base64(image.get("base64"), "image", "images", at, "base64"))
            else:
                found.append(from_url(image, "image", "images", at))
        return tuple(found)


class QuestionsById(Object):
    """Checked once it is known which references stand for images."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> dict[str, Any]:
        number_of(value, 1, QUESTIONS, "questions")
        return dict(value)


class SystemOneSchema(DecisionSchema):
    model = String("a name or alias", required=True, to="model")
    state = State("a text, an object or an array: what is asked about", required=True)
    questions = QuestionsById("an object of `noul`, `choice` and `score`; at most 400", required=True)
    assets = Assets("references in texts, each an image: `data_base64`, or the `part` of a form")
    images = SystemOneImages("shown before `state`: data: URLs, base64, or objects with `base64`")


class _References(NamedTuple):
    """Images by the texts that stand for them."""

    images: Mapping[str, MediaPart]

    def parts(self, text: str) -> tuple[Part, ...]:
        """The text with images in place of their references."""
        if not self.images:
            return (TextPart(text),)
        pattern = "(" + "|".join(re.escape(one) for one in sorted(self.images, key=len, reverse=True)) + ")"
        pieces = [piece for piece in re.split(pattern, text) if piece]
        return tuple(self.images.get(piece) or TextPart(piece) for piece in pieces) or (TextPart(""),)

    def check(self, text: str, *path: int | str) -> str:
        if any(reference in text for reference in self.images):
            raise Refusal("an image cannot be part of a criterion here: refer to it in the instructions.", *path)
        return text


class SystemOne(SchemaEndpoint):
    schema = SystemOneSchema
    names = prompt_in("state")

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None, files: Files | None = None
    ) -> tuple[DecideRequest, Shown]:
        """`files`: of a form. Errors have the steps to the field as `details["loc"]`: names may contain dots."""
        try:
            data = Loaded(self._loader.checked(body))
            data.parts = {}
            self._loader.place(data, data.parts)
            references = _References(
                {ref: _asset(ref, asset, files or {}) for ref, asset in data.get("assets", {}).items()}
            )
            questions = _questions(data["questions"], references)
        except ValidationError as error:
            raise invalid_request(error.messages).but(details={"loc": _steps(error.messages)}) from None
        state = references.parts(data["state"])
        input: tuple[Message, ...] = users((*data.get("images", ()), *state))
        shown = Shown(tuple(data["questions"]), questions, tuple(q.get("criteria") for q in data["questions"].values()))
        return request_of(data, input, questions, self._limits, owner=owner, timeout=timeout), shown

    def whole(self, options: Shown, made: Decisions) -> bytes:
        answers = {
            name: _answer(question, levels, answer)
            for name, question, levels, answer in zip(options.names, options.questions, options.levels, made.answers)
            if not answer.refused
        }
        usage = {"input_tokens": made.prompt_tokens, "output_tokens": made.reasoning_tokens}
        return orjson.dumps({"model": made.model, "answers": answers, "usage": usage})


def _steps(messages: Any) -> list[int | str]:
    steps: list[int | str] = []
    while isinstance(messages, dict):
        step, messages = next(iter(messages.items()))
        steps.append(step)
    return steps


def _asset(reference: str, asset: Mapping[str, Any], files: Files) -> MediaPart:
    part = asset.get("part")
    where = ("assets", reference)
    try:
        if part is None:
            return from_base64(asset.get("data_base64"), "image", *where, "data_base64")
        if type(part) is not str or part not in files:
            raise Invalid("the form has no such part.", reference, "part")
        if not files[part]:
            raise Invalid("the image is empty.", reference, "part")
        return MediaPart("image", files[part], param=f"assets.{reference}")
    except ValidationError as error:
        raise ValidationError({"assets": error.messages}) from None


def _questions(wire: Mapping[str, Any], references: _References) -> tuple[Question, ...]:
    try:
        return tuple(_question(one, name, references) for name, one in wire.items())
    except ValidationError as error:
        raise ValidationError({"questions": error.messages}) from None


def _question(wire: Any, name: str, references: _References) -> Question:
    only(wire, ("type", "instructions", "criteria"), name)
    kind, criteria, instructions = wire.get("type"), wire.get("criteria"), wire.get("instructions")
    if kind == "box":
        raise Refusal("this server cannot locate things in an image: 'box' is not supported.", name, "type")
    if kind not in ("noul", "choice", "score"):
        raise missing(name, "type") if kind is None else Invalid("expected 'noul', 'choice' or 'score'.", name, "type")
    if instructions is not None and type(instructions) not in (str, dict, list):
        raise wrong_type("a string, an object or an array", instructions, name, kind, "instructions")
    parts = () if instructions is None else references.parts(text_of(instructions))
    where, param = (name, kind, "criteria"), f"questions.{name}"

    def said(value: Any, *path: int | str) -> str:
        if value is None:
            return ""
        if type(value) not in (str, dict, list):
            raise wrong_type("a string, an object or an array", value, *where, *path)
        return references.check(text_of(value), *where, *path)

    if kind == "noul":
        given = only({} if criteria is None else criteria, ("true", "false"), *where)
        yes, no = said(given.get("true"), "true"), said(given.get("false"), "false")
        if not (parts or yes or no):
            raise missing(name, kind, "instructions")
        return Question("predicate", parts, (DecisionOption(True, yes), DecisionOption(False, no)), param)
    if kind == "choice":
        choices = expect_given(dict, criteria, *where)
        number_of(choices, 1, OPTIONS, "choices", *where)
        options = tuple(DecisionOption(option, said(text, option)) for option, text in choices.items())
        return Question("choice", parts, options, param)
    expect_given(list, criteria, *where)
    number_of(criteria, 1, LEVELS, "levels", *where)
    for at, one in enumerate(criteria):
        if one is None:
            raise wrong_type("a string, an object or an array", one, *where, at)
    levels = tuple(DecisionOption(said(one, at)) for at, one in enumerate(criteria))
    return Question("score", parts, levels, param)


def _answer(question: Question, levels: Any, answer: Decided) -> dict[str, Any]:
    mass = {"x_label_mass": answer.mass}
    found = answer.probabilities
    if question.kind == "predicate":
        return {"type": "noul", "noul": found[0], **mass}
    if question.kind == "choice":
        values = [str(option.value) for option in question.options]
        shares = dict(zip(values, found))
        best = values[chosen(answer)]
        return {
            "type": "choice",
            "choice": best,
            "confidence": choice_confidence(answer),
            "probabilities": shares,
            **mass,
        }
    return {
        "type": "score",
        "score": level(answer),
        "confidence": score_confidence(answer),
        "legend": {str(i): sent for i, sent in enumerate(levels)},
        "probabilities": {str(i): p for i, p in enumerate(found)},
        **mass,
    }
