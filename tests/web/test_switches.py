"""Switches of the query and of headers that do what another route does: they ask for that one's scope."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest
from models.farm import Farm
from serving import wait_until

import llamasrv.web
from llamasrv.domain.key import SCOPES, Key
from llamasrv.web.app import create_app
from llamasrv.web.service import Service, WebOptions

WEB = Path(llamasrv.web.__file__).parent

QUERY = {
    # what they do takes a scope of its own, on routes that need another one or none
    "autoload": "admin where models are not loaded on demand", "reload": "admin", "key": "admin for another key's usage",
    # they choose among what the route shows or does anyway
    "model": None, "intent": None, "action": None, "fail_on_no_slot": None, "alt": None, "purpose": None, "since": None, "until": None, "q": None,
    # pages of a list, and places in what is the caller's own
    "after": None, "after_id": None, "before_id": None, "limit": None, "order": None, "pageSize": None,
    "pageToken": None, "stream": None, "starting_after": None, "last_event_id": None,
    "include_input": None, "from": None, "conv_id": None, "revision": None,
}  # fmt: skip
HEADERS = {
    # who asks, and from where
    "AUTHORIZATION": None, "X_API_KEY": None, "X_GOOG_API_KEY": None, "HOST": None, "ORIGIN": None,
    "SEC_FETCH_SITE": None, "ACCESS_CONTROL_REQUEST_HEADERS": None,
    # a proxy's, whose peer is no monitor
    "X_FORWARDED_FOR": None, "FORWARDED": None, "X_REAL_IP": None, "VIA": None,
    # which protocol is spoken, and which form the answer has
    "ANTHROPIC_VERSION": None, "X_GOOG_API_CLIENT": None, "UPGRADE": None, "SEC_WEBSOCKET_KEY": None, "SEC_WEBSOCKET_VERSION": None,
    "SEC_WEBSOCKET_EXTENSIONS": None, "SEC_WEBSOCKET_PROTOCOL": None, "ACCEPT": None, "CONTENT_ENCODING": None,
    # names that go with the request
    "X_REQUEST_ID": None, "X_CLIENT_REQUEST_ID": None, "TRACEPARENT": None, "X_CONVERSATION_ID": None,
    "IDEMPOTENCY_KEY": None, "USER_AGENT": None,
    # whose prefix is kept while a tool runs: within the key's own share
    "X_CLAUDE_CODE_SESSION_ID": None, "X_CLAUDE_CODE_AGENT_ID": None, "SESSION_ID": None, "THREAD_ID": None,
    "X_SESSION_AFFINITY": None, "X_SESSION_ID": None,
    # a tool's, on a route that takes the scope `tools`
    "X_TOOL_RUNTIME": None, "X_TOOL_CWD": None, "X_RESP_TYPE": None,
    # the connection's own
    "CONTENT_TYPE": None, "EXPECT": None, "CONNECTION": None, "TRANSFER_ENCODING": None,
}  # fmt: skip
"""Every one that the web layer reads, with the scope that it needs beyond its route's. Who adds one writes here which."""


def sources():
    for path in sorted(WEB.rglob("*.py")):
        yield path.read_text("utf-8")


def test_every_parameter_of_a_query_is_classified():
    found = set()
    for text in sources():
        found |= set(re.findall(r"(?:request\.args|query)\.get\(\"(\w+)\"", text))
        found |= set(re.findall(r"(?:count_of|_day)\(\"(\w+)\"", text))
        found |= set(re.findall(r"parse_qs\(.*?\)\.get\(\"(\w+)\"", text)) | set(
            re.findall(r"\"(\w+)=\" (?:not )?in ", text)
        )
        # Whatever reads it in another way has to be taught here.
        others = re.findall(r"(.*)\brequest\.args\b(?!\.get\()(.*)", text)
        assert set(others) <= {("    query = ", "")}, others
        assert "request.values" not in text
    assert found == set(QUERY)


def test_every_header_is_classified():
    found = set()
    for text in sources():
        found |= set(re.findall(r"\"HTTP_(\w+)\"", text))
        found |= {name.upper().replace("-", "_") for name in re.findall(r"headers\.get\(\"([\w-]+)\"", text)}
    assert found <= set(HEADERS), "say whether it needs a scope"


def everybody_but(scope):
    return tuple(one for one in SCOPES if one != scope)


@pytest.fixture
def farm():
    farm = Farm(limit=0, load_timeout=300.0, clock=time.monotonic).add("a", "b")
    yield farm
    farm.close()


@pytest.fixture
def served(farm):
    keys = (Key.of("some", "some", everybody_but("admin")), Key.of("few", "few", ["metrics"]), Key.of("root", "root"))
    service = Service.of(farm.registry(), WebOptions(keys=keys, manage=True))
    farm.loader.on_demand = False
    return service


@pytest.fixture
def client(served):
    return create_app(served).test_client()


