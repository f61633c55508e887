"""What tools give back is shown as what it is."""

import json

import pytest
from browsing import barriers, open_settings, say
from test_server_tools import STREAM

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
DIFF = """diff --git a/x.sql b/x.sql
--- a/x.sql
+++ b/x.sql
@@ -1,3 +1,2 @@ a query
 select
--- an old remark
-1;
+2;
--- outside of a hunk
"""


def conversation(*results):
    """One whose turns are these results of tools."""
    turns = {"root": {"children": ["1"], "selected": 0}}
    for n, text in enumerate(results, 1):
        turns[str(n)] = {
            "id": str(n),
            "parent": str(n - 1) if n > 1 else "root",
            "children": [str(n + 1)] if n < len(results) else [],
            "selected": 0,
            "role": "tool",
            "callId": "x",
            "content": text if isinstance(text, str) else json.dumps(text),
        }
    return {"title": "Results", "turns": turns, "next": len(results) + 1, "settings": {}}


def shown(page, *results):
    content = json.dumps(conversation(*results)).encode()
    page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": content})
    page.locator(f"[data-turn='{len(results)}']").wait_for()
    return [page.locator(f"[data-turn='{n}'] .text") for n in range(1, len(results) + 1)]


def test_rows_are_a_table_and_long_ones_are_opened(playground, axe):
    page = playground()
    rows = [{"name": f"n{i}", "size": i, "tags": ["a"], **({"note": None} if i else {})} for i in range(120)]
    short, alone, text = shown(page, {"total": 120, "rows": rows}, {"a": {"b": 1}}, "[1, 2")
    assert short.locator("thead th").all_inner_texts() == ["name", "size", "tags", "note"]
    assert short.locator("tbody tr").count() == 50 and short.locator("tbody tr").first.inner_text() == 'n0\t0\t["a"]\t'
    assert '"total": 120' in short.locator("pre").inner_text()
    short.get_by_role("button", name="Show all 120 rows").click()
    assert short.locator("tbody tr").count() == 120 and short.locator("button").count() == 0
    assert alone.locator("pre").inner_text() == '{\n  "a": {\n    "b": 1\n  }\n}'
    assert text.inner_text() == "[1, 2" and text.locator("*").count() == 0
    assert barriers(page, axe) == []


def test_a_diff_is_coloured_line_by_line(playground, axe):
    page = playground()
    (diff,) = shown(page, DIFF)
    lines = diff.locator("span").evaluate_all("spans => spans.map((s) => [s.className, s.textContent])")
    assert "".join(text for _, text in lines).rstrip("\n") == DIFF.rstrip("\n")
    assert [kind for kind, _ in lines] == ["head", "head", "head", "hunk", "", "removed", "removed", "added", "head"]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert barriers(page, axe) == []


def test_pictures_in_content_parts_are_seen_and_others_named(playground):
    page = playground()
    parts = [
        {"type": "text", "text": "here"},
        {"type": "image", "mimeType": "image/png", "data": PIXEL},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image", "mimeType": "image/svg+xml", "data": PIXEL},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
    ]
    (box,) = shown(page, {"content": parts})
    box.locator("img").nth(1).wait_for()
    assert box.locator("img").evaluate_all("all => all.map((i) => i.naturalWidth)") == [1, 1]
    assert box.inner_text().startswith("here") and "(image/svg+xml)" in box.inner_text()
    assert "(image_url)" in box.inner_text()


@pytest.mark.parametrize("sees", [True, False])
def test_a_tools_picture_goes_to_the_model_that_can_see_it(serve, visit, sees):
    server = serve("--fake", "--tools", "get_info")
    page = visit(server.url)
    page.locator("body[data-ready]").wait_for()
    bodies = []

    def answer(route):
        bodies.append(route.request.post_data_json)
        if len(bodies) == 1:
            route.fulfill(status=200, content_type="text/event-stream", body=STREAM)
        else:
            route.fulfill(status=200, content_type="text/event-stream", body="data: [DONE]\n\n")

    def models(route):
        data = route.fetch().json()
        data["data"][0]["meta"]["capabilities"] = ["completion", "tools", *(["vision"] if sees else [])]
        route.fulfill(json=data)

    picture = {"plain_text_response": "", "images": [{"mimeType": "image/png", "data": PIXEL}]}
    page.route("**/v1/models", models)
    page.reload()
    page.locator("body[data-ready]").wait_for()
    page.route("**/v1/chat/completions", answer)
    page.route(
        "**/tools", lambda route: route.fulfill(json=picture) if route.request.method == "POST" else route.continue_()
    )
    open_settings(page)
    page.click("#settings summary:has-text('Tools')")
    page.locator("#server-tool-list input").check()
    say(page, "Draw")
    page.get_by_role("button", name="Allow once").click()
    page.locator(".turn.tool img").wait_for()
    page.locator("#send[aria-label='Send']").wait_for()
    result = bodies[1]["messages"][-1]["content"]
    if sees:
        assert [part["type"] for part in result] == ["text", "image_url"]
    else:
        assert result == "The tool returned an image."
