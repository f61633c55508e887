"""GET /v1/models: the shape of the list and of one entry."""

from __future__ import annotations

import json

from llamasrv.protocols.openai.models import ModelCard, model_body, model_list


def test_a_list_has_all_models():
    reply = json.loads(model_list([ModelCard("a", 5), ModelCard("b", 6)]))
    assert reply["object"] == "list"
    assert [entry["id"] for entry in reply["data"]] == ["a", "b"]
    assert (reply["first_id"], reply["last_id"], reply["has_more"]) == ("a", "b", False)


def test_an_entry_has_what_clients_need():
    entry = json.loads(model_body(ModelCard("org/m:t", 5, ("x",), 4096, {"n_params": 7})))
    assert entry == {
        "id": "org/m:t",
        "object": "model",
        "created": 5,
        "owned_by": "llamasrv",
        "aliases": ["x"],
        "tags": [],
        "type": "model",
        "display_name": "org/m:t",
        "lifecycle": "active",
        "created_at": "1970-01-01T00:00:05Z",
        "max_model_len": 4096,
        "context_length": 4096,
        "max_input_tokens": 4096,
        "meta": {"n_params": 7},
    }


def test_a_model_that_loads_has_no_figures_yet():
    assert not {"max_model_len", "meta"} & set(json.loads(model_body(ModelCard("a", 5))))


def test_a_router_tells_where_a_model_is_from_and_whether_it_may_be_deleted():
    entries = [
        json.loads(model_body(ModelCard("a", 5, status={"value": "unloaded"}, is_found=found)))
        for found in (True, False)
    ]
    assert [(one["source"], one["can_remove"]) for one in entries] == [("models_dir", True), ("preset", False)]


def test_the_short_list_has_the_texts_that_llama_servers_has():
    (brief,) = json.loads(model_list([ModelCard("a", 5, capabilities=("completion", "vision"))]))["models"]
    assert brief["details"]["format"] == "gguf" and brief["capabilities"] == ["completion", "multimodal"]
    assert {"modified_at", "size", "digest", "description", "parameters"} <= {*brief}


def test_what_a_model_can_do_is_reported_where_no_client_stumbles_over_it():
    entry = json.loads(model_body(ModelCard("a", 5, capabilities=("completion", "tools"))))
    assert entry["meta"] == {"capabilities": ["completion", "tools"]} and "capabilities" not in entry
