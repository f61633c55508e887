"""What waits in an engine's stream becomes events. What comes of whole requests is in test_pipeline.py."""

from __future__ import annotations

from llamasrv.engine.channels import Delta
from llamasrv.pipeline.detokenizer import Detokenizer
from llamasrv.pipeline.generation import Generation


class Script:
    """A stream that has one delta for each wait, and then nothing."""

    def __init__(self, *data):
        self.data = list(data)
        self.waits = []

    def wait(self, timeout):
        self.waits.append(timeout)
        return bool(self.data)

    def take(self):
        return [Delta(0, 0, self.data.pop(0))]


def test_tokens_without_text_do_not_end_the_wait():
    """A wait that saw half a character goes on for the rest of its time."""
    script = Script(b"", b"\xc3", b"\xa9", b"\xc3")
    generation = Generation(script, lambda: None, choices=[Detokenizer()], each=1)
    assert [e.text for e in generation.events(60)] == ["é"]
    assert script.waits[0] == 60 and script.waits == sorted(script.waits, reverse=True) and script.waits[-1] > 0
    assert generation.events(60) == []


def test_tokens_without_text_do_not_prolong_the_wait():
    script = Script(*[b""] * 10)
    generation = Generation(script, lambda: None, choices=[Detokenizer()], each=1)
    assert generation.events(0) == []
    assert len(script.waits) == 1
