"""Pulling over HTTP: by a child process, from a Hub that imitates the real one."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest
from serving import RunningService, wait_until

from llamasrv.web.service import WebOptions

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).parents[1] / "models" / "hub.py")
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)

MODEL = b"GGUF" + random.Random(1).randbytes(3 * 2**20)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub.running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        server.files["o/r"] = {"m-Q8_0.gguf": MODEL}
        yield server


@pytest.fixture
def service(tmp_path):
    running = RunningService(web=WebOptions(manage=True, folder=tmp_path / "models", keepalive=0.2))
    running.refreshed = []
    running.service.refresh = lambda: running.refreshed.append(True)
    yield running
    for pull in running.service.pulls:
        running.service.pulls.cancel(pull.name)
        wait_until(lambda pull=pull: pull.done)
    running.close()


def events(service, *, until):
    """The events of GET /models/sse up to the first of that name."""
    found = []
    with service.client.get("/models/sse") as reply:
        for chunk in reply.iter_encoded():
            if chunk.startswith(b"data: "):
                found.append(json.loads(chunk[6:]))
                if found[-1]["event"] == until:
                    return found
    raise AssertionError(found)


def test_a_pull_is_reported_from_its_beginning_to_its_end(hub, service, tmp_path):
    hub.hold_after = 2**20 + 5
    reply = service.client.post("/models", json={"model": "o/r:Q8_0"})
    assert reply.status_code == 200 and reply.get_json() == {"success": True}
    begun = events(service, until="download_progress")
    assert {"model": "fake", "event": "model_status", "data": {"status": "loaded"}} in begun
    hub.go_on.set()
    found = [e for e in events(service, until="download_finished") if e["model"] == "o/r:Q8_0"]
    assert found[-1]["data"] == {}
    assert (tmp_path / "models/o/r/m-Q8_0.gguf").read_bytes() == MODEL
    assert service.refreshed == [True]


def test_the_events_end_when_the_server_does(service):
    stream = service.client.get("/models/sse").iter_encoded()
    assert b"model_status" in next(stream)
    service.engine.drain()
    assert b"model_status" not in b"".join(stream)


def test_a_pull_that_fails_says_why(hub, service):
    service.client.post("/models", json={"model": "o/nothing"})
    wait_until(lambda: all(pull.done for pull in service.service.pulls))
    (pull,) = service.service.pulls
    assert "no such repository" in pull.error.message and pull.error.status == 404 and not service.refreshed


def test_unloading_what_is_being_pulled_gives_up_and_the_next_goes_on(hub, service, tmp_path):
    hub.hold_after = 2**20 + 5
    service.client.post("/models", json={"model": "o/r"})
    (pull,) = service.service.pulls
    wait_until(lambda: any(p.completed for p in pull.history))
    assert service.client.post("/models/unload", json={"model": "hf:o/r"}).get_json() == {"success": True}
    wait_until(lambda: pull.done)
    assert pull.error and not (tmp_path / "models/o").exists()
    hub.hold_after = None
    hub.go_on.set()
    service.client.post("/models", json={"model": "o/r"})
    wait_until(lambda: all(pull.done for pull in service.service.pulls))
    assert (tmp_path / "models/o/r/m-Q8_0.gguf").read_bytes() == MODEL and hub.ranges[-1][1] >= 2**20


def test_asking_twice_is_one_pull(hub, service):
    hub.hold_after = 5
    for name in ("o/r", "hf:o/r", "hf.co/o/r"):
        assert service.client.post("/models", json={"model": name}).status_code == 200
    assert len(list(service.service.pulls)) == 1
    hub.go_on.set()
    wait_until(lambda: all(pull.done for pull in service.service.pulls))


def test_no_more_than_two_at_once(hub, service):
    hub.hold_after = 5
    for name in "abc":
        hub.files[f"o/{name}"] = hub.files["o/r"]
    replies = [service.client.post("/models", json={"model": f"o/{name}"}) for name in "abc"]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    hub.go_on.set()
    wait_until(lambda: all(pull.done for pull in service.service.pulls))


def test_what_is_no_repository_is_refused(hub, service):
    for name in ("../etc/passwd", "a model", "--help"):
        reply = service.client.post("/models", json={"model": name})
        assert reply.status_code == 400 and reply.get_json()["error"]["param"] == "model"


def test_it_is_off_unless_the_operator_allows_it(hub, tmp_path):
    running = RunningService(web=WebOptions(folder=tmp_path))
    assert running.client.post("/models", json={"model": "o/r"}).status_code == 403
    running.close()


def test_followers_read_all_of_it_however_late_they_come(hub, service):
    pull = service.service.pulls.start("o/r")
    early = [p.status for p in pull.follow(0.1) if p is not None]
    late = [p.status for p in pull.follow()]
    for statuses in (early, late):
        assert statuses[0] == "pulling manifest" and statuses[-1] == "success" and "pulling" in statuses


def test_a_pull_that_is_running_is_joined_and_goes_on_until_it_is_cancelled(hub, service):
    hub.hold_after = 5
    pulls = service.service.pulls
    first, second = pulls.start("o/r"), pulls.start("o/r")
    assert first is second and not first.done
    assert pulls.cancel("o/r")
    wait_until(lambda: first.done)
    assert first.error
