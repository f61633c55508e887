"""What an answer quotes from an attached document is a link to its place there."""

import json

from browsing import attach, barriers, say
from test_hostile_strings import DANGEROUS, HOSTILE

NOTES = "# Notes\n\nThe harbour was built in 1871, after the\ngreat flood of the spring.\n\nNobody lives there now.\n"
ANSWER = (
    """The notes say “after the great flood of the spring”, but not “that anybody lives there today”. See notes.md."""
)


def answered(page, text):
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_a_quotation_opens_the_document_at_its_place(playground, axe):
    page = playground()
    attach(page, ("notes.md", "text/markdown", NOTES.encode()))
    answered(page, ANSWER)
    say(page, "When was it built?")
    links = page.locator(".turn.assistant a.citation")
    links.nth(1).wait_for()
    assert links.all_inner_texts() == ["“after the great flood of the spring”", "notes.md"], (
        "word for word, or not at all"
    )
    links.first.press("Enter")
    assert page.inner_text("#cited-title") == "notes.md" and "Nobody lives there" in page.inner_text("#cited-text")
    assert page.inner_text("#cited-text mark").split() == "after the great flood of the spring".split()
    assert barriers(page, axe) == []
    page.keyboard.press("Escape")
    page.locator("#cited-dialog").wait_for(state="hidden")


def test_documents_and_quotations_run_nothing(playground):
    page = playground()
    attach(page, ("x<img src=x onerror=alert(1)>.txt", "text/plain", "\n".join(HOSTILE).encode()))
    answered(page, "\n\n".join(f"“{text.replace('“', '')}”" for text in HOSTILE) + " x<img src=x onerror=alert(1)>.txt")
    say(page, "Quote all of it.")
    page.locator(".turn.assistant a.citation").first.wait_for()
    page.locator(".turn.assistant a.citation").first.click()
    assert page.evaluate(DANGEROUS) == []
