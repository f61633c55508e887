"""Files of the pages: compressed where the browser takes it, and the same file otherwise."""

import gzip
import re

import pytest
from flask import Flask

from llamasrv.config.paths import templates_dir
from llamasrv.web.routes.static_files import StaticFiles, modules_of

PATH = "/ui/static/0/js/playground.js"
GZIP = {"Accept-Encoding": "gzip, deflate"}


def test_a_browser_that_takes_gzip_gets_the_file_compressed(client):
    plain, packed = client.get(PATH), client.get(PATH, headers=GZIP)
    assert packed.headers["Content-Encoding"] == "gzip" and len(packed.data) < len(plain.data) / 2
    assert gzip.decompress(packed.data) == plain.data
    assert packed.headers["Content-Length"] == str(len(packed.data))
    assert packed.content_type == plain.content_type
    assert "Accept-Encoding" in plain.headers["Vary"] and "Accept-Encoding" in packed.headers["Vary"]


@pytest.mark.parametrize("accepted", ["", "gzip;q=0", "br", "identity"])
def test_one_that_does_not_gets_it_as_it_is(client, accepted):
    reply = client.get(PATH, headers={"Accept-Encoding": accepted})
    assert "Content-Encoding" not in reply.headers and reply.data.startswith(b"// The playground")


@pytest.mark.parametrize("headers", [{}, GZIP])
def test_a_file_that_the_browser_has_is_not_sent_again(client, headers):
    first = client.get(PATH, headers=headers)
    again = client.get(PATH, headers={**headers, "If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_both_forms_have_names_of_their_own(client):
    assert client.get(PATH).headers["ETag"] != client.get(PATH, headers=GZIP).headers["ETag"]


def test_a_font_is_not_compressed_again(client):
    reply = client.get("/ui/static/0/vendor/katex/fonts/KaTeX_Main-Regular.woff2", headers=GZIP)
    assert reply.status_code == 200 and "Content-Encoding" not in reply.headers


def test_a_file_that_changes_is_compressed_again(tmp_path):
    app = Flask("here")
    files, path = StaticFiles(tmp_path), tmp_path / "one.js"
    for text in ("a" * 1000, "b" * 2000):
        path.write_text(text)
        with app.test_request_context(headers=GZIP):
            reply = files.send("one.js")
            assert gzip.decompress(reply.get_data()).decode() == text


@pytest.mark.parametrize("name", ["../base.html", "/etc/passwd", "js/../../base.html", "js"])
def test_nothing_outside_of_the_folder_is_sent(client, name):
    assert client.get(f"/ui/static/0/{name}", headers=GZIP).status_code == 404


def test_the_service_worker_may_answer_for_every_path(client):
    assert client.get("/ui/static/0/offline.js").headers["Service-Worker-Allowed"] == "/"
    assert "Service-Worker-Allowed" not in client.get(PATH).headers


def test_a_page_names_all_modules_that_it_needs_at_once(client):
    folder = templates_dir() / "web" / "static"
    needed = modules_of(folder, "js/playground.js")
    assert {"js/playground.js", "js/words.js", "js/server.js"} < set(needed) and len(set(needed)) == len(needed)
    assert not {"js/console.js", "js/turns.js", "vendor/marked.js"} & set(needed), "imported where they are used"
    named = re.findall(
        r'rel="modulepreload" href="/ui/static/[^/]+/([^"]+)"', client.get("/", headers={"Accept": "text/html"}).text
    )
    assert named == list(needed)
    assert "modulepreload" not in client.get("/ui/docs").text
