"""Google's cached contents: found by owner and name, until they expire.

In memory only, like the prefixes pinned for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from llamasrv.errors import InvalidRequest, NotFound
from llamasrv.protocols.gemini.cached import PREFIX, CachedContent

MOST = 64  # max per owner
MOST_BYTES = 2**26  # max per owner


class CachedContentNotFound(NotFound):
    code = "cached_content_not_found"


class TooManyCachedContents(InvalidRequest):
    code = "too_many_cached_contents"


class StoredCachedContents:
    """The cached contents of one server."""

    def __init__(
        self, *, most: int = MOST, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.time
    ) -> None:
        """`most` and `most_bytes` are per owner."""
        self.clock = clock
        self._most, self._most_bytes = most, most_bytes
        self._there: dict[str, dict[str, CachedContent]] = {}

    def all(self, owner: str) -> list[CachedContent]:
        """The owner's contents that have not expired, oldest first."""
        now = self.clock()
        kept = {id: one for id, one in self._there.get(owner, {}).items() if one.expires > now}
        self._there[owner] = kept
        if not kept:
            del self._there[owner]
        return list(kept.values())

    def find(self, owner: str, name: str) -> CachedContent:
        """Raises CachedContentNotFound, also for another owner's."""
        id = name.removeprefix(PREFIX)
        found = next((one for one in self.all(owner) if one.id == id), None)
        if found is None:
            raise CachedContentNotFound(
                f"CachedContent '{name[:80]}' not found: it may have expired.", param="cachedContent"
            )
        return found

    def check_room(self, owner: str, content: CachedContent) -> None:
        """Raises TooManyCachedContents."""
        there = self.all(owner)
        if len(there) >= self._most or sum(one.size for one in there) + content.size > self._most_bytes:
            raise TooManyCachedContents(
                f"{len(there)} contents are cached already, and one key may not cache more. Delete some, or cache "
                "smaller ones."
            )

    def put(self, owner: str, content: CachedContent) -> CachedContent:
        """Keep it, replacing an earlier one of the same id."""
        self._there.setdefault(owner, {})[content.id] = content
        return content

    def delete(self, owner: str, name: str) -> None:
        """Raises CachedContentNotFound."""
        id = self.find(owner, name).id
        del self._there[owner][id]
