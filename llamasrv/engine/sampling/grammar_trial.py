"""Trial of a grammar: the first compilation of a large one, in a separate process.

    python -m llamasrv.engine.sampling.grammar_trial CPU_SECONDS < GRAMMAR      exits 0 unless compiling crashes it

A grammar within all limits may still make the library overflow its stack or exhaust memory, which would kill the server
with all its models. Here it kills only this process. The trial has a vocabulary of bytes, not the model's; errors in a
grammar are reported by the real compilation.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from typing import Any

from llamasrv import spawn

TRIAL_SECONDS = 10.0  # max wait for a trial; on a busy machine most of it is the start of the process
CPU_SECONDS = 1  # max CPU time, including about 0.15 s for the start
MEMORY_BYTES = 2 << 30  # address space, including stacks and libraries
STACK_BYTES = 64 << 20  # the same as the native pool's threads
LIMITS: dict[str, Any] = {"max_items_in_row": 5_000, "step_max_items": 10_000, "verbose_errors": False}
"""Keywords of llguidance's LLParserLimits. A row has about four items per optional property, a mask one or two rows
unless the grammar is ambiguous: then the time for a row is up to the cube of its items, and the library's own limits
allow a mask that takes minutes."""

_NEEDED = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
_NUMBERED = re.compile(r"<\[[^\]\n]{0,256}\]>")  # tokens of the model's vocabulary
_TOO_LONG = "it took too long to compile"


def fault_of(text: str, *, seconds: float = TRIAL_SECONDS, cpu_seconds: int = CPU_SECONDS) -> str | None:
    """Compile the grammar in another process. Returns why it must not be compiled here; None if it is safe."""
    args = [sys.executable, "-m", "llamasrv.engine.sampling.grammar_trial", str(cpu_seconds)]
    env = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    try:
        code, _ = spawn.run(args, text.encode("utf-8", "surrogatepass"), seconds=seconds, env=env, nice=spawn.NICE)
    except TimeoutError:
        return _TOO_LONG
    except OSError as error:
        return f"it cannot be tried ({error.strerror})"
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return _TOO_LONG
    return None if code == 0 else "it is nested too deeply or too large to compile"


def _try(text: str) -> None:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])
    matcher = LLMatcher(tokenizer, _NUMBERED.sub("<[256]>", text), limits=LLParserLimits(**LIMITS), log_level=0)
    if not matcher.is_error():
        matcher.compute_bitmask()


class _Bytes:
    """A vocabulary of single bytes, as llguidance's interface."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [*(bytes([n]) for n in range(256)), b"\xff<end>"]
    special_token_ids = [256]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


if __name__ == "__main__":
    cpu_seconds = int(sys.argv[1])
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    threading.stack_size(STACK_BYTES)
    trial = threading.Thread(target=_try, args=(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"),))
    trial.start()
    trial.join()
    os._exit(0)  # without the library's own clean-up
