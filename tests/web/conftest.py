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


@pytest.fixture
def client(running):
    return running.client


@pytest.fixture
def start():
    """Services of a test's own."""
    started = []

    def start(**options):
        started.append(RunningService(**options))
        return started[-1]

    yield start
    for service in started:
        service.close()
