"""A real server process on the fake model, shared by tests that only talk to it."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

import pytest
from conftest import ServerProcess

ALIASES = ("org/model:tag", "gpt-4o")


def wait_until_ready(server):
    """Poll as a load balancer would."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(server.url + "/readyz", timeout=5) as reply:
                assert reply.status == 200
                return server
        except urllib.error.HTTPError as error:
            assert error.code == 503
            time.sleep(0.02)
    raise AssertionError(f"never ready:\n{server.log}")


@pytest.fixture(scope="session")
def server():
    aliases = [flag for alias in ALIASES for flag in ("--alias", alias)]
    server = ServerProcess(["--port", "0", "--fake", "--embeddings", "--model-names", "known", *aliases])
    yield wait_until_ready(server)
    server.end()


@pytest.fixture(scope="session")
def deciding():
    """The fake model means to answer nothing, so no question is refused for it."""
    server = ServerProcess(
        ["--port", "0", "--fake", "--alias", "demo", "--model-names", "known", "--decision-min-mass", "0"]
    )
    yield wait_until_ready(server)
    server.end()
