"""The events of a response, in OpenAI's order, numbered without gaps.

    created, (queued,) in_progress
    for each item    output_item.added, its parts and deltas and their ends, output_item.done
    at the end       completed, incomplete or failed
    in a silence     keepalive: some clients count events, not comments

One item is open at a time. The same calls give the same bytes, so what was stored of a response gives its events once
more, numbers included: `replay`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import orjson

from llamasrv.errors import LlamasrvError
from llamasrv.protocols.common.wire import dumps
from llamasrv.protocols.openai.responses.client_tools import CALLS, CLIENT_TOOLS, ClientTool
from llamasrv.protocols.openai.responses.ids import output_id
from llamasrv.protocols.openai.responses.stored import ENDED, Cuts, Stored
from llamasrv.protocols.openai.responses.tools import Kind

JSON = dict[str, Any]

_LAST = {"completed": "response.completed", "failed": "response.failed"}
"""How a response ends, by its status; in every other way it is incomplete."""


class Events:
    """Writes the events of one response; `take` returns those written since."""

    def __init__(self, response: str, silences: Sequence[int] = ()) -> None:
        """`silences`: the numbers of keepalives that were sent before, to be written once more."""
        self.items: list[JSON] = []  # the output so far
        self.cuts: Cuts = []
        self.silences: list[int] = []  # sequence numbers of keepalives
        self._due = deque(silences)
        self._response = response
        self.number = 0  # sequence number of the next event
        self._out: list[bytes] = []
        self._open: _Item | None = None
        self.pace = b""  # further members of a delta: the current speed

    def take(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    @property
    def has_written(self) -> bool:
        """Whether there is anything to take."""
        return bool(self._out)

    # ------------------------------------------------------------ the response

    def begin(self, response: JSON) -> None:
        """`response` may be in any later state; what could not be known at the beginning is left out."""
        background = response["background"]
        start = {
            **response,
            "status": "queued" if background else "in_progress",
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        self._lifecycle("response.created", start)
        self._lifecycle("response.queued" if background else "response.in_progress", start)

    def go_on(self, response: JSON) -> None:
        """Report that a background response has left the queue."""
        start = {**response, "status": "in_progress", "completed_at": None, "error": None, "incomplete_details": None}
        self._lifecycle("response.in_progress", {**start, "output": [], "usage": None})

    def end(self, response: JSON, more: bytes = b"") -> None:
        self._lifecycle(_LAST.get(response["status"], "response.incomplete"), response, more)

    def tell_progress(self, response: JSON, more: bytes) -> None:
        """Report the prompt's place in the queue, or how much of it is computed. Repeats the number of the event
        before, because replays lack these events."""
        self.number -= 1
        self._lifecycle("response.in_progress", {**response, "output": [], "usage": None}, more)

    def aside(self, name: str, **fields: Any) -> None:
        """Send sound. Repeats the number of the event before, because sound is not replayed."""
        self.number -= 1
        self.event(name, **fields) if fields else self._write(name, b'"response_id":%b}' % dumps(self._response))

    def keepalive(self) -> None:
        self.silences.append(self.number)
        self._out.append(b'{"type":"keepalive","sequence_number":%d}' % self.number)
        self.number += 1

    def _lifecycle(self, name: str, response: JSON, more: bytes = b"") -> None:
        self._write(name, b'"response":%b%b}' % (dumps(response), more))

    # ------------------------------------------------------------ items

    def open_message(self) -> None:
        self._begin_item(_Message(self))

    def open_reasoning(self, *, summary: bool) -> None:
        self._begin_item(_Reasoning(self, summary=summary))

    def open_call(self, kind: Kind, call_id: str) -> None:
        self._begin_item(_Call(self, kind, call_id) if kind.client is None else _ClientCall(self, kind.client, call_id))

    def search(self, arguments: str, tools: list[JSON]) -> None:
        """A tool search that the server ran, and its output: two items, each sent whole."""
        common = {"call_id": None, "execution": "server", "status": "completed"}
        self.whole_item("tsc", {"type": "tool_search_call", **common, "arguments": _object_of(arguments) or {}})
        self.whole_item("tso", {"type": "tool_search_output", **common, "tools": tools})

    def whole_item(self, prefix: str, fields: JSON) -> None:
        index = len(self.items)
        wire = {"id": output_id(prefix, self._response, index), **fields}
        self.event("response.output_item.added", output_index=index, item=wire)
        self.event("response.output_item.done", output_index=index, item=wire)
        self.items.append(wire)
        self.cuts.append([])

    def _begin_item(self, item: _Item) -> None:
        assert self._open is None
        self._open = item
        self.items.append(item.wire)
        self.cuts.append([])
        item.open()

    def delta(self, text: str, logprobs: list[JSON] | None = None) -> None:
        """Add to the open item."""
        assert self._open is not None
        self.cuts[-1].append([len(text), len(logprobs or ())])
        self._open.delta(text, logprobs or [])

    @property
    def open_text(self) -> list[str]:
        """The open item's text so far."""
        assert self._open is not None
        return self._open.text

    def close_item(self, status: str = "completed", *, sealed: str | None = None) -> None:
        assert self._open is not None
        item, self._open = self._open, None
        if sealed is not None:
            item.wire["encrypted_content"] = sealed
        item.wire["status"] = status
        item.close()

    def abandon(self) -> None:
        """Drop what was written and not taken; an open item is closed silently."""
        number = self.number - len(self._out)
        if self._open is not None:
            self.close_item("incomplete")
        self._out, self.number = [], number
        self.silences = [silence for silence in self.silences if silence < number]

    def compaction(self, sealed: str) -> None:
        """Send a compaction item, whole."""
        index = len(self.items)
        wire = {"id": output_id("cmp", self._response, index), "type": "compaction", "encrypted_content": ""}
        self.event("response.output_item.added", output_index=index, item=wire)
        self.event("response.compaction.compacting", item_id=wire["id"], output_index=index)
        wire["encrypted_content"] = sealed
        self.event("response.output_item.done", output_index=index, item=wire)
        self.items.append(wire)
        self.cuts.append([])

    # ------------------------------------------------------------ writing

    def event(self, name: str, **fields: Any) -> None:
        self._write(name, dumps(fields)[1:])

    def _write(self, name: str, rest: bytes) -> None:
        while self._due and self._due[0] == self.number:
            self._due.popleft()
            self.keepalive()
        if self.pace and name.endswith(".delta"):
            rest = rest[:-1] + self.pace + b"}"
        self._out.append(b'{"type":"%b","sequence_number":%d,%b' % (name.encode(), self.number, rest))
        self.number += 1


