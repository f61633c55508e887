"""The code blocks of the documents, and which of their commands no test can run as they are pasted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from llamasrv.config import manual

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    *(f"conf/{page}.md" for page in manual.GUIDE),
    "llamasrv/protocols/README.md",
    "llamasrv/demo/README.md",
    ".github/CONTRIBUTING.md",
)

# Commands that tests/manual/blocks.py does not run, by a part of them, and why. Their syntax is checked all the same.
NOT_RUN = {
    ".venv/bin/pip install": "set-up: .ci/run builds the same wheel from the same checkout",
    ".venv/bin/tox": "set-up: it is what runs the tests",
    "docker ": "needs a container engine; tests/conf/test_containers.py checks the files",
    "kubectl ": "needs a cluster; tests/conf/test_containers.py checks the files",
    "sudo ": "changes this machine; tests/conf checks the files",
    "journalctl ": "needs a service of systemd's",
    "systemctl ": "needs a service of systemd's; tests/gateway/gateway.py runs smg as its unit does",
    "/opt/smg": "installs a package; tests/gateway/gateway.py runs it",
    "/etc/": "changes this machine; tests/gateway/gateway.py runs smg as its unit does",
    "# gateway:": "needs smg; tests/gateway/gateway.py has nginx with it",
    "pull hf:": "needs the Hub; tests/models has one of its own",
    "bench model.gguf": "computes for minutes; tests/test_cli.py has it with fewer tokens",
    "llamasrv[train]": "installs a package",
    "llamasrv.demo ": "trains for hours",
    "pocket-tts": "needs a speech model; tests/clients/test_speech_on_a_model.py makes one",
    "llamasrv rpc": "needs a library built with RPC; tests/model/test_rpc.py runs where it is",
    "--rpc ": "needs a library built with RPC; tests/model/test_rpc.py runs where it is",
}


class Block(NamedTuple):
    """A fenced block. `line`: that of its first line in the document."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            found.append(Block(page, text.count("\n", 0, match.start(2)) + 1, match[1], match[2]))
    return [block for block in found if block.language in languages]


def commands(block: Block) -> list[str]:
    """What is typed at once: a line, with those that a quote or a backslash continues."""
    found, begun = [], ""
    for line in block.text.splitlines():
        begun += line
        try:
            shlex.split(begun, comments=True)
        except ValueError:  # an open quote, or a backslash at the end
            begun += "\n"
            continue
        found += [begun] if begun.strip() else []
        begun = ""
    return found


def why_not(command: str) -> str | None:
    """Why no test runs this command; None if one does."""
    return next((reason for part, reason in NOT_RUN.items() if part in command), None)
