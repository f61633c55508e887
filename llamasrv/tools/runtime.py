"""Where built-in tools run if not here: in a container, or on another machine.

    docker-container:ID, podman-container:ID    a container that runs already
    ssh:TARGET                                  another machine, by a key and a host key that are known already
    docker:IMAGE, podman:IMAGE                  a container of the server's own (container.py)

All of it goes through the programs `docker`, `podman` and `ssh`. What they reach needs sh, timeout, head, cat, wc and
find.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

ENGINES = ("docker", "podman")
SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "PasswordAuthentication=no", "-o", "KbdInteractiveAuthentication=no",
    "-o", "StrictHostKeyChecking=yes",
)  # fmt: skip

# What begins with a dash would be an option of the program: some of these run programs here.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TARGET = re.compile(r"[A-Za-z0-9._@][A-Za-z0-9._@-]{0,254}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")


@dataclass(frozen=True)
class Runtime:
    program: str  # docker, podman, ssh
    target: str

    def __str__(self) -> str:
        return f"ssh:{self.target}" if self.program == "ssh" else f"{self.program}-container:{self.target}"

    def command(self, args: Sequence[str], cwd: str = "") -> list[str]:
        """The command here that runs `args` there."""
        if cwd:
            args = ["sh", "-c", 'cd -- "$1" || exit 127; shift; exec "$@"', "_", cwd, *args]
        if self.program == "ssh":  # a shell there reads the line again
            return [*SSH, self.target, shlex.join(args)]
        return [self.program, "exec", "-i", self.target, *args]


@dataclass(frozen=True)
class Image:
    """A container is to be started of it."""

    engine: str
    name: str


def read_runtime(text: str) -> Runtime:
    """One that is there already. Raises ValueError in llama-server's words."""
    kind, _, target = text.partition(":")
    if kind == "ssh":
        if not _TARGET.fullmatch(target):
            raise ValueError(f"invalid ssh target: {target[:100]}")
        return Runtime("ssh", target)
    engine = kind.removesuffix("-container")
    if kind == engine or engine not in ENGINES:
        raise ValueError(f"unknown tool runtime: {text[:100]}")
    if not _ID.fullmatch(target):
        raise ValueError(f"invalid container id: {target[:100]}")
    return Runtime(engine, target)


def read_option(text: str) -> Runtime | Image:
    """The same, or a container that the server starts. Raises ValueError."""
    engine, _, image = text.partition(":")
    if engine not in ENGINES:
        return read_runtime(text)
    if not _IMAGE.fullmatch(image):
        raise ValueError(f"invalid image: {image[:100]}")
    return Image(engine, image)
