"""Responses in Redis, shared by several servers. Entries expire by age; Redis's own `maxmemory` bounds the size.

llamasrv:response:OWNER:ID    a hash: body, previous, lease
llamasrv:usage:DAY            a hash: OWNER:MODEL:FIGURE

Files and batches are in redis_shelf.py, quotas in redis_quotas.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote, unquote

from llamasrv.errors import ConfigError
from llamasrv.store import (
    DAY,
    USAGE_DAYS,
    DailyUsage,
    StoredEntry,
    StoreError,
    StoreOptions,
    pack,
    unpack,
    unpack_all,
)
from llamasrv.store.quotas import LEASE
from llamasrv.store.redis_quotas import RedisQuotas
from llamasrv.store.redis_shelf import RedisShelf

try:
    import redis
except ImportError:
    raise ConfigError("store.url: Redis needs the package redis: pip install 'llamasrv[redis]'") from None

_TIMEOUT = 5.0  # seconds
_CONNECTIONS = 16

# Reads and renews a conversation in one round trip.
_CHAIN = """
local found, id, total = {}, ARGV[1], 0
for _ = 0, tonumber(ARGV[2]) do
    local key = KEYS[1] .. id
    local entry = redis.call('HMGET', key, 'body', 'previous', 'lease')
    if not entry[1] then break end
    redis.call('EXPIRE', key, ARGV[3])
    total = total + #entry[1]
    found[#found + 1] = {id, entry[1], entry[2], entry[3]}
    id = entry[2]
    if not id or id == '' or total > tonumber(ARGV[4]) then break end
end
return found
"""


class RedisStore:
    blocks = False  # sockets yield to other greenlets

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._options = options
        self._age = max(1, int(options.max_age))
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=_TIMEOUT,
                socket_timeout=_TIMEOUT,
                socket_connect_timeout=_TIMEOUT,
                health_check_interval=30,
            )
        except ValueError as error:
            raise ConfigError(f"store.url: {error}") from None
        self._db: Any = redis.Redis(connection_pool=pool)
        self._chain = self._db.register_script(_CHAIN)
        try:
            self._db.ping()
        except redis.RedisError as error:
            raise ConfigError(f"store.url: Redis does not respond: {type(error).__name__}") from None

    def put(self, owner: str, entry: StoredEntry) -> None:
        key = _key(owner, entry.id)
        lease = "" if entry.lease is None else repr(entry.lease)
        fields = {"body": pack(entry.body, self._options), "previous": entry.previous or "", "lease": lease}
        with _redis_errors(), self._db.pipeline() as pipe:
            pipe.hset(key, mapping=fields)
            pipe.expire(key, self._age)
            pipe.execute()

    def get(self, owner: str, id: str) -> StoredEntry | None:
        with _redis_errors():
            body, previous, lease = self._db.hmget(_key(owner, id), "body", "previous", "lease")
        return None if body is None else StoredEntry(id, unpack(body, self._options), *_fields(previous, lease))

    def chain(self, owner: str, id: str) -> list[StoredEntry]:
        args: list[Any] = [id, self._options.chain, self._age, self._options.chain_bytes]
        with _redis_errors():
            found = self._chain(keys=[_key(owner, "")], args=args)
        rows = [(id.decode(), body, *_fields(*rest)) for id, body, *rest in reversed(found)]
        return unpack_all(rows, self._options)

    def delete(self, owner: str, id: str) -> bool:
        with _redis_errors():
            return bool(self._db.delete(_key(owner, id)))

    def add_usage(self, used: Sequence[DailyUsage]) -> None:
        with _redis_errors(), self._db.pipeline() as pipe:
            for one in used:
                key = f"llamasrv:usage:{one.day}"
                prefix = f"{quote(one.owner, safe='')}:{quote(one.model, safe='')}"
                for name, number in one._asdict().items():
                    if name not in ("day", "owner", "model"):
                        pipe.hincrbyfloat(key, f"{prefix}:{name}", number)
                pipe.expire(key, int(USAGE_DAYS * DAY))
            pipe.execute()

    def usage(self, first: str, last: str) -> list[DailyUsage]:
        found: dict[tuple[str, str, str], dict[str, float]] = {}
        now = datetime.now(timezone.utc).date()
        # Visit only days that can exist: a request for all time would be 740,000 lookups. One day more than today,
        # for servers whose clock is ahead.
        start = max(date.fromisoformat(first), now - timedelta(days=USAGE_DAYS)).toordinal()
        end = min(date.fromisoformat(last), now + timedelta(days=1)).toordinal()
        with _redis_errors():
            for day in map(date.fromordinal, range(start, end + 1)):
                for field, number in self._db.hgetall(f"llamasrv:usage:{day}").items():
                    owner, model, name = map(unquote, field.decode().split(":"))
                    found.setdefault((day.isoformat(), owner, model), {})[name] = float(number)
        return [_daily_usage(*place, numbers) for place, numbers in sorted(found.items())]

    def shelf(self, name: str) -> RedisShelf:
        return RedisShelf(self._db, name, _redis_errors)

    def quotas(self, lease: float = LEASE) -> RedisQuotas:
        return RedisQuotas(self._db, _redis_errors, lease)

    def close(self) -> None:
        self._db.close()
        self._db.connection_pool.disconnect()


def _key(owner: str, id: str) -> str:
    # Quoted, or an owner with a colon in its name could reach another owner's keys.
    return f"llamasrv:response:{quote(owner, safe='')}:{id}"


def _fields(previous: bytes | None, lease: bytes | None) -> tuple[str | None, float | None]:
    return previous.decode() if previous else None, float(lease) if lease else None


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreError(f"The store cannot be used at the moment: {type(error).__name__}.") from error


def _daily_usage(day: str, owner: str, model: str, numbers: Mapping[str, float]) -> DailyUsage:
    def count(name: str) -> int:
        return int(numbers.get(name, 0))

    counts = count("requests"), count("prompt"), count("cached"), count("generated")
    return DailyUsage(day, owner, model, *counts, numbers.get("seconds", 0.0))
