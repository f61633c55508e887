"""Forms with files, read whole and cut into pieces."""

from __future__ import annotations

import io

import pytest
from werkzeug.test import EnvironBuilder

from llamasrv.errors import BodyTooLarge, InvalidRequest
from llamasrv.web.context import KEY, RequestContext
from llamasrv.web.http.multipart import FIELD_BYTES, PARTS, read_form


def environ(**fields):
    return EnvironBuilder("/", method="POST", data=fields).get_environ() | {KEY: RequestContext()}


def read(environ, most=2**24):
    return read_form(environ, most=most, open_file=lambda name: io.BytesIO(), patience=30.0)


class InPieces(io.BytesIO):
    """A body that comes `step` bytes at a time."""

    step = 1

    def read(self, size=-1):
        return super().read(min(self.step, size) if size >= 0 else self.step)


def sent(**more):
    file = (io.BytesIO(b"one\r\ntwo"), "x.jsonl", "text/plain")
    return environ(**{"purpose": "batch", "tag": ["a", "b"], "file": file, **more})


def test_it_reads_fields_and_files():
    form = read(sent())
    assert form.field("purpose") == "batch" and form.fields["tag"] == ["a", "b"] and form.field("none") is None
    file = form.files["file"]
    assert (file.name, file.content_type, file.content.getvalue()) == ("x.jsonl", "text/plain", b"one\r\ntwo")


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_body_in_pieces_is_the_same_form(step):
    given = sent()
    body = InPieces(given["wsgi.input"].read())
    body.step = step
    form = read({**given, "wsgi.input": body})
    assert form.field("tag") == "b" and form.files["file"].content.getvalue() == b"one\r\ntwo"


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=x"])
def test_it_refuses_what_is_no_form(kind):
    with pytest.raises(InvalidRequest):
        read({**sent(), "CONTENT_TYPE": kind})


def test_it_refuses_a_form_that_ends_early():
    given = sent()
    body = given["wsgi.input"].read()[:-20]
    with pytest.raises(InvalidRequest):
        read({**given, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})


def test_it_bounds_the_body_the_fields_and_the_parts():
    with pytest.raises(BodyTooLarge):
        read(sent(), most=50)
    with pytest.raises(BodyTooLarge):
        read(sent(note="x" * (FIELD_BYTES + 1)))
    with pytest.raises(BodyTooLarge):
        read(sent(**{f"f{n}": "x" for n in range(PARTS + 1)}))
