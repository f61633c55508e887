"""Who may come in: keys and their scopes, before anything else is looked at; hosts, and pages of other sites."""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import re

import pytest

from llamasrv.domain.key import SCOPES, Key
from llamasrv.errors import Unauthorized
from llamasrv.web.access.auth import ANY, MONITORED, OPEN, PAGE, ROUTES, WORK, Access, scope_of
from llamasrv.web.service import WebOptions

HELLO = {"prompt": "Hello", "max_tokens": 1}
BEARER = {"Authorization": "Bearer key-of-ann"}


@pytest.fixture(scope="module")
def client(start_once):
    return start_once(web=WebOptions(keys=(Key.of("ann", "key-of-ann"), Key.of("bob", "k\u00e9y")))).client


def rules(client, *, of=None):
    """(path, method, scope) of every route."""
    for rule in client.application.url_map.iter_rules():
        for method in rule.methods - {"OPTIONS", "HEAD"}:
            scope = scope_of(rule.rule, method)
            if of is None or scope == of:
                yield (
                    re.sub(r"<[^>]*name>", "fake", re.sub(r"<int:\w+>", "1", rule.rule))
                    .replace("<", "")
                    .replace(">", ""),
                    method,
                    scope,
                )


def test_without_keys_everybody_may_come_in(running):
    assert running.client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/livez"])
def test_liveness_needs_no_key(client, path):
    assert client.get(path).status_code == 200


def test_every_other_route_needs_one(client):
    closed = [(path, method) for path, method, scope in rules(client) if scope not in (OPEN, PAGE)]
    assert len(closed) > 10
    for path, method in closed:
        assert client.open(path, method=method).status_code == 401, path


@pytest.mark.parametrize("path", ["/nope", "/HEALTH", "/health/", "//health", "/v1/chat/completions"])
def test_only_clients_with_a_key_learn_whether_a_route_exists(client, path):
    response = client.delete(path)
    assert response.status_code == 401
    assert response.get_json()["error"]["code"] == "invalid_api_key"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"Authorization": "bearer  key-of-ann "},
        {"Authorization": "key-of-ann"},
        {"X-Api-Key": "key-of-ann"},
        {"Authorization": "Bearer", "X-Api-Key": "key-of-ann"},
        {"Authorization": "Basic dXNlcjpwYXNz", "X-Api-Key": "key-of-ann"},
        {"Authorization": 'Digest username="x", realm="y"', "X-Goog-Api-Key": "key-of-ann"},
    ],
)
def test_a_key_is_accepted_in_every_header_that_clients_use(client, headers):
    assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "shown",
    ["", "key-of-an", "key-of-ann2", "KEY-OF-ANN", "Bearer ", "Bearer x", "Basic key-of-ann", "\xff" * 9,
     "x" * (1 << 20)],
)  # fmt: skip
def test_other_keys_are_not(client, shown):
    assert client.get("/v1/models", environ_overrides={"HTTP_AUTHORIZATION": shown}).status_code == 401


def test_a_body_is_not_read_without_a_key(client):
    response = client.post("/v1/chat/completions", environ_overrides={"CONTENT_LENGTH": "5", "wsgi.input": None})
    assert response.status_code == 401


def environ(**more):
    return {"PATH_INFO": "/v1/models", "REQUEST_METHOD": "GET", **more}


def test_all_keys_are_always_compared(monkeypatch):
    """The time taken must not tell which key was nearly right."""
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or a == b)
    access = Access([Key.of(name, name) for name in "abc"])
    assert access.identify(environ(HTTP_X_API_KEY="a"), "/v1/models").name == "a"
    with pytest.raises(Unauthorized):
        access.identify(environ(HTTP_X_API_KEY="z"), "/v1/models")
    assert len(compared) == 6


# Scopes


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_opens_the_routes_of_its_scope_and_no_others(start, scope):
    client = start(web=WebOptions(keys=(Key.of("some", "some", [scope]),))).client
    for path, method, needed in rules(client):
        if path.endswith(("/sse", "/stream")):
            continue  # they do not end
        reply = client.open(path, method=method, headers={"X-Api-Key": "some"})
        lacking = reply.status_code == 403 and "needs the scope" in reply.get_data(as_text=True)
        own = (scope, WORK) if scope in ("infer", "embed") else (scope,)
        assert lacking == (needed not in (*own, OPEN, ANY, PAGE)), (method, path, needed)


def test_a_refusal_names_the_scope(start):
    client = start(web=WebOptions(keys=(Key.of("some", "some", ["metrics"]),))).client
    response = client.post("/v1/completions", json=HELLO, headers={"X-Api-Key": "some"})
    assert response.status_code == 403 and "'infer'" in response.get_json()["error"]["message"]


def test_an_unlisted_route_requires_admin():
    assert scope_of("/new/route", "POST") == "admin"
    assert set(ROUTES) <= {OPEN, ANY, PAGE, WORK, *SCOPES}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/apply-template"])
