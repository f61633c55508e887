"""Who may come in: API keys, checked before anything of a request is looked at, on every route but the open ones."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from llamasrv.errors import Unauthorized

OPEN_PATHS = frozenset(("/health", "/v1/health", "/livez"))


class Keys:
    """The keys that are known, as digests. With none, everybody may come in."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._known = [(name, sha256(key.encode()).digest()) for name, key in keys.items()]

    def owner(self, environ: Mapping[str, Any]) -> str:
        """The name of the key that was shown. Raises Unauthorized where one is needed and none is right."""
        known = self._known
        if not known or environ["PATH_INFO"] in OPEN_PATHS or environ["REQUEST_METHOD"] == "OPTIONS":
            return ""
        shown = _shown(environ)
        if not shown:
            raise Unauthorized(
                "You didn't provide an API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            )
        digest = sha256(shown.encode("latin-1")).digest()  # header values come as latin-1 text
        owner = None
        for name, right in known:  # all of them, always: the time taken tells nothing
            if hmac.compare_digest(digest, right):
                owner = name
        if owner is None:
            raise Unauthorized("Incorrect API key provided.")
        return owner


def _shown(environ: Mapping[str, Any]) -> str:
    header = environ.get("HTTP_AUTHORIZATION", "").strip()
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        header = rest.strip()
    return header or environ.get("HTTP_X_API_KEY", "").strip()
