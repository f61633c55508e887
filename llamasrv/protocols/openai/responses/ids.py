"""Ids of responses and their items, and sealed text that a client carries for the server.

An item's id names the response that it belongs to, so that an item can be found by its id alone.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets

_RESPONSE = re.compile(r"resp_[0-9a-f]{48}\Z")
_ITEM = re.compile(r"[a-z]{1,8}_([0-9a-f]{48})[io][0-9a-f]{4,8}\Z")

SEAL = "llamasrv1."


def new_response_id() -> str:
    """Cannot be guessed: without API keys, knowing the id is enough to read the response."""
    return f"resp_{secrets.token_hex(24)}"


def is_response_id(text: str) -> bool:
    return _RESPONSE.match(text) is not None


def output_id(prefix: str, response: str, index: int) -> str:
    return f"{prefix}_{response[5:]}o{index:04x}"


def input_id(prefix: str, response: str, index: int) -> str:
    return f"{prefix}_{response[5:]}i{index:04x}"


def response_of(item: str) -> str | None:
    """The id of the response that an item belongs to; None if the item's id is not from this server."""
    match = _ITEM.match(item)
    return None if match is None else f"resp_{match[1]}"


def seal(text: str) -> str:
    """Text for a client to send back unchanged. Not secret: it is the client's own conversation."""
    return SEAL + base64.b64encode(text.encode("utf-8")).decode("ascii")


def unseal(sealed: str) -> str | None:
    """The text; None if it was not sealed by this server."""
    if not sealed.startswith(SEAL):
        return None
    try:
        return base64.b64decode(sealed[len(SEAL) :], validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
