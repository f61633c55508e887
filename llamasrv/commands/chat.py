"""`llamasrv chat`: a conversation in the terminal, with a running server or with one started for it.

A message on the command line, or piped input, is a single turn: prints the answer without colours or prompts.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from llamasrv.commands import chat_files, server
from llamasrv.commands.chat_files import Content, UnreadableFile
from llamasrv.commands.chat_session import ChatError, ChatSession
from llamasrv.config import Settings, paths
from llamasrv.errors import ConfigError
from llamasrv.models.names import canonical
from llamasrv.protocols.common.thinking import EFFORTS
from llamasrv.startup import resolver
from llamasrv.startup.model_list import NO_MODEL


def split_url(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Split the words of the command line into URL and message."""
    url = words[0] if words and " " not in words[0] and server.is_url(words[0]) else None
    message = " ".join(words if url is None else words[1:])
    return url, message or None


def split_model(settings: Settings, words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Split the words of the command line into the full name of a local model and a message; (None, None) if the first
    word is not one."""
    if not words or " " in words[0] or not resolver.has(words[0], settings):
        return None, None
    return words[0], " ".join(words[1:]) or None


_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True)
class Wishes:
    """What the command line asks of the answers, in Ollama's words."""

    fields: Mapping[str, Any] = field(default_factory=dict)  # of each request
    thoughts: bool = True  # show reasoning, on a terminal
    speed: bool = False  # print the speed after a single answer

    @classmethod
    def of(cls, think: str | None, form: str | None, *, thoughts: bool, speed: bool) -> Wishes:
        """`think`: true, false or an effort. `form`: json or a JSON schema. Raises ConfigError."""
        fields: dict[str, Any] = {}
        if think is not None and think.lower() not in (*_SWITCHES, *EFFORTS):
            raise ConfigError(f"--think {think[:80]!r}: must be one of {', '.join((*_SWITCHES, *EFFORTS))}")
        if think is not None:
            fields["think"] = _SWITCHES.get(think.lower(), think.lower())
        if form == "json":
            fields["response_format"] = {"type": "json_object"}
        elif form is not None:
            try:
                schema = json.loads(form)
            except (ValueError, RecursionError):
                schema = None
            if not isinstance(schema, dict):
                raise ConfigError(f"--format {form[:80]!r}: must be json or a JSON schema")
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return cls(fields, thoughts, speed)


def piped() -> str:
    """What a pipe or a file brings on standard input; nothing if it is something else."""
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed
        return ""
    return _read() if stat.S_ISFIFO(kind) or stat.S_ISREG(kind) else ""


def _read() -> str:
    try:
        return chat_files.standard_input()
    except UnreadableFile as error:
        raise ConfigError(str(error)) from None


def run_model(settings: Settings, name: str, message: str | None, system: str | None, wishes: Wishes = Wishes()) -> int:
    """Talk to the model `name`: on the server that runs on this machine if it has it, else on one started for it."""
    if settings.model.path is not None or settings.model.hf_repo is not None or settings.model.fake:
        raise ConfigError(f"two models: {name} and --model; give one of them")
    entries = server.served(settings)
    found = _served(entries, (name,))
    own = settings if found else resolver.located(resolver.named(settings, name))
    found = found or _served(entries, own.model.alias)
    if found:
        return run(settings, settings.url, message, system, found, wishes)
    return run(own, None, message, system, None, wishes)


def _served(entries: Iterable[Mapping[str, Any]], names: Iterable[str]) -> str | None:
    """The name of the served model that has one of these names."""
    wanted = set(map(canonical, names))
    known = ((one["id"], (one["id"], *(one.get("aliases") or ()))) for one in entries)
    return next((name for name, every in known if not wanted.isdisjoint(map(canonical, every))), None)


def run(
    settings: Settings,
    url: str | None,
    message: str | None,
    system: str | None,
    model: str | None,
    wishes: Wishes = Wishes(),
) -> int:
    """Talk to `url`, or without one to a server started for the configured model, or to one that is running. With a
    message, print its answer and exit."""
    if url:
        server.connect(url, 1)  # rejects an invalid URL; does not connect yet
    try:
        # Not for piped text: the paths in it are not the user's words.
        content = None if message is None else chat_files.content(message)
    except UnreadableFile as error:
        raise ConfigError(str(error)) from None
    with nullcontext(url) if url else _server_for(settings) as where:
        keys = settings.api_keys()
        extra = settings.sampling_defaults()
        if settings.limits.n_predict is not None:
            extra["max_tokens"] = settings.limits.n_predict
        key = keys[0] if keys else None
        talk = ChatSession(where, key, model, extra if url else {}, system, fields=dict(wishes.fields))
        if message is None and sys.stdin is not None and sys.stdin.isatty():
            from llamasrv.commands import chat_terminal  # imports readline, which a Python may lack

            return chat_terminal.run(talk, thoughts=wishes.thoughts)
        return _one_turn(talk, _read() if content is None else content, speed=wishes.speed)


def _server_for(settings: Settings) -> Any:
    if settings.model.path or settings.model.fake or settings.model.hf_repo:
        return server.running(settings)
    if server.health(settings.url) == 200:
        return nullcontext(settings.url)
    if paths.demo_model() is None:
        raise ConfigError(NO_MODEL + f", or the URL of a server; no server responds at {settings.url}")
    return server.running(settings)


def _one_turn(talk: ChatSession, content: Content, *, speed: bool) -> int:
    try:
        for kind, text in talk.ask(content):
            if kind == "content":
                print(text, end="", flush=True)
    except ChatError as error:
        print(f"llamasrv: {error}", file=sys.stderr)
        return 1
    print()
    if speed and talk.last.num_tokens and talk.last.seconds:
        rate = talk.last.num_tokens / talk.last.seconds
        print(f"{talk.last.num_tokens} tokens in {talk.last.seconds:.1f} s, {rate:.1f} tokens/s", file=sys.stderr)
    return 0
