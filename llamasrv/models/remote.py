"""Checks that the other machines a model needs are reachable.

The library exits the process if one is not, so this is checked before loading.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable

from llamasrv.errors import Unavailable

PATIENCE = 5.0  # connect timeout in seconds


def reach(endpoint: str) -> None:
    """Raises Unavailable if HOST:PORT does not accept connections."""
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:  # the library supports only IPv4
        sock.settimeout(PATIENCE)
        try:
            sock.connect((host, int(port)))
        except OSError as error:
            reason = error.strerror or str(error) or "no answer"
            raise Unavailable(f"Cannot reach the RPC server {endpoint} ({reason}).") from None


def reach_all(endpoints: Iterable[str], busy: Collection[str]) -> None:
    """Check several. Skips machines in use by another model of this process: each accepts one connection at a time,
    which the library shares."""
    for endpoint in endpoints:
        if endpoint not in busy:
            reach(endpoint)
