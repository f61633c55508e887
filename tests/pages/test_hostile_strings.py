"""Strings that want to become a program stay strings, wherever a page shows them."""

import itertools
import json
import re
import time
from functools import partial

import pytest
from browsing import say
from test_tool_results import conversation as tool_results

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
            "id": str(n),
            "parent": str(n - 1) if n > 1 else "root",
            "children": [str(n + 1)] if n < len(HOSTILE) else [],
            "selected": 0,
            "role": role,
            "content": text,
            "model": text,
            **(
                {
                    "files": [
                        {
                            "id": text,
                            "name": text,
                            "type": "text/plain",
                            "size": 1,
                            "url": "data:text/plain;base64,eA==",
                        }
                    ]
                }
                if role == "user"
                else {}
            ),
            **(
                {
                    "reasoning": text,
                    "calls": [{"id": text, "name": text, "arguments": text}],
                    "answered": True,
                    "error": text,
                }
                if role == "assistant"
                else {}
            ),
        }
    return {"title": HOSTILE[1], "turns": turns, "next": len(HOSTILE) + 1, "settings": {"system": HOSTILE[0]}}


def calm(page):
    """Nothing that a browser would run or fetch, and no report that the policy had to stop something. (`visit` fails on
    errors, dialogs and foreign requests.)"""
    return page.evaluate(DANGEROUS) == [] and page.evaluate("window.reports") == []


def replied(body, route):
    route.fulfill(json=body)


@pytest.fixture
def watched(fake_server, visit):
    """`watched(path, replies)`: the page, which gets these replies to requests (pattern: JSON)."""

    def opened(path, replies):
        page = visit(fake_server.url)
        page.add_init_script(
            "window.reports = []; addEventListener('securitypolicyviolation', e => reports.push(e.sample))"
        )
        for pattern, body in replies.items():
            page.route(pattern, partial(replied, body))
        page.goto(fake_server.url + path)
        return page

    return opened


def test_an_imported_conversation_runs_nothing(watched):
    assert len(HOSTILE) == len(set(HOSTILE)) == 500
    page = watched("/", {})
    page.locator("body[data-ready]").wait_for()
    others = [{**conversation(), "title": text, "turns": {"root": {"children": [], "selected": 0}}} for text in HOSTILE]
    content = json.dumps({"conversations": [conversation(), *others]}).encode()
    page.set_input_files("#import-file", {"name": HOSTILE[2], "mimeType": "application/json", "buffer": content})
    page.locator("[data-turn='500']").wait_for(timeout=60_000)
    page.locator("#talk-list li").nth(499).wait_for(state="attached", timeout=60_000)
    for group in page.locator("#messages .group").all():  # a long conversation is there in part
        group.scroll_into_view_if_needed()
        group.locator(".turn").first.wait_for(state="attached")
        assert calm(page)
    assert page.locator("#composer").count() == 1 and page.url.startswith("http://127.0.0.1")


def results():
    """Each string in a tool's table (as a column's name and a cell), as a part of its content, in a diff, in other JSON."""
    pixel = "iVBORw0KGgo="
    for at in range(0, len(HOSTILE), 20):
        yield json.dumps([{text: text} for text in HOSTILE[at : at + 20]])
    yield json.dumps([{"name": text, "value": {text: text}} for text in HOSTILE])
    parts = [{"type": "text", "text": text} for text in HOSTILE]
    for text in HOSTILE:
        parts += [
            {"type": "image", "mimeType": text, "data": text},
            {"type": "image", "mimeType": "image/png", "data": pixel},
            {"type": "image_url", "image_url": {"url": text}},
        ]
    yield json.dumps({"content": parts})
    yield f"--- {HOSTILE[0]}\n+++ {HOSTILE[1]}\n@@ -1,500 +1,500 @@ {HOSTILE[2]}\n" + "\n".join(
        f"{'+-'[n % 2]}{text.replace(chr(10), ' ')}" for n, text in enumerate(HOSTILE)
    )
    yield json.dumps({"a": HOSTILE})


