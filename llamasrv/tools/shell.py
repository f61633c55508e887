"""exec_shell_command: runs a shell command and streams its output."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from llamasrv.tools.command import ChildProcess, Stop
from llamasrv.tools.tool import Invocation

MOST_SECONDS = 60
DEFAULT_SECONDS = 10
MOST_OUTPUT = 16 * 1024  # bytes
LONGER = 5  # extra seconds for the local command that runs a remote one with the requested timeout


def run(invocation: Invocation, stop: Stop) -> dict[str, Any]:
    try:
        return {"plain_text_response": "".join(stream(invocation, stop))}
    except OSError as error:
        return {"error": start_error(error)}


def stream(invocation: Invocation, stop: Stop, pause: float = 3600.0) -> Iterator[str]:
    """Yield the output in pieces, "" whenever nothing comes for `pause` seconds, and finally the exit status. Raises
    OSError if the command cannot be started."""
    seconds = min(invocation.params.get("timeout", DEFAULT_SECONDS), MOST_SECONDS)
    most = min(invocation.params.get("max_output_size", MOST_OUTPUT), MOST_OUTPUT)
    args, cwd = ["sh", "-c", invocation.params["command"]], invocation.cwd
    # Killing the local command does not end the remote one, so that gets a timeout of its own.
    if invocation.runtime is not None:
        args, cwd = invocation.runtime.command(["timeout", str(seconds), *args], cwd), "/"
        seconds += LONGER
    command = ChildProcess(args, cwd=cwd, seconds=seconds, most=most, stop=stop)
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    for data in command.output(pause):
        text = decode(data)
        if text or not data:
            yield text
    tail = decode(b"", final=True) + ("\n[output truncated]" if command.is_cut else "")
    tail += f"\n[exit code: {command.exit_code}]" + (" [exit due to timed out]" if command.timed_out else "")
    yield tail


def start_error(error: OSError) -> str:
    return f"the command cannot be started: {error.strerror or error}"
