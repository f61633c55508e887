"""The command line: `llamasrv serve | run | chat | pull | ls | show | ps | stop | rm | create | ...`.

Flags come from the options in config/. Every error is one line on standard error: exit 78 for a wrong option, file or
model, 64 for a wrong command line, 74 for output that cannot be written. Commands are imported when called, so that a
wrong option is reported at once.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn, TextIO

import click

from llamasrv import __version__
from llamasrv.commands.flags import refused, with_options
from llamasrv.commands.group import Commands
from llamasrv.commands.help import HelpfulGroup
from llamasrv.commands.load_profiles import PROFILES
from llamasrv.config import Settings
from llamasrv.config.option import nearest
from llamasrv.domain.key import SCOPES
from llamasrv.errors import ConfigError

EX_USAGE, EX_IOERR, EX_CONFIG, INTERRUPTED = 64, 74, 78, 130

REGISTRIES = "registries on this machine are asked over HTTP, all others over HTTPS"

_reference = click.argument("reference", required=False, metavar="[MODEL]")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@click.group(
    cls=Commands,
    epilog='Completion by Tab: eval "$(_LLAMASRV_COMPLETE=bash_source llamasrv)", or zsh_source, fish_source.',
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
        "token_normalize_func": lambda name: name.replace("_", "-"),  # option names with underscores, too
    },
)
@click.version_option(__version__, "--version", "-V", message="llamasrv %(version)s")
def cli() -> None:
    """Serve GGUF models behind the APIs that applications already speak."""


@cli.command(
    epilog="Also accepts flags of llama-server, vLLM, TGI and LM Studio, LLAMA_ARG_* and OLLAMA_*: see conf/flags.md."
)
@_reference
@refused("-p", "--prompt", hint="`llamasrv run MODEL TEXT` answers a text")
@refused("-cnv", "--conversation", hint="`llamasrv run MODEL` chats in the terminal", has_value=False)
@with_options()
def serve(settings: Settings) -> None:
    """Serve models over HTTP until a signal arrives.

    MODEL is a file, a model that `llamasrv ls` lists, or hf:OWNER/REPO:QUANT to download. Without it, all pulled models
    are served.
    """
    gc.disable()  # until all modules are imported: their objects stay, and collecting them is wasted time
    from llamasrv.commands.serve import run

    run(settings)


@cli.command()
@click.argument("name", required=False, metavar="MODEL")
@click.argument("words", nargs=-1, metavar="[TEXT]")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--think", metavar="[=EFFORT]", help="Reason before the answer: true, false, low, medium or high.")
@click.option("--hidethinking", is_flag=True, help="Do not show the reasoning.")
@click.option("--format", "form", metavar="json|SCHEMA", help="Answer in JSON, or in JSON of this schema.")
@click.option("--verbose", is_flag=True, help="Print the speed after the answer to TEXT.")
@click.option("--nowordwrap", is_flag=True, expose_value=False, hidden=True)  # a terminal wraps, words or not
@refused("--insecure", hint=REGISTRIES, has_value=False)
@refused("--dimensions", hint="embeddings come from POST /v1/embeddings of a server")
@refused("--experimental", hint="`llamasrv serve --tools` gives models tools", has_value=False)
@refused("--keepalive", hint="the server decides how long a model stays: `llamasrv serve --keep-alive SECONDS`")
@with_options()
def run(
    settings: Settings,
    name: str | None,
    words: tuple[str, ...],
    system: str | None,
    think: str | None,
    hidethinking: bool,
    form: str | None,
    verbose: bool,
) -> int:
    """Chat with MODEL in the terminal, or print its answer to TEXT; what is piped in comes before TEXT.

    Without MODEL, on a machine that has none, asks which one to download.
    Uses the server that runs on this machine if it has MODEL; otherwise starts one for the conversation.
    """
    from llamasrv.commands.chat import Wishes, piped, run_model
    from llamasrv.commands.first_model import choose
    from llamasrv.commands.pull import run as pull_model

    wishes = Wishes.of(think, form, thoughts=not hidethinking, speed=verbose)
    if name is None:
        name = choose(settings)
        if code := pull_model(settings, (name,), as_json=False):
            return code
    message = "\n\n".join(filter(None, (piped(), " ".join(words)))) if words else None
    return run_model(settings, name, message or None, system, wishes)


@cli.command()
@click.argument("words", nargs=-1, metavar="[URL | MODEL] [MESSAGE]")
@click.option("--system", "--system-prompt", metavar="TEXT", help="System prompt.")
@click.option("--name", "--model-name", "model", metavar="NAME", help="Model to talk to, if the server has several.")
@click.option("--prompt", "-p", "--quick", "-q", "prompt", metavar="TEXT", hidden=True)  # LM Studio, vLLM
@click.option("--url", "address", metavar="URL", hidden=True)  # vLLM
@click.option("--dont-fetch-catalog", is_flag=True, expose_value=False, hidden=True)  # LM Studio; there is none
@refused("--stats", hint="`llamasrv run --verbose MODEL TEXT` prints the speed", has_value=False)
@with_options()
def chat(
    settings: Settings,
    words: tuple[str, ...],
    system: str | None,
    model: str | None,
    prompt: str | None,
    address: str | None,
) -> int:
    """Chat with a model in the terminal.

    With MESSAGE, print the answer to it and exit. URL has a scheme or a port (http://host, host:8080). MODEL is the
    full name of a local model, or --model names it: a server is started for it. Otherwise use one that runs here.
    """
    from llamasrv.commands.chat import run, run_model, split_model, split_url

    words = (*([address] if address else ()), *words, *([prompt] if prompt else ()))
    url, message = split_url(words)
    name, rest = split_model(settings, words) if url is None and settings.model.path is None else (None, None)
    if name is not None:
        return run_model(settings, name, rest, system)
    return run(settings, url, message, system, model)


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--json", "as_json", is_flag=True, help="Print progress as JSON, one object per line.")
@refused("--insecure", hint=REGISTRIES, has_value=False)
@with_options("models")
def pull(settings: Settings, names: tuple[str, ...], as_json: bool) -> int:
    """Fetch models. From the Hugging Face Hub NAME is hf:owner/repo, with :QUANT or :FILE.gguf to select a file; from
    Ollama's registry it is as there (llama3.2:3b), or ollama:NAMESPACE/NAME.

    Resumes interrupted downloads. HF_TOKEN opens private repositories, HF_ENDPOINT names a mirror.
    """
    from llamasrv.commands.pull import run

    return run(settings, names, as_json)


@cli.command()
@click.argument("target", required=False, metavar="[MODEL | URL]")
@click.option("--sequences", metavar="LIST", help="Numbers of parallel sequences.  [1,2,4,8,16; with URL 8]")
@click.option(
    "--tokens",
    type=click.IntRange(8, 100_000),
    metavar="INT",
    help="Tokens per answer.  [128; with URL as in the profile]",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Measure what drafts (--spec) gain on this text instead: one prompt, or one JSON string per line.",
)
@click.option("--profile", type=click.Choice(tuple(PROFILES)), help="With URL: the shape of the load.  [chat]")
@click.option(
    "--requests",
    type=click.IntRange(1, 1_000_000),
    metavar="INT",
    help="With URL: requests for each of --sequences.  [two conversations per sequence]",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 10_000, min_open=True),
    metavar="FLOAT",
    help="With URL: conversations started per second, at random times.  [one when another ends]",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="INT",
    help="With URL: repeat the prompts of this seed.  [new ones each time]",
)
@click.option("--name", metavar="NAME", help="With URL: model to ask for.  [the first]")
@_as_json
@with_options("model", "engine", "cache", "server")
def bench(
    settings: Settings,
    target: str | None,
    sequences: str | None,
    tokens: int | None,
    text: Path | None,
    as_json: bool,
    profile: str | None,
    requests: int | None,
    rate: float | None,
    seed: int | None,
    name: str | None,
) -> int:
    """Measure MODEL: the kernels alone, the server over HTTP, and their ratio; or, with --spec and --text, the gain
    from drafts.

    With the URL of a running server of any make, measure what its clients get under a load profile: requests and tokens
    per second, times to the first token and between chunks.
    """
    from llamasrv.commands import bench_drafts, bench_url
    from llamasrv.commands.bench import run
    from llamasrv.commands.server import is_url

    if target in ("serve", "latency", "throughput") and not Path(target).exists():
        raise ConfigError(
            f"bench {target}: `llamasrv bench URL` measures a running server, `llamasrv bench MODEL` a model"
        )
    url = target if target is not None and is_url(target) else None
    sequences = sequences or ("1,2,4,8,16" if url is None else "8")
    if not re.fullmatch(r"\d{1,3}(,\d{1,3})*", sequences) or not all(1 <= int(n) <= 256 for n in sequences.split(",")):
        raise ConfigError(f"--sequences {sequences!r}: must be numbers from 1 to 256, separated by commas")
    levels = tuple(int(n) for n in sequences.split(","))
    if url is not None:
        if text is not None:
            raise ConfigError("--text: measures a model, not a URL")
        return bench_url.run(
            settings,
            url,
            name,
            profile or "chat",
            levels,
            requests=requests,
            rate=rate,
            tokens=tokens,
            seed=seed,
            as_json=as_json,
        )
    for flag, value in (("profile", profile), ("requests", requests), ("rate", rate), ("seed", seed), ("name", name)):
        if value is not None:
            raise ConfigError(f"--{flag}: needs the URL of a running server")
    if target is not None:
        settings = settings.having(model={"path": Path(target)})
    source = click.get_current_context().params.get("engine_spec")
    if text is None and source not in (None, "off"):
        raise ConfigError(f"--spec {source} measures drafts on your own text: name its file with --text")
    if text is not None:
        if as_json:
            raise ConfigError("--json: cannot be combined with --text")
        return bench_drafts.run(settings, levels, tokens or 128, text)
    return run(settings, levels, tokens or 128, as_json)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE.jsonl")
@click.option(
    "-o",
    "--to",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write.  [FILE.calibration.json]",
)
@with_options("model", "engine", "cache")
def calibrate(settings: Settings, file: Path, target: Path | None) -> int:
    """Fit the probabilities of decisions to your own cases: lines of {"input", "question", "answer"}, with questions as
    in /v1/decisions. Shows log loss and calibration error before and after, and writes a file for
    --decision-calibration."""
    from llamasrv.commands.calibrate import run

    return run(settings, file, target)


@cli.command()
@_reference
@click.option("--print-config", is_flag=True, help="Print the resolved configuration as TOML, with secrets hidden.")
@_as_json
@with_options()
def check(settings: Settings, print_config: bool, as_json: bool) -> int:
    """Check a configuration and estimate its memory use; MODEL as for `serve`."""
    from llamasrv.commands.check import run

    return run(settings, print_config, as_json)


@cli.command()
@click.option(
    "--days", default=30, type=click.IntRange(1, 400), metavar="INT", help="Number of days, including today.  [30]"
)
@click.option(
    "--by",
    default="key,model",
    metavar="LIST",
    help="Group by any of day, key and model, separated by commas.  [key,model]",
)
@_as_json
@with_options("store")
def usage(settings: Settings, days: int, by: str, as_json: bool) -> int:
    """Show the tokens used and what they cost, by key and model, from the server's store."""
    from llamasrv.commands.usage import run

    names = tuple(name.strip() for name in by.split(","))
    if not set(names) <= {"day", "key", "model"} or len(set(names)) < len(names):
        raise ConfigError(f"--by {by!r}: must be one or more of day, key and model, separated by commas")
    return run(settings, days, names, as_json)


@cli.command()
@_as_json
@with_options()
def doctor(settings: Settings, as_json: bool) -> int:
    """Print facts for a bug report: versions, machine, devices, options, models, the last error. No secrets."""
    from llamasrv.commands.doctor import run

    return run(settings, as_json)


@cli.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("kind", metavar="TYPE")
@click.option(
    "--threads",
    "-t",
    default=0,
    type=click.IntRange(0, 1024),
    metavar="INT",
    help="Number of threads.  [all cores]",
)
@click.option(
    "--allow-requantize",
    "again",
    is_flag=True,
    help="Also requantise tensors that are already quantised, at a loss of quality.",
)
def quantize(source: Path, target: Path, kind: str, threads: int, again: bool) -> int:
    """Quantise the model IN to OUT as TYPE (Q4_K_M, Q8_0, ...)."""
    from llamasrv.commands.quantize import run

    return run(source, target, kind, threads, again)


@cli.command()
@click.argument("name")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Keys file to add the entry to.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(SCOPES),
    default=SCOPES,
    help="What the key may be used for.  [all]",
)
@click.option("--requests-per-minute", type=click.IntRange(1), metavar="INT", help="Maximum requests per minute.")
@click.option("--tokens-per-minute", type=click.IntRange(1), metavar="INT", help="Maximum tokens per minute.")
@click.option("--tokens-per-month", type=click.IntRange(1), metavar="INT", help="Maximum tokens in a calendar month.")
@click.option("--concurrency", type=click.IntRange(1), metavar="INT", help="Maximum concurrent requests.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model that the key may use.  [all]")
def key(name: str, file: Path | None, scopes: tuple[str, ...], models: tuple[str, ...], **bounds: int | None) -> int:
    """Create an API key for NAME. It is printed once and not stored; the keys file gets its digest."""
    from llamasrv.commands.key import run

    return run(name, file, scopes, bounds, models)


