"""The environment of programs that run for clients: what they need to find programs, the user and the network.

A list of allowed names, not of forbidden ones: secrets of the server may have any name. MCP server definitions can add
variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

NAMES = frozenset((
    "HOME", "LOGNAME", "USER", "SHELL", "PATH", "TERM", "TMPDIR", "TEMP", "TMP", "TZ", "LANG", "LANGUAGE",
    "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST",
))  # fmt: skip
PREFIXES = ("LC_", "XDG_")


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The allowed part of the server's environment, overridden by `more`."""
    ours = {name: text for name, text in os.environ.items() if name in NAMES or name.startswith(PREFIXES)}
    return ours | dict(more or {})
