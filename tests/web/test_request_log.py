"""One line for each request, without its content; slow ones are warnings."""

from __future__ import annotations

import logging

import pytest

from llamasrv.web.service import WebOptions

SECRET = "nobody may read this"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG, logger="llamasrv.request")
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


def test_a_route_that_does_not_exist_is_there_with_method_and_path(client, lines):
    """It said route=unknown, and what a client wanted took a debug log to see."""
    client.put("/v1/nope?secret=" + SECRET)
    fields = lines()[0][2]
    assert (fields["route"], fields["method"], fields["path"]) == ("unknown", "PUT", "/v1/nope")


def test_steps_of_a_path_that_are_no_names_of_routes_are_left_out(client, lines):
    client.get("/v1/nobody/may-read-this-in-any-log-at-all/nobody%20may/x")
    client.get("/x" * 500)
    assert [fields["path"] for _, _, fields in lines()] == ["/v1/nobody/.../.../x", "/x" * 8]


def test_a_route_that_exists_needs_no_path(client, lines):
    client.get("/v1/models")
    assert "path" not in lines()[0][2] and "field" not in lines()[0][2]


@pytest.mark.parametrize(
    "body, field",
    [
        ({"messages": [], "temperature": "hot"}, "temperature"),
        ({"messages": [{"role": "robot"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x"}], "metadata": {SECRET: 1}}, None),
        ({"input": "x", "metadata": {SECRET: 1}}, "metadata"),
    ],
)
def test_a_value_that_is_wrong_is_there_with_its_field(client, lines, body, field):
    path = "/v1/responses" if "input" in body else "/v1/chat/completions"
    client.post(path, json=body)
    assert lines()[0][2].get("field") == field
    assert SECRET not in str(lines()[0][2])


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/v1/health", "/metrics", "/ui/static/0/style.css"])
def test_polls_and_parts_of_pages_have_a_line_at_debug(client, lines, path):
    """They filled the log: a probe a second, and twenty files for each page."""
    assert client.get(path).status_code == 200
    assert lines()[0][0] == "DEBUG"


def test_a_poll_that_fails_has_a_line_like_all_others(client, lines):
    assert client.get("/ui/static/0/nothing").status_code == 404
    assert lines()[0][0] == "INFO"


def test_a_slow_request_is_a_warning(start, lines):
    client = start(web=WebOptions(slow_seconds=0.000001)).client
    client.get("/livez")
    assert lines()[0][:2] == ("WARNING", "slow request")


def test_open_requests_are_counted_until_they_end(start):
    running = start()
    stream = running.client.post(
        "/v1/completions", json={"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
    )
    assert running.service.stats.num_open in (0, 1)
    stream.get_data()
    stream.close()
    assert running.service.stats.num_open == 0
