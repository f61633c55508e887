"""The conversation of `llamasrv chat` on a terminal: reads lines, shows answers."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from llamasrv import __version__
from llamasrv.commands import chat_commands, chat_files
from llamasrv.commands.chat_commands import COMMANDS, HELP, PARAMETERS, Exit, View, split_attachment
from llamasrv.commands.chat_files import Content, UnreadableFile
from llamasrv.commands.chat_markdown import MarkdownWriter, visible
from llamasrv.commands.chat_session import ChatError, ChatSession
from llamasrv.commands.line_reader import LineReader
from llamasrv.config import paths

_ATTACH = ("/image", "/file")
_SETTINGS = "parameter system think nothink format noformat markdown nomarkdown verbose quiet history nohistory".split()


def run(talk: ChatSession, *, thoughts: bool = True) -> int:
    """Talk until the user leaves. `thoughts`: show the model's reasoning."""
    console = Console(highlight=False)
    console.print(Panel(f"llamasrv {__version__} at {talk.url}\n{HELP}", expand=False, border_style="dim"))
    reader = LineReader(paths.state_dir() / "chat_history", completions)
    view = View(history=os.environ.get("OLLAMA_NOHISTORY", "").lower() in ("", "0", "false"), thoughts=thoughts)
    while True:
        try:
            text = reader.read(view.history)
        except EOFError:
            console.print()
            return 0
        except KeyboardInterrupt:
            console.print()
            continue
        if not text:
            continue
        try:
            content = _message(console, talk, view, text)
        except Exit:
            return 0
        if content:
            _answer(console, talk, view, content)


def completions(line: str) -> list[str]:
    """What may stand at the end of the line: commands, names of settings, files."""
    command, space, rest = line.partition(" ")
    before, _, word = rest.rpartition(" ")
    if not line.startswith("/"):
        return []
    if not space:
        return sorted(COMMANDS)
    if command == "/set":
        return _SETTINGS if not before else list(PARAMETERS) if before == "parameter" else []
    if command in ("/save", "/load", *_ATTACH):
        folder = word.rpartition("/")[0] + "/" if "/" in word else ""
        try:
            entries = sorted(Path(folder or ".").expanduser().iterdir())
        except OSError:
            return []
        return [folder + entry.name + "/" * entry.is_dir() for entry in entries]
    return []


def _message(console: Console, talk: ChatSession, view: View, text: str) -> Content | None:
    """The message to send, if the line is one; commands are carried out. Raises Exit."""
    command, _, rest = text.partition(" ")
    if command in ("/help", "/?"):
        console.print(HELP)
        return None
    if command in _ATTACH:
        path, text = split_attachment(rest)
        before = len(talk.attached)
        _say(console, chat_commands.carry_out(talk, view, f"{command} {path}"))
        if not text or len(talk.attached) == before:
            return None
    elif text.startswith("/") and (command in COMMANDS or not chat_files.in_text(text)[1]):
        _say(console, chat_commands.carry_out(talk, view, text))
        return None
    try:
        content = chat_files.content(text, talk.attached)
    except UnreadableFile as error:
        _say(console, str(error))
        return None
    talk.attached.clear()
    if not isinstance(content, str):
        _say(console, f"files: {len(content) - (content[-1]['type'] == 'text')}")
    return content


def _say(console: Console, text: str) -> None:
    console.print(f"[dim]{escape(visible(text))}[/]")


def _answer(console: Console, talk: ChatSession, view: View, content: Content) -> None:
    rendered = view.markdown and not console.is_dumb_terminal
    console.print("[bold green]model[/] › ", end="\n" if rendered else "")
    thinking = False
    pieces = talk.ask(content)
    writer: Any = nullcontext()
    try:
        with writer if not rendered else MarkdownWriter(console) as writer:
            for kind, piece in pieces:
                if kind == "reasoning":
                    if not view.thoughts:
                        continue
                    thinking = True
                    console.print(escape(visible(piece)), end="", style="dim italic", soft_wrap=True)
                    continue
                if thinking:
                    thinking = False
                    console.print("\n")
                if rendered:
                    writer.write(piece)
                else:
                    console.print(escape(visible(piece)), end="", soft_wrap=True)
    except ChatError as error:
        console.print(f"[red]{escape(str(error))}[/]")
        return
    except KeyboardInterrupt:
        talk.last.stopped = True
    finally:
        pieces.close()  # also closes the connection, so that the server stops generating
    answer = talk.last
    notes = ["stopped"] if answer.stopped else []
    if view.figures and answer.num_tokens and answer.seconds:
        notes.append(f"{answer.num_tokens} tokens, {answer.num_tokens / answer.seconds:.1f} tokens/s")
    console.print(("" if rendered else "\n") + (f"[dim]{', '.join(notes)}[/]" if notes else ""))
