"""`llamasrv migrate`: the command line, systemd unit or compose file of another server, rewritten for llamasrv.

What becomes of each flag and variable is in the tables of config/; what cannot be kept is a remark.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llamasrv.config.foreign import OFF, ON, RIVALS, Taken
from llamasrv.config.foreign_flag import ForeignFlag
from llamasrv.config.llama_flags import FLAGS
from llamasrv.config.option import convert, reason, written
from llamasrv.config.settings import OPTIONS
from llamasrv.domain.option import Option
from llamasrv.errors import ConfigError

LARGEST = 1 << 20  # max bytes of a file
OLLAMA, LLAMA, VLLM, TGI, STUDIO = "Ollama", "llama-server", "vLLM", "TGI", "LM Studio"
PORTS = {OLLAMA: 11434, LLAMA: 8080, VLLM: 8000, TGI: 3000, STUDIO: 1234}  # where each listens by default

_IMAGES = {
    "vllm/vllm": ["vllm", "serve"],
    "ollama/ollama": ["ollama"],
    "text-generation-inference": ["text-generation-launcher"],
    "ggml-org/llama.cpp": ["llama-server"],
    "ggerganov/llama.cpp": ["llama-server"],
}
_PREFIXES = ("sudo", "exec", "nohup", "env", "time", "nice")
_OWN = {flag: option for option in OPTIONS for flag in (*option.flags, *option.off)}

# Commands of Ollama and LM Studio, and the same here; those that are not listed keep their name.
_COMMANDS: Mapping[tuple[str, str], str] = {
    (OLLAMA, "list"): "ls",
    (STUDIO, "get"): "pull",
    (STUDIO, "unload"): "stop",
    (STUDIO, "load"): "serve",
    (STUDIO, "status"): "ps",
    (STUDIO, "server start"): "serve",
}
_SAME = ("serve", "run", "pull", "ls", "ps", "show", "stop", "rm", "create", "chat")


@dataclass
class Migration:
    """A command line for llamasrv, and what has to be said about it."""

    program: str
    words: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)  # environment variables that stay
    remarks: list[str] = field(default_factory=list)
    lost: bool = False  # something has no counterpart

    @property
    def line(self) -> str:
        set_before = [f"{name}={shlex.quote(value)}" for name, value in self.kept.items()]
        return " ".join([*set_before, shlex.join(self.words)])


def run(words: Sequence[str]) -> int:
    """Print the new command line, unit or compose file, with remarks as comments. Returns 1 if something has no
    counterpart."""
    text, name = _read(words)
    if text is None:
        found = [command(list(words) if len(words) > 1 else _split(words[0]), {})]
        print(*_remarks(found), *([found[0].line] if found[0].words else []), sep="\n")
    elif re.search(r"^\s*\[Service\]", text, re.MULTILINE):
        found, new = unit(text)
        print(*_remarks(found), new, sep="\n")
    elif name.endswith((".yml", ".yaml")) or re.search(r"^services:", text, re.MULTILINE):
        found, new = compose(text, name)
        print(*_remarks(found), new, sep="\n")
    else:
        lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip() and line.lstrip()[0] != "#"]
        found = [command(_split(line), {}) for line in lines if program_of(_split(line), {}) is not None]
        if not found:
            raise ConfigError(f"{name}: no command of {', '.join(PORTS)} in it")
        print(*_remarks(found), *(one.line for one in found), sep="\n")
    sys.stdout.flush()
    return 1 if any(one.lost for one in found) else 0


def _read(words: Sequence[str]) -> tuple[str | None, str]:
    """The text of the file that the only word names, and its name."""
    path = Path(words[0])
    if len(words) > 1 or not path.is_file():
        if (
            len(words) == 1
            and " " not in words[0]
            and ("/" in words[0] or path.suffix in (".yml", ".yaml", ".service"))
        ):
            raise ConfigError(f"{path}: No such file or directory")
        return None, ""
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path}: larger than {LARGEST} bytes")
        return path.read_text("utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"{line[:80]!r}: {str(error).lower()}") from None


def _remarks(found: Iterable[Migration]) -> list[str]:
    return [f"# {' '.join(remark.split())}" for one in found for remark in one.remarks]


# Command lines


def program_of(words: Sequence[str], environment: dict[str, str]) -> tuple[str, list[str]] | None:
    """The program that a command line starts and its arguments; variables of the line go to `environment`."""
    rest = list(words)
    while rest and (rest[0] in _PREFIXES or re.match(r"\w+=", rest[0])):
        if "=" in rest[0]:
            name, _, value = rest[0].partition("=")
            environment[name] = value
        rest.pop(0)
    if not rest:
        return None
    name = os.path.basename(rest[0])
    if name in ("docker", "podman", "nerdctl"):
        return _of_container(rest, environment)
    if re.fullmatch(r"python[\d.]*", name) and rest[1:2] == ["-m"] and rest[2:3] and rest[2].startswith("vllm."):
        return VLLM, rest[3:]
    starts = {"vllm": VLLM, "llama-server": LLAMA, "text-generation-launcher": TGI, "ollama": OLLAMA, "lms": STUDIO}
    program = starts.get(name.removesuffix(".exe"))
    if program is None:
        return None
    return program, rest[2:] if program == VLLM and rest[1:2] == ["serve"] else rest[1:]


def _of_container(words: Sequence[str], environment: dict[str, str]) -> tuple[str, list[str]] | None:
    for place, word in enumerate(words):
        entry = _entry(word)
        if entry is not None and place > 1 and words[place - 1] not in ("-v", "--volume", "--name"):
            for flag, value in zip(words, words[1:place], strict=False):
                if flag in ("-e", "--env") and "=" in value:
                    environment.update(_pairs([value]))
            return program_of([*entry, *words[place + 1 :]], environment)
    return None


def _entry(image: str) -> list[str] | None:
    """The command that a container of this image runs."""
    return next((list(entry) for part, entry in _IMAGES.items() if part in image), None)


def command(words: Sequence[str], environment: Mapping[str, str]) -> Migration:
    """Rewrite one command line. Raises ConfigError if it is of none of the programs."""
    variables = dict(environment)
    found = program_of(words, variables)
    if found is None:
        raise ConfigError(f"{shlex.join(words)[:80]}: not a command of {', '.join(PORTS)}, and not a file")
    program, arguments = found
    result = Migration(program)
    if words and os.path.basename(words[0]) in ("docker", "podman", "nerdctl"):
        result.remarks.append("a container of llamasrv: conf/Containerfile; its command is below")
    verb = _verb(program, arguments)
    if verb is None:
        result.remarks.append(f"not possible: {shlex.join(words)[:80]}: llamasrv has no such command")
        result.lost = True
        return result
    result.words = ["llamasrv", verb]
    reader = _CommandReader(result, program)
    reader.variables(variables)
    reader.flags(arguments)
    reader.write(serves=verb == "serve")
    return result


def _verb(program: str, arguments: list[str]) -> str | None:
    """The command here; takes those of Ollama and LM Studio from the arguments."""
    if program not in (OLLAMA, STUDIO):
        return "serve"
    first = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "serve"
    if first == "server" and arguments:
        first += f" {arguments.pop(0)}"
    verb = _COMMANDS.get((program, first), first)
    return verb if verb in _SAME else None


class _CommandReader:
    """Reads flags and variables of one program into option values."""

    def __init__(self, result: Migration, program: str) -> None:
        self.result, self.program = result, program
        self.taken = Taken()
        self.models: list[str] = []
        flags = FLAGS if program == LLAMA else RIVALS[program]
        self.known = {name: flag for flag in flags for name in (*flag.names, *flag.negations)}
        self.of_variable = {flag.variable: flag for flag in flags if flag.variable}
        if program == TGI:
            self.of_variable |= {flag.long_name[2:].replace("-", "_").upper(): flag for flag in flags if flag.names}

    def variables(self, environment: Mapping[str, str]) -> None:
        for name, value in environment.items():
            flag = self.of_variable.get(name)
            if name.endswith("_API_KEY") and flag is not None and flag.sets is not None:
                self.result.kept["LLAMASRV_API_KEY"] = value  # not on the command line, where others can read it
                self.result.remarks.append(f"{name} is LLAMASRV_API_KEY")
            elif flag is None or self.program == LLAMA:  # llamasrv reads llama-server's own
                self.result.kept[name] = value
            else:
                self._foreign(flag, value, f"{name}={value}")
        if self.program == TGI and "PORT" in self.result.kept:
            self._own(_OWN["--port"], self.result.kept.pop("PORT"), "PORT")

    def flags(self, words: Sequence[str]) -> None:
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if not word.startswith("-") or word == "-":
                self.models.append(word)
                continue
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            flag, option = self.known.get(name), _OWN.get(name)
            if flag is not None and flag.verdict != "same":
                given = _values(flag, name, [value, *rest] if equals else rest, attached=bool(equals))
                del rest[: len(given) - bool(equals)]
                negated = name in flag.negations
                text = (",".join(given) if not flag.has_two else " ".join(given)) or (OFF if negated else ON)
                self._foreign(flag, text, shlex.join([name, *given]))
            elif option is not None:
                if option.kind == "bool":
                    self._own(option, name not in option.off and not name.startswith("--no-"), name)
                else:
                    is_bare = not equals and option.bare is not None and (not rest or rest[0].startswith("-"))
                    text = value if equals else (option.bare or "") if is_bare else rest.pop(0) if rest else ""
                    self._own(option, text, f"{name} {text}")
            elif name.startswith("--no-") and f"--{name[5:]}" in _OWN:
                self._own(_OWN[f"--{name[5:]}"], False, name)
            else:
                self._lose(f"{word}: unknown flag of {self.program}, left out")

    def _foreign(self, flag: ForeignFlag, text: str, given: str) -> None:
        try:
            before = dict(self.taken.values)
            self.taken.take(flag, text, given)
        except ConfigError as error:
            self._lose(str(error))
            return
        changed = [name for name, value in self.taken.values.items() if name not in before or before[name] != value]
        if flag.verdict in ("already", "no"):
            self.result.remarks.append(f"left out: {given}: {flag.note}")
        elif flag.verdict == "maps" and changed != ["model_path"]:
            now = [word for name in changed for word in as_words(name, self.taken.values[name])]
            self.result.remarks.append(f"{given} is {shlex.join(now)}" if now else f"left out: {given}: the default")

    def _own(self, option: Option, value: Any, given: str) -> None:
        try:
            made = convert(option, value, given)
        except ConfigError as error:
            self._lose(str(error))
            return
        if option.name == "model_path":
            self.models.insert(0, str(made))
        elif option.is_list:
            self.taken.values[option.name] = (*self.taken.values.get(option.name, ()), *made)
        else:
            self.taken.values[option.name] = made

    def _lose(self, line: str) -> None:
        self.result.remarks.append(f"not possible: {line}")
        self.result.lost = True

    def write(self, *, serves: bool) -> None:
        """Add the words of the models and options to the new command line."""
        values = self.taken.values
        if "model_path" in values:
            self.models.insert(0, str(values.pop("model_path")))
        for place, model in enumerate(self.models):
            if self.program in (VLLM, TGI) and place == 0:
                model = self._with_gguf(model)
            self.result.words.append(model)
        if serves:
            if "server_port" not in values and self.program != LLAMA:
                values["server_port"] = PORTS[self.program]
                self.result.remarks.append(f"--port {PORTS[self.program]} is where {self.program} listens by default")
            if self.program == OLLAMA:
                self.result.words += ["--models-from", "ollama"]
            if values.get("server_host", "") not in ("", "127.0.0.1", "localhost") or self.program in (VLLM, TGI):
                self.result.remarks.append(
                    "listening for other machines takes keys: --host 0.0.0.0 --api-key-file keys.toml "
                    "(llamasrv key NAME --file keys.toml), or --allow-keyless"
                )
        for option in OPTIONS:
            if option.name in values:
                self.result.words += as_words(option.name, values[option.name])

    def _with_gguf(self, model: str) -> str:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or Path(model).exists():
            return model
        name = model if "gguf" in model.lower() else f"{model}-GGUF"
        if name != model:
            self.result.remarks.append(
                f"llamasrv reads GGUF files: check that hf:{name} exists, or choose one at "
                f"https://huggingface.co/models?library=gguf&search={model.partition('/')[2]}"
            )
        return f"hf:{name}"


def _values(flag: ForeignFlag, name: str, rest: Sequence[str], *, attached: bool) -> list[str]:
    """The words of `rest` that are values of the flag; `attached`: the first one was given with an equals sign."""
    if name in flag.negations or not flag.hint:
        return []
    if attached:
        return list(rest[:1])
    if flag.has_several or flag.hint.startswith("["):
        most = len(rest) if flag.has_several else 1
        number = next((n for n, word in enumerate(rest[:most]) if word.startswith("-")), min(most, len(rest)))
        return list(rest[:number])
    return list(rest[: 2 if flag.has_two else 1])


def as_words(name: str, value: Any) -> list[str]:
    """The words that give an option this value on the command line."""
    option = next(option for option in OPTIONS if option.name == name)
    if option.kind == "bool":
        return [option.long_flag if value else f"--no-{option.long_flag[2:]}"]
    text = written(option, value)
    if text is None:
        return []
    if isinstance(text, tuple):
        return [option.long_flag, ",".join(map(str, text))] if text else []
    return [option.long_flag, f"{text:g}" if isinstance(text, float) else str(text)]


# Units and compose files


def unit(text: str) -> tuple[list[Migration], str]:
    """A systemd unit with its ExecStart and environment rewritten."""
    environment: dict[str, str] = {}
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    for line in lines:
        key, _, value = line.strip().partition("=")
        if key == "Environment":
            environment.update(_pairs(_split(value)))
    found: list[Migration] = []
    new = []
    for line in lines:
        key, _, value = line.strip().partition("=")
        if key == "Environment":
            continue
        if key == "ExecStart" and value:
            one = command(_split(value.lstrip("@-:+!")), environment)
            found.append(one)
            new += [f'Environment="{name}={text}"' for name, text in one.kept.items()]
            line = f"ExecStart=/usr/local/bin/{shlex.join(one.words)}"
        new.append(line)
    if not found:
        raise ConfigError("the unit has no ExecStart")
    found[0].remarks.append("conf/llamasrv.service is hardened, and systemd learns from the server when it is ready")
    return found, "\n".join(new)


def compose(text: str, name: str) -> tuple[list[Migration], str]:
    """A compose file with the services of other servers rewritten."""
    try:
        document = yaml.safe_load(text)
        services = document["services"]
        pairs = list(services.items())
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{name}: not a compose file with services") from None
    found = []
    for service, table in pairs:
        entry = _entry(str(table.get("image", ""))) if isinstance(table, dict) else None
        words = [*(entry or []), *_words(table.get("command"))] if isinstance(table, dict) else []
        if not words or program_of(words, {}) is None:
            continue
        one = command(words, dict(_pairs(table.get("environment"))))
        found.append(one)
        published = [str(port).rsplit(":", 1)[-1] for port in table.get("ports") or () if not isinstance(port, dict)]
        if published:
            one.remarks.append(
                f"{service}: its ports lead to {', '.join(published)} in the container: give that --port"
            )
        one.remarks.append(f"{service}: build the image with conf/Containerfile")
        table["image"] = "llamasrv"
        table["command"] = [*one.words[1:], *([] if "--host" in one.words else ["--host", "0.0.0.0"])]
        table.pop("entrypoint", None)
        table.pop("environment", None)
        if one.kept:
            table["environment"] = one.kept
    if not found:
        raise ConfigError(f"{name}: no service of {', '.join(PORTS)} in it")
    stream = io.StringIO()
    yaml.safe_dump(document, stream, sort_keys=False, allow_unicode=True, width=110)
    return found, stream.getvalue().rstrip()


def _words(value: Any) -> list[str]:
    return _split(value) if isinstance(value, str) else [str(one) for one in value or ()]


def _pairs(value: Any) -> Iterator[tuple[str, str]]:
    """Environment variables, as a table or as a list of NAME=VALUE."""
    if isinstance(value, dict):
        yield from ((str(name), str(one)) for name, one in value.items())
    for one in value if isinstance(value, list) else ():
        name, equals, text = str(one).partition("=")
        if equals:
            yield name, text
