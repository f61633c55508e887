"""Templates that were never seen go through another process first, which has limits on memory and time.

    python -m llamasrv.chat.trial < SOURCE      exits 0; or 1, and prints why the template cannot be used

The sandbox bounds what a template may cost. Should it have a hole, this process ends, and not the server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from llamasrv import spawn
from llamasrv.chat.renderer import TemplateError, TemplateTooLarge
from llamasrv.chat.template import ChatTemplate

MEMORY = 1 << 30  # max bytes of address space: Python itself, and twice what a rendering may build
CPU_SECONDS = 20  # learning a template takes a tenth of a second
SECONDS = 120.0  # wall-clock limit, for a machine that is busy otherwise


class TemplateDangerous(TemplateError):
    """A template that did not stay within the limits of its trial."""


def try_template(source: str, timeout: float = SECONDS, memory: int = MEMORY, cpu: int = CPU_SECONDS) -> None:
    """Compile the template and render all trial conversations. Raises TemplateError."""
    args = [sys.executable, "-m", "llamasrv.chat.trial", str(memory), str(cpu)]
    try:
        code, output = spawn.run(args, source.encode("utf-8", "surrogatepass"), seconds=timeout, nice=spawn.NICE)
    except TimeoutError:
        raise TemplateDangerous(f"the chat template was not tried within {timeout:.0f} s") from None
    except OSError as error:
        raise TemplateError(f"the trial of the chat template cannot be started: {error.strerror}") from None
    if code == 0:
        return
    said = output.decode("utf-8", "replace").strip()
    if code == 1 and said:
        raise TemplateError(said)
    if -code in (signal.SIGXCPU, signal.SIGKILL):
        raise TemplateDangerous(f"the chat template computes for more than {cpu} s")
    raise TemplateDangerous("the chat template takes too much memory, or crashes the interpreter")


def main(memory: str, cpu: str) -> int:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has these limits
        import resource

        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: int(cpu), resource.RLIMIT_AS: int(memory)}
        for what, most in limits.items():
            resource.setrlimit(what, (most, most))
    try:
        _ = ChatTemplate(sys.stdin.buffer.read().decode("utf-8", "surrogatepass")).format
    except (MemoryError, TemplateTooLarge):
        return 2
    except TemplateError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
