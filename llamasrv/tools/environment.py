"""The environment of programs that run for clients: what programs need to find themselves, their user and the network.

A list of what they may see, not of what they may not: a key of the server, or of another program that was started with
it, may have any name. An MCP server gets further ones by its definition.
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
    """What of the server's own is on the list, and `more` on top."""
    ours = {name: text for name, text in os.environ.items() if name in NAMES or name.startswith(PREFIXES)}
    return ours | dict(more or {})
