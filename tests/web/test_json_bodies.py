"""JSON bodies: how they are parsed. What is refused is in tests/faults/test_input.py."""

from __future__ import annotations

import gc
from contextlib import suppress

import orjson
import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.web.http import body
from llamasrv.web.http.body import LARGE, parse_json


@pytest.mark.parametrize("end", [b"]}", b"]"])
def test_a_large_body_is_parsed_without_the_garbage_collector(end, monkeypatch):
    """It went through all objects made so far, again and again, while nothing else could run."""
    gc.enable()  # a command line that an earlier test ran has switched it off
    seen, loads = [], orjson.loads
    monkeypatch.setattr(body.orjson, "loads", lambda data: [seen.append(gc.isenabled()), loads(data)][1])
    with suppress(InvalidRequest):
        parse_json(b'{"a":[' + b"[],{}," * (LARGE // 6) + b"0" + end, Limits())
    assert seen == [False] and gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        parse_json(b'{"a":[' + b"0," * (LARGE // 2) + b"0]}", Limits())
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(monkeypatch):
    """Parsing holds the GIL: 600,000 small objects stopped every stream for up to 0.2 s."""
    monkeypatch.setattr(body.orjson, "loads", lambda data: pytest.fail("it was parsed"))
    for data in (b'{"a":[' + b'{"a":1},' * 100_000 + b"0]}", b'{"prompt":[' + b"7," * 400_000 + b"0]}"):
        with pytest.raises(InvalidRequest, match="more than 300000 keys and values"):
            parse_json(data, Limits())


def test_real_bodies_stay_below():
    limits = Limits()
    ids = b'{"prompt":[' + b"151935," * 250_000 + b"0]}"
    assert len(parse_json(ids, limits)["prompt"]) == 250_001
    text = b'{"text":"' + b'{\\"a\\":[1,2]},' * 250_000 + b'"}'
    assert parse_json(text, limits)
    picture = b'{"url":"data:image/png;base64,' + b"A" * (32 << 20) + b'"}'
    assert parse_json(picture, limits)
