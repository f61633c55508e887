"""Replies whose run has started, without a run."""

from __future__ import annotations

from types import SimpleNamespace


def facts(**facts):
    """What a reply learns of its run."""
    given = {
        "model": "m",
        "fingerprint": "fp",
        "cache": None,
        "num_prompt": 10,
        "num_media": 0,
        "left_out": 0,
        "windows": (),
    }
    return SimpleNamespace(**{**given, **facts})


def started(reply, **known):
    reply.start(facts(**known))
    return reply
