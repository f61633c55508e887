"""By keyboard alone."""

from browsing import answers, barriers, say


def focused(page):
    return page.evaluate("document.activeElement.id")


def test_the_keys_are_listed_and_each_does_what_it_says(playground):
    page = playground()
    page.keyboard.press("Alt+/")
    page.locator("#keys-dialog[open]").wait_for()
    listed = page.locator("#keys tr").all_inner_texts()
    assert len(listed) >= 14 and any("Search" in line for line in listed)
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+i")
    assert focused(page) == "prompt"
    page.keyboard.type("first")
    page.keyboard.press("Enter")
    answers(page)
    page.keyboard.press("Alt+r")
    page.locator(".turn.assistant .place").wait_for()
    answers(page)
    page.keyboard.press("Alt+n")
    assert focused(page) == "prompt" and page.locator(".turn").count() == 0
    page.keyboard.type("second")
    page.keyboard.press("Enter")
    answers(page)
    page.keyboard.press("Alt+ArrowDown")
    page.get_by_text("You said: first").wait_for()
    page.keyboard.press("Alt+ArrowUp")
    page.get_by_text("You said: second").wait_for()
    page.keyboard.press("Control+k")
    assert focused(page) == "find-talk"
    page.keyboard.press("Alt+m")
    assert focused(page) == "model"
    page.keyboard.press("Alt+c")
    assert page.is_checked("#compare")
    page.keyboard.press("Alt+j")
    page.locator("#code-dialog[open]").wait_for()


def test_arrow_up_in_an_empty_message_edits_the_last_one(playground):
    page = playground()
    say(page, "one")
    answers(page)
    page.press("#prompt", "ArrowUp")
    page.keyboard.press("Control+a")
    page.keyboard.type("two")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_text("You said: two").wait_for()


def test_the_tabs_of_the_code_are_one_stop_with_arrows(playground):
    page = playground()
    page.click("#show-code")
    page.get_by_role("tab", name="curl").focus()
    page.keyboard.press("ArrowRight")
    assert focused(page) == "code-tab-1" and page.inner_text("#code-text").startswith("from openai")
    page.keyboard.press("Home")
    page.keyboard.press("Tab")
    assert focused(page) == "code-panel"


def test_whoever_has_the_focus_is_seen(playground):
    """Every stop of the Tab key has an outline, or stands in a box that has a ring."""
    page = playground()
    say(page, "one")
    answers(page)
    page.evaluate("document.activeElement.blur()")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
                const element = document.activeElement;
                const ring = element.id === "prompt" ? getComputedStyle(document.querySelector("#composer")).boxShadow : "none";
                return [element.id || element.outerHTML.slice(0, 80), getComputedStyle(element).outlineStyle !== "none" || ring !== "none"];
            }"""
        )
        assert outline or name.startswith("<body"), name
        seen.add(name)
    assert {"new-talk", "find-talk", "prompt", "send", "model", "settings-button"} <= seen


def test_on_a_phone_the_panels_are_drawers(playground, axe):
    page = playground(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    assert page.locator("#settings").is_hidden() and page.locator("#talks").is_hidden()
    page.click("#settings-button")
    page.locator("#slide-temperature").wait_for()
    assert page.get_attribute("#settings-button", "aria-expanded") == "true"
    assert page.evaluate("document.activeElement.closest('#settings') !== null")
    page.keyboard.press("Escape")
    page.locator("#settings").wait_for(state="hidden")
    assert focused(page) == "settings-button"
    say(page, "hello")
    answers(page)
    page.click("#talks-button")
    page.locator("#talks").wait_for()
    assert barriers(page, axe) == []
    page.locator("#talk-list .title").click()
    page.locator("#talks").wait_for(state="hidden")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_no_barrier_in_a_dialog(playground, axe):
    page = playground()
    for key, dialog in (("Alt+/", "keys-dialog"), ("Alt+j", "code-dialog")):
        page.keyboard.press(key)
        page.locator(f"#{dialog}[open]").wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert barriers(page, axe) == []
        page.keyboard.press("Escape")
