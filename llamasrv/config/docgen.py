"""Generates documents from the code: the tables of conf/ and of llamasrv/protocols/README.md, conf/llamasrv.toml,
and the settings in use.

In a checkout, `python -m llamasrv.config.docgen` regenerates them; a test compares them with the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from llamasrv.config.foreign import RIVALS
from llamasrv.config.foreign_flag import ForeignFlag
from llamasrv.config.llama_flags import FLAGS
from llamasrv.config.option import as_toml_value, shown, written
from llamasrv.config.settings import OPTIONS, TABLE_KEYS, Settings, value_of
from llamasrv.domain.option import Option
from llamasrv.protocols.anthropic.messages import MessagesSchema
from llamasrv.protocols.common.schema import WireSchema, rows
from llamasrv.protocols.gemini.config import GenerationSchema
from llamasrv.protocols.gemini.decisions import GeminiDecisionsSchema
from llamasrv.protocols.gemini.generate import GenerateContentSchema
from llamasrv.protocols.gemini.interactions import InteractionConfig, InteractionSchema
from llamasrv.protocols.llamacpp.completion import CompletionSchema
from llamasrv.protocols.ollama.chat import OllamaChatSchema
from llamasrv.protocols.ollama.generate import GenerateSchema as OllamaGenerateSchema
from llamasrv.protocols.openai.chat import ChatSchema
from llamasrv.protocols.openai.completions import CompletionsSchema
from llamasrv.protocols.openai.decisions import DecisionsSchema
from llamasrv.protocols.openai.embeddings import EmbeddingsSchema
from llamasrv.protocols.openai.rerank import RerankSchema
from llamasrv.protocols.openai.responses.schema import ResponsesSchema
from llamasrv.protocols.openai.speech import SpeechSchema
from llamasrv.protocols.openai.transcriptions import TranscriptionSchema
from llamasrv.protocols.typesafe.systemone import SystemOneSchema


def as_toml(settings: Settings | None = None) -> str:
    """All options with their meaning. Without settings: commented out, with defaults. With settings: their values,
    secrets hidden."""
    lines = [] if settings else ["# llamasrv: all options at their defaults. Environment and flags override this file."]
    section = None
    for option in OPTIONS:
        if option.section != section:
            section = option.section
            lines += ["", f"[{section}]"]
        key = option.key.partition(".")[2]
        if settings is None:
            lines += [f"# {option.help}", f"#   {option.long_flag}, {option.variable}: {option.expects}"]
            lines += [f"# {key} = {shown(option, option.default)}".rstrip(), ""]
        else:
            lines += _line(key, option, value_of(settings, option))
    lines += _tables(settings) if settings is not None else ["", *MODEL_TABLES]
    return "\n".join(lines).replace("\n\n\n", "\n\n").strip() + "\n"


def _line(key: str, option: Option, value: Any) -> list[str]:
    """The line that sets an option, as a comment without the value if it is secret; none for one that is unset."""
    if option.secret and value:
        return [f'# {key} = "***"']
    return [] if written(option, value) is None else [f"{key} = {shown(option, value)}"]


def _tables(settings: Settings) -> list[str]:
    """Tables that are not options: models with their own options, and aliases."""
    lines = []
    for table in settings.tables:
        lines += ["", f"[models.{as_toml_value(table.name)}]", *(["load = true"] if table.load else [])]
        for key, option in TABLE_KEYS.items():
            if option.name in table.values:
                lines += _line(key, option, table.values[option.name])
    if settings.aliases:
        lines += ["", "[aliases]"]
        lines += [f"{as_toml_value(alias)} = {as_toml_value(name)}" for alias, name in settings.aliases.items()]
    return lines


MODEL_TABLES = """\
# Models with their own options, one table each: any key of [model], [engine], [sampling] and [cache]; n_predict,
# keep_alive; load = true loads a model at startup. Without path: the file of that name in models.dir.
#
#   [models."qwen2.5:7b"]
#   path = "/srv/models/qwen2.5-7b-instruct-q4_k_m.gguf"
#   ctx_size = 16384
#   load = true
#
# Aliases of models, for clients with fixed model names; * matches any name.
#
#   [aliases]
#   "gpt-4o-mini" = "qwen2.5:7b"
#   "*" = "qwen2.5:7b"
""".splitlines()


def as_markdown() -> str:
    """The options, a table for each topic."""
    rows: list[str] = []
    topic = None
    for option in OPTIONS:
        if option.section != topic:
            topic = option.section
            rows += ["", f"## {topic}", "", "| flag | TOML key | default | value | meaning |", "|---|---|---|---|---|"]
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        default = f"`{shown(option, option.default)}`" if shown(option, option.default) not in ("", "[]") else ""
        rows.append(f"| {flags} | `{option.key}` | {default} | {option.expects} | {option.help} |")
    return "\n".join(rows[1:]) + "\n"


def as_fields(schema: type[WireSchema]) -> str:
    """The verdicts on the fields of an endpoint."""
    known: dict[str, list[str]] = {}
    for row in rows(schema):
        known.setdefault(row.verdict, []).append(f"`{row.field}`" + (f" ({row.note})" if row.note else ""))
    lines = [f"| {verdict} | {', '.join(known[verdict])} |" for verdict in sorted(known)]
    return "\n".join(["| verdict | fields |", "|---|---|", *lines]) + "\n"


def as_verdicts(flags: Iterable[ForeignFlag]) -> str:
    """The verdicts on another server's flags and variables."""
    lines = ["| flag | variable | verdict | |", "|---|---|---|---|"]
    for flag in flags:
        names = ", ".join(f"`{name}`" for name in (*flag.names, *flag.negations))
        note = f"`{flag.option}`" if flag.verdict == "same" else flag.note.replace("|", "\\|")
        off = f"; negated: {flag.off}" if flag.off else ""
        ok = f"; accepted: {', '.join(f'`{value}`' for value in flag.ok)}" if flag.ok else ""
        variable = f"`{flag.variable}`" if flag.variable else ""
        lines.append(f"| {names} | {variable} | {flag.verdict} | {note}{off}{ok} |")
    return "\n".join(lines) + "\n"


