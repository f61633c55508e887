"""The environment of programs that run for clients."""

from __future__ import annotations

import os
from collections.abc import Mapping

OURS = (
    "LLAMASRV_API_KEY", "LLAMA_API_KEY", "LLAMASRV_STORE", "LLAMASRV_MCP_SERVERS_JSON", "LLAMA_ARG_MCP_SERVERS_JSON",
    "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "GUNICORN_FD", "GUNICORN_PID",
)  # fmt: skip
"""The server's keys and passwords, and how it talks to its service manager."""


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The server's own without its secrets, and `more` on top."""
    return {name: text for name, text in os.environ.items() if name not in OURS} | dict(more or {})