@cli.command()
@click.option("--host", default="127.0.0.1", metavar="TEXT", help="Address to listen on.  [127.0.0.1]")
@click.option("--port", default=50052, type=click.IntRange(1, 65535), metavar="INT", help="Port.  [50052]")
@click.option(
    "--threads",
    "-t",
    default=0,
    type=click.IntRange(0, 1024),
    metavar="INT",
    help="Number of threads.  [all cores]",
)
def rpc(host: str, port: int, threads: int) -> int:
    """Compute layers for a server on another machine that names this one with --rpc.

    Anyone who can connect may use it: run it only within a network that you trust.
    """
    from llamasrv.commands.rpc import run

    return run(host, port, threads)


@cli.command()
@click.option(
    "--chat-template",
    "--chat-template-file",
    "template",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Jinja source of the model's chat template.",
)
@click.option("--request", type=click.Path(path_type=Path), metavar="FILE", help="Chat request, as JSON.")
@click.option(
    "--stream",
    is_flag=True,
    help="Print deltas, one per line, for text that arrives character by character.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print to standard error what was learned from the template: marks, an example, which turns are lost.",
)
def parse(template: Path, request: Path | None, stream: bool, explain: bool) -> int:
    """Print, as JSON, the message a client would get for the model output on standard input."""
    from llamasrv.commands.parse import run

    return run(template, request, stream, explain)


