"""The playground as a program of one's own: it is installable, light, and opens without the server."""

import json
import urllib.request

from browsing import answers, say

KEPT = "caches.open('llamasrv').then((kept) => kept.keys()).then((all) => all.map((one) => new URL(one.url).pathname))"
MOST = 200_000  # compressed bytes of the first load


def wait_for_shell(page):
    """Until the browser keeps what the page consists of."""
    for _ in range(200):
        kept = page.evaluate(KEPT)
        if "/" in kept and any(path.endswith("/js/playground.js") for path in kept):
            return
        page.wait_for_timeout(50)
    raise AssertionError(kept)


def test_it_opens_without_the_server_and_shows_the_conversations(serve, visit, mistakes):
    server = serve("--fake")
    page = visit(server.url)
    say(page, "Hello there")
    answers(page)
    wait_for_shell(page)
    server.end()
    page.reload()
    page.locator("#status", has_text="The server cannot be reached").wait_for()
    page.locator(".turn.user", has_text="Hello there").wait_for()
    mistakes[:] = [line for line in mistakes if "ERR_CONNECTION_REFUSED" not in line]


def test_what_changed_on_the_server_is_seen_at_once(fake_server, visit):
    """The server's answer comes first; what is kept is for when there is none."""
    page = visit(fake_server.url)
    wait_for_shell(page)
    page.evaluate("caches.open('llamasrv').then((kept) => kept.put('/', new Response('old')))")
    page.reload()
    page.locator("body[data-ready]").wait_for()


def test_a_browser_finds_what_it_needs_to_install_it(fake_server, visit):
    page = visit(fake_server.url)
    address = page.evaluate("document.querySelector('link[rel=manifest]').href")
    manifest = json.loads(urllib.request.urlopen(address).read())
    assert manifest["start_url"] == "/" and manifest["display"] == "standalone" and manifest["icons"]
    assert page.evaluate("navigator.serviceWorker.ready.then((found) => new URL(found.scope).pathname)") == "/"


def test_the_first_load_is_light(fake_server, visit):
    page = visit(fake_server.url)
    page.locator("body[data-ready]").wait_for()
    sizes = page.evaluate(
        "[...performance.getEntriesByType('resource'), ...performance.getEntriesByType('navigation')]"
        ".map(({name, encodedBodySize}) => [name, encodedBodySize])"
    )
    total = sum(size for _, size in sizes)
    print(f"first load: {total / 1000:.0f} kB in {len(sizes)} files")
    assert 0 < total < MOST, sizes
