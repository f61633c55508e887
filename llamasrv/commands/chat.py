"""`llamasrv chat`: a conversation in the terminal, with a running server or with one started for it.

A message on the command line, or piped input, is a single turn: prints the answer without colours or prompts.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

from llamasrv.commands import chat_files, server
from llamasrv.commands.chat_files import Content, UnreadableFile
from llamasrv.commands.chat_session import ChatError, ChatSession
from llamasrv.config import Settings, paths
from llamasrv.errors import ConfigError
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
        talk = ChatSession(where, keys[0] if keys else None, model, extra if url else {}, system)
        if message is None and sys.stdin.isatty():
            from llamasrv.commands import chat_terminal  # imports readline, which a Python may lack

            return chat_terminal.run(talk)
        return _one_turn(talk, sys.stdin.read().rstrip("\n") if content is None else content)


def _server_for(settings: Settings) -> Any:
    if settings.model.path or settings.model.fake or settings.model.hf_repo:
        return server.running(settings)
    if server.health(settings.url) == 200:
        return nullcontext(settings.url)
    if paths.demo_model() is None:
        raise ConfigError(NO_MODEL + f", or the URL of a server; no server responds at {settings.url}")
    return server.running(settings)


def _one_turn(talk: ChatSession, content: Content) -> int:
    try:
        for kind, text in talk.ask(content):
            if kind == "content":
                print(text, end="", flush=True)
    except ChatError as error:
        print(f"llamasrv: {error}", file=sys.stderr)
        return 1
    print()
    return 0
