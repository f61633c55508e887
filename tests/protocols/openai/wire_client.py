"""A client of its own: checks the invariants of a stream, chunk by chunk, and adds it up to what a whole reply is."""

from __future__ import annotations

import json


def add_up_chat(payloads, *, include_usage=False):
    """The choices of a chat stream, as the whole reply has them. `payloads` are the data of its events."""
    chunks = [json.loads(payload) for payload in payloads]
    same = {(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}
    assert len(same) == 1 and next(iter(same))[3] == "chat.completion.chunk"
    usage = _usage(chunks, include_usage)
    choices: dict[int, dict] = {}
    for chunk in chunks:
        (wire,) = chunk["choices"]
        index, delta = wire["index"], wire["delta"]
        if index not in choices:
            assert index == len(choices), "choices appear in order"
            assert delta == {"role": "assistant", "content": ""}, "the role comes first, once"
            choices[index] = {"content": "", "logprobs": [], "finish_reason": None}
            continue
        choice = choices[index]
        assert choice["finish_reason"] is None, "nothing comes after the finish"
        assert "role" not in delta and isinstance(delta, dict)
        choice["content"] += delta.get("content", "")
        if wire["logprobs"] is not None:
            entries = wire["logprobs"]["content"]
            assert bytes(b for e in entries for b in e["bytes"]).decode("utf-8", "replace") == delta["content"]
            choice["logprobs"] += entries
        if wire["finish_reason"] is not None:
            assert delta == {}
            choice["finish_reason"] = wire["finish_reason"]
    assert all(choice["finish_reason"] for choice in choices.values())
    return [choices[i] for i in range(len(choices))], usage


def whole_chat(body):
    reply = json.loads(body)
    assert reply["object"] == "chat.completion"
    return [
        {
            "content": choice["message"]["content"],
            "logprobs": choice["logprobs"]["content"] if choice["logprobs"] else [],
            "finish_reason": choice["finish_reason"],
        }
        for choice in reply["choices"]
    ], reply["usage"]


def add_up_completions(payloads, *, include_usage=False):
    chunks = [json.loads(payload) for payload in payloads]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "text_completion"
    usage = _usage(chunks, include_usage)
    choices: dict[int, dict] = {}
    for chunk in chunks:
        (wire,) = chunk["choices"]
        choice = choices.setdefault(wire["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert choice["finish_reason"] is None
        choice["text"] += wire["text"]
        if wire["logprobs"] is not None:
            if choice["logprobs"] is None:
                choice["logprobs"] = wire["logprobs"]
            else:
                for name, values in wire["logprobs"].items():
                    choice["logprobs"][name] += values
        choice["finish_reason"] = wire["finish_reason"]
    return [choices[i] for i in range(len(choices))], usage


def whole_completions(body):
    reply = json.loads(body)
    assert reply["object"] == "text_completion"
    return [
        {name: choice[name] for name in ("text", "logprobs", "finish_reason")} for choice in reply["choices"]
    ], reply["usage"]


def _usage(chunks, wanted):
    if wanted:
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        last = chunks.pop()
        assert last["choices"] == []
        return last["usage"]
    assert not any("usage" in chunk for chunk in chunks)
    return None
