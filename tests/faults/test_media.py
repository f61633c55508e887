"""Hostile media against a real server: each a clear 400 or an answer, and afterwards everything is as it was."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import os
import time
import urllib.error
import urllib.request

import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess
from hostile import hostile
from samples import png

COUNT = int(os.environ.get("SOAK_MEDIA", "150"))  # 2,000 in `tox -e soak`


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """What it starts but its own Python would leave a trace."""
    traps = tmp_path_factory.mktemp("traps")
    for name in ("ffmpeg", "ffprobe", "gs", "convert", "gdb"):
        (traps / name).write_text(f"#!/bin/sh\necho $0 >> {traps}/started\n")
        (traps / name).chmod(0o755)
    path = f"{traps}:{os.environ['PATH']}"
    server = ServerProcess(["--port", "0", "--fake"], environ={"PATH": path})
    server.traps = traps
    yield wait_until_ready(server)
    server.end()


def post(server, path, body):
    head = {"content-type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(server.url + path, json.dumps(body).encode(), head), timeout=60
        ) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def bodies(number, data):
    """The same bytes through another door each time."""
    text = base64.b64encode(data).decode()
    return (
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}],
                    }
                ],
                "max_tokens": 1,
            },
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "input_audio", "input_audio": {"data": text, "format": "wav"}}],
                    }
                ],
                "max_tokens": 1,
            },
        ),
        (
            "/v1/messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": text}}
                        ],
                    }
                ],
                "max_tokens": 1,
            },
        ),
        (
            "/api/chat",
            {
                "model": "fake",
                "messages": [{"role": "user", "content": "x", "images": [text]}],
                "stream": False,
                "options": {"num_predict": 1},
            },
        ),
        (
            "/v1/chat/completions/input_tokens",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{text}"}}],
                    }
                ]
            },
        ),
    )[number % 5]


def memory(pid):
    """Bytes that the worker and what it started hold."""
    pids, total = [pid], 0
    while pids:
        pid = pids.pop()
        try:
            total += int(open(f"/proc/{pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            pids += map(int, open(f"/proc/{pid}/task/{pid}/children").read().split())
        except OSError:
            pass
    return total


@pytest.mark.timeout(900)
def test_hostile_media_cost_a_400_each_and_nothing_else(server):
    good = bodies(0, png(64, 64))
    assert post(server, *good)[0] == 200
    before = memory(server.process.pid)
    seen = {}

    def send(numbered):
        number, data = numbered
        status, body = post(server, *bodies(number, data))
        return number, data, status, body

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for number, data, status, body in pool.map(send, enumerate(hostile(COUNT))):
            assert status in (200, 400), (number, data[:40], status, body)
            if status == 400:
                error = body["error"]
                message = error if isinstance(error, str) else error["message"]
                assert len(message) > 10 and "Traceback" not in message
            seen[status] = seen.get(status, 0) + 1
    assert seen[400] > COUNT / 4
    assert not (server.traps / "started").exists()
    assert post(server, *good)[0] == 200
    end = time.monotonic() + 20
    while memory(server.process.pid) > before + (256 << 20) and time.monotonic() < end:
        time.sleep(0.2)
    assert memory(server.process.pid) <= before + (256 << 20)
