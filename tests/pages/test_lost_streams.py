"""Answers that outlive a lost connection or a reload."""

from browsing import answers, say

LONG = "word " * 1500

# A relay for fetch: the first reply of a chat breaks off after `after` bytes, as a lost connection does.
BREAK = """after => {
    const real = window.fetch;
    let broken = false;
    window.fetch = async (path, options) => {
        const reply = await real(path, options);
        if (broken || !String(path).endsWith("/v1/chat/completions")) return reply;
        broken = true;
        const reader = reply.body.getReader();
        let left = after;
        return new Response(new ReadableStream({ async pull(out) {
            const { value, done } = await reader.read();
            if (done) return out.close();
            if ((left -= value.length) < 0) {
                reader.cancel();
                return out.error(new TypeError("network error"));
            }
            out.enqueue(value);
        } }), reply);
    };
}"""


def test_an_answer_goes_on_after_a_lost_connection(playground):
    page = playground()
    page.evaluate(BREAK, 5000)
    say(page, LONG)
    (answer,) = answers(page)
    assert answer.count("word") > 100 and page.locator(".error").count() == 0


def test_an_answer_goes_on_after_a_reload(playground):
    page = playground()
    say(page, LONG)
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    before = page.inner_text(".turn.assistant .text")
    page.reload()
    page.locator("body[data-ready]").wait_for()
    (answer,) = answers(page)
    assert answer.startswith(before) and len(before) < len(answer) and answer.count("word") > 100
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert answers(page) == [answer] and page.get_attribute("#send", "aria-label") == "Send"


def test_what_the_server_no_longer_has_is_shown(playground, mistakes):
    page = playground()
    say(page, LONG)
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    page.route(
        "**/v1/stream?**", lambda route: route.fulfill(status=404, json={"error": {"message": "No such stream."}})
    )
    page.reload()
    page.get_by_text("The connection was lost, and the server no longer has this answer.").wait_for()
    assert "404" in mistakes.pop()


def test_a_stopped_answer_is_stopped_at_the_server_too(playground):
    page = playground()
    say(page, LONG)
    page.locator(".turn.assistant .text", has_text="word word").wait_for()
    with page.expect_response(lambda reply: reply.request.method == "DELETE") as ended:
        page.keyboard.press("Escape")
    assert ended.value.status == 204
