"""Which web pages may use this server: its own, those of this machine, those listed.

    listed       `null`, `https://app.example`, `chrome-extension://ID`, a whole scheme (`vscode-webview://`), or `*`;
                 `localhost` means every page served by this machine
    own, local   need not be listed on a server without keys

A server without keys refuses all others: a page could otherwise start work here, even though it could not read the
reply. Knows no keys.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llamasrv.errors import Forbidden

_WEB = re.compile(r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?", re.ASCII)


class Origins:
    def __init__(self, listed: Sequence[str] = ()) -> None:
        names = [name.lower() for name in listed]
        self._any = "*" in names
        self._local = "localhost" in names
        # A scheme stands for all of its origins: browser extensions and editor views have random ones.
        self._schemes = tuple(name.removesuffix("*") for name in names if name.endswith(("://", "://*")))
        self._names = frozenset(name.rstrip("/") for name in names if name and not name.endswith("://"))
        self.is_empty = not names

    def lists(self, origin: str) -> bool:
        """Whether the operator listed this origin."""
        if not origin or self.is_empty:
            return False
        origin = origin.lower()
        if self._any or origin in self._names or (self._schemes and origin.startswith(self._schemes)):
            return True
        return self._local and is_loopback(_web_host(origin))

    def check(self, environ: Mapping[str, Any], *, is_page: bool) -> None:
        """Check a request to a server without keys. `is_page`: the target holds no data, so other sites may link to it.
        Raises Forbidden."""
        if environ["REQUEST_METHOD"] == "OPTIONS":
            return  # a preflight does no work; its reply is for the browser, which decides
        origin = environ.get("HTTP_ORIGIN", "")
        if origin:
            host = _web_host(origin)
            own = bool(host) and host == host_of(environ.get("HTTP_HOST", ""))
            if own or is_loopback(host) or self.lists(origin):
                return
            raise Forbidden(f"Origin '{origin[:100]}' is not allowed. Add it to --cors-origins.")
        # Links and images on other sites' pages send no Origin. The same site is another port of an address, but of a
        # name it may be any neighbour in its domain.
        site = environ.get("HTTP_SEC_FETCH_SITE", "").lower()
        foreign = site == "cross-site" or (site == "same-site" and not _is_alone(host_of(environ.get("HTTP_HOST", ""))))
        if foreign and not is_page:
            raise Forbidden(
                "Pages of other sites may not use this server. Open the address directly, or have the page send its "
                "Origin, and add that to --cors-origins."
            )


def host_of(header: str) -> str:
    """The host name in a Host header, without the port."""
    name = header.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_alone(host: str) -> bool:
    """Whether every host of the same site is this server's."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return is_loopback(host)
    return True


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _web_host(origin: str) -> str:
    """The host name in a website's origin; "" for others, such as `null`, and for invalid ones."""
    found = _WEB.fullmatch(origin)
    return host_of(found[1]) if found else ""
