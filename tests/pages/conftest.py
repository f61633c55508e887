"""A real browser, without a window, before a real server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the extra `pages`")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def mistakes():
    """What pages did wrong; a test that wants some of it takes it out."""
    return []


@pytest.fixture
def visit(browser, mistakes):
    """`visit(url, **options)`: a page whose mistakes and foreign requests fail the test."""
    contexts = []

    def open_page(url, **options):
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "accept_downloads": True} | options
        )
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.on("console", lambda m: mistakes.append(m.text) if m.type == "error" and "401" not in m.text else None)
        page.on(
            "request", lambda r: None if r.url.startswith((origin(url), "blob:", "data:")) else mistakes.append(r.url)
        )
        page.on("dialog", lambda dialog: (mistakes.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.add_init_script("localStorage['llamasrv:titles'] ??= 'no'")  # tests count the requests for answers
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert mistakes == []


def origin(url):
    return "/".join(url.split("/")[:3])


@pytest.fixture(scope="session")
def axe():
    package = pytest.importorskip("axe_core_python", reason="needs the extra `pages`")
    return next(Path(package.__file__).parent.rglob("axe.min.js")).read_text()


@pytest.fixture(scope="session")
def fake_server():
    """One for all tests that bring nothing of their own: what a page keeps, it keeps in its browser."""
    server = ServerProcess(("--port", "0", "--fake"))
    yield server
    server.end()


@pytest.fixture
def playground(request, serve, visit):
    """`playground(*flags, **context options)`: the page on a fake model, ready to be used."""

    def start(*flags, **options):
        server = serve(*flags) if flags else request.getfixturevalue("fake_server")
        page = visit(server.url, **options)
        page.locator("body[data-ready]").wait_for()
        return page

    return start
