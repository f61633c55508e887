"""What one does on a page."""

from __future__ import annotations

import json
import threading
import urllib.request

ENDLESS = ("--fake", "--context-shift", "--parallel", "1")  # one request at a time, and time enough to look at it


class Client:
    """Asks such a server for an answer of minutes, as request `id`. `text`: the whole stream, once it `ended`."""

    def __init__(self, server, id, key=None):
        body = {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 1_900_000,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Content-Type": "application/json", "User-Agent": "curl/8.5.0", "X-Request-Id": id}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        self._request = urllib.request.Request(f"{server.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        self.text, self.ended = "", threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            self.text = urllib.request.urlopen(self._request).read().decode()
        except OSError:
            pass  # the server ends with the test
        self.ended.set()


def say(page, text):
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def open_settings(page):
    if page.get_attribute("#settings-button", "aria-expanded") == "false":
        page.click("#settings-button")


def stop(page):
    page.get_by_role("button", name="Stop", exact=True).click()


def attach(page, *files):
    page.set_input_files(
        "#attach-file", [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    )


def answers(page, count=1):
    """The texts of all answers, once `count` of them are whole."""
    page.locator(".turn.assistant .stats").nth(count - 1).wait_for()
    return page.locator(".turn.assistant .text").all_inner_texts()


def show_code(page):
    page.click("#show-code")
    page.locator("#code-dialog[open]").wait_for()


def request_as_code(page, tab):
    """What the page shows for that language; Python has to compile."""
    show_code(page)
    page.get_by_role("tab", name=tab).click()
    code = page.inner_text("#code-text")
    if tab.startswith("Python"):
        compile(code, tab, "exec")
    return code


def barriers(page, axe):
    """All that axe finds, of whatever weight."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    return [(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found]
