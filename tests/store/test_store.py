"""The contract of every store."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from llamasrv.errors import ConfigError
from llamasrv.store import (
    DAY,
    USAGE_DAYS,
    ConversationTooLong,
    DailyUsage,
    StoredEntry,
    StoreOptions,
    day_of,
    open_store,
)

ROOT = Path(__file__).resolve().parents[2]


def entry(id, previous=None, body=b"{}", lease=None):
    return StoredEntry(id, body, previous, lease)


def put_turns(store, owner, *ids):
    """A conversation: a chain of turns."""
    for previous, id in zip((None, *ids), ids):
        store.put(owner, entry(id, previous, body=id.encode()))


def test_get_returns_what_was_put(store, owner):
    given = entry("resp_1", "resp_0", '{"text":"é \\u0000 🎈"}'.encode() * 100, lease=12.5)
    store.put(owner, given)
    assert store.get(owner, "resp_1") == given


def test_an_unknown_id_is_none(store, owner):
    assert store.get(owner, "resp_1") is None
    assert store.chain(owner, "resp_1") == []
    assert store.delete(owner, "resp_1") is False


def test_a_second_put_replaces_the_first(store, owner):
    store.put(owner, entry("resp_1", None, b"queued", lease=1.0))
    store.put(owner, entry("resp_1", "resp_0", b"done"))
    assert store.get(owner, "resp_1") == entry("resp_1", "resp_0", b"done")


def test_a_deleted_entry_is_gone(store, owner):
    store.put(owner, entry("resp_1"))
    assert store.delete(owner, "resp_1") is True
    assert store.get(owner, "resp_1") is None
    assert store.delete(owner, "resp_1") is False


def test_a_chain_is_the_conversation_from_its_start(store, owner):
    put_turns(store, owner, "a", "b", "c", "d")
    assert [e.id for e in store.chain(owner, "c")] == ["a", "b", "c"]
    assert [e.body for e in store.chain(owner, "d")] == [b"a", b"b", b"c", b"d"]


def test_a_conversation_can_fork(store, owner):
    put_turns(store, owner, "a", "b", "c")
    store.put(owner, entry("c2", "b"))
    assert [e.id for e in store.chain(owner, "c2")] == ["a", "b", "c2"]
    assert [e.id for e in store.chain(owner, "c")] == ["a", "b", "c"]


def test_a_chain_with_a_gap_starts_behind_it_and_shows_it(store, owner):
    put_turns(store, owner, "a", "b", "c", "d")
    store.delete(owner, "b")
    found = store.chain(owner, "d")
    assert [e.id for e in found] == ["c", "d"] and found[0].previous == "b"


def test_a_circular_chain_ends(open_url, owner):
    """The server never creates one, but others can write to the file."""
    store = open_url(chain=50)
    store.put(owner, entry("a", "b"))
    store.put(owner, entry("b", "a"))
    assert 2 <= len(store.chain(owner, "a")) <= 51


@pytest.mark.parametrize("other", ["", "key", "key:", "key%3A", "KEY", "key' OR '1'='1"])
def test_owners_cannot_see_each_others_entries(store, owner, other):
    """Neither by id nor as an earlier turn, nor can it delete or replace it."""
    put_turns(store, owner, "a", "b")
    other = other if len(other) < 3 else other + owner
    assert store.get(other, "b") is None and store.chain(other, "b") == [] and not store.delete(other, "a")
    store.put(other, entry("c", "b", b"theirs"))
    assert [e.id for e in store.chain(other, "c")] == ["c"]
    store.put(other, entry("b", None, b"theirs"))
    assert store.get(owner, "b").body == b"b"
    store.delete(other, "b")
    store.delete(other, "c")


def test_it_survives_a_restart(url, owner):
    if url == "memory":
        pytest.skip("what is in memory does not")
    first = open_store(url, StoreOptions())
    put_turns(first, owner, "a", "b")
    first.close()
    second = open_store(url, StoreOptions())
    assert [e.body for e in second.chain(owner, "b")] == [b"a", b"b"]
    second.close()


def test_threads_do_not_mix_up_entries(store, owner):
    wrong = []

    def work(number):
        for turn in range(20):
            id, body = f"resp_{number}_{turn}", f"{number} {turn} ".encode() * 50
            store.put(owner, entry(id, f"resp_{number}_{turn - 1}" if turn else None, body))
            if store.get(owner, id).body != body or len(store.chain(owner, id)) != turn + 1:
                wrong.append(id)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_conversation_too_large_when_unpacked_is_refused(open_url, owner):
    """Repetitive text compresses to little."""
    store = open_url(chain_bytes=1000)
    for previous, id in zip((None, "a", "b", "c"), "abcd"):
        store.put(owner, entry(id, previous, b"x" * 300))
    assert len(store.chain(owner, "c")) == 3
    with pytest.raises(ConversationTooLong):
        store.chain(owner, "d")


def test_no_more_is_fetched_than_the_limit(open_url, owner):
    """As the server counts: packed bytes."""
    store = open_url(chain_bytes=400)
    put_turns(store, owner, *(f"{n}" for n in range(50)))
    found = store.chain(owner, "49")
    assert 1 < len(found) < 50 and found[0].previous is not None


# Age and size


@pytest.fixture
def at(monkeypatch):
    """Sets the clock; Redis keeps its own."""

    def at(seconds):
        monkeypatch.setattr("llamasrv.store.sql.time.time", lambda: seconds)

    return at


def own_clock(url):
    if url.startswith("redis"):
        pytest.skip("Redis keeps the time itself")


def test_an_expired_entry_is_gone(url, owner, at):
    own_clock(url)
    store = open_store(url, StoreOptions(max_age=10 * DAY))
    at(1000 * DAY)
    put_turns(store, owner, "a", "b")
    at(1010 * DAY)
    assert store.get(owner, "a") is None and store.chain(owner, "b") == []
    store.close()


def test_redis_expires_entries(redis_url, owner):
    import redis

    store = open_store(redis_url, StoreOptions(max_age=10 * DAY))
    put_turns(store, owner, "a", "b")
    db = redis.Redis.from_url(redis_url)
    keys = [f"llamasrv:response:{owner.replace(':', '%3A')}:{id}" for id in ("a", "b")]
    assert all(10 * DAY - 60 < db.ttl(key) <= 10 * DAY for key in keys)
    db.expire(keys[0], 5)
    db.expire(keys[1], 5)
    store.chain(owner, "b")
    assert all(db.ttl(key) > 60 for key in keys), "going on with a conversation renews all of it"
    store.close()
    db.close()


def test_continuing_a_conversation_renews_all_of_it(url, owner, at):
    own_clock(url)
    store = open_store(url, StoreOptions(max_age=10 * DAY))
    at(1000 * DAY)
    put_turns(store, owner, "a", "b")
    at(1009 * DAY)
    store.chain(owner, "b")
    at(1018 * DAY)
    assert [e.id for e in store.chain(owner, "b")] == ["a", "b"]
    store.close()


def test_the_least_recently_used_are_evicted(url, owner, at, monkeypatch):
    own_clock(url)
    monkeypatch.setattr("llamasrv.store.sql.pack", lambda body, options: bytes(body))
    monkeypatch.setattr("llamasrv.store.sql.unpack", lambda body, options: bytes(body))
    store = open_store(url, StoreOptions(max_bytes=50_000, max_age=1e9))
    at(4e9)
    put_turns(store, owner, "a", "b")
    for n in range(8):
        at(4e9 + 100 * (n + 1))
        if n == 4:
            store.chain(owner, "b")
        store.put(owner, entry(f"big{n}", body=b"x" * 10_000))
    kept = [id for id in ("a", "b", *(f"big{n}" for n in range(8))) if store.get(owner, id) is not None]
    assert kept == ["a", "b", "big4", "big5", "big6", "big7"]
    for id in kept:
        store.delete(owner, id)
    store.close()


# One file


def test_the_file_is_private(tmp_path, owner):
    store = open_store(f"sqlite:///{tmp_path}/new/responses.db", StoreOptions())
    store.put(owner, entry("a"))
    assert stat.S_IMODE((tmp_path / "new/responses.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    store.close()


def test_it_writes_ahead(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/responses.db", StoreOptions())
    with closing(sqlite3.connect(tmp_path / "responses.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_two_processes_may_share_the_file(tmp_path, owner):
    url = f"sqlite:///{tmp_path}/responses.db"
    one, other = open_store(url, StoreOptions()), open_store(url, StoreOptions())
    put_turns(one, owner, "a", "b")
    other.put(owner, entry("c", "b"))
    assert [e.id for e in one.chain(owner, "c")] == ["a", "b", "c"]
    one.close()
    other.close()


def test_deleted_text_is_overwritten_in_the_file(tmp_path, owner, monkeypatch):
    monkeypatch.setattr("llamasrv.store.sql.pack", lambda body, options: bytes(body))
    path = tmp_path / "responses.db"
    store = open_store(f"sqlite:///{path}", StoreOptions())
    store.put(owner, entry("a", body=b"confidential" * 10))
    store.delete(owner, "a")
    store.close()
    assert b"confidential" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_file_of_a_later_version_is_refused(tmp_path):
    url = f"sqlite:///{tmp_path}/responses.db"
    open_store(url, StoreOptions()).close()
    with closing(sqlite3.connect(tmp_path / "responses.db")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="later version"):
        open_store(url, StoreOptions())


# URLs


def test_none_stores_nothing():
    assert open_store("none", StoreOptions()) is None


@pytest.mark.parametrize(
    "url",
    [
        "mysql://x",
        "sqlite://host/file",
        "sqlite:///",
        "/var/lib/x.db",
        "sqlite:////proc/nothing/here.db",
        "redis://127.0.0.1:1",
        "postgresql://127.0.0.1:1/x",
        "redis://127.0.0.1:port",
    ],
)
def test_a_wrong_url_ends_the_start(url):
    with pytest.raises(ConfigError, match="^store.url"):
        open_store(url, StoreOptions())


def test_usage_adds_up_by_day_key_and_model(store, owner):
    one = DailyUsage(day_of(time.time()), owner, "a:b", 1, 10, 4, 5, 0.5)
    store.add_usage([one, one._replace(model="other")])
    store.add_usage([one._replace(prompt=1)])
    mine = [used for used in store.usage(one.day, one.day) if used.owner == owner]
    both = one._replace(requests=2, prompt=11, cached=8, generated=10, seconds=1.0)
    assert mine == [both, one._replace(model="other")]


def test_usage_covers_the_requested_days(store, owner):
    now = time.time()
    days = [day_of(now - n * DAY) for n in range(4)]
    store.add_usage([DailyUsage(day, owner, "m", 1, 2, 0, 3, 0.25) for day in days])
    found = [used.day for used in store.usage(days[2], days[1]) if used.owner == owner]
    assert found == [days[2], days[1]]


@pytest.mark.parametrize("first, last", [("0001-01-01", "9999-12-31"), ("9999-12-31", "9999-12-31")])
def test_usage_of_all_time_is_found_quickly(store, owner, monkeypatch, first, last):
    """Redis was queried for each of 740,000 days, long after the client had left, and the reply was then a
    500."""
    today = day_of(time.time())
    store.add_usage([DailyUsage(today, owner, "m", 1, 2, 0, 3, 0.25)])
    asked = []
    if hasattr(store, "_db"):
        hgetall = store._db.hgetall
        monkeypatch.setattr(store._db, "hgetall", lambda key: asked.append(key) or hgetall(key))
    found = [used.day for used in store.usage(first, last) if used.owner == owner]
    assert found == ([today] if first <= today else []) and len(asked) <= USAGE_DAYS + 2


FROZEN = """
from gevent import monkey
monkey.patch_all()
import os, signal, sys
from llamasrv.concurrency import within
from llamasrv.store import StoredEntry, StoreError, StoreOptions, open_store

store = open_store(sys.argv[1], StoreOptions(within=within, patience=1.0))
store.put("ann", StoredEntry("a", b"x"))
pid = store._idle[0].info.backend_pid
os.kill(pid, signal.SIGSTOP)
try:
    store.get("ann", "a")
except StoreError as error:
    print("refused:", error)
finally:
    os.kill(pid, signal.SIGCONT)
print(store.get("ann", "a").body)
"""


def test_a_hanging_server_is_given_up(postgres_url):
    """A request that met an idle connection of a frozen server waited until it thawed."""
    done = subprocess.run(
        [sys.executable, "-c", FROZEN, postgres_url], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    refused, found = done.stdout.splitlines()
    assert refused == "refused: The store cannot be used at the moment: it does not respond." and found == "b'x'"
