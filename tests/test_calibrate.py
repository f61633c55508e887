"""`llamasrv calibrate`: from lines to a file that a server applies; wrong lines are named."""

from __future__ import annotations

import json
import random

import pytest

from llamasrv import cli
from llamasrv.commands.calibrate import read
from llamasrv.config import Settings
from llamasrv.errors import ConfigError
from llamasrv.startup import model_list

QUESTION = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": True}]}


def lines(count):
    dice = random.Random(1)
    return [
        json.dumps({"input": f"Text {n}.", "question": QUESTION, "answer": dice.choice(["a", True])})
        for n in range(count)
    ]


def test_a_file_is_written_and_applied(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    source, target = tmp_path / "cases.jsonl", tmp_path / "fits.json"
    source.write_text("\n".join(lines(60)))
    with pytest.raises(SystemExit) as done:
        cli.main(["calibrate", str(source), "--fake", "--to", str(target)])
    out = capsys.readouterr().out
    assert done.value.code == 0 and "log loss" in out and "choice 1-2" in out
    told = json.loads(target.read_text())["fits"]["choice"]
    assert told["num_cases"] == 60 and told["after"]["log_loss"] <= told["before"]["log_loss"]
    settings = Settings().having(model={"fake": True, "decision_calibration": target})
    (model,) = model_list.models(settings)
    assert model.settings.decisions.fits["choice"].temperature == pytest.approx(told["fit"]["temperature"])


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"input": "x", "question": 1, "answer": 1}'])
def test_a_line_that_is_none_is_named(tmp_path, text):
    path = tmp_path / "cases.jsonl"
    path.write_text(lines(1)[0] + "\n\n" + text)
    with pytest.raises(ConfigError, match="line 3"):
        list(read(path))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answer": "c"}, "not one of the options"),
        ({"answer": 1}, "not one of the options"),
        ({"question": {**QUESTION, "choices": []}}, "choices"),
        ({"input": 7}, "input"),
    ],
)
def test_a_line_that_cannot_be_asked_is_named(tmp_path, capsys, change, told):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({**json.loads(lines(1)[0]), **change}))
    with pytest.raises(SystemExit) as done:
        cli.main(["calibrate", str(path), "--fake"])
    error = capsys.readouterr().err
    assert done.value.code and "line 1" in error and told in error