def test_results_of_tools_run_nothing_as_tables_parts_and_diffs(watched):
    page = watched("/", {})
    page.locator("body[data-ready]").wait_for()
    content = json.dumps(tool_results(*results())).encode()
    page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": content})
    page.locator("[data-turn='29']").wait_for(timeout=60_000)
    page.get_by_role("button", name="Show all 500 rows").click()
    assert page.locator("[data-turn='26'] tbody tr").count() == 500 and page.locator(".diff span").count() == 503
    assert page.locator(".turn img").count() == 500 and page.locator(".turn table").count() == 26
    assert calm(page)


def test_an_answer_that_streams_in_a_call_and_a_tools_result_run_nothing(watched, mistakes):
    """All strings in one answer, and as the names and results of calls that wait for results by hand."""
    calls = [
        {"index": n, "id": text, "type": "function", "function": {"name": text, "arguments": text}}
        for n, text in enumerate(HOSTILE)
    ]
    deltas = [{"content": f"\n\n{text}\n\n", "reasoning_content": text} for text in HOSTILE] + [{"tool_calls": calls}]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page = watched("/", {})
    page.locator("body[data-ready]").wait_for()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    say(page, HOSTILE[3])
    page.locator(".call").nth(499).wait_for(state="attached")
    page.locator("#send[aria-label='Send']").wait_for()
    assert calm(page)
    page.unroute("**/v1/chat/completions")
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=400, json={"error": {"message": HOSTILE[5]}})
    )
    page.evaluate(
        """texts => document.querySelectorAll(".results textarea").forEach((field, i) => (field.value = texts[i]))""",
        HOSTILE,
    )
    page.locator(".results button").click()
    page.locator(".turn.assistant .error").wait_for()
    assert page.locator(".turn.tool").count() > 10 and calm(page)
    mistakes[:] = [one for one in mistakes if "status of 400" not in one]  # the last reply


def test_files_and_models_of_any_name_run_nothing(watched, mistakes):
    page = watched("/", {"**/v1/models": {"data": [{"id": text, "meta": {}} for text in HOSTILE]}})
    page.locator("body[data-ready]").wait_for()
    assert page.locator("#model option").count() == 500
    files = [{"name": text.replace("/", "_")[:200], "mimeType": "text/plain", "buffer": b"x"} for text in HOSTILE[::5]]
    page.set_input_files("#attach-file", files)
    page.locator("#pictures .chip").nth(99).wait_for()
    assert calm(page)
    mistakes[:] = [one for one in mistakes if "status of 404" not in one]  # no such model


@pytest.mark.parametrize("path", ["/ui/models", "/ui/console"])
def test_what_the_server_reports_runs_nothing(watched, path):
    """Names of models and keys, and errors, may come from clients."""
    models = [
        {
            "id": text,
            "aliases": [text],
            "status": {"value": text, "error": text},
            "source": text,
            "meta": {"ftype": text, "capabilities": [text]},
        }
        for text in HOSTILE
    ]
    now = time.time()
    rows = [
        {
            "time": now,
            "id": text,
            "route": text,
            "method": text,
            "path": text,
            "status": 400,
            "seconds": 1,
            "key": text,
            "model": text,
            "error": text,
            "field": text,
            "client": text,
            "queue": 1.0,
        }
        for text in HOSTILE
    ]
    keys = [
        {
            "name": text,
            "scopes": [text],
            "models": [text],
            "expires": now,
            "old_expires": now,
            "open": 1,
            "refused": 1,
            "is_own": n == 1,
            "requests_per_minute": 1,
            "spent_this_month": 1,
        }
        for n, text in enumerate(HOSTILE)
    ]
    state = {
        "state": HOSTILE[0],
        "reason": HOSTILE[1],
        "started": now,
        "open_requests": 0,
        "num_requests": 0,
        "num_errors": 0,
        "version": HOSTILE[2],
        "models": [{"name": text, "state": text, "error": text} for text in HOSTILE],
        "stores": [],
        "pulls": [{"name": text, "done": True, "error": text} for text in HOSTILE],
    }
    usage = [
        {
            "date": "2030-01-01",
            "key": text,
            "model": text,
            "requests": 1,
            "prompt_tokens": 1,
            "cached_tokens": 0,
            "completion_tokens": 1,
            "seconds": 1.0,
            "cost": n,
        }
        for n, text in enumerate(HOSTILE)
    ]
    replies = (
        {re.compile(r":\d+/models$"): {"data": models}}
        if path == "/ui/models"
        else {
            "**/admin/requests": {"slow_seconds": 10, "open": rows, "failed": rows, "slow": rows},
            "**/v1/usage*": {"currency": "USD", "data": usage},
            "**/admin/keys": {"keys": keys, "obstacle": None, "scopes": HOSTILE},
            "**/admin/state": state,
        }
    )
    page = watched(path, replies)
    page.locator({"/ui/models": "#models li", "/ui/console": "#requests tbody tr"}[path]).nth(99).wait_for(
        state="attached"
    )
    if path == "/ui/console":
        page.locator("#api-keys li").nth(499).wait_for(state="attached")
        page.locator("#going li").nth(499).wait_for(state="attached")
        page.locator("#by").select_option("model")
        page.locator("#measure").select_option("cost")
        page.locator("#api-keys button").first.click()  # the editor of a key
        assert page.locator("#edit-scopes input").count() == 500
    assert calm(page)


