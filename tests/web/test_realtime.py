"""What a key may have open in Realtime sessions: how many, and how much they hold."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest, QueueFull
from llamasrv.web.sockets.realtime_answers import CancellableRun
from llamasrv.web.sockets.realtime_limits import ModelsHere, SessionCount


def test_a_key_has_a_number_of_sessions_and_others_are_not_concerned():
    count = SessionCount(most=2)
    with count.counted("ann"), count.counted("ann"):
        with pytest.raises(QueueFull):
            count.check("ann")
        count.check("bob")
    count.check("ann")


def test_what_the_sessions_of_a_key_hold_is_bounded_together():
    count = SessionCount(most_held=100)
    with count.counted("ann"):
        count.hold("ann", 60)
        count.check_held("ann", 40)
        with pytest.raises(InvalidRequest, match="hold more than 100 bytes"):
            count.check_held("ann", 41)
        count.check_held("bob", 100)
    count.check_held("ann", 100)


def test_a_run_that_is_cancelled_before_it_begins_is_cancelled_when_it_does():
    class Run:
        cancelled = 0

        def cancel(self):
            self.cancelled += 1

    active, run = CancellableRun(), Run()
    active.cancel("turn_detected")
    active.began(None, run)
    active.cancel("client_cancelled")
    assert active.cancelled == "turn_detected" and run.cancelled == 2


def test_names_of_others_models_stand_for_one_that_hears_unless_names_are_strict():
    assert ModelsHere(False, False, ("ear", "alias"), any_name=True).ear("whisper-1") == "ear"
    assert ModelsHere(False, False, ("ear", "alias"), any_name=True).ear("alias") == "alias"
    assert ModelsHere(False, False, ("ear",), any_name=False).ear("whisper-1") == "whisper-1"
    assert ModelsHere(False, False, ("ear",), any_name=False).ear(None) == "ear"
    assert ModelsHere(False, False, (), any_name=True).ear(None) is None
