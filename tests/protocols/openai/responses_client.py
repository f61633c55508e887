"""A client of its own: checks every rule of a Responses stream, event by event, and adds it up to the final response."""

from __future__ import annotations

import json

FINAL = {"response.completed": "completed", "response.failed": "failed", "response.incomplete": None}
BEFORE_ITEMS = ("response.created", "response.queued", "response.in_progress")
FIELDS = {
    "response.output_item.added": {"output_index", "item"},
    "response.output_item.done": {"output_index", "item"},
    "response.compaction.compacting": {"output_index", "item_id"},
    "response.content_part.added": {"item_id", "output_index", "content_index", "part"},
    "response.content_part.done": {"item_id", "output_index", "content_index", "part"},
    "response.output_text.delta": {"item_id", "output_index", "content_index", "delta", "logprobs"},
    "response.output_text.done": {"item_id", "output_index", "content_index", "text", "logprobs"},
    "response.reasoning_text.delta": {"item_id", "output_index", "content_index", "delta"},
    "response.reasoning_text.done": {"item_id", "output_index", "content_index", "text"},
    "response.reasoning_summary_part.added": {"item_id", "output_index", "summary_index", "part"},
    "response.reasoning_summary_part.done": {"item_id", "output_index", "summary_index", "part"},
    "response.reasoning_summary_text.delta": {"item_id", "output_index", "summary_index", "delta"},
    "response.reasoning_summary_text.done": {"item_id", "output_index", "summary_index", "text"},
    "response.function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "response.function_call_arguments.done": {"item_id", "output_index", "arguments"},
    "response.custom_tool_call_input.delta": {"item_id", "output_index", "delta"},
    "response.custom_tool_call_input.done": {"item_id", "output_index", "input"},
}


def add_up(payloads, *, cut=False):
    """The final response of a stream. `payloads` are the data of its events; `cut`: it may end early."""
    events = [json.loads(payload) for payload in payloads]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    client = _Client()
    for event in events:
        client.take(event)
    assert cut or client.final is not None, "no last event"
    return client.final


class _Client:
    def __init__(self):
        self.first = self.final = self.open = None
        self.items = []
        self.call_ids = set()
        self.deltas = {}

    def take(self, event):
        kind = event["type"]
        assert self.final is None, "nothing comes after the last event"
        if kind in BEFORE_ITEMS or kind in FINAL:
            assert set(event) == {"type", "sequence_number", "response"}
            self.lifecycle(kind, event["response"])
            return
        assert self.first is not None, "response.created comes first"
        if kind == "keepalive":
            assert set(event) == {"type", "sequence_number"}
            return
        assert set(event) == FIELDS[kind] | {"type", "sequence_number"}, kind
        if kind == "response.output_item.added":
            self.added(event)
            return
        assert self.open is not None and event["output_index"] == len(self.items)
        if kind == "response.output_item.done":
            self.done(event["item"])
            return
        assert event["item_id"] == self.open["id"]
        if kind == "response.compaction.compacting":
            assert self.open["type"] == "compaction"
            return
        self.part(kind, event)

    def lifecycle(self, kind, response):
        assert response["object"] == "response"
        if kind == "response.created":
            assert self.first is None
            self.first = response
        assert response["id"] == self.first["id"] and response["created_at"] == self.first["created_at"]
        if kind in BEFORE_ITEMS:
            assert response["output"] == [] and response["usage"] is None and not self.items and self.open is None
            assert response["status"] == ("queued" if kind == "response.queued" else response["status"])
            return
        assert self.open is None, "every item is closed before the end"
        assert response["output"] == self.items
        assert FINAL[kind] in (None, response["status"])
        if response["status"] == "completed":
            assert response["completed_at"] >= response["created_at"] and response["usage"]
        self.final = response

    def added(self, event):
        assert self.open is None and event["output_index"] == len(self.items)
        item = event["item"]
        if item["type"] == "compaction":
            assert item["encrypted_content"] == ""
        else:
            assert item["status"] == "in_progress"
        if "call_id" in item:
            assert item["call_id"] not in self.call_ids
            self.call_ids.add(item["call_id"])
            assert item["arguments" if item["type"] == "function_call" else "input"] == ""
        self.open, self.deltas, self.parts, self.ended = item, {}, set(), set()

    def part(self, kind, event):
        name, _, what = kind.removeprefix("response.").rpartition(".")
        if name in ("content_part", "reasoning_summary_part"):
            key = "content" if name == "content_part" else "summary"
            if what == "added":
                assert event["part"]["text"] == "" and key not in self.parts
                self.parts.add(key)
            else:
                assert event["part"]["text"] == "".join(self.deltas.get(key, []))
                self.ended.add(key)
            return
        key = "summary" if "summary" in name else "content" if "text" in name else "call"
        if key != "call":
            assert key in self.parts and key not in self.ended
        if what == "delta":
            self.deltas.setdefault(key, []).append(event["delta"])
            return
        said = "".join(self.deltas.get(key, []))
        assert said == event["text" if key != "call" else "arguments" if "function" in name else "input"]

    def done(self, item):
        assert item["id"] == self.open["id"] and item["type"] == self.open["type"]
        assert item.get("call_id") == self.open.get("call_id") and item.get("status") != "in_progress"
        assert self.parts == self.ended
        if item["type"] == "function_call" and item["status"] == "completed":
            json.loads(item["arguments"])
        for key in ("content", "summary"):
            said = "".join(self.deltas.get(key, []))
            assert said == "".join(part["text"] for part in item.get(key, ()))
        self.items.append(item)
        self.open = None
