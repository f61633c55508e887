"""The built-in tools, with llama-server's names and parameters."""

from __future__ import annotations

from typing import Any

from llamasrv.tools.shell import DEFAULT_SECONDS, MOST_OUTPUT, MOST_SECONDS
from llamasrv.tools.tool import ServerTool

_TEXT, _NUMBER, _FLAG = "string", "integer", "boolean"
_INCLUDE = (
    'Glob pattern of the files to include, such as "*.py" or "src/**/*.py". Without a slash it is matched against '
    "names at any depth, with one against relative paths. Default: all"
)
_SKIPS = (
    " Skips files that .gitignore excludes in a git repository, and elsewhere folders such as node_modules and build."
)


def _parameter(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


def _object(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


_EDIT = _object(
    ("old_text", "new_text"),
    old_text=_parameter(_TEXT, "Exact text to replace; must occur exactly once in the file"),
    new_text=_parameter(_TEXT, "Replacement text"),
)

BUILT_IN: tuple[ServerTool, ...] = (
    ServerTool(
        "read_file", "Read file",
        "Read a text file, or a range of its lines. With append_loc, each line starts with its number and an arrow.",
        _object(
            ("path",),
            path=_parameter(_TEXT, "Path of the file"),
            start_line=_parameter(_NUMBER, "First line to read, counted from 1 (default: 1)"),
            end_line=_parameter(_NUMBER, "Last line to read (default: the end of the file)"),
            append_loc=_parameter(_FLAG, "Start each line with its number"),
        ),
        uses_cwd=True,
    ),
    ServerTool(
        "file_glob_search", "File search",
        "Find files below a folder that match a glob pattern." + _SKIPS + " Folders end with a slash in the result.",
        _object(
            ("path",),
            path=_parameter(_TEXT, "Folder to search in"),
            include=_parameter(_TEXT, _INCLUDE),
            exclude=_parameter(_TEXT, "Glob pattern of paths to exclude"),
            type=_parameter(_TEXT, 'What to find: "file" (default), "dir" or "all"'),
            max_depth=_parameter(_NUMBER, "Folder levels to descend; 0: unlimited (default), 1: the folder itself"),
            limit=_parameter(_NUMBER, "Maximum number of results (default and maximum 100)"),
        ),
        uses_cwd=True,
    ),
    ServerTool(
        "grep_search", "Grep search",
        "Search the lines of text files for a pattern, in one file or below a folder." + _SKIPS,
        _object(
            ("path", "pattern"),
            path=_parameter(_TEXT, "File or folder to search in"),
            pattern=_parameter(_TEXT, "Regular expression (Python syntax), or plain text if literal is set"),
            include=_parameter(_TEXT, _INCLUDE),
            exclude=_parameter(_TEXT, "Glob pattern of files to exclude"),
            return_line_numbers=_parameter(_FLAG, "Show line numbers"),
            literal=_parameter(_FLAG, "Match the pattern as plain text (default: false)"),
            ignore_case=_parameter(_FLAG, "Ignore case (default: false)"),
            context_lines=_parameter(_NUMBER, "Lines to show before and after each match (default: 0)"),
        ),
        uses_cwd=True,
    ),
    ServerTool(
        "exec_shell_command", "Execute shell command",
        "Run a shell command and return its output, including standard error. Background processes end with it.",
        _object(
            ("command",),
            command=_parameter(_TEXT, "Command line for sh"),
            timeout=_parameter(
                _NUMBER, f"Timeout in seconds (default {DEFAULT_SECONDS}, at most {MOST_SECONDS})", minimum=1
            ),
            max_output_size=_parameter(
                _NUMBER, f"Bytes of output to return (default and maximum {MOST_OUTPUT})", minimum=0
            ),
        ),
        writes=True, uses_cwd=True, streams=True,
    ),
    ServerTool(
        "write_file", "Write file",
        "Write a file, replacing its content. Creates missing parent folders.",
        _object(
            ("path", "content"),
            path=_parameter(_TEXT, "Path of the file"),
            content=_parameter(_TEXT, "New content of the file"),
        ),
        writes=True, uses_cwd=True,
    ),
    ServerTool(
        "edit_file", "Edit file",
        "Replace texts in a file. Each old_text must occur exactly once in the current file; edits must not overlap. "
        "Use write_file to replace the whole file.",
        _object(
            ("path", "edits"),
            path=_parameter(_TEXT, "Path of the file"),
            edits=_parameter("array", "The replacements", items=_EDIT),
        ),
        writes=True, uses_cwd=True,
    ),
    ServerTool(
        "get_info", "Get runtime info",
        "The operating system of the machine that tools run on, and the current working directory.",
        _object(),
        uses_cwd=True,
    ),
)  # fmt: skip

SHELL = "exec_shell_command"
NAMES = tuple(tool.name for tool in BUILT_IN)
ALL = "all"


def select_tools(names: tuple[str, ...]) -> list[ServerTool]:
    """The built-in tools with these names; "all" selects every tool."""
    return [tool for tool in BUILT_IN if ALL in names or tool.name in names]
