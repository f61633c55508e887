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
NOT_READ = {
    "Hunyuan-A13B-Instruct": (
        "SIMPLE_REASONING", "COMPLETE_REASONING", "NO_REASONING_QUICK_THOUGHT", "MULTIPLE_LINES", '</answer>")',
    ),
    "Llama-4-pythonic": (
        "python_tag", "only", "test_streaming_tool_call_with_large_steps",
    ),
    "Phi-4-mini": (
        "single", "parallel", "doubt)", "empty_arguments", "escaped_strings",
    ),
    "HyperCLOVAX-SEED-Think-14B": (
        "asks", "force_reasoning", "(force_reasoning)", "call",
    ),
    "Inkling": (
        "answer", "only", "block", "reasoning", "has)", "tools", "calls", "test_bare_text_after_model_opener",
        "test_reasoning_text_tool", "test_tool_header_name_is_not_visible_content", "test_nested_args",
        "test_multiple_reasoning_blocks_concatenate", "test_text_after_tool_call", "test_text_then_tool",
        "test_reasoning_then_tool",
    ),
}  # fmt: skip
"""By template, how the sources of those end that are not read yet."""


def later(vector: dict[str, Any]) -> Any:
    name, source = vector["template"][:-6], vector["source"]
    missed = source.endswith(NOT_READ.get(name, ()))
    marks = pytest.mark.xfail(reason="this is not learned", strict=True) if missed else ()
    return pytest.param(vector, id=f"{name}-{source}", marks=marks)


def case_of(vector: dict[str, Any]) -> Case:
    return Case((COLLECTION / vector["template"]).read_text(encoding="utf-8"), vector["request"])


@pytest.mark.skipif(not VECTORS, reason="the collection is not there")
@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['template'][:-6]}-{v['line']}")
def test_the_message_is_the_expected_one_for_every_cut(vector):
    case, output = case_of(vector), vector["model_output"]
    whole = case.parse(output)
    assert comparable(whole) == comparable(vector["expect"])
    for expected, made in zip(vector["expect"]["tool_calls"], whole["tool_calls"], strict=True):
        assert expected.get("id") in (None, made["id"])
    if not vector["is_partial"]:
        assert whole["complete"] == len(whole["tool_calls"])
    for cut in range(len(output) + 1):
        assert case.parse(output[:cut], output[cut:]) == whole, f"cut at {cut}"
    assert case.parse(*output) == whole, "one character at a time"


@pytest.mark.parametrize("vector", [later(vector) for vector in LATER_VECTORS])
def test_the_message_of_a_family_that_was_added_later_is_the_expected_one_for_every_cut(vector):
    case, output = case_of(vector), vector["model_output"]
    whole = case.parse(output)
    assert comparable(whole) == comparable(vector["expect"])
    assert case.parse(*output) == whole, "one character at a time"
    for cut in range(len(output) + 1):
        assert case.parse(output[:cut], output[cut:]) == whole, f"cut at {cut}"
