"""What every route shares: ids, errors that are never HTML, bodies within bounds."""

from __future__ import annotations

import io
import json
import logging
import time

import pytest

from llamasrv.domain.key import Key
from llamasrv.protocols.limits import Limits
from llamasrv.web.service import WebOptions

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


def error(response):
    assert response.headers["Content-Type"] == "application/json"
    told = response.get_json()["error"]
    assert set(told) == {"message", "type", "param", "code"}
    return told


# ---------------------------------------------------------------- routes


@pytest.mark.parametrize(
    "path",
    ["/nope", "/v1", "//metrics", "/metrics/", "/V1/models", "/v1/fine_tuning/jobs",
     "/\0", "/%00", "/v1/../v1/models", "/\xff"],
)  # fmt: skip
def test_an_unknown_path_is_404_in_json(client, path):
    response = client.get("/", environ_overrides={"PATH_INFO": path})
    assert response.status_code == 404
    assert error(response)["code"] in ("unknown_url", "model_not_found")


def test_routes_are_found_under_a_prefix(start):
    """And without it: a proxy may have cut it off. Keys and scopes are asked for as ever."""
    key = Key.of("ann", "secret", ("infer",))
    client = start(web=WebOptions(prefix="/llm", keys=(key,))).client
    ann = {"Authorization": "Bearer secret"}
    assert client.get("/llm/health").status_code == client.get("/health").status_code == 200
    for path in ("/llm" + CHAT, CHAT):
        assert client.post(path, json=HELLO).status_code == 401
        assert client.post(path, json=HELLO, headers=ann).status_code == 200
    assert client.get("/llm/metrics", headers=ann).status_code == 403
    assert client.post("/llmx" + CHAT, json=HELLO, headers=ann).status_code in (403, 404)


def test_a_path_gets_the_route_that_flask_would_find(start):
    app = start().app
    matcher = app.url_map.bind("")
    for (method, path), found in app.routes.plain.items():
        assert app.routes.find(method, path) is found
        assert matcher.match(path, method, return_rule=True) == (found.rule, {})
    for method, path in (("GET", "/v1/responses/resp_1"), ("POST", "/v1beta/models/a/b:generateContent")):
        found = app.routes.find(method, path)
        assert matcher.match(path, method, return_rule=True) == (found.rule, found.arguments)
        assert found.arguments


def test_no_function_that_makes_urls_is_compiled(client):
    """werkzeug compiled two for each route, two thirds of making the application. Fails where it calls them otherwise."""
    with pytest.raises(NotImplementedError, match="/livez"):
        client.application.url_map.bind("").build("ops.livez")


def test_head_gets_the_head_of_an_answer_alone(client):
    response, head = client.get("/v1/models"), client.head("/v1/models")
    assert head.status_code == 200 and head.data == b""
    assert head.headers["Content-Length"] == str(len(response.data))


def test_a_wrong_method_is_405_and_names_the_right_ones(client):
    response = client.delete(CHAT)
    assert response.status_code == 405
    assert error(response)["code"] == "method_not_allowed"
    assert error(response)["message"] == f"Method not allowed: DELETE {CHAT}. Allowed here: POST."
    assert "POST" in response.headers["Allow"]


def test_a_head_is_a_get_without_a_body(client):
    response = client.head("/v1/models")
    assert (response.status_code, response.data) == (200, b"")


def test_our_own_mistake_is_reported_by_its_id_only(start, caplog):
    running = start()
    running.service.pipeline.submit = lambda request, **options: 1 / 0
    response = running.client.post(CHAT, json=HELLO)
    told = error(response)
    assert response.status_code == 500
    assert "division" not in told["message"] and response.headers["x-request-id"] in told["message"]
    assert "ZeroDivisionError" in caplog.text


