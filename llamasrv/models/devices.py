"""Lists this machine's devices, in a child process.

    python -m llamasrv.models.devices      prints them as JSON

A process that forks later must not open devices.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from llamasrv import spawn
from llamasrv.errors import ConfigError

TIMEOUT = 60.0  # seconds; sleeping drivers are slow to wake up


@dataclass(frozen=True)
class Devices:
    """Names of devices; `spread`: the number of devices a model is placed on by default."""

    named: tuple[str, ...]
    buffers: tuple[str, ...]
    spread: int


def ask() -> Devices:
    """Raises ConfigError if the library cannot be queried."""
    try:
        code, output = spawn.run([sys.executable, "-m", "llamasrv.models.devices"], b"", seconds=TIMEOUT)
        if code:
            raise ValueError(f"exit code {code}")
        found = json.loads(output.splitlines()[-1])
        return Devices(tuple(found["named"]), tuple(found["buffers"]), found["spread"])
    except TimeoutError:
        raise ConfigError(f"the devices did not respond within {TIMEOUT:.0f} s") from None
    except (OSError, LookupError, ValueError) as error:
        raise ConfigError(f"llama-cpp-python cannot list its devices ({error}); check its installation") from None


def main() -> None:
    from llamasrv.engine.backend import rpc

    local = rpc.local_devices()
    print(json.dumps({"named": [*rpc.named_devices()], "buffers": [*rpc.buffer_types()], "spread": len(local)}))


if __name__ == "__main__":
    main()
