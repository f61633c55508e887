"""Trial load: loads a file that is new to this machine in a child process first.

    python -m llamasrv.models.trial FILE [PROJECTOR]      prints a reason and exits 1, or exits 0

Even a complete and plausible file may make the library abort, which would kill the server with all of its models. Files
that pass are remembered by digest, on disk if possible. If that fails, the price is another trial.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from llamasrv import spawn
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import LlamasrvError
from llamasrv.models.details import Details, digest
from llamasrv.models.gguf import read_header

CELLS = 256  # context size of the trial: the file matters, not the options
MOST_REMEMBERED = 10_000
_GONE = "loading it crashed the trial process ({})"


class Trials:
    """Remembers which files have passed. `store` None: only in this process."""

    def __init__(self, store: Path | None = None, *, version: str = "", run: Callable[..., None] | None = None) -> None:
        """`version` of the library: each file is tried again with a new version. `run` gets the file, a timeout in
        seconds, and the projector if any; it raises LoadFailed."""
        self._store = store
        self._version = version
        self._run = run or try_file
        self._passed: set[str] | None = None

    def check(self, details: Details, timeout: float) -> None:
        """Raises LoadFailed if the file cannot be loaded."""
        if details.path is None:
            return
        marks, projector = [f"{details.digest} {self._version}"], details.projector
        if projector is not None:
            marks.append(f"{details.digest}+{digest(read_header(projector))} {self._version}")
        if all(mark in self._known() for mark in marks):
            return
        self._run(details.path, timeout, *(() if projector is None else (projector,)))
        for mark in marks:
            self.once(mark, lambda: None)

    def once(self, mark: str, run: Callable[[], None]) -> None:
        """Run the trial of something other than a file, unless it has passed before. Failures are not remembered."""
        if mark not in self._known():
            run()
            self._known().add(mark)
            self._remember(mark)

    def _known(self) -> set[str]:
        if self._passed is None:
            self._passed = set()
            if self._store is not None:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    self._passed.update(self._store.read_text("ascii").splitlines()[-MOST_REMEMBERED:])
        return self._passed

    def _remember(self, mark: str) -> None:
        if self._store is None:
            return
        with contextlib.suppress(OSError):
            self._store.parent.mkdir(parents=True, exist_ok=True)
            with open(self._store, "a", encoding="ascii") as file:  # one short write: atomic
                file.write(f"{mark}\n")


def check_files(details: Details) -> None:
    """Raises LoadFailed if a file of the model, of another program's store, say, is gone or has other content than when
    the list of models was read: template, context and memory were those of the old one."""
    if details.path is None:
        return
    hint = "SIGHUP makes the server read its list of models again"
    for path in (details.path, *details.parts, details.projector):
        if path is not None and not path.exists():
            raise LoadFailed(f"{path}: the file is gone; {hint}")
    if details.digest != digest(read_header(details.path)):
        raise LoadFailed(f"{details.path}: the file has changed; {hint}")


def try_file(path: Path, timeout: float, projector: Path | None = None) -> None:
    """Load the file in a child process and compute one token; with a projector also encode an image or a sound, or
    speak. Raises LoadFailed."""
    args = [sys.executable, "-m", "llamasrv.models.trial", *map(str, (path, projector) if projector else (path,))]
    try:
        code, output = spawn.run(args, b"", seconds=timeout, nice=spawn.NICE)
    except TimeoutError:
        raise LoadFailed(f"loading it took more than {timeout:.0f} s") from None
    except OSError as error:
        raise LoadFailed(f"cannot start the trial process: {error.strerror}") from None
    if code == 0:
        return
    if code < 0:
        what = "" if projector is None else f" with its projector {projector}"
        raise LoadFailed(_GONE.format(signal.Signals(-code).name) + what)
    lines = output.decode("utf-8", "replace").strip().splitlines()
    raise LoadFailed(lines[-1] if lines else _GONE.format(f"exit code {code}"))


def main(path: str, projector: str | None = None) -> int:
    from llamasrv.engine.backend.context import open_model
    from llamasrv.engine.backend.projector import try_projector
    from llamasrv.engine.backend.speech import try_speech

    options = EngineOptions(
        context_cells=CELLS,
        parallel=1,
        batch_size=CELLS,
        ubatch_size=CELLS,
        gpu_layers=0,
        mmproj=None if projector is None else Path(projector),
        mmproj_offload=False,
    )
    try:
        backend = open_model(path, options, lambda share: True)
        if backend.projector is not None:
            try_projector(backend.projector)
        if backend.speech is not None:
            try_speech(backend.speech)
        backend.close()
    except (LoadFailed, LlamasrvError) as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    # A core dump of the whole model would be useless.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # skip the library's clean-up
