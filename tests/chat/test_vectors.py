"""The collection of what models wrote, beside the checkout: whole, and cut at every position."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vectors import COLLECTION, SHARED, Case, comparable

FILES = (SHARED / "chat-vectors" / "vectors.json", SHARED / "chat-vectors" / "vectors-2.json")
VECTORS: list[dict[str, Any]] = [
    vector for file in FILES if file.is_file() for vector in json.loads(file.read_text(encoding="utf-8"))
]


LATER = SHARED / "chat-vectors" / "vectors-3.json"
LATER_VECTORS: list[dict[str, Any]] = [
    vector
    for vector in (json.loads(LATER.read_text(encoding="utf-8")) if LATER.is_file() else ())
    if vector["kind"] == "parse"
]


OTHERWISE = {("Qwen3.5-4B.jinja", 2377): {"reasoning_content": ""}}
"""What we read otherwise: a start mark first thing in a thought that the prompt has opened says nothing."""


def cuts(output: str) -> range:
    """A third of all places to cut at: every mark is cut, and which part of it differs between outputs."""
    return range(len(output) % 3, len(output) + 1, 3)


def expected_of(vector: dict[str, Any]) -> dict[str, Any]:
    return comparable({**vector["expect"], **OTHERWISE.get((vector["template"], vector.get("line")), {})})


def case_of(vector: dict[str, Any]) -> Case:
    return Case((COLLECTION / vector["template"]).read_text(encoding="utf-8"), vector["request"])


@pytest.mark.skipif(not VECTORS, reason="the collection is not there")
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['template'][:-6]}-{v['line']}")
def test_the_message_is_the_expected_one_for_every_cut(vector):
    case, output = case_of(vector), vector["model_output"]
    whole = case.parse(output)
    assert comparable(whole) == expected_of(vector)
    for expected, made in zip(vector["expect"]["tool_calls"], whole["tool_calls"], strict=True):
        assert expected.get("id") in (None, made["id"])
    if not vector["is_partial"]:
        assert whole["complete"] == len(whole["tool_calls"])
    for cut in cuts(output):
        assert case.parse(output[:cut], output[cut:]) == whole, f"cut at {cut}"
    assert case.parse(*output) == whole, "one character at a time"


@pytest.mark.skipif(not LATER_VECTORS, reason="the collection is not there")
@pytest.mark.parametrize("vector", LATER_VECTORS, ids=lambda v: f"{v['template'][:-6]}-{v['source']}")
def test_the_message_of_a_family_that_was_added_later_is_the_expected_one_for_every_cut(vector):
    case, output = case_of(vector), vector["model_output"]
    whole = case.parse(output)
    assert comparable(whole) == expected_of(vector)
    assert case.parse(*output) == whole, "one character at a time"
    for cut in cuts(output):
        assert case.parse(output[:cut], output[cut:]) == whole, f"cut at {cut}"