class _Item:
    """An output item while it grows. `wire` is its current state."""

    def __init__(self, events: Events, prefix: str, fields: JSON) -> None:
        self.events = events
        self.index = len(events.items)
        id = output_id(prefix, events._response, self.index)
        self.wire: JSON = {"id": id, **fields}
        self.text: list[str] = []
        self.place: JSON = {"item_id": id, "output_index": self.index}
        self.head = orjson.dumps(self.place)[1:-1]

    def open(self) -> None:
        self.events.event("response.output_item.added", output_index=self.index, item=self.wire)

    def delta(self, text: str, logprobs: list[JSON]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.events.event("response.output_item.done", output_index=self.index, item=self.wire)


class _Message(_Item):
    def __init__(self, events: Events) -> None:
        fields = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
        super().__init__(events, "msg", fields)
        self.part: JSON = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}

    def open(self) -> None:
        super().open()
        self.place["content_index"] = 0
        self.events.event("response.content_part.added", **self.place, part=self.part)

    def delta(self, text: str, logprobs: list[JSON]) -> None:
        self.text.append(text)
        written = b"[]"
        if logprobs:
            self.part["logprobs"] = self.part["logprobs"] + logprobs
            written = dumps(logprobs)
        rest = b'%b,"content_index":0,"delta":%b,"logprobs":%b}' % (self.head, dumps(text), written)
        self.events._write("response.output_text.delta", rest)

    def close(self) -> None:
        part = self.part
        part["text"] = "".join(self.text)
        event = self.events.event
        event("response.output_text.done", **self.place, text=part["text"], logprobs=part["logprobs"])
        event("response.content_part.done", **self.place, part=part)
        self.wire["content"] = [part]
        super().close()


class _Reasoning(_Item):
    """The reasoning text itself; if a summary is wanted, the text is its only part."""

    def __init__(self, events: Events, *, summary: bool) -> None:
        super().__init__(events, "rs", {"type": "reasoning", "status": "in_progress", "summary": [], "content": []})
        self.summary = summary

    def open(self) -> None:
        super().open()
        event = self.events.event
        event("response.content_part.added", **self.place, content_index=0, part={"type": "reasoning_text", "text": ""})
        if self.summary:
            part = {"type": "summary_text", "text": ""}
            event("response.reasoning_summary_part.added", **self.place, summary_index=0, part=part)

    def delta(self, text: str, logprobs: list[JSON]) -> None:
        self.text.append(text)
        wire = dumps(text)
        write = self.events._write
        write("response.reasoning_text.delta", b'%b,"content_index":0,"delta":%b}' % (self.head, wire))
        if self.summary:
            write("response.reasoning_summary_text.delta", b'%b,"summary_index":0,"delta":%b}' % (self.head, wire))

    def close(self) -> None:
        text = "".join(self.text)
        event = self.events.event
        part = {"type": "reasoning_text", "text": text}
        event("response.reasoning_text.done", **self.place, content_index=0, text=text)
        event("response.content_part.done", **self.place, content_index=0, part=part)
        self.wire["content"] = [part]
        if self.summary:
            part = {"type": "summary_text", "text": text}
            event("response.reasoning_summary_text.done", **self.place, summary_index=0, text=text)
            event("response.reasoning_summary_part.done", **self.place, summary_index=0, part=part)
            self.wire["summary"] = [part]
        super().close()