# By document: the tables between its marks.
DOCUMENTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "conf/options.md": {"options": as_markdown},
    "conf/flags.md": {
        "llama-server": partial(as_verdicts, FLAGS),
        "vllm": partial(as_verdicts, RIVALS["vLLM"]),
        "tgi": partial(as_verdicts, RIVALS["TGI"]),
        "lm-studio": partial(as_verdicts, RIVALS["LM Studio"]),
        "ollama": partial(as_verdicts, RIVALS["Ollama"]),
    },
    "llamasrv/protocols/README.md": {
        "chat": lambda: as_fields(ChatSchema),
        "completions": lambda: as_fields(CompletionsSchema),
        "responses": lambda: as_fields(ResponsesSchema),
        "transcriptions": lambda: as_fields(TranscriptionSchema),
        "speech": lambda: as_fields(SpeechSchema),
        "messages": lambda: as_fields(MessagesSchema),
        "gemini": lambda: as_fields(GenerateContentSchema),
        "gemini-config": lambda: as_fields(GenerationSchema),
        "interactions": lambda: as_fields(InteractionSchema),
        "interactions-config": lambda: as_fields(InteractionConfig),
        "ollama-chat": lambda: as_fields(OllamaChatSchema),
        "ollama-generate": lambda: as_fields(OllamaGenerateSchema),
        "embeddings": lambda: as_fields(EmbeddingsSchema),
        "completion": lambda: as_fields(CompletionSchema),
        "rerank": lambda: as_fields(RerankSchema),
        "decisions": lambda: as_fields(DecisionsSchema),
        "decisions-google": lambda: as_fields(GeminiDecisionsSchema),
        "systemone": lambda: as_fields(SystemOneSchema),
    },
}


def renewed(name: str, text: str) -> str:
    """A document with its tables regenerated."""
    for table, make in DOCUMENTS[name].items():
        start, end = f"<!-- {table} -->\n", f"<!-- /{table} -->"
        head, _, rest = text.partition(start)
        _, _, tail = rest.partition(end)
        text = f"{head}{start}{make()}{end}{tail}"
    return text


def write(checkout: Path) -> None:
    """Regenerate the documents' tables and the TOML file."""
    for name in DOCUMENTS:
        path = checkout / name
        path.write_text(renewed(name, path.read_text("utf-8")), "utf-8")
    (checkout / "conf" / "llamasrv.toml").write_text(as_toml(), "utf-8")


if __name__ == "__main__":
    write(Path.cwd())