@cli.group(cls=HelpfulGroup, invoke_without_command=True)
@_as_json
@with_options("model", "models", "engine", "server")
def models(settings: Settings, as_json: bool) -> int:
    """List the models that would be served, and those loaded by a running server. `models rm NAME` deletes one."""
    from llamasrv.commands.models import run

    context = click.get_current_context()
    context.obj = settings
    return 0 if context.invoked_subcommand else run(settings, as_json)


_confirmed = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


@models.command("rm")
@click.argument("name")
@_confirmed
@click.pass_obj
def models_rm(settings: Settings, name: str, yes: bool) -> int:
    """Delete the files of the model NAME from the models folder."""
    from llamasrv.commands.models import remove_model

    return remove_model(settings, name, confirmed=yes)


@cli.command()
@click.argument("names", nargs=-1, required=True, metavar="MODEL...")
@_confirmed
@with_options("model", "models", "engine", "server")
def rm(settings: Settings, names: tuple[str, ...], yes: bool) -> int:
    """Delete the files of models from the models folder."""
    from llamasrv.commands.models import remove_model

    return max(remove_model(settings, name, confirmed=yes) for name in names)


def _ls(settings: Settings, name: str, as_json: bool, llm: bool, embedding: bool) -> int:
    """List the models on this machine: pulled ones, those of the configuration, and those that other programs have
    downloaded (Ollama, LM Studio, the Hugging Face Hub's cache, llama.cpp). With NAME, only those whose name begins
    with it."""
    from llamasrv.commands.models import run

    kinds = [kind for kind, wanted in (("completion", llm), ("embedding", embedding)) if wanted]
    return run(settings, as_json, everywhere=True, beginning=name, kinds=kinds)