def test_our_own_mistake_while_streaming_is_an_event(start, monkeypatch, caplog):
    running = start()
    from llamasrv.protocols.openai.chat import ChatReply

    monkeypatch.setattr(ChatReply, "chunks", lambda self, events: 1 / 0)
    text = running.client.post(CHAT, json={**HELLO, "stream": True}).get_data(as_text=True)
    first, done, _ = text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == "internal_error"
    assert done == "data: [DONE]"
    assert "ZeroDivisionError" in caplog.text


# ---------------------------------------------------------------- ids and the log


@pytest.mark.parametrize("path", ["/livez", "/nope", "/v1/models"])
def test_every_reply_has_an_id(client, path):
    first, second = (client.get(path).headers["x-request-id"] for _ in range(2))
    assert first.startswith("req-") and first != second


def test_a_stream_has_an_id(client):
    with client.post(CHAT, json={**HELLO, "stream": True}) as response:
        assert response.headers["x-request-id"]


@pytest.mark.parametrize("header", ["X-Request-Id", "X-Client-Request-Id"])
def test_an_id_of_the_client_is_kept(client, header):
    assert client.get("/livez", headers={header: "a.B-9_"}).headers["x-request-id"] == "a.B-9_"


@pytest.mark.parametrize("bad", ["a b", "a\tb", "é", "x" * 129, "", "<script>"])
def test_an_id_that_could_forge_a_log_line_is_replaced(client, bad):
    environ = {"HTTP_X_REQUEST_ID": bad}
    assert client.get("/livez", environ_overrides=environ).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_without_content(client, caplog, stream):
    caplog.set_level(logging.INFO, "llamasrv.request")
    body = {"messages": [{"role": "user", "content": "a secret"}], "stream": stream}
    with client.post(CHAT, json=body, headers={"X-Request-Id": "mine"}) as response:
        assert response.get_data()
    (line,) = (record for record in caplog.records if record.name == "llamasrv.request")
    fields = line.fields
    assert (fields["id"], fields["route"], fields["status"], fields["model"]) == ("mine", CHAT, 200, "fake")
    assert (fields["finish"], fields["prompt"], fields["completion"]) == ("stop", 27, 19)
    assert "secret" not in str(line.__dict__)


def test_a_refusal_is_one_line(client, caplog):
    caplog.set_level(logging.INFO, "llamasrv.request")
    client.get("/nope/with/a/secret")
    (line,) = (record for record in caplog.records if record.name == "llamasrv.request")
    assert (line.fields["route"], line.fields["status"]) == ("unknown", 404)


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "text/plain",
        "application/vnd.api+json",
        "application/octet-stream",
    ],
)
def test_json_is_read_whatever_curl_calls_it(client, kind):
    assert client.post(CHAT, data=json.dumps(HELLO), content_type=kind).status_code == 200


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/xml"])
def test_other_types_are_415(client, kind):
    response = client.post(CHAT, data=json.dumps(HELLO), content_type=kind)
    assert response.status_code == 415 and error(response)


@pytest.mark.parametrize(
    "body, param",
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b'"x"', None),
        (b"null", None),
        (b"{}{}", None),
        (b'{"messages": [}', "messages"),
        (b"{'messages': []}", None),
        (b'{"temperature": NaN}', "temperature"),
        (b'{"model": "m", "temperature":Infinity}', "temperature"),
        (b'{"temperature": -Infinity}', "temperature"),
        (b'{"max_tokens": 1e999}', "max_tokens"),
        (b'{"max_tokens": ' + b"9" * 10_000 + b"}", "max_tokens"),
        (b'{"prompt": [1, 2, NaN]}', "prompt"),
        (b'{"prompt": "\\ud800"}', "prompt"),
        (b'{"prompt": "\x01"}', "prompt"),
        (b'{"messages": 01}', "messages"),
        (b'{"a": tru}', "a"),
        (b"\xef\xbb\xbf{}", None),
        ('{"messages": []}'.encode("utf-16"), None),
        (b'{"prompt": "\xff"}', None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
    ],
)
def test_what_is_not_json_is_400_and_says_where(client, body, param):
    started = time.process_time()
    response = client.post("/v1/completions", data=body)
    assert time.process_time() - started < 0.5
    assert response.status_code == 400
    told = error(response)
    assert (told["param"], told["code"]) == (param, "invalid_json")


