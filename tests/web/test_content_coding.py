"""Bodies in gzip and zstd: on every route, in slices, within bounds; what is malformed is a 4xx."""

import gzip
import io
import json
import zlib

import pytest

from llamasrv.errors import BodyTooLarge, InvalidRequest, UnsupportedMedia
from llamasrv.protocols.limits import Limits
from llamasrv.web.http import content_coding
from llamasrv.web.http.content_coding import EXPANSION, FREE, SLICE, coding_of, decompressed, zstd
from llamasrv.web.service import WebOptions

CHAT = "/v1/chat/completions"
HELLO = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}).encode()
PACK = {"gzip": gzip.compress, "zstd": zstd.compress}

each_coding = pytest.mark.parametrize("coding", PACK)


def post(client, data, coding, path=CHAT, **more):
    return client.post(path, data=data, headers={"Content-Encoding": coding}, **more)


@each_coding
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_body_comes_back_however_it_is_cut(coding, size):
    text = b"".join(b"%d " % n for n in range(200_000))
    packed = PACK[coding](text)
    cut = min(len(packed), 4096)
    pieces = [packed[at : at + size] for at in range(0, cut, size)]
    pieces += [packed[sum(map(len, pieces)) :]] * (sum(map(len, pieces)) < len(packed))
    found = list(decompressed(coding, pieces, kept=True))
    assert b"".join(found) == text and max(map(len, found)) <= SLICE


@each_coding
def test_what_is_kept_may_not_expand_too_much(coding):
    packed = PACK[coding](b" " * (64 * FREE))
    made = 0
    with pytest.raises(BodyTooLarge):
        for piece in decompressed(coding, [packed], kept=True):
            made += len(piece)
    assert made <= max(FREE, EXPANSION * len(packed))


@each_coding
def test_what_is_written_away_at_once_may(coding):
    packed = PACK[coding](b" " * (64 * FREE))
    assert sum(map(len, decompressed(coding, [packed], kept=False))) == 64 * FREE


@each_coding
@pytest.mark.parametrize(
    "harm",
    [
        lambda packed: packed[:-3],
        lambda packed: packed[:9],
        lambda packed: packed + b"x",
        lambda packed: packed * 2,
        lambda packed: b"no" + packed,
    ],
)
def test_a_malformed_body_is_400(client, coding, harm):
    response = post(client, harm(PACK[coding](HELLO * 4)), coding)
    assert response.status_code == 400 and coding in response.get_json()["error"]["message"]


def test_the_end_may_come_in_a_piece_of_its_own_but_nothing_after_it():
    packed = gzip.compress(b"x")
    with pytest.raises(InvalidRequest, match="after its end"):
        list(decompressed("gzip", [packed, b"more"], kept=True))


def test_a_window_that_takes_much_memory_is_refused():
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.enable_long_distance_matching: 1}
    maker = zstd.ZstdCompressor(options=options)
    packed = maker.compress(b"x" * 100) + maker.flush()
    with pytest.raises(InvalidRequest):
        list(decompressed("zstd", [packed], kept=False))


@each_coding
def test_a_chat_is_answered(client, coding):
    assert post(client, PACK[coding](HELLO), coding, content_type="application/json").status_code == 200


@each_coding
def test_a_form_is_read(start, tmp_path, coding):
    client = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000)).client
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n' + HELLO + b"\n\r\n--b--\r\n"
    )
    kind = "multipart/form-data; boundary=b"
    response = post(client, PACK[coding](form), coding, "/v1/files", content_type=kind)
    assert response.status_code == 200 and response.get_json()["bytes"] == len(HELLO) + 1


@each_coding
def test_the_limit_holds_before_and_after_expansion(start, coding):
    client = start(web=WebOptions(limits=Limits(body_bytes=2000))).client
    assert post(client, PACK[coding](HELLO + b" " * 3000), coding).status_code == 413
    assert post(client, b"x" * 2001, coding).status_code == 413
    assert post(client, PACK[coding](HELLO), coding).status_code == 200


def test_an_empty_body_is_no_error_of_its_coding():
    assert list(decompressed("gzip", [], kept=True)) == []


@pytest.mark.parametrize("header", ["br", "deflate", "gzip, zstd", "zstd, gzip", "gzip;q=1", "x" * 100])
def test_other_codings_are_415(client, header):
    response = post(client, HELLO, header)
    assert response.status_code == 415 and "Content-Encoding" in response.get_json()["error"]["message"]


@pytest.mark.parametrize(
    ("header", "coding"), [("GZIP", "gzip"), ("x-gzip", "gzip"), (" zstd ", "zstd"), ("identity", None)]
)
def test_a_coding_is_recognised_however_it_is_spelt(header, coding):
    assert coding_of({"HTTP_CONTENT_ENCODING": header}) == coding


def test_without_the_package_zstd_is_415_and_says_what_to_do(monkeypatch):
    monkeypatch.setattr(content_coding, "zstd", None)
    with pytest.raises(UnsupportedMedia, match="backports.zstd.*compression=False"):
        coding_of({"HTTP_CONTENT_ENCODING": "zstd"})
    assert b"".join(decompressed("gzip", [gzip.compress(b"x")], kept=True)) == b"x"


def test_raw_deflate_is_not_taken_for_gzip():
    with pytest.raises(InvalidRequest):
        list(decompressed("gzip", io.BytesIO(zlib.compress(b"x")), kept=True))
