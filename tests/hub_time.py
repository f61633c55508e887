"""How long the hub's thread computes at a stretch, in seconds of CPU: other processes on the machine do not count."""

from __future__ import annotations

import io
import time
import traceback

import greenlet

from llamasrv import concurrency

MOST = 0.020


class HubTime:
    """Inside `with`, off_hub leaves the hub as it does in the server, and each stretch between two switches is timed.
    Raises at the end if one was longer than `most`."""

    def __init__(self, monkeypatch, most=MOST):
        self._monkeypatch = monkeypatch
        self._most = most
        self.too_long = []

    def __enter__(self):
        self._monkeypatch.setattr(concurrency, "_has_hub", lambda: True)
        self._monkeypatch.setattr(concurrency, "_computing", [])
        self.too_long = []
        greenlet.settrace(self._switched)
        self._since = time.thread_time()
        return self

    def __exit__(self, kind, error, where):
        self._switched()
        greenlet.settrace(None)
        self._monkeypatch.undo()
        if kind is None:
            assert not self.too_long, "\n".join(
                f"{took * 1e3:.0f} ms of CPU on the hub, until\n{at}" for took, at in self.too_long
            )

    def _switched(self, *switch):
        took = time.thread_time() - self._since
        if took > self._most:
            self.too_long.append((took, "".join(traceback.format_stack(limit=8)[:-1])))
        self._since = time.thread_time()


def post(app, path, body, **headers):
    """Status and body of a reply, without what a client computes."""
    said = []
    environ = {
        "REQUEST_METHOD": "POST", "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "", "SERVER_NAME": "localhost",
        "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_HOST": "localhost", "REMOTE_ADDR": "127.0.0.1",
        "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(body), "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)), **headers,
    }  # fmt: skip
    reply = app.wsgi_app(environ, lambda status, headers, exc_info=None: said.append(int(status[:3])))
    try:
        return said[0], b"".join(reply)
    finally:
        getattr(reply, "close", lambda: None)()
