"""Where built-in tools run if not on this machine: in a container, or on another machine.

    docker-container:ID, podman-container:ID    a running container
    ssh:TARGET                                  another machine; keys and host keys must be set up already
    docker:IMAGE, podman:IMAGE                  a container that the server starts (container.py)

All of it goes through the programs `docker`, `podman` and `ssh`. The other side needs sh, timeout, head, cat, wc and
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

# A leading dash would make it an option of the program, and some options run local commands.
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
        """The local command that runs `args` there."""
        if cwd:
            args = ["sh", "-c", 'cd -- "$1" || exit 127; shift; exec "$@"', "_", cwd, *args]
        if self.program == "ssh":  # the remote shell parses the line again
            return [*SSH, self.target, shlex.join(args)]
        return [self.program, "exec", "-i", self.target, *args]


@dataclass(frozen=True)
class Image:
    """The image of a container to start."""

    engine: str
    name: str


def read_runtime(text: str) -> Runtime:
    """An existing runtime. Raises ValueError, worded as llama-server words it."""
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
    """An existing runtime, or a container to start. Raises ValueError."""
    engine, _, image = text.partition(":")
    if engine not in ENGINES:
        return read_runtime(text)
    if not _IMAGE.fullmatch(image):
        raise ValueError(f"invalid image: {image[:100]}")
    return Image(engine, image)
