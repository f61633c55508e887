"""The one dispatch over events."""

from __future__ import annotations

from typing import get_args

import pytest
from started import started

from llamasrv.domain.events import Event, Failed, Finished, FinishReason, Pace, PromptProgress, Reasoning, Text, Usage
from llamasrv.errors import EngineFailure
from llamasrv.protocols.reader import METHODS
from llamasrv.protocols.writer import Writer

END = Finished(0, FinishReason.STOP)


class Sample(Writer):
    """Writes texts and the end, and says where it begins and where there is silence."""

    def on_begin(self):
        self._out.append(b"<")

    def on_silence(self):
        self._out.append(b".")

    def on_text(self, event):
        self._out.append(event.text.encode())

    def on_finished(self, event):
        self._out.append(b">")

    def whole(self):
        raise NotImplementedError

    def error(self, error):
        return b"!" + error.message.encode()


def test_each_event_is_written_once_in_its_place():
    writer = started(Sample())
    assert writer.chunks([Text(0, "a"), Text(0, "b")]) == [b"<", b"a", b"b"]
    assert writer.chunks([Text(0, "c"), END]) == [b"c", b">"]


def test_a_silence_is_written_where_nothing_came():
    writer = started(Sample())
    assert [writer.chunks([]) for _ in range(2)] == [[b"<", b"."], [b"."]]


def test_kinds_that_a_protocol_has_no_place_for_are_passed_over():
    others = [Reasoning(0, "x"), PromptProgress(0, 1, 0, 1, 0.0), Pace(0, Usage()), Usage()]
    assert started(Sample()).chunks(others) == [b"<"]


def test_nothing_is_written_after_a_failure():
    writer = started(Sample())
    assert writer.chunks([Text(0, "a"), Failed(0, EngineFailure("x")), Text(0, "b"), END]) == [b"<", b"a", b"!x"]
    assert writer.failed


def test_before_its_run_starts_a_reply_has_nothing_but_an_error():
    writer = Sample()
    assert writer.chunks([]) == [] and not writer.failed
    assert started(writer).chunks([]) == [b"<", b"."]
    writer = Sample()
    assert writer.chunks([Failed(0, EngineFailure("x"))]) == [b"!x"] and writer.failed


def test_a_whole_reply_is_folded_by_the_same_dispatch():
    writer = started(Sample())
    writer.fold([Text(1, "a"), Finished(0, FinishReason.STOP)])
    writer.fold([Text(1, "b"), Finished(1, FinishReason.LENGTH), Usage(3)])
    first, second = writer.folded.choices
    assert "".join(second.text) == "ab" and second.reason is FinishReason.LENGTH
    assert first.text == [] and first.reason is FinishReason.STOP
    assert writer.folded.usage.prompt_tokens == 3 and writer.take() == []


@pytest.mark.parametrize("kind", METHODS)
def test_every_kind_of_event_has_its_method(kind):
    assert set(METHODS) == set(get_args(Event)) and callable(getattr(Sample, METHODS[kind]))
