"""The child process of one file tool call.

    python -m llamasrv.tools.child

Reads {"tool", "params", "cwd", "base64", "runtime", "seconds"} from standard input and writes the tool's reply, both
JSON. Runs at a lower priority than the server, with limits on memory and CPU time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from llamasrv.tools import edits, files, search
from llamasrv.tools.listing import SEARCH_LIMITS, SearchLimits, ToolError
from llamasrv.tools.places import place_of

MEMORY = 2**30  # bytes
MEMORY_ELSEWHERE = 2**36  # address space: programs such as docker reserve a lot

TOOLS = {
    "read_file": files.read_file,
    "write_file": files.write_file,
    "get_info": files.get_info,
    "edit_file": edits.edit_file,
    "file_glob_search": search.file_glob_search,
    "grep_search": search.grep_search,
}


def answer(ask: dict[str, Any], limits: SearchLimits = SEARCH_LIMITS) -> dict[str, Any]:
    """The reply; {"error"} if the tool fails."""
    try:
        place = place_of(ask["cwd"], ask["runtime"], limits)
        if ask["tool"] == "read_file" and ask["base64"]:
            return files.read_whole(ask["params"], place)
        return TOOLS[ask["tool"]](ask["params"], place)
    except ToolError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{error.strerror or error}: {files.shown(str(error.filename or ''))}"}
    except MemoryError:
        return {"error": "out of memory"}


def bound(memory: int, seconds: int) -> None:
    """`seconds` of CPU time. Usually the server's own timeout ends the process first; this one works without a
    server."""
    import resource

    bounds = (resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)
    for what, most in bounds:
        with contextlib.suppress(ValueError, OSError):  # not every platform has this limit
            resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):
        os.nice(10)


if __name__ == "__main__":
    invocation = json.load(sys.stdin.buffer)
    bound(MEMORY if not invocation["runtime"] else MEMORY_ELSEWHERE, invocation["seconds"])
    json.dump(answer(invocation), sys.stdout)