def test_invalid_utf8_is_reported_with_its_byte(client):
    assert "byte 12 is invalid" in error(client.post(CHAT, data=b'{"prompt": "\xff"}'))["message"]


def test_json_may_be_as_deep_as_allowed_and_no_deeper(start):
    running = start(web=WebOptions(limits=Limits(json_depth=6)))

    def nested(levels):
        inner = "[" * levels + "]" * levels
        return running.client.post("/v1/completions", data=f'{{"prompt":"a","max_tokens":1,"x":{inner}}}')

    assert nested(5).status_code == 200
    assert nested(6).status_code == 400


def test_many_messages_are_not_deep(client):
    body = {"messages": [{"role": "user", "content": ""}] * 60, "max_tokens": 1}
    assert client.post(CHAT, json=body).status_code == 200


def test_of_a_repeated_key_the_last_counts(client):
    response = client.post("/v1/completions", data=b'{"prompt":"x","max_tokens":"?","max_tokens":1}')
    assert response.status_code == 200


def test_nul_in_a_string_is_text(client):
    response = client.post("/v1/completions", json={"prompt": "a\0b", "echo": True, "max_tokens": 1})
    assert response.get_json()["choices"][0]["text"] == "a\0b "


class Endless(io.RawIOBase):
    """A body that never ends; counts what was read of it."""

    def __init__(self):
        self.given = 0

    def readable(self):
        return True

    def read(self, size=-1):
        self.given += size
        return b" " * size


def test_a_body_that_declares_itself_too_large_is_not_read(start):
    running = start(web=WebOptions(limits=Limits(body_bytes=1000)))
    endless = Endless()
    response = running.client.post(CHAT, environ_overrides={"CONTENT_LENGTH": "1001", "wsgi.input": endless})
    assert response.status_code == 413
    assert error(response)["code"] == "request_too_large"
    assert endless.given == 0


def test_a_chunked_body_is_read_up_to_the_limit(start):
    running = start(web=WebOptions(limits=Limits(body_bytes=100_000)))
    endless = Endless()
    response = running.client.post(
        CHAT, environ_overrides={"CONTENT_LENGTH": "", "wsgi.input_terminated": True, "wsgi.input": endless}
    )
    assert response.status_code == 413
    assert endless.given == 100_001


def test_a_chunked_body_is_read(client):
    body = io.BytesIO(json.dumps(HELLO).encode())
    response = client.post(
        CHAT, environ_overrides={"CONTENT_LENGTH": "", "wsgi.input_terminated": True, "wsgi.input": body}
    )
    assert response.status_code == 200


def test_a_body_that_breaks_off_is_400(client):
    body = io.BytesIO(b'{"messages"')
    response = client.post(CHAT, environ_overrides={"CONTENT_LENGTH": "500", "wsgi.input": body})
    assert response.status_code == 400 and "after 11 of 500 bytes" in error(response)["message"]


@pytest.mark.parametrize("failure, status", [(TimeoutError, 408), (ConnectionResetError, 400), (ValueError, 400)])
def test_a_body_that_cannot_be_read_is_the_clients_fault(client, failure, status):
    class Broken(Endless):
        def read(self, size=-1):
            raise failure

    response = client.post(CHAT, environ_overrides={"CONTENT_LENGTH": "5", "wsgi.input": Broken()})
    assert response.status_code == status and error(response)


@pytest.mark.parametrize("length", ["-5", "abc", "1e3", "²"])
def test_a_length_that_is_no_number_is_400(client, length):
    response = client.post(CHAT, environ_overrides={"CONTENT_LENGTH": length})
    assert response.status_code == 400


# ---------------------------------------------------------------- what Flask is spared


def test_no_blueprint_registers_what_the_application_does_not_call(client):
    """`Application` neither calls functions for the end of a request nor those that change a response."""
    app = client.application
    assert not (app.after_request_funcs or app.teardown_request_funcs)
