"""Help by need: the usual commands and flags first, all of a topic on request, and the manual's sections by words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from llamasrv.config import OPTIONS, manual
from llamasrv.errors import ConfigError

USUAL_COMMANDS = ("run", "serve", "chat", "ls", "pull", "show", "ps", "stop", "rm", "launch", "help")
USUAL_FLAGS = frozenset(
    "model_path model_alias model_offline engine_ctx_size engine_parallel engine_threads engine_n_gpu_layers "
    "model_mmproj server_host server_port server_api_key server_api_key_file models_dir models_from models_memory "
    "models_keep_alive cache_disk log_file config_file".split()
)
SECTION_OF = {option.name: option.section for option in OPTIONS}
TOPICS = tuple(dict.fromkeys(SECTION_OF.values()))
MAX_ROWS = 12  # of the tables of options and flags
MAX_OTHERS = 4  # further sections that are named
_ALL = "llamasrv.help_all"


class HelpfulCommand(click.Command):
    """A command whose help shows its own flags and the usual options; `--help-all` shows them all, by topic."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters, with `--help-all` where options are left out of the help."""
        params = super().get_params(ctx)
        return params if not any(p.name in SECTION_OF for p in self.params) else [*params, _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options' part of the help."""
        params = self.get_params(ctx)
        own = [p for p in params if p.name not in SECTION_OF]
        if ctx.meta.get(_ALL):
            _write(ctx, formatter, "Options", own)
            for topic in TOPICS:
                _write(ctx, formatter, f"Topic {topic}", [p for p in params if SECTION_OF.get(p.name or "") == topic])
            return
        others = [p for p in params if p.name in SECTION_OF]
        _write(ctx, formatter, "Options", [*own, *(p for p in others if p.name in USUAL_FLAGS)])
        left = sum(p.name not in USUAL_FLAGS for p in others)
        if left:
            with formatter.section("More"):
                formatter.write_text(f"--help-all shows {left} more options, `llamasrv help TOPIC` those of a topic:")
                formatter.write_text(", ".join(dict.fromkeys(SECTION_OF[p.name or ""] for p in others)))


class HelpfulGroup(HelpfulCommand, click.Group):
    """Such a command that has commands of its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options' part of the help, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show all options."
)


def _write(ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Iterable[click.Parameter]) -> None:
    rows = [row for row in (p.get_help_record(ctx) for p in params) if row is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def run(group: click.Context, words: Sequence[str]) -> int:
    """Print the help of a command, the options of a topic, or the section of the manual that the words find."""
    commands = group.command
    assert isinstance(commands, click.Group)
    if not words:
        click.echo(group.get_help())
        return 0
    command = commands.get_command(group, words[0]) if len(words) == 1 else None
    if command is not None:
        click.echo(command.get_help(click.Context(command, info_name=words[0], parent=group)))
    elif len(words) == 1 and words[0] in TOPICS:
        _topic(group, commands, words[0])
    else:
        _manual(" ".join(words))
    return 0


def _manual(words: str) -> None:
    """Print the best section, and where else the words are."""
    found = manual.search(words, manual.sections())
    rows = manual.rows(words)
    if not found and not rows:
        raise ConfigError(f"help {words}: nothing in the manual has these words; `llamasrv help` lists the commands")
    is_name = " " not in words and any(mark in words for mark in "-_.")
    if rows and (not found or is_name):
        click.echo("\n".join(map(_as_text, rows[:MAX_ROWS])))
        if len(rows) > MAX_ROWS:
            click.echo(f"and {len(rows) - MAX_ROWS} more in conf/options.md and conf/flags.md")
        return
    best, *others = found[: 1 + MAX_OTHERS]
    click.echo(best.text)
    if others:
        click.echo("\nOther sections: " + "; ".join(one.title for one in others))


def _as_text(row: str) -> str:
    """A row of a table: its first cell, and the others below it."""
    first, *others = (cell.strip() for cell in row.strip("| ").split(" | "))
    return f"{first}\n    " + "; ".join(cell for cell in others if cell)


def _topic(group: click.Context, commands: click.Group, topic: str) -> None:
    serve = commands.get_command(group, "serve")
    assert serve is not None
    ctx = click.Context(serve, info_name="serve", parent=group)
    formatter = ctx.make_formatter()
    _write(ctx, formatter, f"Topic {topic}", [p for p in serve.params if SECTION_OF.get(p.name or "") == topic])
    click.echo(formatter.getvalue().rstrip("\n"))
