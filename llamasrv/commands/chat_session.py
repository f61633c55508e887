"""The conversation of `llamasrv chat`: its messages, its settings, and the server that answers. Knows no terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llamasrv.commands import server
from llamasrv.commands.chat_files import Content
from llamasrv.errors import ConfigError

PATIENCE = 3600.0  # seconds without a byte of an answer


class ChatError(Exception):
    """The server refused or could not be reached; the message says why."""


@dataclass
class ChatAnswer:
    """The result of one turn."""

    text: str = ""
    num_tokens: int | None = None
    seconds: float = 0.0
    stopped: bool = False


@dataclass
class ChatSession:
    """The messages so far, and the server that answers them."""

    url: str
    key: str | None = None
    model: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # fields of each request that the command line set
    system: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)  # fields of each request that /set has set
    attached: list[dict[str, Any]] = field(default_factory=list)  # content parts for the next message

    def ask(self, content: Content) -> Generator[tuple[str, str], None, None]:
        """Yield the answer in pieces: ("reasoning" or "content", text). Afterwards `last` has the whole answer."""
        self.turns.append({"role": "user", "content": content})
        self.last = ChatAnswer()
        began = time.monotonic()
        try:
            for data in self._events():
                if "error" in data:
                    raise ChatError(str(data["error"].get("message", data["error"])))
                usage = data.get("usage")
                if usage:
                    self.last.num_tokens = usage.get("completion_tokens")
                for choice in data.get("choices", []):
                    delta = choice.get("delta", {})
                    thought = delta.get("reasoning_content") or delta.get("reasoning")
                    if thought:
                        yield "reasoning", thought
                    if delta.get("content"):
                        self.last.text += delta["content"]
                        yield "content", delta["content"]
        finally:
            self.last.seconds = time.monotonic() - began
            if self.last.text:
                self.turns.append({"role": "assistant", "content": self.last.text})
            else:
                self.turns.pop()

    def reset(self) -> None:
        """Forget the conversation; the system prompt and the settings stay."""
        self.turns.clear()
        self.attached.clear()

    def models(self) -> list[str]:
        """The names of the server's models. Raises ChatError."""
        try:
            status, body = server.ask_url(self.url, "GET", "/v1/models", key=self.key)
        except ConfigError as error:
            raise ChatError(str(error)) from None
        entries = body.get("data")
        if status != 200 or not isinstance(entries, list):
            raise ChatError(_reason(status, json.dumps(body).encode()))
        return [str(entry.get("id")) for entry in entries if isinstance(entry, dict)]

    def save(self, path: Path) -> None:
        """Write the conversation as JSON, readable by this user alone. Raises OSError."""
        path.touch(0o600)
        path.write_text(json.dumps({"system": self.system, "messages": self.turns}, indent=2), "utf-8")

    def load(self, path: Path) -> None:
        """Go on with what `save` has written. Raises OSError, and ValueError for another file."""
        try:
            saved = json.loads(path.read_text("utf-8"))
            system = saved["system"]
            turns = [{"role": one["role"], "content": one["content"]} for one in saved["messages"]]
        except (ValueError, LookupError, TypeError):
            raise ValueError("not a conversation that /save has written") from None
        self.system, self.turns = system, turns

    def _events(self) -> Iterator[dict[str, Any]]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        body = {"messages": messages + self.turns, "stream": True, "stream_options": {"include_usage": True}}
        headers = {"Content-Type": "application/json"} | server.authorization(self.key)
        if self.model:
            body["model"] = self.model
        with closing(server.connect(self.url, PATIENCE)) as connection:
            try:
                path = server.base_path(self.url) + "/v1/chat/completions"
                connection.request("POST", path, json.dumps(body | self.extra | self.fields), headers)
                reply = connection.getresponse()
                if reply.status != 200:
                    raise ChatError(_reason(reply.status, reply.read()))
                for line in reply:
                    if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                        yield json.loads(line[6:])
            except OSError as error:
                raise ChatError(f"{self.url}: {error.strerror or error}") from None


def _reason(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"
