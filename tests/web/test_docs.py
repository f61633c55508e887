"""The manual in the browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from llamasrv.config import manual
from llamasrv.web.routes import docs


class Page(HTMLParser):
    """The addresses and names of a page, and what its policy would not allow."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.forbidden = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.links += [given["href"]] if tag == "a" else []
        self.ids += [given["id"]] if "id" in given else []
        if "style" in given or any(name.startswith("on") for name in given) or (tag == "script" and "src" not in given):
            self.forbidden.append((tag, given))


@pytest.fixture(scope="module")
def pages(running):
    return {page: Page(running.client.get(f"/ui/docs/{page}").text) for page in docs.PAGES}


@pytest.mark.parametrize("page", docs.PAGES)
def test_every_page_is_shown_and_every_link_leads_somewhere(pages, page):
    shown = pages[page]
    assert not shown.forbidden and len(set(shown.ids)) == len(shown.ids)
    assert {section.anchor for section in manual.sections((page,))} <= set(shown.ids)
    for link in shown.links:
        path, _, fragment = link.partition("#")
        name = path.removeprefix("/ui/docs/")
        assert link.startswith("https://") or name in docs.PAGES or path in ("", "/", "/ui/docs") or path in NAVIGATION
        assert not fragment or fragment in (pages[name].ids if name in pages else shown.ids), link


NAVIGATION = ("/ui/models", "/ui/decide", "/ui/engine", "/ui/console", "/ui/api")


def test_a_question_gets_the_section_that_answers_it_and_the_places_of_others(client):
    page = client.get("/ui/docs?q=rotate+keys+without+downtime").text
    main = page[page.index("<main") :]
    assert '<h2 id="rotate-keys-without-downtime">' in main and "llamasrv key ann-2 --file keys.toml" in main
    assert 'href="/ui/docs/README#keys"' in main
    assert 'value="rotate keys without downtime"' in page


def test_options_and_foreign_flags_are_found_too(client):
    assert "/ui/docs/flags#vllm" in client.get("/ui/docs?q=tensor-parallel-size").text
    assert "/ui/docs/options#cache" in client.get("/ui/docs?q=cache-swap").text


@pytest.mark.parametrize("words", ["xyzzy", "<script>alert(1)</script>", '"onfocus="zq', "é" * 5000])
def test_words_without_a_result_say_so_and_are_no_markup(client, words):
    reply = client.get("/ui/docs", query_string={"q": words})
    assert reply.status_code == 200 and not Page(reply.text).forbidden and "<script>alert" not in reply.text
    if "script" not in words:
        assert "Nothing in the manual has these words." in reply.text


def test_the_policy_allows_the_search_form_and_nothing_else_beyond_other_pages(client):
    policy, usual = (client.get(path).headers["Content-Security-Policy"] for path in ("/ui/docs", "/ui/models"))
    assert policy == usual.replace("form-action 'none'", "form-action 'self'") != usual


@pytest.mark.parametrize("page", ["nope", "..", "README.md", "%2e%2e%2fREADME", "nginx"])
def test_no_other_file_is_shown(client, page):
    assert client.get(f"/ui/docs/{page}").status_code == 404


def test_html_in_a_page_is_text_and_foreign_files_are_no_links():
    html = docs._html("howto", "## A\n<b>x</b> [y](nginx.conf) [z](growing.md#growing) [s](javascript:x)\n<!-- t -->\n")
    assert (
        "&lt;b&gt;" in html and "t --" not in html and re.findall(r'href="(.*?)"', html) == ["/ui/docs/growing#growing"]
    )
