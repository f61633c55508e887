"""The part of the Hub's API that a pull needs, on a local port, with the Hub's habits and with its bad days."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """`files[repo][path]` are bytes. What goes wrong is set before a test asks."""

    def __init__(self):
        self.files: dict[str, dict[str, bytes]] = {}
        self.small: set[str] = set()  # paths kept without LFS
        self.lies: dict[str, bytes] = {}  # path -> other bytes than the announced ones
        self.gated: set[str] = set()
        self.gated_files: set[str] = set()  # repositories that are described, but not handed out
        self.cut_after: list[int] = []  # bytes after which the next answers break off
        self.takes_ranges = True
        self.hold_after: int | None = None  # bytes after which an answer waits for `go_on`
        self.go_on = threading.Event()
        self.ranges: list[tuple[str, int]] = []  # (path, first byte) of every file asked for
        self.asked: list[tuple[str, str]] = []  # path and Authorization of every request
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def describe(self, repo):
        siblings = []
        for path, data in self.files[repo].items():
            entry = {"rfilename": path, "size": len(data)}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if path not in self.small:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}


def _handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            hub.asked.append((self.path, self.headers.get("Authorization", "")))
            steps = unquote(urlsplit(self.path).path).strip("/").split("/")
            if steps == ["api", "models"]:
                words = parse_qs(urlsplit(self.path).query)["search"][0].lower()
                found = [
                    {"id": repo, "modelId": repo, "downloads": 12345} for repo in hub.files if words in repo.lower()
                ]
                return self._send(200, json.dumps(found).encode(), kind="application/json")
            if steps[:2] == ["api", "models"]:
                repo = "/".join(steps[2:4])
                if repo in hub.gated:
                    return self._error(403, "GatedRepo")
                if repo not in hub.files:
                    return self._error(404, "RepoNotFound")
                if steps[4:5] == ["revision"] and steps[5] not in ("main", COMMIT):
                    return self._error(404, "RevisionNotFound")
                return self._send(200, json.dumps(hub.describe(repo)).encode(), kind="application/json")
            repo, path = "/".join(steps[:2]), "/".join(steps[4:])
            if steps[2:3] != ["resolve"] or path not in hub.files.get(repo, {}):
                return self._error(404, "EntryNotFound")
            if repo in hub.gated_files:
                return self._error(403, "GatedRepo")
            return self._file(path, hub.lies.get(path, hub.files[repo][path]))

        def _file(self, path, data):
            start = 0
            wanted = self.headers.get("Range")
            if wanted and hub.takes_ranges:
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
            hub.ranges.append((path, start))
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
            self._send(206 if start else 200, data[start:], headers)

        def _send(self, status, body, headers=None, kind="application/octet-stream"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if kind == "application/json":
                self.wfile.write(body)
                return
            if hub.cut_after:
                body = body[: hub.cut_after.pop(0)]
                self.close_connection = True
            if hub.hold_after is not None:
                self.wfile.write(body[: hub.hold_after])
                self.wfile.flush()
                hub.go_on.wait(30)
                body = body[hub.hold_after :]
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        def _error(self, status, code):
            self._send(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code}, kind="application/json")

        def log_message(self, *arguments):
            pass

    return Handler


@contextmanager
def running():
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()
