"""Fetches media when a request gives a URL instead of data.

Nothing is readable unless the operator allows it: files under one folder (`--media-path`), and http(s) URLs of listed
hosts (`--media-hosts`) with public addresses. The address is checked before connecting and again once connected, which
defeats DNS rebinding.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from llamasrv.errors import InvalidMedia

REDIRECTS = 3
_PIECE = 1 << 16


def is_global(address: str) -> bool:
    """Whether an IP address belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.is_global and not ip.is_multicast


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources that clients may name. `hosts`: lower case, without ports."""

    folder: Path | None = None
    hosts: frozenset[str] = frozenset()
    max_bytes: int = 16 << 20
    seconds: float = 10.0
    is_public: Callable[[str], bool] = is_global

    def read(self, url: str) -> bytes:
        """The content of a file: or http(s) URL. Raises InvalidMedia."""
        scheme = url.partition(":")[0].lower()
        if scheme == "file":
            return self._file(url)
        if scheme in ("http", "https"):
            return self._fetch(url)
        raise InvalidMedia("a URL must start with data:, https:, http: or file:")

    def _file(self, url: str) -> bytes:
        if self.folder is None:
            raise InvalidMedia("file: URLs require the server option --media-path")
        folder = self.folder.resolve()
        try:
            path = (folder / unquote(url[len("file:") :].removeprefix("//")).lstrip("/")).resolve()
            if not path.is_relative_to(folder) or not path.is_file():
                raise InvalidMedia("no such file under the server's media folder")
            with open(path, "rb") as file:
                data = file.read(self.max_bytes + 1)
            self._check_size(data)
            return data
        except (OSError, ValueError):
            raise InvalidMedia("cannot read the file") from None

    def _fetch(self, url: str) -> bytes:
        until = time.monotonic() + self.seconds
        for _ in range(REDIRECTS + 1):
            answer = self._get(url, until)
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer)
        raise InvalidMedia("the URL redirects too many times")

    def _get(self, url: str, until: float) -> bytes | str:
        """The body, or the URL that it redirects to."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise InvalidMedia("not a valid URL") from None
        if parts.scheme not in ("http", "https") or host not in self.hosts:
            raise InvalidMedia("URLs are fetched only from the hosts in --media-hosts")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        port = port or (443 if parts.scheme == "https" else 80)
        link = kind(host, port, timeout=_left(until))
        try:
            for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                self._refuse_private(str(address[0]))
            link.connect()
            self._refuse_private(link.sock.getpeername()[0])
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            link.request("GET", target, headers={"Accept": "image/*, audio/*", "Accept-Encoding": "identity"})
            reply = link.getresponse()
            if reply.status in (301, 302, 303, 307, 308) and (place := reply.headers.get("Location")):
                return place
            if reply.status != 200:
                raise InvalidMedia(f"the URL returned status {reply.status}")
            return self._body(reply, link, until)
        except (OSError, http.client.HTTPException, ValueError):
            raise InvalidMedia("cannot fetch the URL") from None
        finally:
            link.close()

    def _body(self, reply: http.client.HTTPResponse, link: http.client.HTTPConnection, until: float) -> bytes:
        body = bytearray()
        while piece := reply.read1(_PIECE):
            body += piece
            self._check_size(body)
            if link.sock is not None:
                link.sock.settimeout(_left(until))
            _left(until)
        return bytes(body)

    def _refuse_private(self, address: str) -> None:
        if not self.is_public(address):
            raise InvalidMedia("the URL's host has a private address")

    def _check_size(self, body: bytes | bytearray) -> None:
        if len(body) > self.max_bytes:
            raise InvalidMedia(f"the file is larger than {self.max_bytes} bytes")


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise InvalidMedia("fetching the URL took too long")
    return left
