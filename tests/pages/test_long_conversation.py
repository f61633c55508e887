"""A conversation of 10,000 messages is there in part, and scrolls."""

import json

from browsing import answers, say

MESSAGES = 10_000
SHOWN = 400  # of them that may be elements at the same time


def talk(number=MESSAGES):
    turns = {"root": {"children": ["1"], "selected": 0}}
    for n in range(1, number + 1):
        text = (
            f"Question {n}"
            if n % 2
            else f"**Answer {n}** with `code`\n\n- a list\n- of two\n\n" + "some words " * (n % 60)
        )
        turns[str(n)] = {
            "id": str(n),
            "parent": str(n - 1) if n > 1 else "root",
            "children": [str(n + 1)] if n < number else [],
            "selected": 0,
            "role": "user" if n % 2 else "assistant",
            "content": text,
        }
    return {"title": "long", "turns": turns, "next": number + 1, "settings": {}}


def answered(route):
    """The model's context is shorter than the conversation."""
    answered_with("And then?", route)


def answered_with(text, route):
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")


def opened(page, number=MESSAGES):
    content = json.dumps(talk(number)).encode()
    page.set_input_files("#import-file", {"name": "long.json", "mimeType": "application/json", "buffer": content})
    page.locator(f"[data-turn='{number}']").wait_for(timeout=60_000)


SCROLL = """async ({ step, frames }) => {
    const box = document.querySelector("#messages");
    const times = [];
    let last = performance.now();
    for (let frame = 0; frame < frames; frame++) {
        box.scrollTop += step;
        const now = await new Promise(requestAnimationFrame);
        times.push(now - last);
        last = now;
    }
    return Math.max(...times.slice(1));
}"""
SEEN = """() => {
    const box = document.querySelector("#messages").getBoundingClientRect();
    return [...document.querySelectorAll("#messages .turn")].filter((e) => {
        const { top, bottom } = e.getBoundingClientRect();
        return bottom > box.top && top < box.bottom;
    }).map((e) => Number(e.dataset.turn));
}"""
SEEN_EMPTY = """() => {
    const box = document.querySelector("#messages").getBoundingClientRect();
    return [...document.querySelectorAll("#messages .group:empty")].filter((e) => {
        const { top, bottom } = e.getBoundingClientRect();
        return bottom > box.top && top < box.bottom;
    }).length;
}"""


def test_ten_thousand_messages_scroll_and_few_of_them_are_elements(playground):
    """The longest frame is printed (pytest -s); what decides is the processor time, which a busy machine leaves alone."""
    page = playground()
    opened(page)
    seen = page.evaluate(SEEN)
    assert seen[-1] == MESSAGES and page.locator("#messages .turn").count() < SHOWN
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent():
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    for step, frames in ((-300, 200), (-50_000, 10), (300, 100)):
        before = spent()
        longest = page.evaluate(SCROLL, {"step": step, "frames": frames})
        each = 1000 * (spent() - before) / frames
        print(
            f"{frames} frames of {step} pixels: {each:.1f} ms of processor time each, the longest took {longest:.1f} ms"
        )
        assert each < 50
    page.wait_for_function(f"() => ({SEEN})().length > 1")
    seen = page.evaluate(SEEN)
    assert seen == sorted(seen) and 1 < seen[0] < MESSAGES
    assert page.locator("#messages .turn").count() < SHOWN


def test_a_turn_far_above_is_found_and_what_is_said_next_stands_at_the_end(playground):
    page = playground()
    opened(page, 1000)
    page.fill("#find-talk", "Question 301")
    page.click("#talk-list .title")
    page.locator("[data-turn='301'].found").wait_for()
    assert 301 in page.evaluate(SEEN)
    page.fill("#find-talk", "")
    page.route("**/v1/chat/completions", answered)
    say(page, "and now")
    page.get_by_text("And then?").wait_for()
    assert page.evaluate(SEEN)[-1] == 1002


def test_an_answer_that_comes_all_at_once_is_followed_to_its_end(playground):
    """The last piece was not: the page stood where the piece before had ended."""
    page = playground()
    page.route("**/v1/chat/completions", lambda route: answered_with("a line\n\n" * 60 + "The end.", route))
    say(page, "hello")
    answers(page)
    assert page.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight", page.query_selector("#messages")) < 2


def test_another_version_of_a_message_stands_where_the_first_one_stood(playground):
    """The page jumped to its end. Later it stood 700 pixels off on a busy machine: what was seen above the message was a
    box that was filled in the next frame, and browsers keep no place by a box whose height is taken away."""
    page = playground()
    opened(page, 400)
    page.evaluate("document.querySelector('#messages').scrollTop = 5000")
    asked = 43  # early in its group, so that what is seen above stands in another one
    page.locator(f"[data-turn='{asked}']").evaluate("turn => turn.scrollIntoView({ block: 'center' })")
    top = f"document.querySelector(`[data-turn='{asked}']`)?.getBoundingClientRect().top"
    page.locator(f"[data-turn='{asked}']").get_by_label("Edit").click()
    page.locator(".edit").get_by_role("button", name="Cancel").click()
    assert asked in page.evaluate(SEEN)
    page.route("**/v1/chat/completions", answered)
    page.locator(f"[data-turn='{asked}']").get_by_label("Edit").click()
    page.fill(".edit textarea", "another")
    page.click(".edit button.primary")
    page.get_by_text("And then?").wait_for()
    page.locator("#send[aria-label='Send']").wait_for()
    before = page.locator(".turn.user", has_text="another").evaluate("e => e.getBoundingClientRect().top")
    previous = page.locator(".turn.user", has_text="another").get_by_label("Previous version")
    assert previous.evaluate(f"button => {{ button.click(); return ({SEEN_EMPTY})(); }}") == 0
    page.locator(f"[data-turn='{asked}']").wait_for()
    page.wait_for_function(f"() => Math.abs({top} - {before}) < 2")
