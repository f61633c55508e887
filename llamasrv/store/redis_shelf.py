"""A shelf in Redis. Its keys do not expire.

llamasrv:SHELF:owners               a set
llamasrv:SHELF:records:OWNER        a hash: records by id
llamasrv:SHELF:contents:OWNER:ID    a hash: blobs by part
llamasrv:SHELF:open                 a set: OWNER:ID of each record that is open
llamasrv:SHELF:lock                 a string: the holder
llamasrv:SHELF:claim:NAME           a string: the holder
llamasrv:blob:BLOB                  a hash: last (number of the last piece), size, links (reference count)
llamasrv:blob:BLOB:N                a piece
llamasrv:sums                       a hash: the ledger
llamasrv:unfinished                 a sorted set: blobs being written, by start time
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llamasrv.store import StoreError
from llamasrv.store.shelf import AT_ONCE, LOCK_SECONDS, PIECE, Claims, ExpiringLock, PieceWriter, Shelf, StoredContent

_BLOB = "llamasrv:blob:"
_UNFINISHED = "llamasrv:unfinished"
_SUMS = "llamasrv:sums"

# What is added to a content that was deleted meanwhile is dropped.
_ADD = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
local n = tonumber(redis.call('HGET', KEYS[1], 'last') or '0')
if redis.call('APPEND', KEYS[1] .. ':' .. n, ARGV[1]) >= tonumber(ARGV[2]) then n = n + 1 end
redis.call('HSET', KEYS[1], 'last', n)
redis.call('HINCRBY', KEYS[1], 'size', #ARGV[1])
"""
_DROP_FUNCTION = """
local function drop(key)
    if redis.call('HINCRBY', key, 'links', -1) > 0 then return 0 end
    local size = tonumber(redis.call('HGET', key, 'size') or '0')
    for n = 0, tonumber(redis.call('HGET', key, 'last') or '0') do redis.call('UNLINK', key .. ':' .. n) end
    redis.call('UNLINK', key)
    return size
end
"""
_DROP = _DROP_FUNCTION + "drop(KEYS[1]) redis.call('ZREM', KEYS[2], ARGV[1])"
_DELETE = (
    _DROP_FUNCTION
    + """
local freed = 0
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('SREM', KEYS[3], ARGV[3] .. ':' .. ARGV[1])
for _, blob in ipairs(redis.call('HVALS', KEYS[2])) do freed = freed + drop(ARGV[2] .. blob) end
redis.call('UNLINK', KEYS[2])
return freed
"""
)
_DELETE_PART = (
    _DROP_FUNCTION
    + """
local blob = redis.call('HGET', KEYS[1], ARGV[1])
if not blob then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return drop(ARGV[2] .. blob)
"""
)
_NAME = (
    _DROP_FUNCTION
    + """
local earlier = redis.call('HGET', KEYS[1], ARGV[1])
if earlier then drop(ARGV[3] .. earlier) end
redis.call('HINCRBY', ARGV[3] .. ARGV[2], 'links', 1)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[2])
"""
)
_APPENDED = """
local blob = redis.call('HGET', KEYS[1], ARGV[1])
if not blob then
    blob = ARGV[2]
    redis.call('HSET', KEYS[1], ARGV[1], blob)
    redis.call('HINCRBY', ARGV[3] .. blob, 'links', 1)
end
return blob
"""
_LINK = """
local blob = redis.call('HGET', KEYS[1], ARGV[1])
if not blob then return 0 end
redis.call('HINCRBY', ARGV[3] .. blob, 'links', 1)
redis.call('HSET', KEYS[2], ARGV[2], blob)
return 1
"""
# One string: clients are slow to parse thousands of small replies.
_IDS = """
local ids = redis.call('HKEYS', KEYS[1])
table.sort(ids)
return table.concat(ids, ' ')
"""
_SIZES = """
local found = {}
for n = 2, #ARGV do
    for _, blob in ipairs(redis.call('HVALS', KEYS[1] .. ARGV[n])) do
        found[#found + 1] = blob .. ' ' .. (redis.call('HGET', ARGV[1] .. blob, 'size') or '0')
    end
end
return table.concat(found, ' ')
"""
_ADD_TO_SUM = """
local total = math.max(0, tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') + tonumber(ARGV[2]))
if ARGV[3] ~= '' and total > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', total))
return 1
"""
_RENEW_LOCK = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE_LOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisShelf(Shelf):
    """`redis_errors` turns Redis's own errors into StoreErrors."""

    blocks = False  # sockets yield to other greenlets

    def __init__(self, db: Any, name: str, redis_errors: Callable[[], AbstractContextManager[None]]) -> None:
        self.db, self._redis_errors = db, redis_errors
        self.name = name
        texts = (
            _ADD,
            _DROP,
            _DELETE,
            _DELETE_PART,
            _NAME,
            _APPENDED,
            _LINK,
            _IDS,
            _SIZES,
            _ADD_TO_SUM,
            _RENEW_LOCK,
            _RELEASE_LOCK,
        )
        self._scripts = {text: db.register_script(text) for text in texts}

    def put(self, owner: str, id: str, body: bytes, *, is_open: bool = False) -> None:
        with self._redis_errors(), self.db.pipeline() as pipe:
            pipe.hset(self._key("records", owner), id, body)
            pipe.sadd(self._key("owners"), owner)
            if is_open:
                pipe.sadd(self._key("open"), f"{owner}:{id}")
            pipe.execute()

    def close(self, owner: str, id: str) -> None:
        with self._redis_errors():
            self.db.srem(self._key("open"), f"{owner}:{id}")

    def read(self, owner: str, ids: Sequence[str]) -> list[bytes | None]:
        if not ids:
            return []
        with self._redis_errors():
            found: list[bytes | None] = self.db.hmget(self._key("records", owner), ids)
            return found

    def owners(self) -> list[str]:
        with self._redis_errors():
            return sorted(owner.decode() for owner in self.db.smembers(self._key("owners")))

    def ids(self, owner: str) -> list[str]:
        listed: bytes = self._run(_IDS, [self._key("records", owner)])
        return listed.decode().split()

    def open_ids(self) -> list[tuple[str, str]]:
        with self._redis_errors():
            marks = [mark.decode().partition(":") for mark in self.db.smembers(self._key("open"))]
        return [(owner, id) for owner, _, id in marks]

    def _delete(self, owner: str, id: str, part: str | None) -> int:
        contents = self._key("contents", owner, id)
        if part is not None:
            return int(self._run(_DELETE_PART, [contents], part, _BLOB))
        keys = [self._key("records", owner), contents, self._key("open")]
        return int(self._run(_DELETE, keys, id, _BLOB, owner))

    @contextmanager
    def _writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        blob = secrets.token_hex(16)
        with self._redis_errors():
            self.db.zadd(_UNFINISHED, {blob: time.time()})
            self.db.hset(_BLOB + blob, "size", 0)
        writer = PieceWriter(lambda piece: self.add(blob, piece))
        try:
            yield writer.write
            writer.finish()
            self._run(_NAME, [self._key("contents", owner, id), _UNFINISHED], part, blob, _BLOB)
        except BaseException:
            self._drop_unfinished(blob)
            raise

    def _appending(self, owner: str, id: str, part: str) -> RedisAppender:
        key = self._key("contents", owner, id)
        return RedisAppender(self, self._run(_APPENDED, [key], part, secrets.token_hex(16), _BLOB).decode())

    def add(self, blob: str, data: bytes) -> None:
        self._run(_ADD, [_BLOB + blob], data, PIECE)

    def _link(self, owner: str, id: str, part: str, source: StoredContent) -> bool:
        assert isinstance(source.shelf, RedisShelf)
        place = source.shelf._key("contents", source.owner, source.id)
        return bool(self._run(_LINK, [place, self._key("contents", owner, id)], source.part, part, _BLOB))

    def pieces(self, owner: str, id: str, part: str) -> Generator[bytes, None, None]:
        with self._redis_errors():
            blob = self.db.hget(self._key("contents", owner, id), part)
            if blob is None:
                return
            key = _BLOB + blob.decode()
            size = self.db.hmget(key, "size", "links")
        if size[1] is None:
            raise _evicted()
        n, left = 0, int(size[0] or 0)
        while left > 0:
            with self._redis_errors():
                piece = self.db.get(f"{key}:{n}")
            if not piece:
                raise _evicted()
            yield piece
            left -= len(piece)
            n += 1

    def sizes(self, owner: str) -> Iterator[tuple[Hashable, int]]:
        ids = self.ids(owner)
        for start in range(0, len(ids), AT_ONCE):
            some = ids[start : start + AT_ONCE]
            found = self._run(_SIZES, [self._key("contents", owner, "")], _BLOB, *some).decode().split()
            yield from zip(found[::2], map(int, found[1::2]))
            self.breathe()

    def sweep(self, before: float) -> None:
        with self._redis_errors():
            found = self.db.zrangebyscore(_UNFINISHED, 0, before)
        for blob in found:
            self._drop_unfinished(blob.decode())

    def lock(self) -> ExpiringLock:
        return ExpiringLock(self.renew_lock, self.release_lock)

    def claims(self, seconds: float = LOCK_SECONDS) -> Claims:
        return Claims(
            lambda name, holder, seconds: self._renew(self._key("claim", name), holder, seconds),
            lambda name, holder: self._release(self._key("claim", name), holder),
            seconds,
        )

    def ledger(self) -> RedisLedger:
        return RedisLedger(self.db, self._redis_errors, self._scripts[_ADD_TO_SUM])

    def renew_lock(self, holder: str, seconds: float) -> bool:
        return self._renew(self._key("lock"), holder, seconds)

    def _renew(self, key: str, holder: str, seconds: float) -> bool:
        return bool(self._run(_RENEW_LOCK, [key], holder, int(seconds * 1000)))

    def release_lock(self, holder: str) -> None:
        self._release(self._key("lock"), holder)

    def _release(self, key: str, holder: str) -> None:
        self._run(_RELEASE_LOCK, [key], holder)

    def _drop_unfinished(self, blob: str) -> None:
        self._run(_DROP, [_BLOB + blob, _UNFINISHED], blob)

    def _key(self, *names: str) -> str:
        return ":".join(("llamasrv", self.name, *names))

    def _run(self, script: str, keys: list[str], *args: Any) -> Any:
        with self._redis_errors():
            return self._scripts[script](keys=keys, args=args)


class RedisAppender:
    """Appends each line with one command, hence atomically."""

    def __init__(self, shelf: RedisShelf, blob: str) -> None:
        self._shelf, self._blob = shelf, blob

    def add(self, line: bytes) -> None:
        self._shelf.add(self._blob, line)

    def close(self) -> None: ...


class RedisLedger:
    """One ledger for all shelves of a server."""

    def __init__(self, db: Any, redis_errors: Callable[[], AbstractContextManager[None]], add: Any) -> None:
        self._db, self._redis_errors, self._script = db, redis_errors, add

    def add(self, name: str, amount: int, most: int | None = None) -> bool:
        with self._redis_errors():
            return bool(self._script(keys=[_SUMS], args=[name, amount, "" if most is None else most]))

    def sums(self) -> dict[str, int]:
        with self._redis_errors():
            return {name.decode(): int(total) for name, total in self._db.hgetall(_SUMS).items()}


def _evicted() -> StoreError:
    return StoreError(
        "Redis evicted a part of this content. Set its maxmemory-policy to noeviction or one of volatile-*."
    )
