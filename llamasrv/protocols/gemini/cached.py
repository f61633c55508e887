"""cachedContents under /v1beta: the beginnings of conversations, kept for a while and used by their names.

JSON in, CachedContent out and back. Knows neither where they are kept nor the cache of prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from secrets import token_hex
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.request import Message
from llamasrv.errors import InvalidRequest, MissingParameter
from llamasrv.protocols.common.loader import loader_of
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.schema import Ignored, Invalid, String, WireSchema
from llamasrv.protocols.gemini.contents import Contents, SystemInstruction
from llamasrv.protocols.gemini.reply import GeminiReply, GeminiReplyOptions
from llamasrv.protocols.gemini.tools import GeminiTools, ToolConfig
from llamasrv.protocols.gemini.wire import camel, list_of
from llamasrv.protocols.limits import Limits

PREFIX = "cachedContents/"
KEPT = ("systemInstruction", "tools", "toolConfig")
"""What goes before a conversation, besides its first contents."""

_SECONDS = 3600.0  # default lifetime
_MOST_SECONDS = 30 * 86_400.0
_NAME = 128  # max characters of a display name
_TTL = re.compile(r"\d{1,9}(?:\.\d{1,9})?s")
_FRACTION = re.compile(r"(\.\d{1,6})\d*")


class CachedContent(NamedTuple):
    """Times in seconds since the epoch. `body`: what its creator sent, in one style."""

    id: str
    model: str
    created: float
    updated: float
    expires: float
    display_name: str
    body: Mapping[str, Any]
    num_messages: int  # messages in its contents
    num_tokens: int = 0  # 0: not known yet

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return len(orjson.dumps(self.body))

    def before(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A request that uses it, completed with the cached contents. Raises InvalidRequest."""
        for name in KEPT:
            if given.get(name):
                raise InvalidRequest(
                    f"Invalid '{name}': a request with 'cachedContent' has the one that was cached. Leave it out, or "
                    "cache another.",
                    param=name,
                )
        contents = [*list_of(self.body.get("contents")), *list_of(given.get("contents"), "contents")]
        return {**given, **self.body, "contents": contents}


class Ttl(String):
    """Seconds, as "300s"."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        seconds = float(value[:-1]) if _TTL.fullmatch(value) else 0.0
        if not 0 < seconds <= _MOST_SECONDS:
            raise Invalid(f"expected more than 0 and at most {_MOST_SECONDS:g} seconds, as '300s'.")
        return seconds


class ExpireTime(String):
    """A time as in RFC 3339, to seconds since the epoch."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        text = _FRACTION.sub(r"\1", value[:64].replace("Z", "+00:00"))
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise Invalid("expected a time such as '2026-01-31T12:00:00Z'.") from None
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()


class ExpirySchema(WireSchema):
    ttl = Ttl('seconds, as "300s"; absent: an hour')
    expireTime = ExpireTime("a time, instead of `ttl`")


class CachedContentSchema(ExpirySchema):
    model = String("a name or alias, also after `models/`", required=True)
    contents = Contents("the first contents of conversations", pairs=False)
    systemInstruction = SystemInstruction("a content of texts, or a text")
    tools = GeminiTools("as for generateContent")
    toolConfig = ToolConfig("as for generateContent")
    displayName = String("shown in lists")
    kmsKeyName = Ignored()


class CachedContents:
    """The endpoints, with their limits."""

    names = prompt_in("contents")

    def __init__(self, limits: Limits) -> None:
        self._loader, self._expiry = loader_of(CachedContentSchema, limits), loader_of(ExpirySchema, limits)

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        return self._loader.unheard(camel(dict(body)))

    def parse_create(self, body: Mapping[str, Any], *, now: float) -> CachedContent:
        given = camel(dict(body))
        data = self._loader.load(given)
        kept = {name: given[name] for name in (*KEPT, "contents") if given.get(name)}
        if not kept:
            raise MissingParameter("contents")
        messages: tuple[Message, ...] = data.get("contents", ())
        name = str(data.get("displayName", ""))[:_NAME]
        expires = _expires(data, now)
        model = str(data["model"]).removeprefix("models/")
        return CachedContent(token_hex(12), model, now, now, expires, name, kept, len(messages))

    def parse_update(self, body: Mapping[str, Any], content: CachedContent, *, now: float) -> CachedContent:
        """Only the time when it expires can be changed."""
        data = self._expiry.load(camel(dict(body)))
        if not data:
            raise InvalidRequest("Invalid 'ttl': send 'ttl' or 'expireTime'; nothing else can be changed.", param="ttl")
        return content._replace(updated=now, expires=_expires(data, now))


def _expires(data: Mapping[str, Any], now: float) -> float:
    if "ttl" in data and "expireTime" in data:
        raise InvalidRequest("Invalid 'ttl': not allowed together with 'expireTime'.", param="ttl")
    at = float(data.get("expireTime", now + data.get("ttl", _SECONDS)))
    if not now < at <= now + _MOST_SECONDS:
        raise InvalidRequest("Invalid 'expireTime': expected a time within the next 30 days.", param="expireTime")
    return at


class CachedContentReply(GeminiReply):
    """Reports the cached content once its prompt is computed."""

    def __init__(self, content: CachedContent) -> None:
        super().__init__(GeminiReplyOptions())
        self.content = content

    def whole(self) -> bytes:
        self.content = self.content._replace(num_tokens=self.folded.usage.prompt_tokens)
        return cached_body(self.content)


def cached_body(content: CachedContent) -> bytes:
    return orjson.dumps(_entry(content))


def cached_list_body(contents: Sequence[CachedContent], start: int, most: int) -> bytes:
    body: dict[str, Any] = {"cachedContents": [_entry(one) for one in contents[start : start + most]]}
    if start + most < len(contents):
        body["nextPageToken"] = str(start + most)
    return orjson.dumps(body)


def _entry(content: CachedContent) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": PREFIX + content.id,
        "model": f"models/{content.model}",
        "createTime": _time(content.created),
        "updateTime": _time(content.updated),
        "expireTime": _time(content.expires),
        "usageMetadata": {"totalTokenCount": content.num_tokens},
    }
    return entry | ({"displayName": content.display_name} if content.display_name else {})


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
