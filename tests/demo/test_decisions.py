"""The corpus asks its questions as the server does, and of ten kinds."""

import re
from itertools import islice

import pytest

from llamasrv.demo.corpus import documents
from llamasrv.demo.corpus.decisions import KINDS
from llamasrv.demo.corpus.draw import Draw
from llamasrv.domain.decide import DecisionOption, Question
from llamasrv.domain.request import TextPart
from llamasrv.pipeline.decide.questions import written

LINE = re.compile(r"^([A-Z]|\d): (\S+?)(?: - (.*))?$")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held_out", [False, True])
def test_questions_are_written_as_the_server_writes_them(kind, held_out):
    for seed in range(20):
        made = kind(Draw(f"{seed}", held_out=held_out))
        _, text = made.question.split("\n\n")
        instructions, *lines, how = text.split("\n")
        found = [LINE.match(line).groups() for line in lines]
        options = [DecisionOption(name, said or "") for _, name, said in found]
        labels = [label for label, *_ in found]
        shape = "predicate" if not found else "score" if labels[0] == "0" else "choice"
        if shape == "predicate":
            options, labels = [DecisionOption(True), DecisionOption(False)], ["yes", "no"]
        question = Question(shape, (TextPart(instructions),), tuple(options))
        assert text == written(question, labels, range(len(options)))
        assert made.answer in labels and made.thinking is False and how


def test_no_text_is_on_both_sides():
    def texts(held_out):
        found = islice(documents(1, held_out=held_out, skills=("decisions",)), 1000)
        return {document.given for document in found}

    assert not texts(False) & texts(True)
