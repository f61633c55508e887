"""Media sources: none allowed by default, and only those the operator names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from llamasrv.errors import InvalidMedia
from llamasrv.media.sources import Sources, is_global


class Pictures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "http://elsewhere.example/x.png")
            self.end_headers()
        elif self.path == "/round":
            self.send_response(302)
            self.send_header("Location", "/round")
            self.end_headers()
        elif self.path == "/moved":
            self.send_response(301)
            self.send_header("Location", "/x.png")
            self.end_headers()
        elif self.path == "/gone":
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"p" * (100 if self.path == "/x.png" else 5000))

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def open_sources() -> Sources:
    return Sources(hosts=frozenset({"localhost"}), max_bytes=1000, is_public=lambda address: True)


def test_by_default_no_source_is_allowed(url: str, tmp_path: Path) -> None:
    for where in (url, f"file://{tmp_path}", "ftp://localhost/x", "nonsense", "http://[::1", "http://a:b:c"):
        with pytest.raises(InvalidMedia):
            Sources().read(where)


def test_an_allowed_host_is_fetched(url: str) -> None:
    assert open_sources().read(f"{url}/x.png") == b"p" * 100
    assert open_sources().read(f"{url}/moved") == b"p" * 100


@pytest.mark.parametrize("path", ["/away", "/round", "/gone", "/large"])
def test_redirects_elsewhere_and_large_files_are_refused(url: str, path: str) -> None:
    with pytest.raises(InvalidMedia):
        open_sources().read(url + path)


def test_an_allowed_host_with_a_private_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidMedia, match="private"):
        Sources(hosts=frozenset({"localhost"})).read(f"{url}/x.png")


@pytest.mark.parametrize(
    ("address", "public"),
    [("127.0.0.1", False), ("10.1.2.3", False), ("169.254.169.254", False), ("::1", False), ("fe80::1%eth0", False),
     ("fd00::1", False), ("0.0.0.0", False), ("224.0.0.1", False), ("::ffff:127.0.0.1", False), ("93.184.216.34", True)],
)  # fmt: skip
def test_private_addresses_are_recognised(address: str, public: bool) -> None:
    assert is_global(address) is public


def test_only_files_below_the_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a b.png").write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "secret")
    sources = Sources(folder=tmp_path / "in", max_bytes=10)
    assert sources.read("file://a%20b.png") == b"x"
    for url in (
        "file://../secret",
        "file:///../secret",
        "file://link",
        f"file://{tmp_path}/secret",
        "file://",
        "file://%00",
    ):
        with pytest.raises(InvalidMedia):
            sources.read(url)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(InvalidMedia, match="larger"):
        Sources(folder=tmp_path, max_bytes=10).read("file://big")
