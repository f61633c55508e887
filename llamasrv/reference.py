"""The options as documents: conf/llamasrv.toml, the README's table, and the settings in use.

`python -m llamasrv.reference toml` and `... markdown` print the first two.
"""

from __future__ import annotations

import sys
from typing import Any

from llamasrv.config import OPTIONS, Option, Settings, as_size


def as_toml(settings: Settings | None = None) -> str:
    """Every option with its meaning. Without settings: commented, at the defaults; with: as they are, keys hidden."""
    lines = [] if settings else ["# llamasrv: every option, at its default. Environment and flags go before this file."]
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
            value = getattr(settings, option.name)
            if option.secret and value:
                lines.append(f'# {key} = "***"')
            elif value is not None:
                lines.append(f"{key} = {shown(option, value)}")
    return "\n".join(lines).replace("\n\n\n", "\n\n").strip() + "\n"


def shown(option: Option, value: Any) -> str:
    """A value as the TOML file writes it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(shown(option, item) for item in value) + "]"
    if option.kind == "size":
        return shown(_TEXT, as_size(value))
    if isinstance(value, (int, float)):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


_TEXT = Option("", (), "text", None, "")


def as_markdown() -> str:
    """The README's table of options."""
    rows = ["| flag | TOML key | default | value | meaning |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        default = f"`{shown(option, option.default)}`" if option.default not in (None, ()) else ""
        rows.append(f"| {flags} | `{option.key}` | {default} | {option.expects} | {option.help} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print({"toml": as_toml, "markdown": as_markdown}[sys.argv[1]](), end="")
