"""Background runs that servers share, on each kind of store."""

from __future__ import annotations

import pytest

from llamasrv.store import StoreOptions, open_store
from llamasrv.store.runs import Delivered, RunStore, StoredRun


@pytest.fixture
def servers(url):
    """Two servers' views of one store."""
    stores = [open_store(url, StoreOptions()) for _ in range(2)]
    yield [RunStore.of(store) for store in stores]
    for store in stores:
        store.close()


def test_a_store_of_one_server_has_no_runs_to_share(servers, url):
    assert all((runs is None) == (url.startswith(("memory", "sqlite"))) for runs in servers)
    assert RunStore.of(None) is None


def test_a_run_is_its_servers_until_it_ends(servers, owner):
    one, other = servers
    if one is None:
        pytest.skip("a store of one server")
    run = StoredRun(f"resp_{owner[4:]}", owner, "m")
    one.begin(run, b'{"input":"x"}')
    assert run in other.runs() and other.request(run) == b'{"input":"x"}' and other.exists(owner, run.id)
    assert one.claim(run.id) and not other.claim(run.id)
    assert other.delivered(owner, run.id) == Delivered([])
    journal = one.journal(owner, run.id)
    journal.add([b'{"a":1}', b'{"a":2}'], 7, 3)
    journal.add([b'{"a":3}'], 9, 3)
    assert other.delivered(owner, run.id) == Delivered([b'{"a":1}', b'{"a":2}', b'{"a":3}'], 9, 3)
    journal.close()
    other.save(run._replace(attempts=2))
    assert [found.attempts for found in one.runs() if found.id == run.id] == [2]
    one.end(owner, run.id)
    assert run.id not in [found.id for found in other.runs()] and not other.exists(owner, run.id)
    assert other.delivered(owner, run.id) == Delivered([])
