"""A pipeline on an engine that the test turns by hand."""

from __future__ import annotations

import pytest
from serving import check_no_leaks, open_engine, pipeline_on, read

from llamasrv.domain.events import Finished, Text
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message


def user(text):
    return (ChatPrompt((Message("user", text),)),)


def texts(events, index=0):
    return "".join(e.text for e in events if isinstance(e, Text) and e.choice == index)


def ends(events):
    return {e.choice: e.reason for e in events if isinstance(e, Finished)}


GREEDY = {"temperature": 0.0}
WILD = {"seed": 7, "temperature": 2.0, "min_p": 0.0, "top_p": 1.0}


@pytest.fixture
def engine():
    engine = open_engine(context=512)
    yield engine
    engine.turn()
    check_no_leaks(engine)


@pytest.fixture
def pipeline(engine):
    return pipeline_on(engine)


@pytest.fixture
def run(engine, pipeline):
    def go(**request):
        request = {"sampling": GREEDY, **request}
        return read(engine, pipeline.submit(GenerateRequest(**request)))

    return go
