"""Model names.

Names follow Ollama's rules: `name[:tag]` with optional host and namespace in front, a missing tag is `latest`, an
exact match wins, otherwise each part is compared without regard to case. There is no fuzzy matching beyond that. The
alias `*` answers to every name.
"""

from __future__ import annotations

CATCH_ALL = "*"
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"


def canonical(name: str) -> str:
    """The full name in lower case, with optional parts filled in: `Llama3` is
    `registry.ollama.ai/library/llama3:latest`."""
    path, _, last = name.lower().rpartition("/")
    last, _, tag = last.partition(":")
    parts = path.split("/") if path else []
    if not parts:
        parts = [_HOST, _NAMESPACE]
    elif len(parts) == 1:
        parts = [_HOST, parts[0]]
    return f"{'/'.join(parts)}/{last}:{tag or _TAG}"
