"""Conversations of the playground that people keep on this server, by owner (the API key) and id.

Each revision of a conversation is a file on a shelf of its own, counted with the owner's files; a new revision replaces
the one it was made from. A deleted conversation leaves a mark for a while, so that other browsers delete their copies.
What a conversation contains is the page's business: here it is bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from llamasrv.errors import InvalidRequest, LlamasrvError, NotFound
from llamasrv.store import DAY
from llamasrv.store.files import FileNotFound, FileStore, StoredFile
from llamasrv.store.shelf import StoredContent
from llamasrv.store.storage_quota import StorageFull
from llamasrv.web.stored.changes import Changes

MOST = 1_000  # max conversations per owner, and max marks of deleted ones
MARK_DAYS = 90  # retention of a mark
KIND = "history"  # of its records in the quota

_ID = re.compile(r"[A-Za-z0-9-]{1,64}\Z")  # the page's ids are UUIDs
_CONVERSATION, _MARK, _CLEARED = "conversation", "deleted", "cleared"  # purposes of the files


class ConversationUnknown(NotFound):
    code = "conversation_not_found"


class ConversationChanged(LlamasrvError):
    """The conversation has another revision than the request says."""

    status = 409
    code = "conversation_changed"


class KeptConversation(NamedTuple):
    """`changed`: seconds since the epoch. `deleted`: only the mark of it is left."""

    id: str
    revision: str
    bytes: int
    changed: int
    deleted: bool


class ChatHistory:
    """`days`: how long a conversation is kept after its last change; None: none are kept."""

    def __init__(self, files: FileStore, days: float | None, *, most: int = MOST) -> None:
        """`most`: max conversations per owner, and max marks."""
        self.files, self.days, self.most = files, days, most
        self.changes = Changes("this history")

    def conversations(self, owner: str) -> tuple[str, list[KeptConversation]]:
        """The era, the latest revision of each conversation, and the marks of deleted ones, in order of their last
        change. The era changes when everything is deleted at once: browsers then no longer send their copies."""
        latest = self._latest(owner)
        cleared = latest.pop("", None)
        return "" if cleared is None else cleared.id, [_kept(file) for file in latest.values()]

    def content(self, owner: str, id: str, revision: str | None) -> tuple[KeptConversation, StoredContent]:
        """Raises ConversationUnknown; ConversationChanged if `revision` is given and is not the latest."""
        file = self._latest(owner).get(id)
        if file is None or file.purpose != _CONVERSATION:
            raise ConversationUnknown(f"No conversation with id '{id[:80]}' is kept here.", param="id")
        if revision not in (None, file.id):
            raise _changed()
        return _kept(file), self.files.content(owner, file.id)

    def put(self, owner: str, id: str, body: bytes, revision: str | None) -> KeptConversation:
        """Keep the conversation. `revision`: the one that it was made from; None: it must be new, or deleted.
        Raises ConversationChanged, StorageFull."""
        _check_id(id)
        with self.changes.of(owner):
            files = self._all(owner)
            latest = {file.filename: file for file in files}
            before = latest.get(id)
            expected = None if before is None or before.purpose == _MARK else before.id
            if revision != expected:
                raise _changed()
            if expected is None and sum(file.purpose == _CONVERSATION for file in latest.values()) >= self.most:
                raise StorageFull(f"{self.most} conversations are kept already. Delete some that are no longer needed.")
            new = self._write(owner, id, _CONVERSATION, body)
            self._delete(owner, (file for file in files if file.filename == id))
        return _kept(new)

    def delete(self, owner: str, id: str) -> None:
        """Delete the conversation and leave a mark, even if it is not here: a browser may still have a copy."""
        _check_id(id)
        with self.changes.of(owner):
            files = self._all(owner)
            self._delete(owner, (file for file in files if file.filename == id))
            marks = [file for file in files if file.purpose == _MARK and file.filename != id]
            self._delete(owner, marks[: max(0, len(marks) + 1 - self.most)])
            self._write(owner, id, _MARK, b"")

    def clear(self, owner: str) -> int:
        """Delete all conversations of the owner and begin a new era: browsers keep their copies. Returns how many were
        deleted."""
        with self.changes.of(owner):
            files = self._all(owner)
            self._delete(owner, files)
            self._write(owner, "", _CLEARED, b"")
        return len({file.filename for file in files if file.purpose == _CONVERSATION})

    def _all(self, owner: str) -> list[StoredFile]:
        """All files, oldest first. A conversation has two if the server ended while one replaced the other."""
        return self.files.page(owner, limit=self.files.most, descending=False).items

    def _latest(self, owner: str) -> dict[str, StoredFile]:
        return {file.filename: file for file in self._all(owner)}

    def _write(self, owner: str, id: str, purpose: str, body: bytes) -> StoredFile:
        days = {_CONVERSATION: self.days, _MARK: MARK_DAYS, _CLEARED: None}[purpose]
        lifetime = None if days is None else int(days * DAY)
        with self.files.writing(owner, filename=id, purpose=purpose, lifetime=lifetime) as new:
            new.write(body)
        assert new.stored is not None
        return new.stored

    def _delete(self, owner: str, files: Iterable[StoredFile]) -> None:
        for file in files:
            try:
                self.files.delete(owner, file.id)
            except FileNotFound:  # it expired meanwhile
                pass


def _kept(file: StoredFile) -> KeptConversation:
    return KeptConversation(file.filename, file.id, file.bytes, file.created_at, file.purpose == _MARK)


def _check_id(id: str) -> None:
    if not _ID.match(id):
        raise InvalidRequest("Invalid 'id': expected up to 64 letters, digits and dashes.", param="id")


def _changed() -> ConversationChanged:
    return ConversationChanged("The conversation has changed since this revision. Read it again.", param="revision")
