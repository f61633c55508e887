"""`context_management` as Anthropic's SDK sends it."""

from __future__ import annotations

import pytest

from llamasrv.domain.context_edits import AppliedEdit, ClearResults, Compact, ContextEdits
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.anthropic.context_management import applied_body
from llamasrv.protocols.anthropic.messages import MessagesEndpoint
from llamasrv.protocols.limits import Limits

ENDPOINT = MessagesEndpoint(Limits())
HELLO = {"max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
THINKING, TOOL_USES = "clear_thinking_20251015", "clear_tool_uses_20250919"


def edits(*edits):
    return ENDPOINT.parse({**HELLO, "context_management": {"edits": list(edits)}})[0].edits


def test_nothing_is_edited_unasked():
    assert ENDPOINT.parse(HELLO)[0].edits is None
    assert edits() == ContextEdits()


def test_the_defaults_are_anthropics():
    assert edits({"type": TOOL_USES}) == ContextEdits(ClearResults(max_tokens=100_000, keep=3))
    assert edits({"type": THINKING}) == ContextEdits(thoughts=1)


def test_every_field_counts():
    edit = {
        "type": TOOL_USES,
        "trigger": {"type": "tool_uses", "value": 7},
        "keep": {"type": "tool_uses", "value": 0},
        "clear_at_least": {"type": "input_tokens", "value": 50},
        "exclude_tools": ["memory"],
        "clear_tool_inputs": ["bash"],
    }
    rule = ClearResults(None, 7, 0, 50, frozenset(("memory",)), frozenset(("bash",)))
    assert edits({"type": THINKING, "keep": {"type": "thinking_turns", "value": 2}}, edit) == ContextEdits(rule, 2)


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_all_thoughts_may_stay(keep):
    assert edits({"type": THINKING, "keep": keep}) == ContextEdits()


@pytest.mark.parametrize(
    "wrong, param",
    [
        ([{"type": TOOL_USES}, {"type": THINKING}], "edits[1].type"),
        ([{"type": TOOL_USES}, {"type": TOOL_USES}], "edits[1].type"),
        ([{}], "edits[0].type"),
        (["x"], "edits[0]"),
        ("x", "edits"),
        ([{"type": "x"}] * 17, "edits"),
        ([{"type": THINKING, "keep": {"type": "thinking_turns", "value": 0}}], "edits[0].keep.value"),
        ([{"type": THINKING, "keep": "some"}], "edits[0].keep"),
        ([{"type": TOOL_USES, "trigger": {"type": "days", "value": 1}}], "edits[0].trigger.type"),
        ([{"type": TOOL_USES, "trigger": {"type": "tool_uses", "value": True}}], "edits[0].trigger.value"),
        ([{"type": TOOL_USES, "keep": {"type": "tool_uses", "value": -1}}], "edits[0].keep.value"),
        ([{"type": TOOL_USES, "exclude_tools": [1]}], "edits[0].exclude_tools[0]"),
        ([{"type": TOOL_USES, "clear_tool_inputs": "all"}], "edits[0].clear_tool_inputs"),
    ],
)
def test_what_is_wrong_is_named(wrong, param):
    with pytest.raises(InvalidRequest) as error:
        ENDPOINT.parse({**HELLO, "context_management": {"edits": wrong}})
    assert error.value.param == f"context_management.{param}"


def test_other_edits_are_named_as_ignored():
    """Claude Code sends edits with every request and does not repeat one that is refused for them."""
    body = {**HELLO, "context_management": {"edits": [{"type": TOOL_USES}, {"type": "clear_all_20990101"}]}}
    ENDPOINT.parse(body)
    assert ENDPOINT.unheard(body) == ["context_management.edits.clear_all_20990101"]


def test_a_summary_has_a_threshold_an_order_and_may_be_all_there_is():
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 9}, "instructions": "Names"}
    body = {**HELLO, "context_management": {"edits": [{**edit, "pause_after_compaction": True}]}}
    assert ENDPOINT.parse(body)[0].edits.compact == Compact(9, "Names", pause=True)
    body["context_management"]["edits"] = [{"type": "compact_20260112"}]
    assert ENDPOINT.parse(body)[0].edits.compact == Compact(150_000)


def test_the_reply_says_what_was_done():
    applied = [AppliedEdit("thoughts", 2, 30), AppliedEdit("results", 4, 500)]
    assert applied_body(applied) == {
        "applied_edits": [
            {"type": THINKING, "cleared_thinking_turns": 2, "cleared_input_tokens": 30},
            {"type": TOOL_USES, "cleared_tool_uses": 4, "cleared_input_tokens": 500},
        ]
    }
