"""`llamasrv chat`: a conversation in the terminal, with a running server or with one started for it.

A message on the command line, or piped input, is a single turn: prints the answer without colours or prompts.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from llamasrv import __version__
from llamasrv.commands import server
from llamasrv.config import Settings, paths
from llamasrv.errors import ConfigError
from llamasrv.startup import resolver
from llamasrv.startup.model_list import NO_MODEL

HELP = """[bold]/reset[/]            forget the conversation
[bold]/system[/] TEXT      set the system prompt and start over; without TEXT, remove it
[bold]/model[/] NAME       go on with another model of the server
[bold]/save[/] FILE        write the conversation as JSON; [bold]/load[/] FILE reads it
[bold]/help[/]             this list
[bold]/exit[/]             quit (or Ctrl-D)
Ctrl-C stops an answer."""


# Passed to `input` with colours marked as zero width: readline redraws the line while it is edited.
PROMPT = "\001\x1b[1;36m\002you\001\x1b[0m\002 › "


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
    extra: dict[str, Any] = field(default_factory=dict)  # extra fields of each request
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> Generator[tuple[str, str], None, None]:
        """Yield the answer in pieces: ("reasoning" or "content", text). Afterwards `last` has the whole answer."""
        self.turns.append({"role": "user", "content": text})
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

    def reset(self, system: str | None) -> None:
        self.system = system
        self.turns.clear()

    def _events(self) -> Iterator[dict[str, Any]]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        body = {"messages": messages + self.turns, "stream": True, "stream_options": {"include_usage": True}}
        headers = {"Content-Type": "application/json"}
        if self.model:
            body["model"] = self.model
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        with closing(server.connect(self.url, 3600)) as connection:
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body | self.extra), headers)
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


_URL = re.compile(r"\w+://|localhost\b|\[[0-9a-fA-F:.]+\]|[\w.-]+:\d+(/|\Z)")


def split_url(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Split the words of the command line into URL and message."""
    url = words[0] if words and " " not in words[0] and _URL.match(words[0]) else None
    message = " ".join(words if url is None else words[1:])
    return url, message or None


def split_model(settings: Settings, words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Split the words of the command line into the full name of a local model and a message; (None, None) if the first
    word is not one."""
    if not words or " " in words[0] or not resolver.has(words[0], settings):
        return None, None
    return words[0], " ".join(words[1:]) or None


def run_model(settings: Settings, name: str, message: str | None, system: str | None) -> int:
    """Talk to the model `name`: on the server that runs on this machine if it has it, else on one started for it."""
    if settings.model.path is not None or settings.model.hf_repo is not None or settings.model.fake:
        raise ConfigError(f"two models: {name} and --model; give one of them")
    if any(name in (entry["id"], *(entry.get("aliases") or ())) for entry in server.served(settings)):
        return run(settings, settings.url, message, system, name)
    return run(resolver.located(resolver.named(settings, name)), None, message, system, None)


def run(settings: Settings, url: str | None, message: str | None, system: str | None, model: str | None) -> int:
    """Talk to `url`, or without one to a server started for the configured model, or to one that is running. With a
    message, print its answer and exit."""
    if url:
        server.connect(url, 1)  # rejects an invalid URL; does not connect yet
    with nullcontext(url) if url else _server_for(settings) as where:
        keys = settings.api_keys()
        extra = settings.sampling_defaults()
        if settings.limits.n_predict is not None:
            extra["max_tokens"] = settings.limits.n_predict
        talk = ChatSession(where, keys[0] if keys else None, model, extra if url else {}, system)
        if message is None and sys.stdin.isatty():
            return _in_terminal(talk)
        return _one_turn(talk, sys.stdin.read().rstrip("\n") if message is None else message)


def _server_for(settings: Settings) -> Any:
    if settings.model.path or settings.model.fake or settings.model.hf_repo:
        return server.running(settings)
    if server.health(settings.url) == 200:
        return nullcontext(settings.url)
    if paths.demo_model() is None:
        raise ConfigError(NO_MODEL + f", or the URL of a server; no server responds at {settings.url}")
    return server.running(settings)


def _one_turn(talk: ChatSession, message: str) -> int:
    try:
        for kind, text in talk.ask(message):
            if kind == "content":
                print(text, end="", flush=True)
    except ChatError as error:
        print(f"llamasrv: {error}", file=sys.stderr)
        return 1
    print()
    return 0


def _in_terminal(talk: ChatSession) -> int:
    import readline  # noqa: F401 (gives `input` a history and editing keys)

    console = Console(highlight=False)
    console.print(Panel(f"llamasrv {__version__} at {talk.url}\n{HELP}", expand=False, border_style="dim"))
    while True:
        try:
            text = input(PROMPT).strip()
        except EOFError:
            console.print()
            return 0
        except KeyboardInterrupt:
            console.print()
            continue
        command, _, rest = text.partition(" ")
        if command in ("/exit", "/quit"):
            return 0
        if command in ("/reset", "/system"):
            talk.reset((rest.strip() or None) if command == "/system" else talk.system)
            console.print(
                f"[dim]a new conversation{', system prompt: ' + escape(talk.system) if talk.system else ''}[/]"
            )
        elif command in ("/model", "/save", "/load") and rest.strip():
            console.print(f"[dim]{escape(changed(talk, command, rest.strip()))}[/]")
        elif command.startswith("/"):
            console.print(HELP)
        elif text:
            _show_answer(console, talk, text)


def changed(talk: ChatSession, command: str, word: str) -> str:
    """Carry out /model, /save or /load, and say what happened."""
    if command == "/model":
        talk.model = word
        return f"the next answers are those of {word}"
    path = Path(word).expanduser()
    try:
        if command == "/save":
            path.write_text(json.dumps({"system": talk.system, "messages": talk.turns}, indent=2), "utf-8")
            return f"saved {len(talk.turns)} messages to {path}"
        saved = json.loads(path.read_text("utf-8"))
        system, turns = saved["system"], [{"role": one["role"], "content": one["content"]} for one in saved["messages"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        return (
            f"{path}: {error.strerror if isinstance(error, OSError) else 'not a conversation that /save has written'}"
        )
    talk.system, talk.turns = system, turns
    return f"loaded {len(turns)} messages from {path}"


def _show_answer(console: Console, talk: ChatSession, text: str) -> None:
    console.print("[bold green]model[/] › ", end="")
    last = "content"
    pieces = talk.ask(text)
    try:
        for kind, piece in pieces:
            if last == "reasoning" and kind == "content":
                console.print("\n")
            last = kind
            console.print(escape(piece), end="", style="dim italic" if kind == "reasoning" else None, soft_wrap=True)
    except ChatError as error:
        console.print(f"[red]{escape(str(error))}[/]")
        return
    except KeyboardInterrupt:
        talk.last.stopped = True
    finally:
        pieces.close()  # also closes the connection, so that the server stops generating
    answer = talk.last
    notes = ["stopped"] if answer.stopped else []
    if answer.num_tokens and answer.seconds:
        notes.append(f"{answer.num_tokens} tokens, {answer.num_tokens / answer.seconds:.1f} tokens/s")
    console.print(f"\n[dim]{', '.join(notes)}[/]" if notes else "")
