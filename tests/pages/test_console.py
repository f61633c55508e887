"""The operator's console."""

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from browsing import ENDLESS, Client, barriers

from llamasrv.config import keys


def ask(server, path, **body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError as error:
        error.read()


def opened(visit, server, **options):
    page = visit(server.url + "/ui/console", **options)
    page.locator("body[data-ready]").wait_for()
    return page


@pytest.fixture(scope="module")
def busy(fake_server):
    """A server that has had a failed request."""
    ask(fake_server, "/v1/chat/completions", messages=[], temperature=99)
    return fake_server


def test_it_shows_the_servers_state(busy, visit):
    page = opened(visit, busy)
    assert re.search(r"Server\s+Ready", page.inner_text("#summary"))
    assert page.locator("#health li", has_text="Responses and usage").get_by_text("Works").is_visible()
    assert "Nothing is being pulled" in page.inner_text("#going")
    row = page.locator("#requests tbody tr", has_text="in temperature (400)").first.inner_text()
    assert "/v1/chat/completions" in row
    assert "[server]" in page.inner_text("#configuration")


def test_requests_and_options_are_found(busy, visit):
    page = opened(visit, busy)
    page.fill("#find", "no such request")
    assert page.is_hidden("#requests") and page.inner_text("#count") == "No errors."
    page.fill("#find", "chat/comp")
    assert page.is_visible("#requests")
    page.select_option("#kind", "slow")
    assert page.inner_text("#count") == "No request took longer than 10 sec."
    page.fill("#find-option", "drain_timeout")
    assert re.fullmatch(r"\[server\]\ndrain_timeout = \S+", page.inner_text("#configuration").strip())


SLOW = {
    "time": 1.7e9, "id": "req-1", "route": "/v1/chat/completions", "status": 200, "seconds": 20.0, "key": "ann", "model": "fake",
    "client": "OpenAI/Python", "prompt": 5, "cached": 0, "completion": 9, "queue": 0.0, "prefill": 1.0, "decode": 2.0,
    "start": 0.5, "running": 4, "waiting": 3, "held": 0.98,
}  # fmt: skip
CAUSES = [
    ({"queue": 12.0}, "12 sec in the queue: when it arrived, 4 requests were running on 98% of the context memory, and 3 waiting"),
    ({"prefill": 12.0}, "12 sec to read the prompt of 5 tokens"),
    ({"decode": 12.0}, "12 sec to write 9 tokens"),
    ({"decode": 12.0, "paused": 9.0}, "9 sec interrupted, to make room for other requests"),
    ({"start": 12.0, "loading": True}, "12 sec until its model was loaded"),
    ({}, "16.5 sec outside the model: tools, other work, or a client that reads slowly"),
]  # fmt: skip


def test_a_slow_request_has_a_time_line_and_its_cause_and_an_open_one_can_be_cancelled(fake_server, visit, axe):
    rows = [{**SLOW, **change, "id": f"req-{n}"} for n, (change, _) in enumerate(CAUSES)]
    running = {
        "time": 1.7e9,
        "id": "req-9",
        "route": "/v1/messages",
        "seconds": 3.0,
        "key": None,
        "model": "fake",
        "state": "running",
    }
    page = visit(fake_server.url)
    cancelled = []
    page.route(
        "**/admin/requests",
        lambda route: route.fulfill(
            json={"slow_seconds": 10, "open": [] if cancelled else [running], "failed": [], "slow": rows}
        ),
    )
    page.route(
        "**/admin/requests/*/cancel", lambda route: (cancelled.append(route.request.url), route.fulfill(json={}))
    )
    page.goto(fake_server.url + "/ui/console")
    page.locator("body[data-ready]").wait_for()
    page.select_option("#kind", "slow")
    assert [text.strip() for text in page.locator("#requests tbody td:nth-child(3)").all_inner_texts()] == [
        cause for _, cause in CAUSES
    ]
    label = page.locator("#requests .timeline").first.get_attribute("aria-label")
    assert (
        label
        == "Received and prepared: 500 ms, In the queue: 12 sec, Reading the prompt: 1 sec, Writing the answer: 2 sec, Everything else: 4.5 sec"
    )
    widths = (
        page.locator("#requests .timeline").first.locator("span").evaluate_all("all => all.map((s) => s.offsetWidth)")
    )
    assert len(widths) == 5 and widths[1] == max(widths)
    bar = page.locator("#requests .timeline").first.evaluate("bar => bar.clientWidth")
    assert abs(sum(widths) + len(widths) - 1 - bar) < 4
    assert "OpenAI/Python" in page.inner_text("#requests tbody")
    assert barriers(page, axe) == []
    page.select_option("#kind", "open")
    page.get_by_role("button", name="Cancel the request req-9").click()
    page.get_by_text("No open requests.").wait_for()
    assert len(cancelled) == 1 and cancelled[0].endswith("/admin/requests/req-9/cancel")


def test_an_open_request_is_cancelled_and_its_client_gets_its_end(serve, visit):
    server = serve(*ENDLESS)
    page = opened(visit, server)
    page.select_option("#kind", "open")
    client = Client(server, "long-one")
    button = page.get_by_role("button", name="Cancel the request long-one")
    button.focus()
    with page.expect_response("**/admin/requests"), page.expect_response("**/admin/state"):
        pass  # the list is drawn again
    page.evaluate("new Promise(requestAnimationFrame)")
    assert button.evaluate("button => button === document.activeElement")
    page.keyboard.press("Enter")
    page.get_by_text("No open requests.").wait_for()
    assert client.ended.wait(20) and client.text.endswith("data: [DONE]\n\n")
    page.wait_for_function("() => document.activeElement.id === 'kind'")  # the keyboard goes on from there


def test_a_request_that_ended_meanwhile_says_so_when_it_is_cancelled(fake_server, visit, mistakes):
    row = {
        "time": 1.7e9,
        "id": "gone",
        "route": "/v1/messages",
        "seconds": 3.0,
        "key": None,
        "model": "fake",
        "state": "running",
    }
    rows = [row]
    page = visit(fake_server.url)
    page.route(
        "**/admin/requests",
        lambda route: route.fulfill(json={"slow_seconds": 10, "open": list(rows), "failed": [], "slow": []}),
    )
    page.goto(fake_server.url + "/ui/console")
    page.locator("body[data-ready]").wait_for()
    page.select_option("#kind", "open")
    button = page.get_by_role("button", name="Cancel the request gone")
    button.wait_for()
    rows.clear()
    button.click()
    page.get_by_text("No open requests.").wait_for()
    assert page.inner_text("#status") == "No open request 'gone' generates anything."
    assert "404" in mistakes.pop()


def test_it_asks_for_a_key_and_never_shows_it(serve, visit, mistakes):
    page = visit(serve("--fake", "--api-key", "hush").url + "/ui/console")
    page.fill("#key-input", "wrong")
    page.click("#key-dialog button.primary")
    page.locator("#key-dialog[open]").wait_for()
    page.fill("#key-input", "hush")
    page.click("#key-dialog button.primary")
    page.locator("body[data-ready]").wait_for()
    assert "hush" not in page.content() and 'api_key = "***"' in page.inner_text("#configuration")


def test_usage_is_charted_by_key_model_and_day_and_saved(fake_server, visit):
    ask(fake_server, "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=5)
    page = opened(visit, fake_server)
    assert page.locator("#days span").count() == 30
    assert page.locator("#days span").last.locator("i").evaluate("bar => bar.offsetHeight") > 50
    assert "Without a key" in page.inner_text("#usage tbody th")
    page.select_option("#by", "model")
    assert page.inner_text("#usage tbody th") == "fake"
    page.select_option("#measure", "requests")
    with page.expect_response("**/v1/usage?since=*"):
        page.select_option("#period", "7")
    page.wait_for_function("() => document.querySelectorAll('#days span').length === 7")
    with page.expect_download() as saved:
        page.click("#usage-csv")
    header, row = Path(saved.value.path()).read_text().splitlines()
    assert header.startswith("date,key,model,requests,") and re.match(r"\d{4}-\d\d-\d\d,,fake,\d+,", row)


def test_costs_are_shown_by_key_and_model_and_saved(serve, visit, axe):
    server = serve("--fake", "--prices", '{"input": 1000, "output": 3000}', "--currency", "EUR")
    ask(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Hello"}], max_tokens=5)
    page = opened(visit, server)
    (row,) = page.evaluate("fetch('/v1/usage').then((reply) => reply.json())")["data"]
    cost = (row["prompt_tokens"] * 1000 + row["completion_tokens"] * 3000) / 1e6
    assert row["cost"] == pytest.approx(cost)
    assert page.inner_text("#usage tbody td.cost") == f"€{cost:g}"
    page.select_option("#measure", "cost")
    assert "€" in page.inner_text("#days-ends")
    with page.expect_download() as saved:
        page.click("#usage-csv")
    header, line = Path(saved.value.path()).read_text().splitlines()
    assert header.endswith(",cost,currency") and line.endswith(f",{row['cost']},EUR")
    assert barriers(page, axe) == []


def test_a_model_without_prices_is_named_beside_others(fake_server, visit):
    used = {
        "date": "2030-01-01",
        "key": "ann",
        "requests": 1,
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "completion_tokens": 1,
        "seconds": 1.0,
    }
    rows = [{**used, "model": "a", "cost": 2.5}, {**used, "model": "b", "cost": None}]
    page = visit(fake_server.url)
    page.route("**/v1/usage*", lambda route: route.fulfill(json={"currency": "USD", "data": rows}))
    page.goto(fake_server.url + "/ui/console")
    page.locator("body[data-ready]").wait_for()
    assert "$2.50" in page.inner_text("#usage tbody")
    assert page.inner_text("#without-prices") == "Without prices, and not counted: b."


def test_the_configuration_is_reloaded_or_the_reason_shown(serve, visit, tmp_path, mistakes):
    file = tmp_path / "llamasrv.toml"
    file.write_text("[server]\ndrain_timeout = 111\n")
    server = serve("--fake", "--config", file)
    page = opened(visit, server)
    assert "drain_timeout = 111" in page.inner_text("#configuration")
    file.write_text("[server]\ndrain_timeout = 222\n")
    page.click("#reload")
    page.locator("#reloaded", has_text="Reloaded.").wait_for()
    assert "drain_timeout = 222" in page.inner_text("#configuration")
    server.wait_for("configuration reloaded")  # the master was told, and told its worker
    file.write_text("[server]\ndrain_timeout = 'x'\n")
    page.click("#reload")
    page.locator("#reloaded.error", has_text="drain_timeout = 'x'").wait_for()
    assert "400" in mistakes.pop()


def test_keys_are_made_changed_rotated_and_revoked(serve, visit, axe, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text("# ours\n" + keys.entry("root", "secret-root", ["admin"], {}))
    page = visit(serve("--fake", "--api-key-file", path).url + "/ui/console")
    page.fill("#key-input", "secret-root")
    page.click("#key-dialog button.primary")
    page.locator("body[data-ready]").wait_for()
    page.click("#new-key")
    page.fill("#edit-name", "ann")
    page.fill("#edit-concurrency", "4")
    page.fill("#edit-models", "fake, other")
    page.fill("#edit-tokens_per_month", "5000")
    assert barriers(page, axe) == []
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator("#secret-dialog[open]").wait_for()
    secret = page.inner_text("#secret")
    assert secret.startswith("sk-") and secret not in path.read_text()
    page.get_by_role("button", name="Close").click()
    page.locator("#secret:empty").wait_for(state="attached")  # a dialog says that it closed a task later
    assert secret not in page.content()
    ann = page.locator("[data-key='ann']")
    told = "Chat and completions · only fake, other · 0 of 5,000 tokens this month · 4 requests at once"
    assert told in ann.inner_text() and 'models = ["fake", "other"]' in path.read_text()
    page.get_by_role("button", name="Edit ann").click()
    assert page.input_value("#edit-models") == "fake, other"
    page.fill("#edit-concurrency", "")
    page.fill("#edit-models", "")
    page.fill("#edit-expires", "2999-01-31")
    page.get_by_role("button", name="Save", exact=True).click()
    ann.get_by_text("expires").wait_for()
    page.get_by_role("button", name="Rotate ann").click()
    page.get_by_role("button", name="Rotate", exact=True).click()
    page.locator("#secret-dialog[open]").wait_for()
    page.get_by_role("button", name="Close").click()
    ann.get_by_text("the old secret is valid until").wait_for()
    page.get_by_role("button", name="Revoke ann").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    ann.wait_for(state="detached")
    assert path.read_text().startswith("# ours\n[keys.root]") and "ann" not in path.read_text()
    assert page.get_by_role("button", name="Revoke root").count() == 0
