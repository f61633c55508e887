"""Two replicas, nginx and Redis: a conversation goes on wherever it lands."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal

import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure
from conftest import ServerProcess
from faults.front import Nginx
from store.database_servers import redis_server, running

pytestmark = pytest.mark.processes  # `tox -e processes`


@pytest.fixture(scope="module")
def redis():
    for _, url in running(redis_server):
        yield url


@pytest.fixture
def replicas(redis):
    servers = [ServerProcess(["--port", "0", "--fake", "--store", redis]) for _ in range(2)]
    yield [wait_until_ready(server) for server in servers]
    for server in servers:
        server.end()


def test_six_a_minute_stay_six_over_three_replicas(redis, tmp_path):
    """They were 17 or 18: each replica counted for itself."""
    keys = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"secret-of-ann").hexdigest()
    keys.write_text(f'[keys.ann]\nsha256 = "{digest}"\nrequests_per_minute = 6\n')
    flags = [
        "--port",
        "0",
        "--fake",
        "--store",
        redis,
        "--api-key-file",
        str(keys),
        "--monitor-networks",
        "127.0.0.0/8",
    ]
    servers = [ServerProcess(flags) for _ in range(3)]
    try:
        statuses = []
        for n in range(18):
            connection = http.client.HTTPConnection(*wait_until_ready(servers[n % 3]).address, timeout=20)
            headers = {"Authorization": "Bearer secret-of-ann"}
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1}), headers)
            reply = connection.getresponse()
            statuses.append(reply.status)
            assert reply.status == 200 or int(reply.headers["Retry-After"]) > 0
            connection.close()
        # a seventh comes back after ten seconds
        assert statuses[:6] == [200] * 6 and statuses.count(200) <= 7 and set(statuses) == {200, 429}
    finally:
        for server in servers:
            server.end()


def respond(front, place, *, tries=1, **body):
    connection = http.client.HTTPConnection(*front.address, timeout=20)
    connection.request("POST", "/v1/responses", json.dumps({"model": "fake", **body}), {"X-Prefix-Key": place})
    reply = connection.getresponse()
    told = json.loads(reply.read())
    connection.close()
    if reply.status == 503 and tries > 1:  # clients of OpenAI's kind try again by themselves
        return respond(front, place, tries=tries - 1, **body)
    assert reply.status == 200, told
    return told


def test_a_conversation_goes_on_at_another_replica_also_when_its_own_is_gone(replicas, tmp_path):
    nginx = Nginx(tmp_path, [server.address for server in replicas])

    def served():
        return [figure(server, "llamasrv_requests_total") for server in replicas]

    try:
        first = respond(nginx, "here", input="The first thing", store=True)
        home = served().index(1)
        # Keys are spread over both, so one of a few lands at the other.
        told, n = first, 0
        while served()[1 - home] == 0 and n < 40:
            n += 1
            told = respond(nginx, f"there {n}", input="The next", previous_response_id=first["id"], store=True)
        assert told["previous_response_id"] == first["id"]
        items = fetch(nginx, f"/v1/responses/{told['id']}/input_items")
        assert "The first thing" in json.dumps(items)
        os.killpg(replicas[home].process.pid, signal.SIGKILL)
        last = respond(nginx, "here", tries=2, input="And the last", previous_response_id=told["id"], store=True)
        assert last["usage"]["input_tokens"] > told["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    finally:
        nginx.end()


def fetch(front, path):
    connection = http.client.HTTPConnection(*front.address, timeout=20)
    connection.request("GET", path)
    reply = connection.getresponse()
    told = json.loads(reply.read())
    connection.close()
    assert reply.status == 200, told
    return told
