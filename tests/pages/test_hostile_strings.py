"""Strings that want to become a program stay strings, wherever a page shows them."""

import itertools
import json

from browsing import answers, say

PARTS = [
    "<script>{}</script>", "<img src=x onerror={}>", "<svg onload={}>", "<svg><script>{}</script></svg>", "<body onload={}>",
    "<iframe srcdoc='<script>{}</script>'></iframe>", "<a href='javascript:{}'>x</a>", "[x](javascript:{})",
    "[x](<javascript:{}>)", "![x](javascript:{})", "<math><mtext><img src=x onerror={}></mtext></math>",
    "<details open ontoggle={}>", "<input autofocus onfocus={}>", "<video><source onerror={}></video>",
    "<form action='javascript:{}'><button>x</button></form>", "<object data='javascript:{}'></object>", "<embed src='javascript:{}'>",
    "<style>@import 'javascript:{}';</style>", "<link rel=stylesheet href='http://127.0.0.1:1/{}'>", "<base href='http://127.0.0.1:1/{}'>",
    "<meta http-equiv=refresh content='0;url=javascript:{}'>", "```html\n<script>{}</script>\n```", "$\\href{{javascript:{}}}{{x}}$",
    "<x onclick={} style='position:fixed;inset:0'>x</x>", "[x](data:text/html,<script>{}</script>)",
]  # fmt: skip
CODE = [
    "alert(1)",
    "alert`1`",
    "fetch('http://127.0.0.1:1/')",
    "location='http://127.0.0.1:1/'",
    "document.body.remove()",
]
AROUND = ["{}", '">{}', "'>{}", "</textarea></title>{}"]
HOSTILE = [around.format(part.format(code)) for part, code, around in itertools.product(PARTS, CODE, AROUND)]

# One line for whatever is dangerous in the page as it stands.
DANGEROUS = """() => [...document.querySelectorAll("main *, #talks *")].filter((e) =>
    ["SCRIPT", "IFRAME", "OBJECT", "EMBED", "LINK", "META", "BASE", "STYLE"].includes(e.tagName)
    || [...e.attributes].some(({ name, value }) => name.startsWith("on") || (["href", "src", "action"].includes(name)
      && /^\\s*(javascript|data:text|vbscript)/i.test(value) && !e.download))).map((e) => e.outerHTML.slice(0, 200))"""


def conversation():
    """Each string as a title's part, an answer, a thought, a message, a file's name, a call and its result."""
    turns = {"root": {"children": ["1"], "selected": 0}}
    for n, text in enumerate(HOSTILE, 1):
        role = ("user", "assistant", "tool")[n % 3]
        turns[str(n)] = {
            "id": str(n), "parent": str(n - 1) if n > 1 else "root", "children": [str(n + 1)] if n < len(HOSTILE) else [],
            "selected": 0, "role": role, "content": text, "model": text,
            **({"files": [{"id": text, "name": text, "type": "text/plain", "size": 1, "url": "data:text/plain;base64,eA=="}]}
               if role == "user" else {}),
            **({"reasoning": text, "calls": [{"id": text, "name": text, "arguments": text}], "answered": True, "error": text}
               if role == "assistant" else {}),
        }  # fmt: skip
    return {"title": HOSTILE[1], "turns": turns, "next": len(HOSTILE) + 1, "settings": {"system": HOSTILE[0]}}


def test_an_imported_conversation_runs_nothing(playground):
    assert len(HOSTILE) == len(set(HOSTILE)) == 500
    page = playground()
    others = [{**conversation(), "title": text, "turns": {"root": {"children": [], "selected": 0}}} for text in HOSTILE]
    content = json.dumps({"conversations": [conversation(), *others]}).encode()
    page.set_input_files("#import-file", {"name": HOSTILE[2], "mimeType": "application/json", "buffer": content})
    page.locator(".turn").nth(499).wait_for(state="attached", timeout=60_000)
    page.locator("#talk-list li").nth(499).wait_for(state="attached", timeout=60_000)
    assert page.evaluate(DANGEROUS) == []
    assert page.locator("#composer").count() == 1 and page.url.startswith("http://127.0.0.1")


def test_an_answer_and_a_file_name_run_nothing(playground):
    page = playground()
    for text in HOSTILE[::100]:
        page.set_input_files("#attach-file", [{"name": text[:100], "mimeType": "text/plain", "buffer": b"x"}])
        page.locator("#pictures .chip").wait_for()
        say(page, text)
        page.locator("#pictures .chip").wait_for(state="detached")
        page.locator("#send[aria-label='Send']").wait_for()
    answers(page, 5)
    assert page.evaluate(DANGEROUS) == []
    page.evaluate(
        "document.querySelector('main').append(Object.assign(document.createElement('a'), {href: 'javascript:1'}))"
    )
    assert len(page.evaluate(DANGEROUS)) == 1, "it sees what it looks for"
