"""Every kind of store, on real servers where they are installed."""

from __future__ import annotations

import uuid

import pytest
from store.database_servers import postgres_server, redis_server, running

from llamasrv.store import StoreOptions, open_store


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
    """The URL of each kind."""
    kind = request.param
    if kind == "memory":
        return "memory"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/state/responses.db"
    return request.getfixturevalue(f"{kind}_url")


@pytest.fixture
def owner():
    """Servers are shared by tests; an owner is not."""
    return f"key:{uuid.uuid4().hex}"


@pytest.fixture
def store(url):
    store = open_store(url, StoreOptions())
    yield store
    store.close()
