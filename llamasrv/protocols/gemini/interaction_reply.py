"""Google's Interactions: a response of OpenAI's, whole or as events, in Google's words.

A stored response and its events hold everything an interaction needs, so each is translated from them: an output item
is a step, with the same number. Each event is translated separately; if it becomes several, the last has its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import orjson

from llamasrv.protocols.openai.responses import Responses
from llamasrv.protocols.openai.responses.ids import SEAL
from llamasrv.protocols.openai.responses.reply import Keep, ResponseOptions, ResponseReply

JSON = dict[str, Any]

_STATUS = {"queued": "queued", "in_progress": "in_progress", "incomplete": "incomplete", "failed": "failed"}
_ACTIONS = ("function_call", "tool_search_call")
LAST = b"event: done\ndata: [DONE]\n\n"


class InteractionResponses(Responses):
    """The endpoint of Responses, whose replies are interactions."""

    def reply(self, options: ResponseOptions, keep: Keep | None = None) -> ResponseReply:
        return InteractionReply(options, keep if options.store else None)


class InteractionReply(ResponseReply):
    def whole(self) -> bytes:
        return orjson.dumps(interaction(self.response))


# ---------------------------------------------------------------- whole


def interaction(response: JSON, items: Sequence[JSON] = ()) -> JSON:
    """A stored response. `items`: those it was made from, shown before its own."""
    output = response["output"]
    made = _head(response) | {"steps": [step for item in (*items, *output) if (step := _step(item))]}
    texts = [part["text"] for item in output for part in _texts(item)]
    if texts:
        made["output_text"] = "".join(texts)
    optional = {
        "usage": _usage(response["usage"]),
        "previous_interaction_id": response["previous_response_id"],
        "system_instruction": response.get("instructions"),
        "errors": _errors(response["error"]),
    }
    return made | {name: value for name, value in optional.items() if value}


def _head(response: JSON) -> JSON:
    return {
        "id": response["id"],
        "object": "interaction",
        "status": _status(response),
        "model": response["model"],
        "created": _time(response["created_at"]),
        "updated": _time(response["completed_at"] or response["created_at"]),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _status(response: JSON) -> str:
    status = response["status"]
    if status == "completed" and any(_waits(item) for item in response["output"]):
        return "requires_action"
    return str(status)


def _waits(item: JSON) -> bool:
    """Whether the response waits for results from the client."""
    return item["type"] in _ACTIONS and item.get("execution") != "server"


def _errors(error: JSON | None) -> list[JSON]:
    return [] if error is None else [{"code": error["code"], "message": error["message"]}]


def _usage(usage: JSON | None) -> JSON:
    if usage is None:
        return {}
    thought = usage["output_tokens_details"]["reasoning_tokens"]
    return {
        "total_input_tokens": usage["input_tokens"],
        "total_cached_tokens": usage["input_tokens_details"]["cached_tokens"],
        "total_output_tokens": usage["output_tokens"] - thought,
        "total_thought_tokens": thought,
        "total_tool_use_tokens": 0,
        "total_tokens": usage["total_tokens"],
    }


def _texts(item: JSON) -> list[JSON]:
    content = item.get("content")
    if item["type"] != "message" or item.get("role") != "assistant":
        return []
    if type(content) is str:
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": part["text"]} for part in content or () if "text" in part]


def _step(item: JSON) -> JSON | None:
    """An item as a step; None if it is not shown as one."""
    kind = item["type"] if "type" in item else "message"
    made = _STEPS.get(kind)
    return None if made is None else made(item)


def _message(item: JSON) -> JSON | None:
    if item.get("role") == "assistant":
        return {"type": "model_output", "content": _texts({"type": "message", **item})}
    if item.get("role") != "user":
        return None
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if type(content) is str else content or []
    return {"type": "user_input", "content": [_content(part) for part in parts]}


def _content(part: JSON) -> JSON:
    kind = part.get("type")
    if kind == "input_image":
        return {"type": "image", **_data(part.get("image_url"))}
    if kind == "input_audio":
        sound = part.get("input_audio") or {}
        return {"type": "audio", "mime_type": f"audio/{sound.get('format')}", "data": sound.get("data")}
    if kind == "input_file":
        return {"type": "document", **_data(part.get("file_data") or part.get("file_url"))}
    return {"type": "text", "text": part.get("text", "")}


def _data(url: Any) -> JSON:
    text = str(url or "")
    if not text.startswith("data:"):
        return {"uri": text}
    head, _, data = text.partition(",")
    return {"mime_type": head[5:].partition(";")[0], "data": data}


def _thought(item: JSON) -> JSON:
    step: JSON = {"type": "thought"}
    if sealed := item.get("encrypted_content"):
        step["signature"] = sealed.removeprefix(SEAL)
    if item.get("summary"):
        step["summary"] = [{"type": "text", "text": part["text"]} for part in item["summary"]]
    return step


def _call(item: JSON) -> JSON:
    return {"type": "function_call", "id": item["call_id"], "name": item["name"], "arguments": _object(item)}


def _object(item: JSON) -> JSON:
    """The arguments; {} if they are cut off or have not arrived."""
    given = item.get("arguments") or {}
    if type(given) is str:
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError:
            return {}
    return given if type(given) is dict else {}


def _result(item: JSON) -> JSON:
    output = item.get("output")
    result = [_content(part) for part in output] if type(output) is list else output
    return {"type": "function_result", "call_id": item.get("call_id"), "result": result}


def _search(item: JSON) -> JSON:
    return {"type": "tool_search_call", "id": item.get("call_id") or item["id"], "arguments": _object(item)}


def _found(item: JSON) -> JSON:
    return {"type": "tool_search_result", "call_id": item.get("call_id") or item["id"], "result": item.get("tools", [])}


_STEPS: Mapping[str, Callable[[JSON], JSON | None]] = {
    "message": _message,
    "reasoning": _thought,
    "function_call": _call,
    "function_call_output": _result,
    "tool_search_call": _search,
    "tool_search_output": _found,
}


# ---------------------------------------------------------------- events


def frame(chunk: bytes) -> bytes:
    """An event of a response, as those of its interaction."""
    event = orjson.loads(chunk)
    made = _events(event)
    if made and "sequence_number" in event:
        made[-1]["event_id"] = str(event["sequence_number"])
    return b"".join(b"event: %b\ndata: %b\n\n" % (one["event_type"].encode(), orjson.dumps(one)) for one in made)


def _events(event: JSON) -> list[JSON]:
    name = event["type"].removeprefix("response.")
    if name in _DELTAS:
        return [{"event_type": "step.delta", "index": event["output_index"], "delta": _DELTAS[name](event["delta"])}]
    if name == "output_item.added":
        return _begun(event)
    if name == "output_item.done":
        return _ended(event)
    if name == "created":
        return [{"event_type": "interaction.created", "interaction": _head(event["response"])}]
    if name in ("queued", "in_progress"):
        return [_update(event["response"])]
    if name in ("completed", "incomplete", "failed"):
        response = event["response"]
        failed = [{"event_type": "error", "error": error} for error in _errors(response["error"])]
        last = _head(response) | {"usage": _usage(response["usage"])}
        return [*failed, {"event_type": "interaction.completed", "interaction": last}]
    if name == "error":
        error = event.get("error") or event
        return [{"event_type": "error", "error": {"code": str(error.get("code")), "message": error["message"]}}]
    return []


def _update(response: JSON) -> JSON:
    status = _STATUS[response["status"]]
    return {"event_type": "interaction.status_update", "interaction_id": response["id"], "status": status}


_DELTAS: Mapping[str, Callable[[str], JSON]] = {
    "output_text.delta": lambda text: {"type": "text", "text": text},
    "function_call_arguments.delta": lambda text: {"type": "arguments_delta", "arguments": text},
    "reasoning_summary_text.delta": lambda text: {"type": "thought_summary", "content": {"type": "text", "text": text}},
}


def _begun(event: JSON) -> list[JSON]:
    step = _step(event["item"])
    if step is None:
        return []
    if step["type"] in ("function_call", "tool_search_call"):
        step["arguments"] = {}
    return [{"event_type": "step.start", "index": event["output_index"], "step": step}]


def _ended(event: JSON) -> list[JSON]:
    step, index = _step(event["item"]), event["output_index"]
    if step is None:
        return []
    made: list[JSON] = []
    delta: JSON | None = None
    if step.get("signature"):
        delta = {"type": "thought_signature", "signature": step["signature"]}
    elif step["type"] == "tool_search_call":
        delta = {"type": "tool_search_call", "arguments": step["arguments"]}
    if delta is not None:
        made.append({"event_type": "step.delta", "index": index, "delta": delta})
    return [*made, {"event_type": "step.stop", "index": index}]
