"""Pages in a browser: what each may have this server do where there are no keys."""

from __future__ import annotations

import pytest

from llamasrv.errors import Forbidden
from llamasrv.web.access.origins import Origins
from llamasrv.web.service import WebOptions

HELLO = {"prompt": "Hello", "max_tokens": 1}


def status(client, path="/v1/completions", *, method="POST", **headers):
    body = {"json": HELLO} if method == "POST" else {}
    return client.open(
        path, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()}, **body
    ).status_code


@pytest.mark.parametrize("origin", [
    "null", "NULL", "https://evil.example", "HTTPS://evil.example", "evil.example", "http:evil.example", "http://",
    "file://", "app://x", "chrome-extension://abc", "vscode-webview://abc", "ftp://localhost",
    "http://localhost.evil.example", "http://localhost:80@evil.example", "http://localhost, https://evil.example",
    "//localhost", "http://[::1", "data:", "x",
])  # fmt: skip
def test_what_is_not_known_to_be_ours_is_refused(running, origin):
    """`Origin: null`, which a sandboxed frame and a request without a referrer send, passed, so that any page could
    run the tools of a server without keys; only http and https were looked at, in lower case."""
    for path in ("/v1/completions", "/tools", "/nope"):
        assert status(running.client, path, Origin=origin) == 403, path
    assert status(running.client, "/v1/models", method="GET", Origin=origin) == 403


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "http://localhost:3000",
        "https://127.0.0.1:8443",
        "http://[::1]:8080",
        "http://app.localhost",
    ],
)
def test_pages_of_this_machine_may_use_it(running, origin):
    assert status(running.client, Origin=origin) == 200
    assert status(running.client, Origin=origin, Sec_Fetch_Site="cross-site") == 200


def test_its_own_pages_may_use_it_under_any_name_it_answers_to(running):
    assert status(running.client, Host="box.local:8080", Origin="http://box.local:8080") == 200
    assert status(running.client, Host="box.local:8080", Origin="http://other.local:8080") == 403
    with pytest.raises(Forbidden):
        Origins().check({"REQUEST_METHOD": "POST", "HTTP_ORIGIN": "http://"}, is_page=False)  # and no Host


@pytest.mark.parametrize(
    "listed, origin, allowed",
    [
        ("null", "null", True),
        ("https://app.example", "null", False),
        ("https://app.example/", "https://App.example", True),
        ("https://app.example", "https://app.example:444", False),
        ("https://app.example", "https://app.example.evil.example", False),
        ("chrome-extension://abc", "chrome-extension://abc", True),
        ("chrome-extension://abc", "chrome-extension://abcd", False),
        ("vscode-webview://", "vscode-webview://1f3a", True),
        ("vscode-webview://*", "vscode-webview://1f3a", True),
        ("vscode-webview://", "vscode-file://x", False),
        ("file://", "file://", True),
        ("file://", "null", False),
        ("localhost", "null", False),
        ("*", "null", True),
        ("*", "app://x", True),
    ],
)
def test_others_are_listed_by_name_or_by_scheme(start, listed, origin, allowed):
    client = start(web=WebOptions(origins=(listed,))).client
    reply = client.post("/v1/completions", json=HELLO, headers={"Origin": origin})
    assert reply.status_code == (200 if allowed else 403)
    assert reply.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
    assert allowed or "--cors-origins" in reply.get_json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models?reload=1", "/metrics", "/slots", "/nope"])
def test_a_picture_of_another_sites_page_asks_for_nothing(running, path):
    """`<img src="http://localhost:8080/...">` comes without an Origin."""
    assert status(running.client, path, method="GET", Sec_Fetch_Site="cross-site") == 403
    assert status(running.client, path, method="GET", Sec_Fetch_Site="same-origin") != 403 or "reload" in path
    assert status(running.client, path, method="GET", Sec_Fetch_Site="none") != 403 or "reload" in path


@pytest.mark.parametrize("host, allowed", [
    ("llm.corp.example", False), ("localhost:8080", True), ("127.0.0.1:8080", True), ("10.0.0.7", True), ("[::1]:8080", True),
])  # fmt: skip
def test_a_picture_on_a_neighbours_page_asks_for_nothing(start, host, allowed):
    """`Sec-Fetch-Site: same-site` is another port of an address, but of a name also any other host of its domain."""
    client = start(web=WebOptions(hosts=() if allowed else (host,))).client
    headers = {"Sec-Fetch-Site": "same-site", "Host": host}
    assert client.get("/v1/models", headers=headers).status_code == (200 if allowed else 403)
    assert client.get("/", headers=headers).status_code == 200


def test_a_form_of_another_site_without_an_origin_sends_nothing(running):
    assert status(running.client, Sec_Fetch_Site="cross-site") == 403


def test_links_lead_to_the_pages(running):
    for path in ("/", "/ui/engine", "/ui/api"):
        assert status(running.client, path, method="GET", Sec_Fetch_Site="cross-site") == 200
        assert status(running.client, path, method="GET", Sec_Fetch_Site="cross-site", Origin="null") == 403


def test_a_preflight_is_answered_and_grants_nothing(running):
    reply = running.client.options("/v1/completions", headers={"Origin": "null", "Sec-Fetch-Site": "cross-site"})
    assert reply.status_code == 200 and "Access-Control-Allow-Origin" not in reply.headers


def test_who_is_no_browser_needs_no_origin(running):
    assert status(running.client) == 200
