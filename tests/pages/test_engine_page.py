"""The live view and the API's page."""

import json
import re
import subprocess
import sys
import threading
import urllib.request

import pytest
import tiny_models
from browsing import ENDLESS, Client, answers, say

from llamasrv.engine.base.metrics import SOURCES


def test_it_moves_while_requests_run(serve, visit):
    server = serve("--fake")
    live = visit(server.url + "/ui/engine")
    live.locator("#plot-rate canvas").wait_for()
    page = visit(server.url)
    page.locator("body[data-ready]").wait_for()
    say(page, "word " * 1500)
    live.locator("#requests tbody tr").first.wait_for()
    live.locator("#strip .held").first.wait_for()
    before = int(live.get_attribute("body", "data-snapshots"))
    live.locator(f"body:not([data-snapshots='{before}'])").wait_for()
    assert live.inner_text("#models tbody td:nth-child(2)") == "Loaded"


def test_it_shows_where_the_tokens_of_prompts_came_from(serve, visit):
    server = serve("--fake")
    live = visit(server.url + "/ui/engine")
    page = visit(server.url)
    page.locator("body[data-ready]").wait_for()
    say(page, "the same words again")
    live.locator("#sources .source-computed").wait_for()
    answers(page)
    say(page, "and on with it")
    live.locator("#sources .source-resident").wait_for()
    assert "resident lane" in live.inner_text("#sources-text")


