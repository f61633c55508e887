"""Fake MCP servers."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from llamasrv.tools.definitions import Definition
from llamasrv.tools.mcp_servers import McpServers

FAKE = str(Path(__file__).with_name("fake_mcp.py"))


@pytest.fixture
def fake():
    """Definitions of servers that run fake_mcp.py."""

    def make(*arguments, name="fake", **more):
        return Definition(name, sys.executable, (FAKE, *arguments), **more)

    return make


@pytest.fixture
def run_servers():
    """Started servers; ended after the test."""
    before, started = threading.active_count(), []

    def start(*definitions, **more):
        started.append(McpServers(definitions, **more))
        started[-1].start()
        return started[-1]

    yield start
    for servers in started:
        servers.close()
    end = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)
