"""The application on the fake model, and its engine behind it."""

from __future__ import annotations

import pytest
from serving import RunningService


@pytest.fixture(scope="session")
def running():
    """One for all tests that leave it as they found it."""
    service = RunningService()
    yield service
    service.close()


@pytest.fixture(autouse=True)
def at_rest(request):
    """What a test leaves behind on the shared service fails that test."""
    running = request.getfixturevalue("running") if "running" in request.fixturenames else None
    yield
    if running is not None:
        running.check_at_rest()


@pytest.fixture
def client(running):
    return running.client


@pytest.fixture
def start():
    """Services of a test's own."""
    yield from _starting()


@pytest.fixture(scope="module")
def start_once():
    """Services for tests of one file that leave them as they found them."""
    yield from _starting()


def _starting():
    started = []

    def start(**options):
        started.append(RunningService(**options))
        return started[-1]

    yield start
    for service in started:
        service.close()
