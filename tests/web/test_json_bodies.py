"""JSON bodies: how they are parsed. What is refused is in tests/faults/test_input.py."""

from __future__ import annotations

import gc
from contextlib import suppress

import orjson
import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.web.http import body
from llamasrv.web.http.body import LARGE, parse_json


@pytest.mark.parametrize("end", [b"]}", b"]"])
def test_a_large_body_is_parsed_without_the_garbage_collector(end, monkeypatch):
    """It went through all objects made so far, again and again, while nothing else could run."""
    seen, loads = [], orjson.loads
    monkeypatch.setattr(body.orjson, "loads", lambda data: [seen.append(gc.isenabled()), loads(data)][1])
    with suppress(InvalidRequest):
        parse_json(b'{"a":[' + b"[],{}," * LARGE + b"0" + end, 5)
    assert seen == [False] and gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        parse_json(b'{"a":[' + b"0," * LARGE + b"0]}", 5)
        assert not gc.isenabled()
    finally:
        gc.enable()
