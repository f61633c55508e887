"""Formulas in answers."""

import pytest
from browsing import answers, barriers, say


@pytest.mark.parametrize("text, inline, display", [
    ("so $a^2 + b^2 = c^2$ holds", 1, 0),
    (r"so \(a\) and \(b_{1}\) hold", 2, 0),
    ("\n\n$$\n\\frac{1}{2}\n$$\n", 0, 1),
    ("\n\n\\[\n\\begin{pmatrix}1 & 2\\\\3 & 4\\end{pmatrix}\n\\]\n", 0, 1),
    ("thus $$x = 1$$ is it", 0, 1),
    ("- item $x$\n- item\n\n| $y$ |\n|---|\n| 1 |\n", 2, 0),
])  # fmt: skip
def test_formulas_are_typeset(playground, text, inline, display):
    page = playground()
    say(page, text)
    page.locator(".turn.assistant .katex").nth(inline + display - 1).wait_for()
    assert page.locator(".turn.assistant .formula.block .katex-display").count() == display
    assert page.locator(".turn.assistant .katex").count() == inline + display
    font = page.evaluate(
        "document.fonts.ready.then(() => [...document.fonts].filter(f => f.status === 'loaded').map(f => f.family))"
    )
    assert any("KaTeX" in family for family in font)


@pytest.mark.parametrize("text", [
    "it costs $5 and $6", "from $5-$6 on", "`$a$` and\n\n```\n$$b$$\n```\n", "an $open one", r"\$a\$", "$ a $", "$$", r"\( ",
])  # fmt: skip
def test_what_is_no_formula_stays(playground, text):
    page = playground()
    say(page, text)
    answers(page)
    assert page.locator(".turn.assistant .katex, .turn.assistant code[class^=math]").count() == 0


def test_what_cannot_be_read_stays_as_it_was_written(playground):
    page = playground()
    say(page, r"good $x$ and bad $\nonsense{1}$")
    answers(page)
    page.locator(".turn.assistant .katex").wait_for()
    assert page.inner_text(".turn.assistant code.math") == r"\nonsense{1}"


def test_a_hostile_formula_does_nothing(playground):
    page = playground()
    say(
        page,
        r"$\href{javascript:alert(1)}{a}$ $\url{http://127.0.0.1:1/}$ $\includegraphics{http://127.0.0.1:1/x.png}$ "
        r"$\htmlStyle{position:fixed}{a}$ $\text{<img src=x onerror=alert(2)>}$ $\def\a{\a\a}\a$ $\rule{9999em}{9999em}$ $x$",
    )
    answers(page)
    page.locator(".turn.assistant .katex").first.wait_for()
    text = page.locator(".turn.assistant .text")
    assert text.locator("a[href], img, iframe, script").count() == 0
    assert (
        page.evaluate(
            "Math.max(...[...document.querySelectorAll('.katex .rule')].map(e => parseFloat(e.style.borderRightWidth)), 0)"
        )
        <= 40
    )


def test_a_page_without_formulas_loads_nothing_for_them(playground, fake_server, visit):
    page = visit(fake_server.url)
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    page.locator("body[data-ready]").wait_for()
    say(page, "no formulas")
    answers(page)
    assert not any("katex" in url for url in asked)


def test_an_endless_line_of_openings_is_shown_in_time(playground):
    page = playground()
    stream = 'data: {"choices":[{"index":0,"delta":{"content":%s},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    text = '"%s"' % ("\\\\( \\\\[ $ a" * 8000)
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=stream % text),
    )
    say(page, "?")
    answers(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_barrier(playground, axe, scheme):
    page = playground(color_scheme=scheme)
    say(page, "\n\n$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}$$\n\nand $x$\n\n$$" + "abcdefgh + " * 40 + "z$$\n")
    page.locator(".turn.assistant .katex").nth(2).wait_for()
    answers(page)
    assert barriers(page, axe) == []
