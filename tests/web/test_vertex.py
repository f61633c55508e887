"""Vertex AI's prediction route."""

from __future__ import annotations

import pytest

from llamasrv.web.service import WebOptions

CHAT = {"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


@pytest.fixture
def predict(start):
    client = start(
        web=WebOptions(predict=True, paths={"/v1/endpoints/1:predict": "/predict", "/alive": "/health"})
    ).client

    def predict(*instances, path="/predict"):
        return client.post(path, json={"instances": list(instances)})

    predict.client = client
    return predict


def test_each_instance_is_answered_by_its_endpoint(predict):
    embed = {"@requestFormat": "/v1/embeddings", "input": "x"}
    native = {"@requestFormat": "completion", "prompt": "x", "n_predict": 3, "temperature": 0}
    reply = predict(CHAT, native, {**CHAT, "stream": True}, embed)
    first, second, third, fourth = reply.get_json()["predictions"]
    assert first["choices"][0]["message"]["content"] == "You said: Hello" == third["choices"][0]["message"]["content"]
    assert second["tokens_predicted"] == 3
    assert "error" in fourth or fourth["object"] == "list"


def test_one_that_is_wrong_spoils_no_other(predict):
    wrong = [
        "x",
        {},
        {"@requestFormat": "slots"},
        {"@requestFormat": "chatCompletions"},
        {**CHAT, "temperature": "hot"},
    ]
    told = predict(*wrong, CHAT).get_json()["predictions"]
    assert all(one["error"]["code"] == 400 and one["error"]["type"] == "invalid_request_error" for one in told[:-1])
    assert "expected one of chatCompletions, completions" in told[2]["error"]["message"]
    assert told[-1]["choices"]


@pytest.mark.parametrize("body", [{}, {"instances": {}}, {"instances": [CHAT] * 129}])
def test_a_body_that_is_wrong_is_refused_whole(predict, body):
    reply = predict.client.post("/predict", json=body)
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == "instances"


def test_the_paths_are_the_operators(predict):
    assert predict(CHAT, path="/v1/endpoints/1:predict").status_code == 200
    assert predict.client.get("/alive").get_json() == {"status": "ok"}


def test_tokens_of_all_instances_are_counted(start):
    running = start(web=WebOptions(predict=True))
    lines = []
    running.service.stats.on_close = lambda record, status: lines.append((status, record.usage))
    told = running.client.post("/predict", json={"instances": [CHAT, CHAT]}).get_json()["predictions"]
    ((status, usage),) = lines
    assert status == 200
    assert usage.completion_tokens == sum(one["usage"]["completion_tokens"] for one in told) > 0


def test_it_is_there_only_where_it_was_asked_for(client):
    reply = client.post("/predict", json={"instances": [CHAT]})
    assert reply.status_code == 404 and "--predict-route" in reply.get_json()["error"]["message"]
