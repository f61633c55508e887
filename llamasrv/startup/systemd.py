"""systemd notifications: ready, status, watchdog. Does nothing without systemd."""

from __future__ import annotations

import os
import socket

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_address: str | None = None


def take_over() -> None:
    """Take over notifications from gunicorn, which would report readiness before the model is loaded."""
    global _address
    values = [os.environ.pop(name, None) for name in _VARIABLES]
    _address = values[0] or _address


def tell(*lines: str) -> None:
    """Send lines of sd_notify: READY=1, STATUS=..., WATCHDOG=1."""
    if _address is None:
        return
    address = "\0" + _address[1:] if _address.startswith("@") else _address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:
        pass  # notifications are optional
