"""`prediction`: a string or text parts; everything else is refused by name."""

import pytest

from llamasrv.domain.events import DraftCounts, Usage
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.wire import usage_body
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions
from llamasrv.protocols.telemetry import timings


def parse(prediction):
    body = {"messages": [{"role": "user", "content": "Hi"}], "prediction": prediction}
    return ChatCompletions(Limits(parts=4)).parse(body)[0].prediction


@pytest.mark.parametrize(
    "content, text",
    [
        ("def f():", "def f():"),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([], ""),
    ],
)
def test_it_is_a_text_or_parts_of_one(content, text):
    assert parse({"type": "content", "content": content}) == text


def test_none_is_none():
    assert parse(None) is None


@pytest.mark.parametrize(
    "prediction, path",
    [
        ("text", "prediction"),
        ([], "prediction"),
        ({"content": "x"}, "prediction.type"),
        ({"type": "text", "content": "x"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": 1}, "prediction.content"),
        ({"type": "content", "content": ["x"]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content[0].type"),
        ({"type": "content", "content": [{"type": "text", "text": None}]}, "prediction.content[0].text"),
        ({"type": "content", "content": [{"type": "text", "text": "x"}] * 5}, "prediction.content"),
    ],
)
def test_anything_else_is_refused(prediction, path):
    with pytest.raises(InvalidRequest) as error:
        parse(prediction)
    assert error.value.param == path


def test_usage_reports_what_became_of_it():
    details = usage_body(Usage(completion_tokens=9, drafts=DraftCounts(20, 12, 15, 11)))["completion_tokens_details"]
    assert details == {"reasoning_tokens": 0, "accepted_prediction_tokens": 11, "rejected_prediction_tokens": 4}


def test_usage_says_nothing_of_it_where_there_was_none():
    assert usage_body(Usage(drafts=DraftCounts(5, 3)))["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_timings_count_all_drafts():
    told = timings(Usage(drafts=DraftCounts(20, 12)))
    assert (told["draft_n"], told["draft_n_accepted"]) == (20, 12)
    assert "draft_n" not in timings(Usage())