def test_what_a_prompt_becomes_is_for_keys_that_may_send_prompts(start, path):
    """A key for figures alone could have megabytes tokenized, and no quota counted it."""
    keys = [Key.of(scope, scope, [scope]) for scope in ("infer", "embed", "metrics")]
    service = start(web=WebOptions(keys=tuple(keys)))

    def status(name):
        return service.client.post(path, json={}, headers={"X-Api-Key": name}).status_code

    assert [status("infer"), status("embed"), status("metrics")] == [400, 400, 403]


def test_tokenizing_counts_against_the_quota_of_a_key(start):
    client = limited(start, requests_per_minute=2).client
    ask = [client.post("/tokenize", json={"content": "a"}, headers=BEARER) for _ in range(3)]
    assert [response.status_code for response in ask] == [200, 200, 429]


# What a key may have


def limited(start, **bounds):
    key = dataclasses.replace(Key.of("ann", "key-of-ann"), **bounds)
    return start(web=WebOptions(keys=(key, Key.of("bob", "bob"))))


def complete(running, **headers):
    return running.client.post("/v1/completions", json=HELLO, headers=headers or BEARER)


def test_requests_a_minute_are_counted_for_each_key(start):
    running = limited(start, requests_per_minute=2)
    assert [complete(running).status_code for _ in range(3)] == [200, 200, 429]
    refused = complete(running)
    assert refused.get_json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["Retry-After"]) <= 30
    assert complete(running, **{"X-Api-Key": "bob"}).status_code == 200
    assert running.client.get("/v1/models", headers=BEARER).status_code == 200


def test_tokens_are_counted_when_a_request_has_ended(start):
    running = limited(start, tokens_per_minute=5)
    assert [complete(running).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("reads", [0, 1])
def test_tokens_of_a_client_that_hangs_up_are_counted(start, reads):
    running = limited(start, tokens_per_minute=5)
    body = {**HELLO, "stream": True, "max_tokens": 900, "ignore_eos": True}
    reply = running.client.post("/v1/completions", json=body, headers=BEARER, buffered=False)
    for _ in range(reads):
        next(reply.response)
    reply.close()
    assert complete(running).status_code == 429


def test_requests_at_once_are_bounded_and_given_back(start):
    running = limited(start, concurrency=1)
    assert [complete(running).status_code for _ in range(3)] == [200] * 3
    quota = running.service.access.quotas["ann"]
    quota.num_open = 1
    assert complete(running).status_code == 429
    quota.num_open = 0


def test_a_refused_request_gives_back_what_it_took(start):
    running = limited(start, concurrency=1)
    for _ in range(3):
        response = running.client.post("/v1/completions", data=b"{", headers=BEARER)
        assert response.status_code == 400
    assert running.service.access.quotas["ann"].num_open == 0


def test_anthropics_clients_can_tell_their_limit_from_an_overload(start):
    running = limited(start, requests_per_minute=1)
    body = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    replies = [running.client.post("/v1/messages", json=body, headers=BEARER) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert replies[1].get_json()["error"]["type"] == "rate_limit_error"


# Other options while it runs


def test_new_keys_hold_from_the_next_request_on(start):
    running = limited(start, requests_per_minute=2)
    complete(running)
    before = running.service.options
    running.service.use(dataclasses.replace(before, keys=(*before.keys[:1], Key.of("new", "new"))))
    assert complete(running, **{"X-Api-Key": "bob"}).status_code == 401
    assert complete(running, **{"X-Api-Key": "new"}).status_code == 200
    # What was used before is still used.
    assert [complete(running).status_code for _ in range(2)] == [200, 429]


# Browsers


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:80", "[::1]:8080", "box", "box.local", "10.1.2.3"]
)
def test_names_of_this_machine_are_answered_to(client, running, host):
    assert running.client.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8080", "127.0.0.1.nip.io"])
def test_a_page_that_points_its_own_name_here_is_refused(running, client, host):
    response = running.client.get("/v1/models", headers={"Host": host})
    assert response.status_code == 403 and "--allowed-hosts" in response.get_json()["error"]["message"]
    assert running.client.get("/livez", headers={"Host": host}).status_code == 200
    # With keys the name does not matter: the page has none.
    assert client.get("/v1/models", headers={"Host": host, **BEARER}).status_code == 200


def test_only_the_names_that_were_allowed_are_answered_to(start):
    client = start(web=WebOptions(hosts=("llm.example",))).client
    statuses = [client.get("/v1/models", headers={"Host": h}).status_code for h in ("LLM.example:443", "localhost")]
    assert statuses == [200, 403]


def test_a_page_of_another_site_gets_nothing_done(running):
    for origin, status in (
        ("https://evil.example", 403),
        ("http://localhost:3000", 200),
        ("http://localhost", 200),
        ("app://x", 403),
    ):
        response = running.client.post("/v1/completions", json=HELLO, headers={"Origin": origin})
        assert response.status_code == status, origin
        assert "Access-Control-Allow-Origin" not in response.headers


def test_pages_that_were_allowed_may_read_answers(start):
    client = start(web=WebOptions(origins=("https://app.example",), keys=(Key.of("ann", "key-of-ann"),))).client
    ask = {"Origin": "https://app.example", "Access-Control-Request-Headers": "authorization"}
    preflight = client.options("/v1/completions", headers=ask)
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert preflight.headers["Access-Control-Allow-Headers"] == "authorization"
    answer = client.post("/v1/completions", json=HELLO, headers={**ask, **BEARER})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
    assert "Access-Control-Allow-Credentials" not in answer.headers
    other = client.post("/v1/completions", json=HELLO, headers={"Origin": "https://evil.example", **BEARER})
    assert "Access-Control-Allow-Origin" not in other.headers


def test_pages_may_send_cookies_where_the_operator_says_so(start):
    """For a proxy in front that checks them: without the header a browser keeps the answer from the page."""
    client = start(web=WebOptions(origins=("https://app.example",), credentials=True)).client
    for origin, answer in (("https://app.example", "true"), ("https://evil.example", None)):
        preflight = client.options("/v1/completions", headers={"Origin": origin})
        assert preflight.headers.get("Access-Control-Allow-Credentials") == answer


@pytest.mark.parametrize(
    "origin, allowed",
    [
        ("http://localhost:3000", True),
        ("http://[::1]", True),
        ("https://127.0.0.1:8443", True),
        ("http://localhost.evil.example", False),
        ("http://notlocalhost", False),
        ("ftp://localhost", False),
    ],
)
def test_localhost_among_the_origins_is_every_page_of_this_machine(start, origin, allowed):
    """llama-server's keyword. A preflight of any other page is answered, and the browser sees that it may not go on."""
    client = start(web=WebOptions(origins=("localhost",))).client
    preflight = client.options("/v1/completions", headers={"Origin": origin})
    assert preflight.status_code == 200
    assert preflight.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)


