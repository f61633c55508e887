"""A predicted answer over HTTP: the same text, with counts of what was right."""

from __future__ import annotations

TEXT = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def ask(client, **more):
    body = {"messages": [{"role": "user", "content": TEXT}], **more}
    return client.post("/v1/chat/completions", json=body).get_json()


def test_what_was_predicted_is_accepted_and_the_rest_is_not(client):
    predicted = f"You said: {TEXT.replace('seven', 'SEVEN')}"
    plain = ask(client)
    reply = ask(client, prediction={"type": "content", "content": predicted})
    assert reply["choices"][0]["message"] == plain["choices"][0]["message"]
    assert reply["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    details = reply["usage"]["completion_tokens_details"]
    counts = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
    assert counts[0] > 0  # how many depends on what steps take here
    assert reply["timings"]["draft_n_accepted"] >= counts[0]
    assert reply["timings"]["draft_n"] >= sum(counts)


def test_metrics_count_drafts_by_source(client):
    ask(client, prediction={"type": "content", "content": f"You said: {TEXT}"})
    text = client.get("/metrics").get_data(as_text=True)
    assert 'llamasrv_drafted_tokens_total{model="fake",source="prediction"}' in text
    assert 'llamasrv_accepted_tokens_total{model="fake",source="prediction"}' in text
