"""Adds up a stream as strictly as Anthropic's own client: order, indexes, one open block, valid arguments."""

from __future__ import annotations

import json


def add_up(chunks):
    """The message that these events make."""
    message, open_at, pieces, stopped = None, None, "", False
    for chunk in chunks:
        event = json.loads(chunk)
        kind = event["type"]
        assert not stopped, f"{kind} after message_stop"
        if kind == "message_start":
            assert message is None
            message = event["message"]
            assert message["content"] == [] and message["stop_reason"] is None
            continue
        assert message is not None, f"{kind} before message_start"
        if kind == "content_block_start":
            assert open_at is None and event["index"] == len(message["content"])
            block = event["content_block"]
            needed = {"text": "text", "thinking": "thinking", "tool_use": "input", "compaction": "content"}
            assert needed[block["type"]] in block
            message["content"].append(block)
            open_at, pieces = event["index"], ""
        elif kind == "content_block_delta":
            assert event["index"] == open_at
            block, delta = message["content"][open_at], event["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                assert not block["signature"]
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                assert not block["signature"]
                block["signature"] = delta["signature"]
            elif delta["type"] == "compaction_delta":
                assert block == {"type": "compaction", "content": None}
                block |= {"content": delta["content"], "encrypted_content": delta["encrypted_content"]}
            else:
                assert delta["type"] == "input_json_delta" and block["type"] == "tool_use"
                pieces += delta["partial_json"]
        elif kind == "content_block_stop":
            assert event["index"] == open_at
            if pieces:
                message["content"][open_at]["input"] = json.loads(pieces)
            open_at = None
        elif kind == "message_delta":
            assert open_at is None
            message |= event["delta"]
            message["usage"] |= event["usage"]
        elif kind == "message_stop":
            stopped = True
        else:
            assert kind == "ping"
    assert stopped and message["stop_reason"]
    return message
