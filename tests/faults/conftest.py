"""Servers for fault tests: one shared, whose health every test leaves as it found it."""

from __future__ import annotations

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, wait_for
from conftest import ServerProcess

SHARED = (
    "--port", "0", "--fake", "--parallel", "8", "--keepalive", "0.3", "--head-timeout", "1", "--body-timeout", "1",
    "--write-timeout", "2", "--max-unread-tokens", "400", "--connections", "300", "--cors-origins", "https://app.example",
)  # fmt: skip


@pytest.fixture(scope="session")
def shared():
    server = ServerProcess(SHARED)
    yield wait_until_ready(server)
    server.end()


@pytest.fixture
def server(shared):
    """The shared server; after the test nothing runs on it any more, and it is still the same process."""
    yield shared
    wait_for(lambda: figure(shared, "llamasrv_running") + figure(shared, "llamasrv_waiting") == 0, timeout=20)
    assert figure(shared, "llamasrv_restarts_total") == 0
    assert shared.process.poll() is None and "Traceback" not in shared.log
