"""Forms, whole and cut at every position."""

from __future__ import annotations

import pytest

from llamasrv.web.http.form_decoder import HEAD_BYTES, Data, FormDecoder, Malformed, Part

FORM = (
    b'a preamble\r\n--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nvalue\r\n--x  \r\n'
    b'content-disposition: form-data; name="f"; filename="n.txt"\r\nContent-Type: text/plain\r\n\r\n'
    b'\r\n--\r\n--y\r\n-x\n--x is no boundary\r\n--x\r\nContent-Disposition: form-data; name="e"\r\n\r\n\r\n--x--\r\nan epilogue'
)
PARTS = [
    (Part("a", None, ""), b"value"),
    (Part("f", "n.txt", "text/plain"), b"\r\n--\r\n--y\r\n-x\n--x is no boundary"),
    (Part("e", None, ""), b""),
]


def parts(*pieces):
    decoder, out = FormDecoder(b"x"), []
    for piece in pieces:
        for event in decoder.feed(piece):
            if isinstance(event, Part):
                out.append((event, b"", False))
            else:
                part, data, is_last = out[-1]
                assert not is_last
                out[-1] = (part, data + event.data, event.is_last)
    decoder.end()
    assert all(is_last for _, _, is_last in out)
    return [(part, data) for part, data, _ in out]


def test_wherever_it_is_cut_it_is_the_same():
    assert parts(FORM) == PARTS
    for at in range(len(FORM)):
        assert parts(FORM[:at], FORM[at:]) == PARTS
    assert parts(*(FORM[at : at + 1] for at in range(len(FORM)))) == PARTS


def test_lines_may_end_without_a_return():
    form = FORM.replace(b"\r\n", b"\n").replace(b"\n--x is no boundary", b"")
    assert [part.name for part, _ in parts(form)] == ["a", "f", "e"]


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"x",
        FORM[:-15],
        b"--x\r\n\r\nno disposition\r\n--x--",
        b"--x\r\nnonsense\r\n\r\n\r\n--x--",
        b"--x nonsense\r\n\r\n",
        b"y" * (HEAD_BYTES + 1) + FORM,
        b"--x\r\nA: " + b"y" * HEAD_BYTES + b"\r\n\r\n--x--",
        b"--x\r\nContent-Disposition: attachment; name=a\r\n\r\n\r\n--x--",
    ],
)
def test_what_is_no_form_is_refused(form):
    with pytest.raises(Malformed):
        parts(form)
    with pytest.raises(Malformed):
        parts(*(form[at : at + 1] for at in range(len(form))))


def test_data_goes_on_as_it_comes():
    decoder = FormDecoder(b"x")
    list(decoder.feed(b'--x\r\nContent-Disposition: form-data; name="f"; filename="n"\r\n\r\n'))
    told = 0
    for _ in range(20):
        told += sum(len(event.data) for event in decoder.feed(b"\r\n--" * 1000) if isinstance(event, Data))
    assert told >= 79_990
