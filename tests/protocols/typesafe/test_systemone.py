"""System One's bodies."""

import pytest

from llamasrv.domain.request import MediaPart, TextPart
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.typesafe.systemone import SystemOne

PNG = "iVBORw0KGgo="
NOUL = {"type": "noul", "instructions": "Is it so?"}


def parse(files=None, **body):
    given = {"model": "m", "state": "text", "questions": {"q": NOUL}, **body}
    return SystemOne(Limits()).parse(given, files=files)[0]


def loc_of(**body):
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    return caught.value.details["loc"]


def test_objects_are_compact_json_in_the_order_given():
    (message,) = parse(state={"b": "ä", "a": [1, None]}).input
    assert message.content == '{"b":"ä","a":[1,null]}'


def test_a_reference_stands_for_its_image_wherever_it_is():
    question = {"type": "noul", "instructions": "Like <image:b>?"}
    request = parse(
        state=["Look:", "<image:a>"],
        questions={"q": question},
        assets={
            "<image:a>": {"type": "image", "format": "png", "data_base64": PNG},
            "<image:b>": {"type": "image", "part": "asset-1"},
        },
        files={"asset-1": b"bytes"},
    )
    kinds = [type(part) for part in request.input[0].content]
    assert kinds == [TextPart, MediaPart, TextPart]
    text, image, mark = request.questions[0].instructions
    assert (text.text, image.data, mark.text) == ("Like ", b"bytes", "?")


@pytest.mark.parametrize(("body", "loc"), [
    ({"questions": {}}, ["questions"]),
    ({"state": None}, ["state"]),
    ({"questions": {"a.b": {"type": "choice", "instructions": "?"}}}, ["questions", "a.b", "choice", "criteria"]),
    ({"questions": {"q": {"type": "choice", "criteria": {}}}}, ["questions", "q", "choice", "criteria"]),
    ({"questions": {"q": {"type": "noul"}}}, ["questions", "q", "noul", "instructions"]),
    ({"questions": {"q": {"type": "noul", "criteria": {"yes": "x"}}}}, ["questions", "q", "noul", "criteria", "yes"]),
    ({"questions": {"q": {"type": "score", "criteria": ["x"] * 11}}}, ["questions", "q", "score", "criteria"]),
    ({"questions": {"q": {"type": "box", "instructions": "dent"}}}, ["questions", "q", "type"]),
    ({"questions": {"q": {**NOUL, "instruction": "?"}}}, ["questions", "q", "instruction"]),
    ({"images": ["data:text/plain;base64,AAAA"]}, ["images", 0]),
    ({"assets": {"R": {"type": "image", "part": "none"}}}, ["assets", "R", "part"]),
    ({"assets": {"R": {"type": "image", "data_base64": PNG}},
      "questions": {"q": {"type": "choice", "criteria": {"x": "like R"}}}},
     ["questions", "q", "choice", "criteria", "x"]),
])  # fmt: skip
def test_what_is_wrong_is_named_step_by_step(body, loc):
    assert loc_of(**body) == loc


def test_one_option_and_one_level_are_allowed():
    questions = {"c": {"type": "choice", "criteria": {"x": None}}, "s": {"type": "score", "criteria": [{"label": "x"}]}}
    choice, score = parse(questions=questions).questions
    assert [option.value for option in choice.options] == ["x"]
    assert [option.value for option in score.options] == ['{"label":"x"}']
