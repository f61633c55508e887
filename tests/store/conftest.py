"""Every kind of store, on real servers where they are installed."""

from __future__ import annotations

import uuid

import pytest
from store.database_servers import postgres_server, redis_server, running

from llamasrv.store import StoreOptions, open_store
from llamasrv.store.folder_shelf import FolderShelf


@pytest.fixture(scope="session")
def redis_url():
    pytest.importorskip("redis")
    for _, url in running(redis_server):
        yield url


@pytest.fixture(scope="session")
def postgres_url():
    pytest.importorskip("psycopg")
    for _, url in running(postgres_server):
        yield url


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def url(request, tmp_path):
    """The URL of each kind of store."""
    kind = request.param
    if kind == "memory":
        return "memory"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/state/responses.db"
    return request.getfixturevalue(f"{kind}_url")


@pytest.fixture
def owner():
    """An owner of its own for each test: the servers are shared."""
    return f"key:{uuid.uuid4().hex}"


@pytest.fixture
def open_url(url):
    """Opens a store of each kind; closed after the test."""
    opened = []

    def open_it(**options):
        opened.append(open_store(url, StoreOptions(**options)))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_url):
    return open_url()


@pytest.fixture(params=["folder", "redis_url", "postgres_url"])
def shelf_place(request, tmp_path):
    """(store URL, folder) of each kind of shelf, empty."""
    if request.param == "folder":
        return "memory", tmp_path
    url = request.getfixturevalue(request.param)
    wipe(url)
    return url, None


@pytest.fixture
def shelf(shelf_place):
    """Of each kind."""
    url, folder = shelf_place
    store = open_store(url, StoreOptions())
    yield store.shelf("files") or FolderShelf(folder)
    store.close()


def wipe(url):
    """Delete all files and batches of a server."""
    if url.startswith("redis"):
        redis = pytest.importorskip("redis")
        with redis.Redis.from_url(url) as db:
            db.flushdb()
        return
    open_store(url, StoreOptions()).close()  # makes the tables
    with pytest.importorskip("psycopg").connect(url, autocommit=True) as db:
        db.execute(
            "TRUNCATE llamasrv_records, llamasrv_contents, llamasrv_pieces, llamasrv_locks, llamasrv_open, llamasrv_sums"
        )