def test_a_star_among_the_origins_allows_each_by_its_name(start):
    """As llama-server answers it; a cache between must not give one page the answer that names another."""
    answer = start(web=WebOptions(origins=("*",))).client.get("/health", headers={"Origin": "http://any.example"})
    assert answer.headers["Access-Control-Allow-Origin"] == "http://any.example"
    assert "Origin" in answer.headers["Vary"]


# Monitoring by network


NETWORKS = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "fd00::/8")))


@pytest.fixture(scope="module")
def watched(start_once):
    keys = (Key.of("ann", "key-of-ann"),)
    return start_once(web=WebOptions(keys=keys, hosts=("llm.example.com",), monitor_networks=NETWORKS)).client


def poll(client, path="/readyz", method="GET", peer="10.1.2.3", **environ):
    environ = {"REMOTE_ADDR": peer, "HTTP_HOST": "10.9.9.9:8080", **environ}
    return client.open(path, method=method, environ_overrides=environ).status_code


@pytest.mark.parametrize("path", sorted(MONITORED))
def test_monitoring_from_its_network_needs_no_key(watched, path):
    assert poll(watched, path) == poll(watched, path, method="HEAD") == 200
    assert poll(watched, path, peer="::ffff:10.1.2.3") == poll(watched, path, peer="fd00::7") == 200
    assert poll(watched, path, peer="11.0.0.1") == poll(watched, path, peer="") == poll(watched, path, peer="fe80::1%x")
    assert poll(watched, path, peer="11.0.0.1") in (401, 403)


def test_nothing_else_is_open_to_that_network(watched):
    for path, method, scope in rules(watched):
        if scope not in (OPEN, PAGE) and not (method == "GET" and path in MONITORED):
            assert poll(watched, path, method, HTTP_HOST="llm.example.com") == 401, (method, path)


@pytest.mark.parametrize(
    "more",
    [
        {"HTTP_X_FORWARDED_FOR": "10.1.2.3"},
        {"HTTP_FORWARDED": "for=10.1.2.3"},
        {"HTTP_X_REAL_IP": "10.1.2.3"},
        {"HTTP_VIA": "1.1 proxy"},
        {"HTTP_ORIGIN": "http://10.9.9.9:8080"},
        {"HTTP_AUTHORIZATION": "Bearer wrong"},
    ],
)
def test_a_proxy_a_page_and_a_wrong_key_are_no_monitor(watched, more):
    assert poll(watched, HTTP_HOST="llm.example.com") == 200
    assert poll(watched, HTTP_HOST="llm.example.com", **more) == 401


def test_a_page_that_points_its_own_name_here_reads_no_figures(start):
    """Without a list of hosts any name is answered, because keys suffice; here there is none."""
    client = start(web=WebOptions(keys=(Key.of("ann", "key-of-ann"),), monitor_networks=NETWORKS)).client
    assert [poll(client, HTTP_HOST=host) for host in ("10.9.9.9", "replica-1", "evil.example")] == [200, 200, 401]


def test_without_keys_the_networks_open_nothing_more(start):
    client = start(web=WebOptions(monitor_networks=NETWORKS)).client
    assert poll(client) == 200 and poll(client, HTTP_HOST="evil.example") == 403
