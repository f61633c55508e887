"""Model names.

Names follow Ollama's rules: `name[:tag]` with an optional host and namespace, a missing tag means `latest`, an exact
match wins, otherwise parts are compared case-insensitively. There is no other fuzzy matching. The alias `*` matches
every name.
"""

from __future__ import annotations

CATCH_ALL = "*"
HOST, NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"


def canonical(name: str) -> str:
    """The full name in lower case, with optional parts filled in: `Llama3` is
    `registry.ollama.ai/library/llama3:latest`."""
    path, _, last = name.lower().rpartition("/")
    last, _, tag = last.partition(":")
    parts = path.split("/") if path else []
    if not parts:
        parts = [HOST, NAMESPACE]
    elif len(parts) == 1:
        parts = [HOST, parts[0]]
    return f"{'/'.join(parts)}/{last}:{tag or _TAG}"