def test_what_the_hub_reports_runs_nothing(watched):
    found = [{"repo": text, "downloads": 1, "gated": True} for text in HOSTILE]
    offered = [{"name": text, "quantization": text, "size": 1, "needs": 1, "fit": "memory"} for text in HOSTILE]
    page = watched(
        "/ui/models",
        {"**/ui/access": {"manage": True}, "**/admin/hub?*": {"data": found}, "**/admin/hub/**": {"data": offered}},
    )
    page.fill("#hub-words", "x")
    page.press("#hub-words", "Enter")
    page.locator("#hub summary").nth(499).wait_for()
    page.locator("#hub summary").first.click()
    page.locator("#hub details li").nth(499).wait_for()
    assert calm(page)


def test_what_the_server_has_of_conversations_runs_nothing(watched):
    """Another program with the same key may have put it there."""
    ids = [f"{n:03}" for n in range(500)]
    kept = [{"id": id, "revision": text, "deleted": False} for id, text in zip(ids, HOSTILE)]
    kept += [{"id": text, "revision": text, "deleted": False} for text in HOSTILE]
    replies = {
        "**/ui/access": {"scopes": {}, "tools": False, "history": 30, "key": HOSTILE[0]},
        "**/ui/history": {
            "key": HOSTILE[0],
            "era": HOSTILE[1],
            "limits": {"days": 30, "bytes": 0},
            "conversations": kept,
        },
        "**/ui/history/**": {**conversation(), "title": HOSTILE[3], "turns": {"root": {"children": [], "selected": 0}}},
        "**/ui/history/499?*": conversation(),
    }
    page = watched("/", replies)
    page.locator("body[data-ready]").wait_for()
    page.click("#settings-button")
    page.check("#history-on")
    page.locator("#talk-list li").nth(499).wait_for(state="attached", timeout=60_000)
    assert page.locator("#talk-list li").count() == 500
    page.locator("#talk-list .title").first.click()
    page.locator("[data-turn='500']").wait_for(timeout=60_000)
    assert calm(page)


def test_voices_and_errors_of_any_name_run_nothing(watched, mistakes):
    """Uploaders choose the names of voices, and an error message may repeat what a client sent."""
    replies = {
        "**/v1/audio/models": {"models": [{"id": HOSTILE[0]}]},
        "**/v1/audio/voices*": {"voices": [{"id": text, "name": text} for text in HOSTILE]},
    }
    page = watched("/", replies)
    page.locator("body[data-ready]").wait_for()
    assert page.locator("#voice option").count() == 500 and calm(page)
    errors = iter(HOSTILE)
    page.unroute("**/v1/audio/voices*")
    page.route("**/v1/audio/voices*", lambda r: r.fulfill(status=400, json={"error": {"message": next(errors)}}))
    for text in HOSTILE[:3]:
        page.reload()
        page.locator("body[data-ready]").wait_for()
        assert page.locator("#status").text_content() == text and calm(page)
    mistakes[:] = [one for one in mistakes if "status of 400" not in one]


