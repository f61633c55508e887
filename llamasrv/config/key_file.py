"""Edits the operator's keys file as text, so that its comments and its order stay.

Every edit is checked before it is written: what the new text says must be what was wanted, and nothing else. A file
written in a way that this cannot change (inline tables, say) is refused rather than rewritten. Keys themselves are
never written, only their digests.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from llamasrv.atomic_file import replacing
from llamasrv.config import keys
from llamasrv.config.option import as_toml_value, reason
from llamasrv.errors import InvalidRequest, NotFound

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"""\s*\[\s*keys\s*\.\s*(?:"([^"\\]+)"|'([^']+)'|([A-Za-z0-9_-]+))\s*\]\s*(?:#.*)?""")
_COMMENT = re.compile(r"\s+#.*$")


class KeyFile:
    """`path` None: keys are not given by a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()

    def obstacle(self) -> str | None:
        """Why the file cannot be changed here, in one line; None if it can."""
        if self.path is None:
            return "Start the server with --api-key-file keys.toml to manage keys here."
        if self.path.suffix != ".toml":
            return f"{self.path} has one key per line; only a .toml file, as `llamasrv key` writes it, is managed here."
        path = self.path.resolve()
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            return f"The server may not write {self.path} and its folder."
        return None

    def create(self, name: str, values: Mapping[str, Any]) -> str:
        """A new key, to be shown once. Raises InvalidRequest."""
        key = keys.new_key()
        with self._lock:
            text, document = self._read()
            if name in document["keys"]:
                raise InvalidRequest(f"A key named {name} already exists.", param="name")
            if not keys.NAME.fullmatch(name):
                raise InvalidRequest("A name must consist of up to 64 letters, digits, '-', '_' and '.'.", param="name")
            table = {"sha256": _digest(key), **{field: value for field, value in values.items() if value is not None}}
            document["keys"][name] = table
            header = f"[keys.{name if '.' not in name else as_toml_value(name)}]"
            lines = [header, *(f"{field} = {_toml(value)}" for field, value in table.items())]
            self._write(text.rstrip("\n") + "\n\n" * bool(text.strip()) + "\n".join(lines) + "\n", document)
        return key

    def change(self, name: str, values: Mapping[str, Any]) -> None:
        """Set fields of a key; None removes one. Raises InvalidRequest, NotFound."""
        with self._lock:
            text, document = self._read()
            self._change(text, document, name, values)

    def rotate(self, name: str, until: float | None) -> str:
        """A new secret for a key, to be shown once. The old one is valid until then; None: no longer. Raises
        InvalidRequest, NotFound."""
        key = keys.new_key()
        with self._lock:
            text, document = self._read()
            old = self._table(document, name).get("sha256")
            values = {
                "sha256": _digest(key),
                "old_sha256": None if until is None else old,
                "old_expires": None if until is None else _time(until),
            }
            self._change(text, document, name, values)
        return key

    def revoke(self, name: str) -> None:
        """Raises InvalidRequest, NotFound."""
        with self._lock:
            text, document = self._read()
            self._table(document, name)
            del document["keys"][name]
            if not document["keys"]:
                raise InvalidRequest(
                    "The last key of the file cannot be revoked: the server would be open to everybody."
                )
            lines = text.split("\n")
            start, end = self._span(lines, name)
            del lines[start:end]
            if start and not lines[start - 1].strip() and start < len(lines) and not lines[start].strip():
                del lines[start]  # one of two blank lines
            self._write("\n".join(lines), document)

    def _read(self) -> tuple[str, dict[str, Any]]:
        refusal = self.obstacle()
        if refusal is not None:
            raise InvalidRequest(refusal)
        assert self.path is not None
        try:
            text = self.path.read_text("utf-8")
            document = tomllib.loads(text)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{self.path}: {reason(error)}") from None
        if not isinstance(document.get("keys"), dict):
            raise InvalidRequest(f"{self.path}: expected [keys.NAME] tables")
        return text, document

    def _table(self, document: Mapping[str, Any], name: str) -> dict[str, Any]:
        table = document["keys"].get(name)
        if table is None:
            raise NotFound(f"There is no key named '{name[:64]}' in {self.path}.", code="key_not_found")
        return dict(table)

    def _change(self, text: str, document: dict[str, Any], name: str, values: Mapping[str, Any]) -> None:
        table = self._table(document, name)
        lines = text.split("\n")
        for field, value in values.items():
            start, end = self._span(lines, name)
            place = _field(lines, start, end, field)
            if value is None:
                table.pop(field, None)
                if place is not None:
                    del lines[place[0] : place[1]]
                continue
            table[field] = value
            line = f"{field} = {_toml(value)}"
            if place is None:
                lines.insert(end, line)
            else:
                comment = _COMMENT.search(lines[place[1] - 1])
                lines[place[0] : place[1]] = [line + (comment[0] if comment else "")]
        document["keys"][name] = table
        self._write("\n".join(lines), document)

    def _span(self, lines: list[str], name: str) -> tuple[int, int]:
        """The lines of a key's table, without blank lines and comments behind it, which may belong to the next."""
        start = next((i for i, line in enumerate(lines) if (m := _HEADER.fullmatch(line)) and name in m.groups()), None)
        if start is None:
            raise self._cannot()
        end = next((i for i in range(start + 1, len(lines)) if re.match(r"\[", lines[i].lstrip())), len(lines))
        while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
            end -= 1
        return start, end

    def _cannot(self) -> InvalidRequest:
        return InvalidRequest(f"{self.path} is written in a way that can only be changed by hand.")

    def _write(self, text: str, wanted: Mapping[str, Any]) -> None:
        """Replace the file if the text says what is wanted. Keeps its mode and its owner."""
        assert self.path is not None
        try:
            if tomllib.loads(text) != wanted:
                raise self._cannot()
            keys.parse(text)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        path = self.path.resolve()
        try:
            before = path.stat()
            with replacing(path, durable=True) as file:
                file.write(text.encode())
                with suppress(PermissionError):  # then it is the server's, with the same mode
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o7777)
        except OSError as error:
            raise InvalidRequest(f"{self.path}: {reason(error)}") from None


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), timezone.utc)


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _toml(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return as_toml_value(tuple(value) if isinstance(value, list) else value)


def _field(lines: list[str], start: int, end: int, field: str) -> tuple[int, int] | None:
    """The lines of a field; a list may have several."""
    for first in range(start + 1, end):
        if re.match(rf"\s*{field}\s*=", lines[first]):
            for last in range(first + 1, end + 1):
                with suppress(ValueError):
                    tomllib.loads("\n".join(lines[first:last]))
                    return first, last
    return None
