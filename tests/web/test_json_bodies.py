"""JSON bodies: how they are parsed. What is refused is in tests/faults/test_input.py."""

from __future__ import annotations

import gc

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.web.http.body import LARGE, parse_json


def collections():
    return sum(generation["collections"] for generation in gc.get_stats())


@pytest.mark.parametrize("end", [b"]}", b"]"])
def test_a_large_body_is_parsed_without_the_garbage_collector(end):
    """It went through all objects made so far, again and again, while nothing else could run."""
    data = b'{"a":[' + b"[],{}," * LARGE + b"0" + end
    before = collections()
    try:
        parse_json(data, 5)
    except InvalidRequest:
        assert end == b"]"
    assert collections() - before < 20 and gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        parse_json(b'{"a":[' + b"0," * LARGE + b"0]}", 5)
        assert not gc.isenabled()
    finally:
        gc.enable()
