"""What an answer that is not there yet waits for."""

from browsing import answers, say, stop

CHUNK = 'data: {"choices":[{"index":0,"delta":%s,"finish_reason":%s}]%s}\n\n'


def test_the_place_in_the_queue_is_shown(serve, visit):
    server = serve("--fake", "--parallel", "1")
    first, second = visit(server.url), visit(server.url)
    for page in (first, second):
        page.locator("body[data-ready]").wait_for()
    say(first, "word " * 1500)
    first.locator(".turn.assistant .text", has_text="word word").wait_for()
    say(second, "hi")
    second.get_by_text("Position 1 in the queue").first.wait_for()
    assert second.locator(".turn.assistant .waiting progress").count() == 1
    stop(first)
    assert answers(second) == ["You said: hi"]
    assert second.locator(".waiting").count() == 0 and second.inner_text("#status") == ""


def test_the_share_of_the_prompt_is_shown(playground):
    """Held at 40 %: what comes next never comes."""
    page = playground()
    page.evaluate(
        """chunks => {
            const real = window.fetch;
            window.fetch = (path, options) => !String(path).endsWith("/v1/chat/completions") ? real(path, options)
              : Promise.resolve(new Response(new ReadableStream({ start(out) {
                  chunks.forEach((chunk) => out.enqueue(new TextEncoder().encode(chunk)));
                  options.signal.addEventListener("abort", () => out.error(new DOMException("x", "AbortError")));
                } })));
        }""",
        [CHUNK % ("{}", "null", ',"prompt_progress":{"total":1000,"cache":0,"processed":400,"time_ms":5}')],
    )
    say(page, "a long one")
    page.locator("#status", has_text="Reading the prompt: 40%").wait_for()
    assert page.locator(".turn.assistant .waiting progress").evaluate("bar => bar.value") == 0.4
    page.keyboard.press("Escape")
    page.get_by_text("Stopped.").wait_for()
    assert page.locator(".waiting, .turn.assistant").count() == 0


def test_a_model_that_is_being_loaded_says_how_far_it_is(playground):
    page = playground()
    page.route(
        "**/v1/models",
        lambda route: route.fulfill(json={"data": [{"id": "fake", "status": {"value": "loading", "progress": 0.25}}]}),
    )
    page.evaluate(
        """() => {
            const real = window.fetch;
            window.fetch = (path, options) => String(path).endsWith("/v1/chat/completions") ? new Promise(() => {}) : real(path, options);
        }"""
    )
    say(page, "hi")
    page.locator("#status", has_text="Loading the model: 25%").wait_for()
