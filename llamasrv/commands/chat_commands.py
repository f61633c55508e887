"""What `llamasrv chat` does with a line that begins with a slash: a table of commands over the session."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llamasrv.commands import chat_files
from llamasrv.commands.chat_files import UnreadableFile
from llamasrv.commands.chat_session import ChatError, ChatSession

HELP = """[bold]/image[/] or [bold]/file[/] PATH [TEXT]   attach a picture, a sound, a PDF or a text to the next message
[bold]/system[/] TEXT      set the system prompt and start over; without TEXT, remove it
[bold]/set[/] NAME VALUE   a parameter, think, format ...; [bold]/set[/] lists them, [bold]/show[/] what is set
[bold]/model[/] NAME       go on with another model of the server; without NAME, list them
[bold]/save[/] FILE        write the conversation as JSON; [bold]/load[/] FILE reads it
[bold]/reset[/]            forget the conversation
[bold]/help[/], [bold]/exit[/]      this list; quit (or Ctrl-D)
[bold]\"\"\"[/] begins and ends a message of several lines. A path in a message (./cat.png) attaches that file.
Ctrl-C stops an answer."""

# Ollama's names of parameters, the field of a chat request, and the type.
PARAMETERS: dict[str, tuple[str, type]] = {
    "temperature": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "typical_p": ("typical_p", float),
    "seed": ("seed", int),
    "num_predict": ("max_tokens", int),
    "max_tokens": ("max_tokens", int),
    "stop": ("stop", str),
    "repeat_penalty": ("repeat_penalty", float),
    "repeat_last_n": ("repeat_last_n", int),
    "presence_penalty": ("presence_penalty", float),
    "frequency_penalty": ("frequency_penalty", float),
}
_OF_THE_SERVER = {"num_ctx": "--ctx-size", "num_gpu": "--n-gpu-layers", "num_thread": "--threads", "num_batch": "-b"}
SET_HELP = f"""/set parameter NAME VALUE   NAME: {", ".join(PARAMETERS)}; without VALUE the model's default
/set system TEXT            from the next answer on
/set think [EFFORT]         or nothink: reasoning, where the model can
/set format json            or noformat
/set markdown               or nomarkdown: how answers are shown
/set verbose                or quiet: tokens per second below answers
/set history                or nohistory: keep lines for later sessions"""


class Exit(Exception):
    """The conversation is over."""


@dataclass
class View:
    """How the terminal shows things; /set changes it."""

    markdown: bool = True
    figures: bool = True
    history: bool = True
    thoughts: bool = True


Command = Callable[[ChatSession, View, str], str]


def carry_out(talk: ChatSession, view: View, line: str) -> str:
    """Carry out a line that begins with a slash, and say what happened. Raises Exit."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        return f"{name}: no such command; /help lists them"
    try:
        return command(talk, view, rest.strip())
    except (UnreadableFile, ChatError, ValueError) as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"


def _exit(talk: ChatSession, view: View, rest: str) -> str:
    raise Exit


def _reset(talk: ChatSession, view: View, rest: str) -> str:
    talk.reset()
    return "a new conversation" + (f", system prompt: {talk.system}" if talk.system else "")


def _system(talk: ChatSession, view: View, rest: str) -> str:
    talk.system = rest or None
    return _reset(talk, view, rest)


def _model(talk: ChatSession, view: View, rest: str) -> str:
    if not rest:
        return "\n".join(talk.models())
    talk.model = rest
    return f"the next answers are those of {rest}"


def _save(talk: ChatSession, view: View, rest: str) -> str:
    path = _path(rest, "/save")
    talk.save(path)
    return f"saved {len(talk.turns)} messages to {path}"


def _load(talk: ChatSession, view: View, rest: str) -> str:
    path = _path(rest, "/load")
    try:
        talk.load(path)
    except ValueError as error:
        return f"{path}: {error}"
    return f"loaded {len(talk.turns)} messages from {path}"


def _attach(talk: ChatSession, view: View, rest: str) -> str:
    """Attach the file that `rest` names. Text after it is the caller's: see `split_attachment`."""
    path = _path(rest, "/file")
    talk.attached.append(chat_files.part(path))
    return f"{path.name} goes with the next message"


def split_attachment(rest: str) -> tuple[str, str]:
    """Split what follows /image or /file into the path, which may have quotes or escaped spaces, and the text after
    it."""
    found = _PATH.match(rest)
    if found is None:
        return rest, ""
    return found[1] or found[2] or re.sub(r"\\(.)", r"\1", found[3] or ""), rest[found.end() :].strip()


_PATH = re.compile(r"'([^']+)'(?=\s|$)|\"([^\"]+)\"(?=\s|$)|((?:\\.|[^\s\\])+)")


def _set(talk: ChatSession, view: View, rest: str) -> str:
    what, _, value = rest.partition(" ")
    value = value.strip()
    if what == "parameter":
        return _parameter(talk, value)
    if what == "system" and value:
        talk.system = value
        return f"system prompt from now on: {value}"
    if what in ("think", "nothink"):
        talk.fields["think"] = (value or True) if what == "think" else False
        return f"reasoning: {value or 'on' if what == 'think' else 'off'}"
    if rest in ("format json", "noformat"):
        if what == "format":
            talk.fields["response_format"] = {"type": "json_object"}
        else:
            talk.fields.pop("response_format", None)
        return "answers are JSON" if what == "format" else "answers have any form"
    if rest in _VIEWS:
        name, on = _VIEWS[rest]
        setattr(view, name, on)
        return f"{rest}: done"
    return SET_HELP if not rest else f"/set {rest}: not one of\n{SET_HELP}"


_VIEWS = {
    "markdown": ("markdown", True),
    "nomarkdown": ("markdown", False),
    "verbose": ("figures", True),
    "quiet": ("figures", False),
    "history": ("history", True),
    "nohistory": ("history", False),
}


def _parameter(talk: ChatSession, rest: str) -> str:
    name, *values = shlex.split(rest) or [""]
    if name in _OF_THE_SERVER:
        return f"{name} is set when the server starts: {_OF_THE_SERVER[name]}"
    if name not in PARAMETERS:
        return f"/set parameter {name}: not one of {', '.join(PARAMETERS)}"
    field, kind = PARAMETERS[name]
    if not values:
        talk.fields.pop(field, None)
        return f"{name}: the model's default"
    if kind is str:
        talk.fields[field] = values
    else:
        try:
            talk.fields[field] = kind(values[0])
        except ValueError:
            return f"{name} {values[0]}: expected {'an integer' if kind is int else 'a number'}"
    return f"{name}: {' '.join(values)}"


def _show(talk: ChatSession, view: View, rest: str) -> str:
    lines = [f"server   {talk.url}", f"model    {talk.model or 'the default of the server'}"]
    lines += [f"system   {talk.system}"] * bool(talk.system)
    lines += [f"{name}   {json.dumps(value)}" for name, value in (talk.extra | talk.fields).items()]
    return "\n".join([*lines, f"{len(talk.turns)} messages, {len(talk.attached)} files for the next one"])


def _path(rest: str, command: str) -> Path:
    if not rest:
        raise ValueError(f"{command}: name a file")
    return Path(rest).expanduser()


COMMANDS: dict[str, Command] = {
    "/exit": _exit, "/quit": _exit, "/bye": _exit,
    "/reset": _reset, "/clear": _reset, "/system": _system, "/model": _model,
    "/save": _save, "/load": _load, "/image": _attach, "/file": _attach,
    "/set": _set, "/show": _show,
}  # fmt: skip
