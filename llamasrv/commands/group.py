"""Which command a command line means: `serve` without its name, and what to say about unknown ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

import click

from llamasrv.commands.flags import parameters_of
from llamasrv.commands.help import USUAL_COMMANDS, HelpfulCommand
from llamasrv.config import foreign
from llamasrv.config.option import nearest
from llamasrv.errors import ConfigError


class Commands(click.Group):
    """The commands.

    Flags without a command are those of `serve`. An empty command line also means `serve` if llama-server's variables
    are set: containers and units written for llama-server only have to change the program's name.
    """

    command_class = HelpfulCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usual commands, then the others."""
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        usual = [name for name in USUAL_COMMANDS if name in names]
        width = formatter.width - 6 - max(map(len, names))
        for title, group in (("Usual commands", usual), ("Other commands", [n for n in names if n not in usual])):
            if group:
                with formatter.section(title):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(width)) for name in group])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Create a command's flags on demand: those of all commands take 20 ms and 3 MB at each start."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.callback is not None:
            sections = vars(command.callback).pop("sections", None)
            own = {flag for parameter in command.params for flag in parameter.opts}
            more = [] if sections is None else parameters_of(sections)
            command.params += [one for one in more if own.isdisjoint(one.opts)]
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if args == ["-v"]:  # Ollama's; with anything else it is llama-server's --verbose
            args = ["--version"]
        if args:
            for_serve = (args[0].startswith("-") and args[0] not in own) or args[0].lower().endswith(".gguf")
        else:
            for_serve = _has_llama_server_variables()
        words = ["serve", *args] if for_serve else args
        return super().parse_args(ctx, words if words[:1] == ["migrate"] else foreign.joined(_spelled(words)))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = _ELSEWHERE.get(args[0]) or _for_a_model(args[0]) or nearest(args[0], self.list_commands(ctx))
            hint = meant or "; `llamasrv --help` lists the commands"
            raise click.UsageError(error.message.rstrip(".") + hint, ctx) from None


def _spelled(words: Sequence[str]) -> Iterator[str]:
    """The words as they are spelled here: vLLM's --help=TOPIC; Ollama's --think, whose value may only follow an equals
    sign."""
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words):
        if place < end and word.startswith("--help="):
            yield "--help-all"
        else:
            yield "--think=true" if place < end and word == "--think" and words[0] == "run" else word


def _for_a_model(word: str) -> str:
    """A hint if this is no command, but a model."""
    from llamasrv import config  # what a wrong command line needs, and no other
    from llamasrv.startup import resolver

    logging.disable()  # what is broken in other programs' folders does not matter here
    try:
        is_model = len(word) < 200 and resolver.has(word, config.load({}))
    except (ConfigError, OSError, ValueError):
        is_model = False
    finally:
        logging.disable(logging.NOTSET)
    return f"; use `llamasrv run {word}`" if is_model else ""


# Commands of other programs that have no counterpart of the same name here.
_ELSEWHERE = {
    "push": "; models are not uploaded from here",
    "cp": "; use `llamasrv create NAME --from MODEL`",
    "signin": "; this server has no account. Keys: `llamasrv key NAME`",
    "signout": "; this server has no account. Keys: `llamasrv key NAME`",
    "start": "; use `llamasrv serve`",
    "load": "; a model is loaded when a request names it, or at once with `llamasrv serve MODEL`",
    "unload": "; use `llamasrv stop MODEL`",
    "get": "; use `llamasrv pull hf:OWNER/REPO:QUANT`",
    "status": "; use `llamasrv ps`",
    "complete": "; use `llamasrv run MODEL TEXT`",
    "server": "; use `llamasrv serve`; Ctrl-C or SIGTERM ends it, `llamasrv ps` shows what it has loaded",
    "import": "; move the file into the models folder, or use `llamasrv serve FILE.gguf`",
    "log": "; the log goes to standard error, or to --log-file FILE",
    "collect-env": "; use `llamasrv doctor`",
    "version": "; use `llamasrv --version`",
    "runtime": "; llama.cpp is built in: `llamasrv doctor` shows its version and devices",
    "daemon": "; use `llamasrv serve`, under systemd with conf/llamasrv.service",
    "login": "; this server has no account. Keys: `llamasrv key NAME`",
    "completion": "; `_LLAMASRV_COMPLETE=bash_source llamasrv` prints it, with zsh or fish likewise",
    "completions": "; `_LLAMASRV_COMPLETE=bash_source llamasrv` prints it, with zsh or fish likewise",
    "download": "; use `llamasrv pull NAME`",
    "install": "; use `llamasrv pull NAME`",
    "remove": "; use `llamasrv rm MODEL`",
    "delete": "; use `llamasrv rm MODEL`",
    "info": "; use `llamasrv show MODEL`",
    "inspect": "; use `llamasrv show MODEL`",
    "logs": "; the log goes to standard error, or to --log-file FILE",
    "config": "; use `llamasrv check --print-config`",
    "embed": "; embeddings come from POST /v1/embeddings of a running server",
    "dev": "; use `llamasrv serve`",
    "clone": "; use `llamasrv pull NAME`",
    "bootstrap": "; there is nothing to set up: `llamasrv doctor` shows what is here",
    "link": "; use `llamasrv serve --host ADDRESS --api-key-file FILE`, with keys from `llamasrv key NAME`",
    "whoami": "; this server has no account. Keys: `llamasrv key NAME`",
    "run-batch": "; batches go to POST /v1/batches of a running server",
}


def _has_llama_server_variables() -> bool:
    return any(name.startswith(foreign.PREFIX) for name in os.environ)
