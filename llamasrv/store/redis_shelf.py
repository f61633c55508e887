"""A shelf in Redis. Nothing on it expires by itself.

    llamasrv:SHELF:owners               a set
    llamasrv:SHELF:records:OWNER        a hash: records by id
    llamasrv:SHELF:contents:OWNER:ID    a hash: blobs by part
    llamasrv:SHELF:bytes                of all its contents
    llamasrv:SHELF:lock                 its holder
    llamasrv:blob:BLOB                  a hash: last (number of the last piece), size, links (how many name it)
    llamasrv:blob:BLOB:N                a piece
    llamasrv:unfinished                 a sorted set: blobs that are being written, by when that began
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from llamasrv.store import StoreError
from llamasrv.store.shelf import PIECE, Content, ExpiringLock, PieceWriter, Record

_BLOB = "llamasrv:blob:"
_UNFINISHED = "llamasrv:unfinished"

_ADD = """
local n = tonumber(redis.call('HGET', KEYS[1], 'last') or '0')
if redis.call('APPEND', KEYS[1] .. ':' .. n, ARGV[1]) >= tonumber(ARGV[2]) then n = n + 1 end
redis.call('HSET', KEYS[1], 'last', n)
redis.call('HINCRBY', KEYS[1], 'size', #ARGV[1])
if KEYS[2] then redis.call('INCRBY', KEYS[2], #ARGV[1]) end
"""
_SIZE_FUNCTION = """
local function size(key) return tonumber(redis.call('HGET', key, 'size') or '0') end
"""
_DROP_FUNCTION = """
local function drop(key)
    if redis.call('HINCRBY', key, 'links', -1) > 0 then return end
    for n = 0, tonumber(redis.call('HGET', key, 'last') or '0') do redis.call('UNLINK', key .. ':' .. n) end
    redis.call('UNLINK', key)
end
"""
_DROP = _DROP_FUNCTION + "drop(KEYS[1]) redis.call('ZREM', KEYS[2], ARGV[1])"
_DELETE = (
    _SIZE_FUNCTION
    + _DROP_FUNCTION
    + """
redis.call('HDEL', KEYS[1], ARGV[1])
for _, blob in ipairs(redis.call('HVALS', KEYS[2])) do
    redis.call('DECRBY', KEYS[3], size(ARGV[2] .. blob))
    drop(ARGV[2] .. blob)
end
redis.call('UNLINK', KEYS[2])
"""
)
_NAME = (
    _SIZE_FUNCTION
    + _DROP_FUNCTION
    + """
local earlier = redis.call('HGET', KEYS[1], ARGV[1])
if earlier then
    redis.call('DECRBY', KEYS[3], size(ARGV[3] .. earlier))
    drop(ARGV[3] .. earlier)
end
redis.call('INCRBY', KEYS[3], size(ARGV[3] .. ARGV[2]))
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
_LINK = (
    _SIZE_FUNCTION
    + """
local blob = redis.call('HGET', KEYS[1], ARGV[1])
if not blob then return 0 end
redis.call('HINCRBY', ARGV[3] .. blob, 'links', 1)
redis.call('HSET', KEYS[2], ARGV[2], blob)
redis.call('INCRBY', KEYS[3], size(ARGV[3] .. blob))
return 1
"""
)
_RENEW_LOCK = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE_LOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisShelf:
    """`told` turns Redis's own errors into StoreErrors."""

    blocks = False  # its sockets let others work while they wait
    is_shared = True

    def __init__(self, db: Any, name: str, told: Callable[[], AbstractContextManager[None]]) -> None:
        self.db, self._told = db, told
        self.name = name
        texts = (_ADD, _DROP, _DELETE, _NAME, _APPENDED, _LINK, _RENEW_LOCK, _RELEASE_LOCK)
        self._scripts = {text: db.register_script(text) for text in texts}

    def put(self, owner: str, id: str, body: bytes) -> None:
        with self._told(), self.db.pipeline() as pipe:
            pipe.hset(self._key("records", owner), id, body)
            pipe.sadd(self._key("owners"), owner)
            pipe.execute()

    def get(self, owner: str, id: str) -> bytes | None:
        with self._told():
            body: bytes | None = self.db.hget(self._key("records", owner), id)
        return body

    def records(self, owner: str | None = None) -> list[Record]:
        found = []
        with self._told():
            owners = [owner] if owner else [one.decode() for one in self.db.smembers(self._key("owners"))]
            for one in owners:
                kept = self.db.hgetall(self._key("records", one))
                found += [Record(one, id.decode(), body) for id, body in kept.items()]
        return sorted(found, key=lambda record: record.id)

    def delete(self, owner: str, id: str) -> None:
        keys = [self._key("records", owner), self._key("contents", owner, id), self._key("bytes")]
        self._run(_DELETE, keys, id, _BLOB)

    @contextmanager
    def writing(self, owner: str, id: str, part: str) -> Iterator[Callable[[bytes], Any]]:
        blob = secrets.token_hex(16)
        with self._told():
            self.db.zadd(_UNFINISHED, {blob: time.time()})
            self.db.hset(_BLOB + blob, "size", 0)
        writer = PieceWriter(lambda piece: self.add(blob, piece))
        try:
            yield writer.write
            writer.finish()
            self._run(_NAME, [self._key("contents", owner, id), _UNFINISHED, self._key("bytes")], part, blob, _BLOB)
        except BaseException:
            self._drop_unfinished(blob)
            raise

    def appending(self, owner: str, id: str, part: str) -> RedisAppender:
        key = self._key("contents", owner, id)
        return RedisAppender(self, self._run(_APPENDED, [key], part, secrets.token_hex(16), _BLOB).decode())

    def add(self, blob: str, data: bytes, *, is_named: bool = False) -> None:
        """A content with a name counts at once, any other once it gets one."""
        self._run(_ADD, [_BLOB + blob, self._key("bytes")] if is_named else [_BLOB + blob], data, PIECE)

    def link(self, owner: str, id: str, part: str, source: Content) -> bool:
        assert isinstance(source.shelf, RedisShelf)
        place = source.shelf._key("contents", source.owner, source.id)
        keys = [place, self._key("contents", owner, id), self._key("bytes")]
        return bool(self._run(_LINK, keys, source.part, part, _BLOB))

    def pieces(self, owner: str, id: str, part: str) -> Iterator[bytes]:
        with self._told():
            blob = self.db.hget(self._key("contents", owner, id), part)
            if blob is None:
                return
            key = _BLOB + blob.decode()
            size = self.db.hmget(key, "size", "links")
        if size[1] is None:
            raise _evicted()
        n, left = 0, int(size[0] or 0)
        while left > 0:
            with self._told():
                piece = self.db.get(f"{key}:{n}")
            if not piece:
                raise _evicted()
            yield piece
            left -= len(piece)
            n += 1

    def num_bytes(self) -> int:
        with self._told():
            return int(self.db.get(self._key("bytes")) or 0)

    def sweep(self, before: float) -> None:
        with self._told():
            found = self.db.zrangebyscore(_UNFINISHED, 0, before)
        for blob in found:
            self._drop_unfinished(blob.decode())

    def lock(self) -> ExpiringLock:
        return ExpiringLock(self.renew_lock, self.release_lock)

    def renew_lock(self, holder: str, seconds: float) -> bool:
        return bool(self._run(_RENEW_LOCK, [self._key("lock")], holder, int(seconds * 1000)))

    def release_lock(self, holder: str) -> None:
        self._run(_RELEASE_LOCK, [self._key("lock")], holder)

    def _drop_unfinished(self, blob: str) -> None:
        self._run(_DROP, [_BLOB + blob, _UNFINISHED], blob)

    def _key(self, *names: str) -> str:
        return ":".join(("llamasrv", self.name, *names))

    def _run(self, script: str, keys: list[str], *args: Any) -> Any:
        with self._told():
            return self._scripts[script](keys=keys, args=args)


class RedisAppender:
    """Each line goes to Redis in one command, so that it appears as a whole."""

    def __init__(self, shelf: RedisShelf, blob: str) -> None:
        self._shelf, self._blob = shelf, blob

    def add(self, line: bytes) -> None:
        self._shelf.add(self._blob, line, is_named=True)

    def close(self) -> None: ...


def _evicted() -> StoreError:
    return StoreError(
        "A part of this content is gone from Redis. Its maxmemory-policy must be noeviction or one of volatile-*."
    )
