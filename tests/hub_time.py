"""How long the hub's thread computes at a stretch, in seconds of CPU: other processes on the machine do not count, but
for how much slower they make a core. Nor do collections of what earlier tests have left."""

from __future__ import annotations

import gc
import io
import time
import traceback

import greenlet

from llamasrv import concurrency

MOST = 0.020
REFERENCE = 1_400_000  # numbers that are added up in about MOST on an idle machine


class HubTime:
    """Inside `with`, off_hub leaves the hub as it does in the server, and each stretch between two switches is timed.
    Raises at the end if one was longer than `most`, which is MOST, or REFERENCE on a machine that is slower."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.most = MOST
        self._stretches = []

    def __enter__(self):
        self._monkeypatch.setattr(concurrency, "_has_hub", lambda: True)
        self._monkeypatch.setattr(concurrency, "_computing", [])
        self._stretches = []
        self.most = max(MOST, reference())
        gc.collect()
        gc.freeze()  # for good: thawed, all that pytest holds would be looked through again by each later collection
        greenlet.settrace(self._switched)
        self._since = time.thread_time()
        return self

    def __exit__(self, kind, error, where):
        self._switched()
        greenlet.settrace(None)
        self._monkeypatch.undo()
        if kind is None:
            self.most = max(self.most, reference())
            assert not self.too_long, "\n".join(
                f"{took * 1e3:.0f} ms of CPU on the hub, until\n{at}" for took, at in self.too_long
            )

    @property
    def too_long(self):
        return [(took, at) for took, at in self._stretches if took > self.most]

    def _switched(self, *switch):
        took = time.thread_time() - self._since
        if took > MOST:
            self._stretches.append((took, "".join(traceback.format_stack(limit=8)[:-1])))
        self._since = time.thread_time()


def reference():
    """Seconds of CPU of a fixed piece of work."""
    began = time.thread_time()
    sum(range(REFERENCE))
    return time.thread_time() - began


def post(app, path, body, **headers):
    """Status and body of a reply, without what a client computes."""
    said = []
    environ = {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        **headers,
    }
    reply = app.wsgi_app(environ, lambda status, headers, exc_info=None: said.append(int(status[:3])))
    try:
        return said[0], b"".join(reply)
    finally:
        getattr(reply, "close", lambda: None)()