def test_what_the_engine_reports_runs_nothing(watched):
    """Names of models, keys, lanes and parts of a step, and why a prompt has changed."""
    figures = {
        "num_prompt": 1,
        "num_computed": 1,
        "num_reused": 1,
        "num_generated": 1,
        "max_tokens": 9,
        "num_drafted": 1,
        "num_accepted": 1,
        "seconds": 1,
        "queue": 0,
        "prefill": 1,
        "decode": 0,
        "paused": 0,
    }
    rows = [{"id": text, "key": text, "lane": text, "source": text, "changed": text, **figures} for text in HOSTILE]
    counts = dict.fromkeys(HOSTILE, 1)
    totals = {"sources": counts, "parts": counts, "prompt": 1, "cached": 1, "generated": 1, "steps": 1}
    latency = {"bounds": [0.1, 1], "first_token": [1, 1], "between_tokens": [1, 1], "queue": [1, 1]}
    model = {
        "running": rows,
        "waiting": rows,
        "num_waiting": 500,
        "cells": {"held": 1, "used": 2, "total": 500},
        "strip": [[text, 1, text] for text in HOSTILE],
        "pins": {"num": 1, "bytes": 1},
        "num_sessions": 1,
        "totals": totals,
        "latency": latency,
    }
    idle = {**model, "running": [], "waiting": [], "strip": [], "totals": {**totals, "sources": {}, "parts": {}}}
    loaded = {**dict.fromkeys(HOSTILE, idle), HOSTILE[0]: model}
    every = [{"name": text, "state": text, "progress": 0, "memory": 1} for text in HOSTILE]
    page = watched("/", {"**/ui/engine/history": []})
    body = "".join(f"data: {json.dumps({'t': t, 'all': every, 'models': loaded})}\n\n" for t in (1e9, 2e9))
    page.route(
        "**/ui/engine/stream",
        lambda route: route.fulfill(
            content_type="text/event-stream", headers={"x-llamasrv-may-manage": "yes"}, body=body
        ),
    )
    page.goto(page.url + "ui/engine")
    page.locator("#requests tbody tr").nth(999).wait_for(state="attached")
    assert page.locator("#models tbody tr").count() == 500 and page.locator("#model option").count() == 500
    page.locator("#plot-step .u-legend").wait_for(state="attached")
    assert calm(page)


def test_what_decisions_and_the_description_of_the_api_say_runs_nothing(watched):
    rows = [{"value": text, "probability": 0.002} for text in HOSTILE]
    answer = {"type": "choice", "choice": HOSTILE[0], "confidence": 0.5, "probabilities": rows}
    page = watched("/ui/decide", {"**/v1/decisions": {"answers": [answer] * 3, "usage": {"input_tokens": 1}}})
    page.locator("body[data-ready]").wait_for(state="attached")
    page.fill("#text", HOSTILE[0])
    page.click("#ask")
    page.locator("#answers tr").nth(1499).wait_for(state="attached")
    assert calm(page)
    schema = {"properties": {text: {"type": text, "description": text, "x-verdict": "ignored"} for text in HOSTILE}}
    body = {"content": {"application/json": {"schema": schema, "example": HOSTILE}}}
    reply = {"200": {"content": {"text/html": {"example": HOSTILE[0]}}}}
    paths = {f"/{text}": {"post": {"summary": text, "tags": ["OpenAI"], "responses": reply}} for text in HOSTILE}
    paths[min(paths)]["post"]["requestBody"] = body  # the first on the page
    page.route("**/openapi.json", partial(replied, {"paths": paths}))
    page.goto(page.url.replace("/ui/decide", "/ui/api"))
    page.locator(".endpoint").nth(499).wait_for(state="attached")
    page.locator(".endpoint > summary").first.click()
    page.locator(".endpoint tbody tr").nth(499).wait_for(state="attached")
    page.locator(".endpoint details > summary").nth(1).click()
    assert calm(page)


def test_the_check_sees_what_it_looks_for(watched):
    page = watched("/", {})
    page.evaluate(
        "document.querySelector('main').append(Object.assign(document.createElement('a'), {href: 'javascript:1'}))"
    )
    assert len(page.evaluate(DANGEROUS)) == 1
