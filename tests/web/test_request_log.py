"""One line for each request, without its content; slow ones are warnings."""

from __future__ import annotations

import logging

import pytest

from llamasrv.web.service import WebOptions

SECRET = "nobody may read this"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="llamasrv.request")
    logging.getLogger("llamasrv").propagate = True
    return lambda: [(r.levelname, r.getMessage(), r.fields) for r in caplog.records if r.name == "llamasrv.request"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_has_numbers_and_no_words(client, lines, stream):
    body = {"messages": [{"role": "user", "content": SECRET}], "stream": stream}
    with client.post("/v1/chat/completions", json=body) as response:
        assert response.get_data()
    ((level, message, fields),) = lines()
    assert (level, message) == ("INFO", "request")
    assert fields["route"] == "/v1/chat/completions" and fields["status"] == 200 and fields["finish"] == "stop"
    assert fields["completion"] == len("You said: ") + len(SECRET) + 1
    assert {"id", "seconds", "model", "prompt", "cached", "queue", "prefill", "decode"} <= set(fields)
    assert SECRET not in str(fields)


def test_an_error_is_there_with_its_code(client, lines):
    client.post("/v1/completions", data=b"{")
    assert lines()[0][2]["error"] == "invalid_json"


def test_a_slow_request_is_a_warning(start, lines):
    client = start(web=WebOptions(slow_seconds=0.000001)).client
    client.get("/livez")
    assert lines()[0][:2] == ("WARNING", "slow request")


def test_open_requests_are_counted_until_they_end(start):
    running = start()
    stream = running.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True})
    assert running.service.stats.num_open in (0, 1)
    stream.get_data()
    stream.close()
    assert running.service.stats.num_open == 0
