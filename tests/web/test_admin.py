"""/admin: for operators only."""

from __future__ import annotations

import pytest

from llamasrv.domain.key import Key
from llamasrv.errors import ConfigError
from llamasrv.store import StoreError
from llamasrv.web.ops.recent import RecentRequests
from llamasrv.web.service import WebOptions

HELLO = {"messages": [{"role": "user", "content": "my secret words"}], "max_tokens": 5}
ROOT = {"Authorization": "Bearer secret-root"}
ANN = {"Authorization": "Bearer secret-ann"}


@pytest.fixture
def running(start):
    keys = (Key.of("ann", "secret-ann", ("infer", "metrics")), Key.of("root", "secret-root"))
    return start(web=WebOptions(keys=keys, slow_seconds=0.0))


def get(running, what, headers=ROOT):
    reply = running.client.get(f"/admin/{what}", headers=headers)
    assert reply.status_code == 200, reply.get_data()
    return reply.get_json()


@pytest.mark.parametrize("what", ["state", "requests", "configuration"])
def test_only_an_admin_may_look(running, what):
    assert running.client.get(f"/admin/{what}").status_code == 401
    assert running.client.get(f"/admin/{what}", headers=ANN).status_code == 403
    assert running.client.get(f"/admin/{what}", headers=ROOT).status_code == 200


def test_failed_and_slow_requests_are_reported_with_their_reason_and_without_their_words(running):
    chat = "/v1/chat/completions"
    running.client.post(chat, json={**HELLO, "temperature": 99}, headers=ANN)
    running.client.post(chat, json=HELLO, headers=ANN)
    told = get(running, "requests")
    [failed] = told["failed"]
    assert (failed["route"], failed["status"], failed["field"], failed["key"]) == (chat, 400, "temperature", "ann")
    [slow] = told["slow"]
    assert slow["model"] == "fake" and slow["completion"] == 5 and {"queue", "prefill", "decode"} <= slow.keys()
    assert "secret" not in str(told)


def test_the_rings_are_bounded_and_errors_leave_the_slow_ones_alone():
    recent = RecentRequests(3)
    recent.note(0.0, {"status": 200}, is_slow=True)
    recent.note(0.0, {"status": 200}, is_slow=False)
    for number in range(10):
        recent.note(float(number), {"status": 500}, is_slow=True)
    recent.note(10.0, {"status": 200, "error": "timeout"}, is_slow=False)
    assert [one["time"] for one in recent.failed] == [8.0, 9.0, 10.0] and len(recent.slow) == 1


def test_the_state_tells_models_and_stores(running):
    state = get(running, "state")
    [model] = state["models"]
    assert state["state"] == "ready" and (model["name"], model["state"], model["error"]) == ("fake", "loaded", None)
    assert [(store["name"], store["kept"], store["error"]) for store in state["stores"]] == [
        ("responses", True, None),
        ("files", False, None),
    ]


def test_a_store_that_does_not_work_is_reported(running, monkeypatch):
    def fail(*days):
        raise StoreError("The store does not respond.")

    monkeypatch.setattr(running.service.usage, "between", fail)
    assert get(running, "state")["stores"][0]["error"] == "The store does not respond."


def test_a_reload_is_for_admins_and_tells_why_a_configuration_is_invalid(running, monkeypatch):
    def refuse():
        raise ConfigError("llamasrv.toml: server.port = 'x': must be a whole number")

    told = []
    monkeypatch.setattr(running.service, "tell_master", lambda: told.append("changed"))
    assert running.client.post("/admin/reload", headers=ANN).status_code == 403
    assert running.client.post("/admin/reload", headers=ROOT).get_json() == {"models": ["fake"]}
    assert told == ["changed"]
    monkeypatch.setattr(running.service, "reload", refuse)
    reply = running.client.post("/admin/reload", headers=ROOT)
    assert reply.status_code == 400 and "server.port = 'x'" in reply.get_json()["error"]["message"]
    assert told == ["changed"]
