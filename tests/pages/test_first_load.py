"""The first visit: little is fetched, and the page can soon be used."""

from browsing import answers

SIZES = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .map(({ name, encodedBodySize }) => [name, encodedBodySize])"""
READY = """addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
    if (document.body.dataset.ready) window.readyAt ??= performance.now();
}).observe(document.body, { attributes: true }));"""


def test_it_is_under_200_kB_and_usable_after_300_ms_of_work(fake_server, browser):
    """The time is printed (pytest -s); what decides is the processor time of the page, which a busy machine leaves alone."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(READY)
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(fake_server.url)
    page.locator("body[data-ready]").wait_for()
    metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}
    page.wait_for_function(
        "() => performance.getEntriesByType('resource').some(({ name }) => name.endsWith('purify.js'))"
    )
    sizes = page.evaluate(SIZES)  # with what is fetched once the page can be used
    total = sum(size for _, size in sizes)
    print(
        f"{len(sizes)} files, {total:,} bytes compressed, ready after {page.evaluate('readyAt'):.0f} ms, "
        f"{1000 * metrics['TaskDuration']:.0f} ms of processor time"
    )
    assert 50_000 < total < 200_000, sizes
    assert metrics["TaskDuration"] < 0.3
    context.close()


HELD = """const { open } = IDBFactory.prototype;
IDBFactory.prototype.open = function (...all) {
    const real = open.apply(this, all);
    return {
        get result() { return real.result; },
        set onupgradeneeded(call) { real.onupgradeneeded = call; },
        set onerror(call) { real.onerror = call; },
        set onsuccess(call) { real.onsuccess = () => (window.goOn = call); },
    };
};"""


def test_what_is_written_while_the_page_loads_is_sent_once_it_can_be(fake_server, browser):
    """Opening the conversation emptied the field, and a message that came before the models had none to answer it."""
    context = browser.new_context()
    page = context.new_page()
    page.add_init_script(HELD)
    held, asked = [], []
    page.route("**/v1/models", lambda route: held.append(route))
    page.on("request", lambda request: asked.append(request.post_data_json) if request.method == "POST" else None)
    page.goto(fake_server.url)
    page.locator("#prompt:focus").wait_for()
    page.keyboard.type("Hello")
    page.wait_for_function("() => window.goOn")
    page.evaluate("goOn()")
    page.locator("body.empty").wait_for()
    page.keyboard.type(" there")
    page.keyboard.press("Enter")
    assert page.input_value("#prompt") == "Hello there" and asked == []
    held[0].continue_()
    assert answers(page) == ["You said: Hello there"]
    assert asked[0]["model"] == "fake" and page.input_value("#prompt") == ""
    context.close()
