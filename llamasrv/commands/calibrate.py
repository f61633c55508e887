"""`llamasrv calibrate FILE.jsonl`: fits the probabilities of decisions to the operator's own cases.

Asks a server that has the given options, but no fit, the question of each line, and fits its probabilities to the right
answers. A line is {"input": ..., "question": {as in /v1/decisions}, "answer": true, "value", or a level}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llamasrv import startup
from llamasrv.commands import server
from llamasrv.config import Settings
from llamasrv.errors import ConfigError
from llamasrv.pipeline.decide.calibration import BUCKET_CASES, KIND_CASES, Calibration, Case, calibrate
from llamasrv.startup import decision_fits, model_list

MOST_LINES = 100_000
LONGEST_LINE = 4 << 20  # bytes
AT_ONCE = 4
PATIENCE = 600.0  # seconds for an answer
TINIEST = 1e-12  # floor for probabilities, before the logarithm


class CaseLine:
    """A line of the file: an input, a question, and the right answer."""

    def __init__(self, path: Path, number: int, text: bytes) -> None:
        self._where = f"{path}, line {number}"
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            raise self.wrong("not JSON") from None
        if type(line) is not dict or type(line.get("question")) is not dict or not {"input", "answer"} <= line.keys():
            raise self.wrong('expected {"input": ..., "question": {...}, "answer": ...}')
        self.input, self.question, self._answer = line["input"], line["question"], line["answer"]

    def wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._where}: {what}")

    def case(self, found: Mapping[str, Any]) -> Case:
        """The case for the fit, with the server's answer."""
        kind = found["type"]
        if kind == "predicate":
            options: list[Any] = [True, False]
            shares = [found["probability"], 1 - found["probability"]]
        else:
            rows = found["probabilities"]
            options, shares = [row["value"] for row in rows], [row["probability"] for row in rows]
            if kind == "score" and type(self._answer) is str:
                options = [row["label"] for row in rows]
        right = [i for i, value in enumerate(options) if type(value) is type(self._answer) and value == self._answer]
        if not right:
            raise self.wrong(f"answer: {json.dumps(self._answer)} is not one of the options")
        return Case(kind, tuple(math.log(max(p, TINIEST)) for p in shares), right[0])


def run(settings: Settings, path: Path, target: Path | None) -> int:
    """Fit, write the file, and print what it changes. Raises ConfigError, with the line, for what is wrong."""
    lines = list(read(path))
    target = target or path.with_suffix(".calibration.json")
    settings = startup.prepare(settings).having(model={"decision_min_mass": 0.0, "decision_calibration": None})
    model = model_list.models(settings)[0]
    console = Console()
    with console.status("loading") as status, server.running(settings) as url:
        cases = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for case in pool.map(lambda line: _ask(url, settings, model.name, line), lines):
                cases.append(case)
                status.update(f"{len(cases)} of {len(lines)} lines")
    found = calibrate(cases)
    if not found:
        raise ConfigError(f"{path}: at least {KIND_CASES} lines of one kind of question are needed")
    decision_fits.write(target, decision_fits.identity(model.settings.details, model.settings.chat_template), found)
    console.print(table(found))
    console.print(f"{target}: serve with --decision-calibration {target}")
    return 0


def read(path: Path) -> Iterator[CaseLine]:
    """Raises ConfigError."""
    with path.open("rb") as file:
        number = 0
        while text := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(text) > LONGEST_LINE:
                raise ConfigError(f"{path}, line {number}: longer than {LONGEST_LINE} bytes")
            if number > MOST_LINES:
                raise ConfigError(f"{path}: more than {MOST_LINES} lines")
            if text.strip():
                yield CaseLine(path, number, text)


def _ask(url: str, settings: Settings, model: str, line: CaseLine) -> Case:
    body = {"model": model, "input": line.input, "questions": [line.question]}
    status, reply = server.ask(settings, "POST", "/v1/decisions", body, url=url, timeout=PATIENCE)
    if status != 200:
        raise line.wrong(reply["error"]["message"])
    return line.case(reply["answers"][0])


def table(found: Mapping[str, Calibration]) -> Table:
    made = Table(
        caption="ECE: calibration error. T: the temperature, 1.00 where a fit is no better. 'After' is measured on "
        f"cases outside the fit. Buckets need {BUCKET_CASES} cases."
    )
    made.add_column("question", no_wrap=True)
    for name in ("cases", "right", "log loss", "after", "ECE", "after", "T"):
        made.add_column(name, justify="right")
    for name, one in found.items():
        made.add_row(
            name,
            str(one.num_cases),
            f"{one.before.right:.1%}",
            f"{one.before.log_loss:.3f}",
            f"{one.after.log_loss:.3f}",
            f"{one.before.calibration_error:.3f}",
            f"{one.after.calibration_error:.3f}",
            f"{one.fit.temperature:.2f}",
        )
    return made
