"""Checks that the other machines a model needs can be reached.

The library ends the process where it cannot reach one, so they are asked for before a model is loaded.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable

from llamasrv.errors import Unavailable

PATIENCE = 5.0  # seconds for one of them to take a connection


def reach(endpoint: str) -> None:
    """Raises Unavailable if nothing answers at HOST:PORT."""
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:  # the library knows no other
        sock.settimeout(PATIENCE)
        try:
            sock.connect((host, int(port)))
        except OSError as error:
            reason = error.strerror or str(error) or "no answer"
            raise Unavailable(f"The RPC server {endpoint} cannot be reached ({reason}).") from None


def reach_all(endpoints: Iterable[str], busy: Collection[str]) -> None:
    """The same for several. Machines that are busy with another model of this process are not asked: each takes one
    connection at a time, which the library shares."""
    for endpoint in endpoints:
        if endpoint not in busy:
            reach(endpoint)
