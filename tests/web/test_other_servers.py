"""Routes that clients of vLLM, LM Studio and Ollama ask beside the shared protocols."""

from __future__ import annotations

from serving import wait_until

from llamasrv import __version__


def test_vllms_clients_ask_for_the_version(client):
    assert client.get("/version").get_json() == {"version": __version__}


def test_ollamas_clients_learn_that_nothing_runs_elsewhere(client):
    assert client.get("/api/status").get_json() == {"cloud": {"disabled": True, "source": "config"}}


def test_lm_studios_clients_list_the_models(client):
    (one,) = client.get("/api/v0/models").get_json()["data"]
    assert (one["id"], one["object"], one["type"], one["state"]) == ("fake", "model", "llm", "loaded")
    assert one["compatibility_type"] == "gguf" and one["loaded_context_length"] <= one["max_context_length"]
    assert client.get("/api/v0/models/fake").get_json() == one


def test_an_unknown_model_names_those_that_are_served(client):
    reply = client.get("/api/v0/models/nothing")
    assert reply.status_code == 404 and "Served here: fake" in str(reply.get_json())


def test_sglangs_clients_open_and_close_a_session(start):
    running = start()
    client, headers = running.client, {"x-session-id": "mine"}
    assert client.post("/open_session", json={"capacity_of_str_len": 1000, "session_id": "mine"}).get_json() == "mine"
    made = client.post("/open_session", json={"capacity_of_str_len": 1000}).get_json()
    assert type(made) is str and len(made) == 32
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    body = {"messages": [{"role": "user", "content": "Look. " * 20}], "tools": [tool], "tool_choice": "required"}
    assert client.post("/v1/chat/completions", json={**body, "max_tokens": 60}, headers=headers).status_code == 200
    wait_until(lambda: running.engine.snapshot()["num_sessions"] == 1)
    assert client.post("/close_session", json={}).status_code == 400
    assert client.post("/close_session", json={"session_id": "mine"}).status_code == 200
    wait_until(lambda: running.engine.snapshot()["num_sessions"] == 0)
