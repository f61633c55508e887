"""Routes that clients of vLLM, LM Studio and Ollama ask beside the shared protocols."""

from __future__ import annotations

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
