"""The flags of commands: those of the options in config/, and hidden ones that other servers have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from llamasrv import config
from llamasrv.config import OPTIONS, foreign
from llamasrv.config.foreign_flag import ForeignFlag
from llamasrv.config.option import shown
from llamasrv.domain.option import Option
from llamasrv.errors import ConfigError

Function = Callable[..., Any]


def with_options(*sections: str) -> Callable[[Function], Function]:
    """Give a command the flags of these sections (default: all) and `settings` made from them."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(config_file: Path | None, **values: Any) -> Any:
            names = {option.name for option in OPTIONS}
            reference = values.pop("reference", None)
            flags = {name: value for name, value in values.items() if name in names and value is not None}
            if reference is not None and flags.setdefault("model_path", reference) != reference:
                raise ConfigError(f"two models: {reference} and --model {flags['model_path']}; give one of them")
            others = {name: value for name, value in values.items() if name not in names}
            given = click.get_current_context().meta.get(_FOREIGN, ())
            if any(flag.long_name == "--list-devices" for flag, _ in given):
                from llamasrv.commands.devices import run

                return run()
            taken = foreign.from_flags(given)
            others_flags = taken.as_flags()
            for name in flags.keys() & others_flags.keys():
                if isinstance(flags[name], tuple):  # --lora beside --lora-scaled
                    flags[name] += others_flags[name]
            settings = config.load(others_flags | flags, config=config_file, notes=tuple(taken.notes))
            return function(settings=settings, **others)

        vars(command).update(sections=sections)  # for `Commands.get_command`
        return command

    return decorate


def parameters_of(sections: tuple[str, ...]) -> list[click.Parameter]:
    def command() -> None:
        pass

    for option in reversed([o for o in OPTIONS if not sections or o.section in sections]):
        command = _flag(option)(command)
    for flag in () if sections else foreign.foreign():
        command = _foreign_flag(flag)(command)
    command = click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"TOML configuration file; {config.CONFIG_VARIABLE} sets it, too.",
    )(command)
    return click.command()(command).params


def _flag(option: Option) -> Callable[[Function], Function]:
    default = f"  [{shown(option, option.default)}]" if option.default not in (None, (), False) else ""
    text = option.help + default
    if option.kind == "bool":
        names = [f"{flag}/--no-{flag[2:]}" if flag.startswith("--") else flag for flag in option.flags]
        names += [f" /{flag}" for flag in option.off]
        return click.option(*names, option.name, is_flag=True, default=None, help=text)
    words = "list" if option.is_list else option.kind
    optional: dict[str, Any] = {"is_flag": False, "flag_value": option.bare} if option.bare else {}
    return click.option(
        *option.flags,
        option.name,
        default=None,
        multiple=option.is_list,
        callback=_given,
        help=text,
        metavar="|".join(option.choices) if 0 < len(option.choices) < 4 else words.upper(),
        **optional,
    )


def refused(*flags: str, hint: str, has_value: bool = True) -> Callable[[Function], Function]:
    """A flag that this command has in another program; `hint` is what to do here."""

    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            raise ConfigError(f"{flags[-1]}: {hint}")

    return click.option(*flags, is_flag=not has_value, expose_value=False, hidden=True, callback=refuse)


_FOREIGN = "llamasrv.foreign"  # flags of other servers as given


def _foreign_flag(flag: ForeignFlag) -> Callable[[Function], Function]:
    """Another server's flag that is not one of ours: accepted, hidden from the help, interpreted once all flags are
    known."""

    def given(text: str | None) -> Callable[[click.Context, click.Parameter, Any], None]:
        def callback(context: click.Context, parameter: click.Parameter, value: Any) -> None:
            for one in value if isinstance(value, tuple) else [text] if value else []:
                one = " ".join(one) if isinstance(one, tuple) else one
                context.meta.setdefault(_FOREIGN, []).append((flag, one))

        return callback

    def decorate(function: Function) -> Function:
        quiet: dict[str, Any] = {"expose_value": False, "hidden": True}
        for names, text in ((flag.names, foreign.ON), (flag.negations, foreign.OFF)):
            own = f"foreign_{names[-1].strip('-').replace('-', '_').replace('.', '_')}" if names else ""
            if names and flag.hint and text == foreign.ON:
                if flag.hint.startswith("["):
                    quiet |= {"is_flag": False, "flag_value": foreign.ON}
                several: dict[str, Any] = {"nargs": 2, "type": str} if flag.has_two else {}
                function = click.option(*names, own, multiple=True, callback=given(None), **several, **quiet)(function)
            elif names:
                function = click.option(*names, own, is_flag=True, callback=given(text), **quiet)(function)
        return function

    return decorate


def _given(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    return None if value == () else value