for _name in ("ls", "list"):
    _command = with_options("model", "models", "engine", "server")(_ls)
    _command = click.option("--embedding", is_flag=True, help="Only models that embed.")(_as_json(_command))
    _command = click.option("--llm", is_flag=True, help="Only models that generate text.")(_command)
    _command = click.argument("name", default="", metavar="[NAME]")(_command)
    cli.command(_name, hidden=_name == "list")(_command)


@cli.command()
@_as_json
@with_options("server")
def ps(settings: Settings, as_json: bool) -> int:
    """List the models that the server on this machine has loaded."""
    from llamasrv.commands.running import ps as run

    return run(settings, as_json)


@cli.command()
@click.argument("name", metavar="MODEL")
@with_options("server")
def stop(settings: Settings, name: str) -> int:
    """Unload MODEL from the server on this machine. It is loaded again when a request names it."""
    from llamasrv.commands.running import stop as run

    return run(settings, name)


@cli.command()
@click.argument("name", metavar="MODEL")
@_as_json
@click.option("--license", "part", flag_value="license", help="Print only the licence.")
@click.option("--modelfile", "part", flag_value="modelfile", help="Print a Modelfile that makes this model.")
@click.option("--parameters", "part", flag_value="parameters", help="Print only the parameters.")
@click.option("--system", "part", flag_value="system", help="Print only the system prompt.")
@click.option("--template", "part", flag_value="template", help="Print only the chat template.")
@refused("-v", "--verbose", hint="--json prints all that is known", has_value=False)
@with_options("model", "models", "engine", "server")
def show(settings: Settings, name: str, as_json: bool, part: str | None) -> int:
    """Show what is known about MODEL: its file, its abilities, its parameters."""
    from llamasrv.commands.show import run

    return run(settings, name, as_json, part)