class _Call(_Item):
    def __init__(self, events: Events, kind: Kind, call_id: str) -> None:
        self.key = "input" if kind.custom else "arguments"
        self.name = "response.custom_tool_call_input" if kind.custom else "response.function_call_arguments"
        fields = {
            "type": "custom_tool_call" if kind.custom else "function_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": kind.name,
            self.key: "",
        }
        if kind.namespace is not None:
            fields["namespace"] = kind.namespace
        super().__init__(events, "ctc" if kind.custom else "fc", fields)

    def delta(self, text: str, logprobs: list[JSON]) -> None:
        self.text.append(text)
        self.events._write(f"{self.name}.delta", b'%b,"delta":%b}' % (self.head, dumps(text)))

    def close(self) -> None:
        self.wire[self.key] = "".join(self.text)
        self.events.event(f"{self.name}.done", **self.place, **{self.key: self.wire[self.key]})
        super().close()


class _ClientCall(_Item):
    """A call of a tool that has a type of its own: its arguments are sent once they are complete."""

    def __init__(self, events: Events, tool: ClientTool, call_id: str) -> None:
        self.key = tool.key
        fields = {"type": tool.call, "status": "in_progress", "call_id": call_id, tool.key: {}}
        if tool.call == "tool_search_call":
            fields["execution"] = "client"
        elif tool.call == "shell_call":
            fields |= {"action": {"commands": []}, "environment": {"type": "local"}}
        super().__init__(events, tool.prefix, fields)

    def delta(self, text: str, logprobs: list[JSON]) -> None:
        self.text.append(text)

    def close(self) -> None:
        given = _object_of("".join(self.text))
        if given is None:
            self.wire["status"] = "incomplete"
        else:
            self.wire[self.key] = given
        commands = (given or {}).get("commands") if self.wire["type"] == "shell_call" else None
        for at, command in enumerate(commands if type(commands) is list else ()):
            place = {"command_index": at, "output_index": self.index}
            self.events.event("response.shell_call_command.added", **place, command="")
            self.events.event("response.shell_call_command.delta", **place, delta=command)
            self.events.event("response.shell_call_command.done", **place, command=command)
        super().close()


def _object_of(text: str) -> JSON | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


def error_event(error: LlamasrvError) -> bytes:
    """The event for a stream that failed before it had a response."""
    event = {"type": "error", "sequence_number": 0, "code": error.code, "message": error.message, "param": error.param}
    return dumps(event)


# Replay of a stored response


def replay(stored: Stored) -> list[bytes]:
    """The events of a stored response, as they were first sent."""
    response = stored.response
    events = Events(response["id"], stored.silences)
    events.begin(response)
    if response["background"] and response["status"] != "queued":
        events.go_on(response)
    for item, cuts in zip(response["output"], stored.cuts):
        _replay_item(events, item, cuts)
    if response["status"] in ENDED:
        events.end(response)
    return events.take()


def _replay_item(events: Events, item: JSON, cuts: list[list[int]]) -> None:
    kind, logprobs = item["type"], []
    if kind == "compaction":
        events.compaction(item["encrypted_content"])
        return
    if kind in ("tool_search_call", "tool_search_output") and item["execution"] == "server":
        events.whole_item(item["id"].partition("_")[0], {key: item[key] for key in item if key != "id"})
        return
    if kind in CALLS:
        name, key = CALLS[kind]
        events.open_call(Kind(name, client=CLIENT_TOOLS[name]), item["call_id"])
        events.delta(orjson.dumps(item[key]).decode() if item["status"] == "completed" else "")
        events.close_item(item["status"])
        return
    if kind == "message":
        events.open_message()
        text, logprobs = item["content"][0]["text"], item["content"][0]["logprobs"]
    elif kind == "reasoning":
        events.open_reasoning(summary=bool(item["summary"]))
        text = item["content"][0]["text"]
    else:
        custom = kind == "custom_tool_call"
        events.open_call(Kind(item["name"], item.get("namespace"), custom), item["call_id"])
        text = item["input" if custom else "arguments"]
    at, scored = 0, 0
    for length, count in cuts:
        events.delta(text[at : at + length], logprobs[scored : scored + count])
        at, scored = at + length, scored + count
    events.close_item(item["status"], sealed=item.get("encrypted_content"))