def test_every_source_has_a_name_and_a_colour_of_its_own_and_pins_are_shown(serve, visit):
    server = serve("--fake")
    snapshot = json.loads(
        urllib.request.urlopen(server.url + "/ui/engine/stream", timeout=20).readline().removeprefix(b"data: ")
    )
    (model,) = snapshot["models"].values()
    sources = model["totals"]["sources"]
    assert set(sources) == {"computed", *SOURCES}
    sources.update(dict.fromkeys(sources, 100))
    model["pins"] = {"num": 3, "bytes": 5 << 20}
    live = visit(server.url)
    live.route(
        "**/ui/engine/stream",
        lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(snapshot)}\n\n"),
    )
    live.goto(server.url + "/ui/engine")
    live.locator("#sources span").nth(5).wait_for()
    colours = live.evaluate(
        "[...document.querySelectorAll('#sources span')].map(e => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(colours)) == len(sources)
    told = live.inner_text("#sources-text")
    assert "undefined" not in told and told.count("(17%)") == len(sources)
    assert live.inner_text("#pins") == "3 prefixes are pinned by clients (5 MiB)"


def test_those_who_wait_are_shown_and_requests_are_cancelled_by_the_keyboard(serve, visit):
    server = serve(*ENDLESS)
    live = visit(server.url + "/ui/engine")
    first = Client(server, "first")
    row = live.locator("#requests tbody tr", has=live.get_by_label("Cancel the request first"))
    row.get_by_text("writing").wait_for()
    assert row.locator("td small").inner_text() == "curl/8.5.0"
    live.locator(
        "#models tbody td:nth-child(6)", has_text=re.compile("[1-9]")
    ).wait_for()  # tokens/s, though none has ended
    second = Client(server, "second")
    waiting = live.locator("#requests tbody tr", has_text="waiting")
    assert "In the queue" in waiting.locator(".timeline").get_attribute("aria-label")
    row.get_by_role("button").focus()
    for _ in range(2):  # it stays the same button while the table is drawn again
        before = live.get_attribute("body", "data-snapshots")
        live.locator(f"body:not([data-snapshots='{before}'])").wait_for()
    live.keyboard.press("Enter")
    row.wait_for(state="detached")
    assert first.ended.wait(20) and first.text.endswith("data: [DONE]\n\n") and not second.ended.is_set()
    waiting.wait_for(state="detached")
    live.get_by_label("Cancel the request second").click()
    live.locator("#no-requests:visible").wait_for()
    assert second.ended.wait(20) and second.text.endswith("data: [DONE]\n\n")


def test_a_key_without_the_scope_gets_no_buttons(serve, visit, tmp_path):
    keys = tmp_path / "keys.toml"
    made = subprocess.run(
        [sys.executable, "-m", "llamasrv", "key", "eve", "--file", keys, "--scope", "infer", "--scope", "metrics"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    server = serve("--fake", "--models-manage", "--api-key-file", keys)
    page = visit(server.url + "/ui/engine")
    page.fill("#key-input", re.search(r"\S{20,}", made)[0])
    page.click("#key-dialog button.primary")
    page.locator("#models tbody td:nth-child(8)", has_text="lacks the scope admin").wait_for()


def test_a_page_that_opens_has_the_last_hour_and_names_the_flag_that_allows(fake_server, visit):
    def answer(route):
        (sample,) = route.fetch().json()[-1:]
        old = json.loads(json.dumps(sample))
        old["t"] -= 1800
        route.fulfill(json=[old, sample])

    page = visit(fake_server.url)
    page.route("**/ui/engine/history", answer)
    page.goto(fake_server.url + "/ui/engine")
    page.locator("#plot-rate canvas").wait_for()
    page.locator("#models tbody td:nth-child(8)", has_text="--models-manage").wait_for()
    assert not re.search(r"undefined|NaN|null", page.inner_text("main"))


def test_models_are_loaded_and_unloaded_by_those_who_may(serve, visit, tmp_path):
    server = serve("--model", tiny_models.llama(tmp_path / "tiny.gguf"), "--models-manage")
    page = visit(server.url + "/ui/engine")
    page.get_by_role("button", name="Unload tiny").click()
    page.get_by_role("button", name="Load tiny", exact=True).click()
    page.get_by_role("button", name="Unload tiny").wait_for()


def test_a_model_that_cannot_be_loaded_says_why_and_goes_on_saying_it(fake_server, visit, mistakes):
    stream = urllib.request.urlopen(fake_server.url + "/ui/engine/stream", timeout=20)
    snapshot = json.loads(stream.readline().removeprefix(b"data: "))
    snapshot["models"] = {}
    snapshot["all"][0].update(state="failed", memory=None, error="The file is truncated.")
    page = visit(fake_server.url)
    page.route(
        "**/ui/engine/stream",
        lambda route: route.fulfill(
            content_type="text/event-stream",
            headers={"x-llamasrv-may-manage": "yes"},
            body=f"data: {json.dumps(snapshot)}\n\n",
        ),
    )
    page.route(
        "**/models/load", lambda route: route.fulfill(status=503, json={"error": {"message": "It failed again."}})
    )
    page.goto(fake_server.url + "/ui/engine")
    page.get_by_role("button", name="Load fake").click()
    assert page.inner_text("#models tbody .error") == "The file is truncated."
    page.get_by_text("It failed again.").wait_for()
    before = page.get_attribute("body", "data-snapshots")
    page.locator(f"body:not([data-snapshots='{before}'])").wait_for()
    assert page.inner_text("#failure") == "It failed again." and not re.search(
        "undefined|NaN|null", page.inner_text("main")
    )
    assert "503" in mistakes.pop()


def test_streams_of_snapshots_are_bounded_and_end_with_the_server(serve):
    server = serve("--fake", "--drain-timeout", "3")
    stream = urllib.request.urlopen(server.url + "/ui/engine/stream", timeout=20)
    assert stream.readline().startswith(b"data: {")
    ended = threading.Event()
    threading.Thread(target=lambda: (stream.read(), ended.set()), daemon=True).start()
    server.signal()
    assert server.exit_code() == 0 and ended.wait(10)


def test_every_operation_is_on_the_page_and_examples_run(serve, visit):
    server = serve("--fake")
    page = visit(server.url + "/ui/api")
    page.get_by_text(re.compile(r"^\d+ endpoints$")).wait_for()
    assert page.get_by_role("heading", name="POST /v1/chat/completions", exact=True).count() == 1
    other = page.get_by_role("heading", name="POST /chat/completions", exact=True)
    assert other.count() == 0
    page.check("#aliases")
    assert other.count() == 1
    page.uncheck("#aliases")
    section = run_example(page, "/health")
    section.locator(".row ~ pre", has_text='"ok"').wait_for()


def run_example(page, words):
    """Run the first endpoint that a search finds. Returns its section."""
    page.fill("#find", words)
    section = page.locator(".endpoint:visible").first
    section.locator("summary").first.click()
    section.get_by_text("Try it").click()
    section.get_by_role("button", name="Run").click()
    return section


@pytest.mark.parametrize(
    "path", ["/api/chat", "/v1/messages", "/v1beta/models/{name}:generateContent", "/v1/responses"]
)
def test_examples_name_a_model_that_is_served(fake_server, visit, path):
    page = visit(fake_server.url + "/ui/api")
    section = run_example(page, f"post {path}")
    section.locator(".row ~ pre", has_text="Hello").wait_for()


def test_an_example_waits_for_what_its_address_lacks_and_names_no_model_to_delete(fake_server, visit):
    page = visit(fake_server.url + "/ui/api")
    section = run_example(page, "get /v1/files/{id}")
    section.locator(".row ~ pre", has_text="Write a value in place of {id}").wait_for()
    assert page.evaluate("getSelection().toString()") == "{id}"
    page.fill("#find", "delete /api/delete")
    section = page.locator(".endpoint:visible").first
    section.locator("summary").first.click()
    section.get_by_text("Try it").click()
    assert json.loads(section.locator("textarea").input_value()) == {"model": "mine"}


def test_without_pages_there_are_none(serve):
    server = serve("--fake", "--no-ui")
    request = urllib.request.Request(server.url, headers={"Accept": "text/html"})
    assert urllib.request.urlopen(request).read() == b"Ollama is running"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(server.url + "/ui/engine")
