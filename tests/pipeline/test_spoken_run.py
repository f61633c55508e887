"""A run whose answer is spoken: the order of its events, its usage, and every way in which it ends."""

from __future__ import annotations

import threading

import pytest
from test_run import Said, Start

from llamasrv.domain.events import Failed, Finished, FinishReason, Spoken, Text, ToolCallStart, Usage
from llamasrv.errors import EngineFailure, InvalidRequest
from llamasrv.pipeline.run import Run
from llamasrv.pipeline.spoken_run import SpokenRun

END = [Finished(0, FinishReason.STOP), Usage(prompt_tokens=5, completion_tokens=7)]


class Uttered:
    """Says its text in pieces of four characters; a gate holds it until it is opened."""

    def __init__(self, text, gate, error=None):
        self.text, self.gate, self.error = text, gate, None
        self._error = error
        self.done = self.cancelled = False
        self.usage = Usage()

    def pieces(self, timeout=None):
        while not self.cancelled and not self.gate.wait(0.01):
            pass
        self.done, self.error = True, self._error
        self.usage = Usage(completion_tokens=len(self.text))
        text = self.text.encode()
        return [] if self.cancelled or self._error else [text[at : at + 4] for at in range(0, len(text), 4)]

    def cancel(self):
        self.cancelled = True


class Voice:
    def __init__(self, error=None):
        self.gate, self.said, self.closed, self.error = threading.Event(), [], 0, error
        self.gate.set()

    def say(self, text):
        self.said.append(Uttered(text, self.gate, self.error))
        return self.said[-1]

    def encode(self, pcm):
        return pcm

    def end(self):
        return b"|"

    def close(self):
        self.closed += 1


def spoken(*events, voice=None, raises=None):
    voice = voice or Voice()

    def begin():
        if raises is not None:
            raise raises
        return Said().submitted(stages=[lambda _: list(events)])

    return SpokenRun(Run(Start(begin)), voice), voice


def read(run):
    events = []
    while not run.done:
        events += run.events(10)
    return events


def test_sentences_are_spoken_in_order_and_the_end_comes_last():
    run, voice = spoken(Text(0, "Hello there. "), Text(0, "This is the second sentence. And"), *END)
    events = read(run)
    assert b"".join(e.data for e in events if type(e) is Spoken) == b"Hello there.This is the second sentence.And|"
    assert [type(e) for e in events if type(e) is not Spoken] == [Text, Text, Finished, Usage]
    assert type(events[-3]) is Spoken
    assert events[-1] == Usage(prompt_tokens=5, completion_tokens=7 + 43, audio_tokens=43)
    assert voice.closed == 1 and [one.text for one in voice.said][0] == "Hello there."


def test_the_text_goes_on_while_the_first_sentence_is_spoken():
    voice = Voice()
    voice.gate.clear()
    run, _ = spoken(Text(0, "Hello there. "), Text(0, "More."), *END, voice=voice)
    events = []
    while len(events) < 2:
        events += run.events(10)
    assert [event.text for event in events] == ["Hello there. ", "More."]
    voice.gate.set()
    assert type(read(run)[-1]) is Usage


def test_calls_are_not_spoken():
    run, voice = spoken(ToolCallStart(0, 0, "call_1", "find"), Finished(0, FinishReason.TOOL_CALLS), END[1])
    assert [type(event) for event in read(run)] == [ToolCallStart, Finished, Usage]
    assert not voice.said and voice.closed == 1


def test_a_voice_that_fails_fails_the_answer():
    run, voice = spoken(Text(0, "Hello there. "), *END, voice=Voice(EngineFailure("Decoding failed.")))
    events = read(run)
    (failed,) = [event for event in events if type(event) is Failed]
    assert failed.error.message == "Decoding failed." and type(events[-1]) is Usage and voice.closed == 1


def test_a_text_that_fails_ends_the_speech():
    run, voice = spoken(Text(0, "Hello there. "), Failed(0, EngineFailure("It failed.")), END[1])
    assert [event.error.message for event in read(run) if type(event) is Failed] == ["It failed."]
    assert voice.closed == 1


def test_what_is_wrong_with_the_request_is_raised_as_ever():
    with pytest.raises(InvalidRequest):
        spoken(raises=InvalidRequest("No."))


def test_a_reader_that_leaves_cancels_both():
    voice = Voice()
    voice.gate.clear()
    run, _ = spoken(Text(0, "Hello there. "), Text(0, "And this is another one. "), *END, voice=voice)
    run.events(10)
    run.cancel()
    run.cancel()
    read(run)
    assert run.cancelled and voice.closed == 1 and all(one.cancelled for one in voice.said)