@cli.command()
@click.argument("name")
@click.option("--file", "-f", type=click.Path(path_type=Path), metavar="FILE", help="Modelfile.  [Modelfile]")
@click.option("--from", "base", metavar="MODEL", help="Model to create it from, without a Modelfile.")
@refused("-q", "--quantize", hint="make the file first: `llamasrv quantize IN OUT TYPE`")
@with_options("models")
def create(settings: Settings, name: str, file: Path | None, base: str | None) -> int:
    """Create the model NAME from another one, with its own system prompt, parameters or template (a Modelfile)."""
    from llamasrv.commands.create import run

    return run(settings, name, file, base)


@cli.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[COMMAND | TOPIC | WORDS...]")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> int:
    """Show the help of a command, the options of a topic, or what the manual says about some words."""
    from llamasrv.commands.help import run

    assert context.parent is not None
    return run(context.parent, words)


@cli.command()
@click.argument("program", metavar="PROGRAM")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS...]")
@click.option("--print", "print_only", is_flag=True, help="Print the variables for a shell; start nothing.")
@with_options()
def launch(settings: Settings, program: str, arguments: tuple[str, ...], print_only: bool) -> int:
    """Start PROGRAM (claude, codex, opencode, qwen, gemini, copilot, aider) with a local model.

    Uses the server that runs on this machine if it has --model, or without it any model that can call tools; otherwise
    starts one and ends it with PROGRAM. What follows -- goes to PROGRAM, whose own files are not touched.
    """
    from llamasrv.commands.launch import run

    return run(settings, program, arguments, print_only)


@cli.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "token_normalize_func": None}
)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND... | FILE", type=click.UNPROCESSED)
def migrate(words: tuple[str, ...]) -> int:
    """Rewrite a command of Ollama, llama-server, vLLM, TGI or LM Studio for llamasrv, with remarks.

    Give the command as it is typed, or the FILE of a systemd unit, a compose file or a script.
    """
    from llamasrv.commands.migrate import run

    return run(words)


def main(arguments: Iterable[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # names of files may have any bytes, and terminals any encoding
    try:
        code = _run(arguments)
    except BrokenPipeError:  # `llamasrv ls | head -1`
        code = 1  # as click has it
    except OSError as error:
        code = _refuse(f"{error.filename or 'standard output'}: {error.strerror or error}", EX_IOERR)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: closed
            code = _flushed(stream, code)
    sys.exit(code)


def _run(arguments: Iterable[str] | None) -> int:
    """The exit code of one command, whose errors have been printed. Raises OSError."""
    try:
        code = cli.main(None if arguments is None else list(arguments), "llamasrv", standalone_mode=False)
    except ConfigError as error:
        code = _refuse(str(error), EX_CONFIG)
    except click.NoSuchOption as error:
        meant = nearest(error.option_name, _flags(error.ctx))
        code = _refuse(f"{error.option_name}: unknown option{meant}", EX_CONFIG)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        code = 0
    except click.MissingParameter as error:
        command = error.ctx.info_name if error.ctx is not None else ""
        code = _refuse(f"{error.format_message().rstrip('.')}; `llamasrv help {command}` shows how", EX_CONFIG)
    except (click.BadParameter, click.BadOptionUsage) as error:
        code = _refuse(error.format_message(), EX_CONFIG)
    except click.UsageError as error:
        code = _refuse(error.format_message(), EX_USAGE)
    except click.ClickException as error:
        code = _refuse(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    return code if isinstance(code, int) else 0


def _flushed(stream: TextIO, code: int) -> int:
    """Write what is left in a standard stream, or drop it, so that Python does not try again on its way out. Returns
    the exit code."""
    try:
        stream.flush()
        return code
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stderr or code == EX_IOERR:
            return code
        if isinstance(error, BrokenPipeError):
            return code or 1
        return _refuse(f"standard output: {error.strerror}", code or EX_IOERR)


def _refuse(line: str, code: int) -> int:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"llamasrv: {' '.join(line.split())}", file=sys.stderr)
    return code


def _flags(context: click.Context | None) -> list[str]:
    """The flags that the help shows."""
    shown = [] if context is None else [p for p in context.command.params if not getattr(p, "hidden", False)]
    return [flag for parameter in shown for flag in parameter.opts]
