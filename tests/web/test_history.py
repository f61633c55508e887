"""The last hour of figures, for the live view."""

from __future__ import annotations

from llamasrv.web.ops.history import FigureHistory


def test_samples_are_bounded_and_count_since_the_start(running):
    history = FigureHistory(running.service.registry, most=2)
    history.sample()
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}
    assert running.client.post("/v1/chat/completions", json=body).status_code == 200
    for _ in range(2):
        history.sample()
    before, after = history.samples
    assert before["t"] <= after["t"] and after["models"]["fake"]["totals"]["generated"] >= 5
    assert after["models"]["fake"]["running"] == 0


def test_the_page_gets_them(running):
    running.service.history.sample()
    assert running.client.get("/ui/engine/history").get_json()[-1]["models"]["fake"]["num_waiting"] == 0
