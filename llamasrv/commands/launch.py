"""`llamasrv launch`: another program in this terminal, talking to the server that runs here or to one started for it.

Only the environment, arguments and temporary files of that program are set; the user's own files are not touched.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from llamasrv.commands import server
from llamasrv.commands.launch_programs import PROGRAMS, LaunchedProgram, as_text, filled
from llamasrv.commands.running import EX_UNAVAILABLE
from llamasrv.config import Settings, paths
from llamasrv.config.option import nearest
from llamasrv.errors import ConfigError
from llamasrv.models import stores
from llamasrv.models.memory import available_memory, need_of_file
from llamasrv.startup import resolver

EX_NOT_FOUND = 127
ANSWER_TOKENS = 8192  # of one answer, where the context has room for it


def run(settings: Settings, name: str, arguments: tuple[str, ...], print_only: bool) -> int:
    """Run the program `name` with these arguments of its own, and return its exit code. `print_only`: print the
    equivalent shell commands instead."""
    program = PROGRAMS.get(name)
    if program is None:
        raise ConfigError(f"launch {name}: unknown program{nearest(name, PROGRAMS)}; known: {', '.join(PROGRAMS)}")
    if not print_only and shutil.which(program.command) is None:
        print(f"llamasrv: {program.command} is not installed: {program.install}", file=sys.stderr)
        return EX_NOT_FOUND
    model = None if settings.model.path is None else str(settings.model.path)
    entry = _chosen(server.served(settings), model)
    if entry is None and print_only:
        print(
            f"llamasrv: no server at {settings.url} has {model or 'a model for tools'}; start one with "
            f"`llamasrv serve MODEL`, or leave --print out",
            file=sys.stderr,
        )
        return EX_UNAVAILABLE
    own = settings if entry is not None else _for_a_server(settings)
    with nullcontext(settings.url) if entry is not None else server.running(own) as url:
        entry = entry or _chosen(server.served(server.at(own, url)), None) or {}
        facts = _facts(settings, url, entry)
        if print_only:
            return _print(program, facts)
        print(f"llamasrv: {_summary(program, facts)}", file=sys.stderr)
        with _written(program.files, facts) as folder:
            return _hand_over(program, facts | {"folder": folder}, arguments)


def _chosen(entries: Iterable[Mapping[str, Any]], model: str | None) -> Mapping[str, Any] | None:
    """The served model with this name, or without one the first that can call tools, a loaded one if there is one."""
    if model is not None:
        return next((one for one in entries if model in (one["id"], *(one.get("aliases") or ()))), None)
    able = [one for one in entries if "tools" in (one.get("meta") or {}).get("capabilities", ())]
    return next((one for one in able if (one.get("status") or {}).get("value") == "loaded"), able[0] if able else None)


def _for_a_server(settings: Settings) -> Settings:
    """The settings of a server for the configured model, or without one for the largest local model that can call tools
    and whose file leaves room in memory."""
    if settings.model.path is None and settings.model.hf_repo is None and not settings.model.fake:
        memory = available_memory()
        local = [*resolver.pulled(settings), *stores.models(settings.models.sources or (stores.ALL,))]
        able = [
            one for one in local if "tools" in one.details.capabilities and need_of_file(one.details.size) <= memory
        ]
        if not able:
            raise ConfigError(
                "no local model that can call tools and fits in memory: download one with `llamasrv pull`, or name "
                "one with --model"
            )
        settings = resolver.named(settings, max(able, key=lambda one: one.details.size).name)
    return resolver.located(settings)


def _facts(settings: Settings, url: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    keys = settings.api_keys()
    context = int(entry.get("max_model_len") or 0)
    return {
        "url": url,
        "key": keys[0] if keys else "none",
        "model": entry.get("id", "default"),
        "context": context,
        "output": max(1, min(ANSWER_TOKENS, context // 4)),
        "share": round(0.7 * context / 2**20, 6),
    }


def _summary(program: LaunchedProgram, facts: Mapping[str, Any]) -> str:
    line = f"{program.command} uses {facts['model']} at {facts['url']}, context {facts['context']} tokens"
    if facts["context"] < 2 * program.prompt_tokens:
        line += f"; its first prompt alone has about {program.prompt_tokens}: give the server a larger --ctx-size"
    return line


@contextmanager
def _written(files: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    """A temporary folder with the program's files."""
    with tempfile.TemporaryDirectory(prefix="launch-", dir=_parent()) as folder:
        _write(Path(folder), files, facts)
        yield folder


def _parent() -> Path:
    """The user's cache: gemini-cli reads no settings from a folder that others may write to, such as /tmp."""
    folder = paths.cache_dir()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _write(folder: Path, files: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(filled(content, facts)), "utf-8")


def _hand_over(program: LaunchedProgram, facts: Mapping[str, Any], arguments: tuple[str, ...]) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in program.unset}
    environment |= {name: as_text(filled(value, facts)) for name, value in program.environment.items()}
    command = [program.command, *(str(filled(one, facts)) for one in program.arguments), *arguments]
    before = signal.signal(signal.SIGINT, lambda number, frame: None)  # Ctrl-C is for the program
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _print(program: LaunchedProgram, facts: dict[str, Any]) -> int:
    """Lines for a shell: `eval "$(llamasrv launch claude --print)"` sets the variables; the last line, a comment, is
    the command."""
    if program.files:
        folder = tempfile.mkdtemp(prefix="launch-", dir=_parent())  # stays: the shell's program reads it later
        _write(Path(folder), program.files, facts)
        facts = facts | {"folder": folder}
    if program.unset:
        print(f"unset {' '.join(program.unset)}")
    for name, value in program.environment.items():
        print(f"export {name}={shlex.quote(as_text(filled(value, facts)))}")
    print(f"# {shlex.join([program.command, *(str(filled(one, facts)) for one in program.arguments)])}")
    return 0
