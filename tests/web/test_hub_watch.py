"""How long the hub computes at a stretch is counted, and told with the route that it did it for."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import gevent
import pytest

from llamasrv.engine.base.metrics import Histogram
from llamasrv.web.context import KEY
from llamasrv.web.http import hub_watch
from llamasrv.web.http.connection import Connection
from llamasrv.web.http.hub_watch import LOGGED, LOOK, SHORTEST, HubWatch
from llamasrv.web.service import STALLS


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def last_route():
    return "/v1/files"


@pytest.fixture
def clock():
    return Clock()


def answer(environ, work):
    """A request, as a connection answers it."""
    work()


@pytest.fixture
def cpu():
    return Clock()


@pytest.fixture
def watch(clock, cpu):
    made = HubWatch(Histogram(STALLS), answer.__code__, last_route, clock=clock, cpu=cpu)
    yield made
    made.close()


def turn(watch, clock, seconds, work=lambda: None):
    watch.begin()
    clock.now += seconds
    environ = {KEY: SimpleNamespace(route="/v1/chat/completions")}
    answer(environ, work)
    watch.end()


def look(watch):
    """From another thread, while this one is where it is."""
    thread = threading.Thread(target=watch.look)
    thread.start()
    thread.join()


def test_turns_that_are_too_long_are_counted(watch, clock):
    for seconds in (SHORTEST / 2, 0.03, 0.03, 3.0):
        turn(watch, clock, seconds)
    assert dict(watch._stalls.cumulative()) == {
        "0.02": 0,
        "0.05": 2,
        "0.1": 2,
        "0.25": 2,
        "0.5": 2,
        "1.0": 2,
        "2.5": 2,
        "10.0": 3,
        "+Inf": 3,
    }


def test_waiting_for_events_is_no_stall(watch, clock):
    turn(watch, clock, 0)
    clock.now += 60
    turn(watch, clock, 0)
    watch.end()
    assert watch._stalls.total == 0


def test_one_that_is_far_too_long_is_logged_with_its_route(watch, clock, caplog):
    caplog.set_level(logging.WARNING, "llamasrv")
    turn(watch, clock, LOGGED * 2, lambda: look(watch))
    (line,) = caplog.messages
    assert "was blocked for 0.50 s" in line and "/v1/chat/completions (" in line
    turn(watch, clock, LOGGED * 2, lambda: look(watch))
    assert len(caplog.messages) == 1, "one line in a while"


def test_what_was_seen_in_an_earlier_turn_is_not_blamed(watch, clock, caplog):
    caplog.set_level(logging.WARNING, "llamasrv")
    turn(watch, clock, LOOK, lambda: look(watch))
    clock.now += 1
    turn(watch, clock, LOGGED * 2)
    assert caplog.messages[0].endswith("no other thread could look; the last request to begin was /v1/files")


def test_a_long_turn_tells_computing_from_waiting(watch, clock, cpu, caplog):
    """C code that keeps the GIL keeps the sampler out, too: the route was "unknown", and why it was blocked as well."""
    caplog.set_level(logging.WARNING, "llamasrv")

    def compute():
        cpu.now += 0.4

    turn(watch, clock, 0.5, compute)
    assert "blocked for 0.50 s (0.40 s of CPU)" in caplog.messages[0] and "/v1/files" in caplog.messages[0]


def test_it_finds_the_request_of_a_connection():
    assert {"environ", "self"} <= set(Connection._answer.__code__.co_varnames)


def test_it_watches_the_real_hub(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "llamasrv")
    clock = Clock()
    watch = HubWatch(Histogram(STALLS), answer.__code__, last_route, clock=clock)
    monkeypatch.setattr(hub_watch, "RealThread", lambda target: SimpleNamespace(start=lambda: None))
    watch.start()
    try:
        gevent.sleep(0.01)

        def work():
            clock.now += 0.7
            look(watch)

        gevent.spawn(answer, {}, work).join()
        gevent.sleep(0.01)
    finally:
        watch.close()
    assert watch._stalls.cumulative()[-1] == ("+Inf", 1)
    assert "was blocked for 0.70 s" in caplog.text and "a request (" in caplog.text
