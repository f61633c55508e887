"""Searches the Hugging Face Hub for models in GGUF, and tells which of their files fit this machine.

    python -m llamasrv.models.hub_search WORDS           prints the repositories as JSON
    python -m llamasrv.models.hub_search --repo NAME     prints its quantisations

Runs in a child process: a server must not open devices before it forks, and the Hub's library takes long to import.
What does not work is printed as {"error": one line}.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from llamasrv import spawn
from llamasrv.errors import HubUnreachable
from llamasrv.models.memory import available_memory, need_of_file
from llamasrv.models.pull import PullFailed, Reference, choose, listed, repositories

MOST = 20  # repositories
TIMEOUT = 30.0  # seconds
_QUANT = re.compile(r"(?<![a-z0-9])(?:UD-)?(I?Q\d\w*|TQ\d\w*|MXFP4\w*|B?F16|F32)(?![a-z0-9_])", re.IGNORECASE)


def ask(*arguments: str) -> Any:
    """What the child prints. Raises HubUnreachable."""
    try:
        code, output = spawn.run([sys.executable, "-m", "llamasrv.models.hub_search", *arguments], b"", seconds=TIMEOUT)
        found = json.loads(output.splitlines()[-1]) if code == 0 else {"error": "the search failed"}
    except TimeoutError:
        found = {"error": f"no answer within {TIMEOUT:.0f} s"}
    except (OSError, LookupError, ValueError) as error:
        found = {"error": str(error)}
    if isinstance(found, dict):
        raise HubUnreachable(f"Hugging Face Hub: {found['error']}.")
    return found


def offers(repo: str, *, memory: int, devices: int) -> list[dict[str, Any]]:
    """The quantisations of a repository, the smallest first. `memory`, `devices`: free bytes. Raises PullFailed."""
    reference = Reference.parse(repo)
    files = listed(reference)[0]
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        quant = _QUANT.search(file.path.rpartition("/")[2])
        wanted = quant[0] if quant else file.path
        try:
            size = sum(one.size for one in choose(files, Reference(reference.repo, wanted)))
        except PullFailed:
            continue  # a projector, or a part of another file
        found.setdefault(
            wanted.upper(),
            {
                "name": str(Reference(reference.repo, wanted)),
                "quantization": wanted,
                "size": size,
                "needs": need_of_file(size),
                **verdict(need_of_file(size), memory, devices),
            },
        )
    return sorted(found.values(), key=lambda one: one["size"])


def verdict(needs: int, memory: int, devices: int) -> dict[str, Any]:
    """`fit` is "gpu", "partly" with the share on the GPU, "memory", or "no"."""
    if devices and needs <= devices:
        return {"fit": "gpu"}
    if devices and needs <= devices + memory:
        return {"fit": "partly", "share": round(devices / needs, 2)}
    return {"fit": "memory" if needs <= memory else "no"}


def main(arguments: Sequence[str]) -> None:
    try:
        if arguments[:1] == ["--repo"]:
            from llamasrv.engine.backend import rpc

            free = sum(free for free, _ in rpc.memory_of(rpc.local_devices()).values())
            print(json.dumps(offers(arguments[1], memory=available_memory(), devices=free)))
        else:
            print(json.dumps([one._asdict() for one in repositories(" ".join(arguments), MOST)]))
    except PullFailed as error:
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    main(sys.argv[1:])
