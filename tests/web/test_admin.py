"""/admin: for operators only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llamasrv.domain.key import Key
from llamasrv.errors import ConfigError
from llamasrv.pipeline.run import RunState
from llamasrv.store import StoreError
from llamasrv.web.ops.recent import RecentRequests
from llamasrv.web.ops.request_log import RequestLog
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


def test_a_slow_request_tells_who_asked_and_what_the_engine_did_when_it_took_it(running):
    agent = {"User-Agent": "OpenAI/Python 1.2.3 (something else)"}
    running.client.post("/v1/chat/completions", json=HELLO, headers=ANN | agent)
    [slow] = get(running, "requests")["slow"]
    assert slow["client"] == "OpenAI/Python" and "loading" not in slow
    assert slow["waiting"] == 0 and 0 <= slow["held"] <= 1 and slow["running"] >= 0
    assert 0 <= slow["start"] <= slow["seconds"]


@pytest.mark.parametrize("agent", ["", "<script>", "my secret words", "a" * 40, "x/" + "1" * 20])
def test_what_is_no_name_of_a_program_is_not_shown(running, agent):
    running.client.post("/v1/chat/completions", json=HELLO, headers=ANN | {"User-Agent": agent})
    assert get(running, "requests")["slow"][0].get("client") in (None, "my")


@pytest.mark.parametrize("state, ended", [(RunState.RUNNING, "stop"), (RunState.LOADING, "cancel")])
def test_an_open_request_is_shown_and_an_admin_can_end_it(running, state, ended):
    """One whose model still loads has nothing to keep: its client gets an error."""
    done = []
    run = SimpleNamespace(
        state=state,
        has_begun=state is RunState.RUNNING,
        stop=lambda: done.append("stop"),
        cancel=lambda error: done.append("cancel"),
    )
    record = RequestLog({"HTTP_X_REQUEST_ID": "mine", "HTTP_USER_AGENT": "curl/8.5.0"}, running.service.stats)
    record.owner, record.route = "ann", "/v1/chat/completions"
    record.note_run(run)
    [shown] = get(running, "requests")["open"]
    assert (shown["id"], shown["key"], shown["state"], shown["client"]) == ("mine", "ann", state.value, "curl/8.5.0")
    path = "/admin/requests/mine/cancel"
    assert running.client.post(path, headers=ANN).status_code == 403
    assert running.client.post(path, headers=ROOT).get_json() == {"id": "mine", "cancelled": 1}
    assert done == [ended]
    record.close(200)
    assert get(running, "requests")["open"] == []
    assert running.client.post(path, headers=ROOT).status_code == 404


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