def as_(name):
    return {"X-Api-Key": name}


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/completion", {"prompt": "x"}),
        ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
def test_a_key_that_may_not_manage_models_loads_none_with_autoload(client, farm, path, body):
    """A key for figures alone loaded models with `/tokenize?autoload=1` where nothing is loaded by itself."""
    for name in ("some", "few"):
        reply = client.post(path + "?autoload=1", json={"model": "a", **body}, headers=as_(name))
        assert reply.status_code == 403 and "'admin'" in reply.get_json()["error"]["message"] or name == "few"
    assert farm.opened == []


def test_a_key_that_may_manage_models_loads_them_with_autoload(client, farm):
    assert (
        client.post("/tokenize?autoload=1", json={"model": "a", "content": "x"}, headers=as_("root")).status_code == 200
    )
    assert farm.opened == ["a"]
    assert (
        client.post("/tokenize?autoload=1", json={"model": "a", "content": "x"}, headers=as_("some")).status_code == 200
    )


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
def test_only_a_key_that_may_manage_models_has_them_read_again(served, client, path):
    seen = []
    served.reread = lambda: seen.append(1)
    for name in ("some", "few"):
        reply = client.get(path + "?reload=1", headers=as_(name))
        assert reply.status_code == 403 and "'admin'" in reply.get_json()["error"]["message"]
        assert client.get(path, headers=as_(name)).status_code == 200
    assert not seen
    assert client.get(path + "?reload=1", headers=as_("root")).status_code == 200 and seen


def test_anothers_usage_is_an_admins(client):
    assert client.get("/v1/usage?key=root", headers=as_("some")).status_code == 403
    for query in ("", "?key=some"):
        assert client.get("/v1/usage" + query, headers=as_("some")).status_code == 200
    assert client.get("/v1/usage?key=some", headers=as_("root")).status_code == 200


# Routes whose body names another route


@pytest.fixture
def running(start, tmp_path):
    infer = Key.of("infer", "infer", ["infer"])
    web = WebOptions(
        keys=(infer, Key.of("both", "both", ["infer", "embed"])), files_folder=tmp_path, files_bytes=2**20, predict=True
    )
    running = start(web=web)
    yield running
    running.service.batches.close()


def batch(running, name, endpoint="/v1/embeddings", **body):
    line = {"custom_id": "1", "method": "POST", "url": endpoint, "body": body or {"input": "x"}}
    form = {"purpose": "batch", "file": (io.BytesIO(json.dumps(line).encode()), "in.jsonl")}
    id = running.client.post("/v1/files", data=form, headers=as_(name)).get_json()["id"]
    ask = {"input_file_id": id, "endpoint": endpoint, "completion_window": "24h"}
    return running.client.post("/v1/batches", json=ask, headers=as_(name))


def test_a_batch_needs_the_right_to_use_its_endpoint(running):
    """A key without `embed` got embeddings by way of a batch."""
    refused = batch(running, "infer")
    assert refused.status_code == 403 and "'embed'" in refused.get_json()["error"]["message"]
    assert running.client.get("/v1/batches", headers=as_("infer")).get_json()["data"] == []
    assert batch(running, "both").status_code == 200
    assert batch(running, "infer", "/v1/completions", prompt="x", max_tokens=1).status_code == 200


def test_a_batch_stops_being_answered_when_its_key_loses_the_scope(running):
    running.service.batches.wake = lambda: None  # not yet
    id = batch(running, "both").get_json()["id"]
    options = running.service.options
    both = Key.of("both", "both", ["infer"])
    running.service.use(
        WebOptions(
            **{name: getattr(options, name) for name in ("files_folder", "files_bytes")}, keys=(options.keys[0], both)
        )
    )
    del running.service.batches.wake
    running.service.batches.wake()
    shown = {}

    def has_ended():
        shown.update(running.client.get(f"/v1/batches/{id}", headers=as_("both")).get_json())
        return shown["status"] == "completed"

    wait_until(has_ended)
    assert shown["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    errors = running.client.get(f"/v1/files/{shown['error_file_id']}/content", headers=as_("both")).data
    response = json.loads(errors)["response"]
    assert response["status_code"] == 403 and "'embed'" in response["body"]["error"]["message"]


def test_an_instance_of_a_prediction_asks_for_its_endpoints_scope(running):
    instances = [
        {"@requestFormat": "embeddings", "input": "x"},
        {"@requestFormat": "/v1/rerank", "query": "x", "documents": ["y"]},
        {"@requestFormat": "completions", "prompt": "x", "max_tokens": 1},
    ]
    reply = running.client.post("/predict", json={"instances": instances}, headers=as_("infer")).get_json()
    *refused, done = reply["predictions"]
    assert all(one["error"]["code"] == 403 and "'embed'" in one["error"]["message"] for one in refused)
    assert done["choices"]
    reply = running.client.post("/predict", json={"instances": instances[:1]}, headers=as_("both")).get_json()
    assert "'embed'" not in json.dumps(reply)
