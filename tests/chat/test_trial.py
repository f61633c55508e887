"""Templates that were never seen are rendered in another process first."""

from __future__ import annotations

import pytest
from chat_samples import HERMES

from llamasrv.chat import trial
from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.trial import TemplateDangerous, try_template

LARGE = "{{ a.b }}" * 60_000  # takes seconds to compile, and hundreds of MiB
SMALL_MEMORY = 32 << 20  # bytes: less than the interpreter has when it begins, so that the first allocation fails


def test_a_good_template_passes():
    try_template(HERMES)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "has an error in line 1"),
        ("{{ 'x' * 99999999 }}", "although these are a few words"),
        ("x" * (1 << 21), "longer than"),
    ],
)
def test_the_error_for_an_invalid_template_names_the_reason(source, reason):
    with pytest.raises(TemplateError, match=reason) as caught:
        try_template(source)
    assert not isinstance(caught.value, TemplateDangerous)


@pytest.mark.parametrize(
    ("source", "limits", "reason"),
    [
        (LARGE, {"cpu": 1}, "more than 1 s"),
        (LARGE[:9_000], {"memory": SMALL_MEMORY}, "too much memory"),
        (LARGE, {"timeout": 0.01}, "not tried within 0 s"),
    ],
)
def test_a_template_that_does_not_stay_within_its_limits_is_dangerous(source, limits, reason):
    """One that took all memory or never ended did so in the server, when its model was first named."""
    with pytest.raises(TemplateDangerous, match=reason):
        try_template(source, **limits)


def test_where_no_process_can_be_started_the_template_is_not_used(monkeypatch):
    monkeypatch.setattr(trial.sys, "executable", "/nowhere/python")
    with pytest.raises(TemplateError, match="cannot be started"):
        try_template(HERMES)
