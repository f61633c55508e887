"""Files of `llamasrv calibrate`: written by the command, read when a model's settings name one.

A fit holds for one model, one chat template and one way to write questions: a file of another is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llamasrv.atomic_file import replacing
from llamasrv.config.option import reason
from llamasrv.domain.decide import COLDEST, HOTTEST, Fit
from llamasrv.errors import ConfigError
from llamasrv.models.details import Details

if TYPE_CHECKING:
    from llamasrv.pipeline.decide.calibration import Calibration

VERSION = 1  # of the file
PROMPT = 1  # how pipeline/decide writes questions
LARGEST = 1 << 20  # bytes
LABELS = 255
WIDEST = 1000.0  # bias in nats
FAKE = "fake"  # the digest of a model without a file


def of(path: Path | None, details: Details | None, template: str | None) -> dict[str, Fit]:
    """The fits in a file, by kind or bucket of questions. `template` replaces the model's own. Raises ConfigError for a
    file that is malformed or of another model."""
    return {} if path is None else read(path, identity(details, template))


def identity(details: Details | None, template: str | None) -> dict[str, Any]:
    """What a fit depends on."""
    own = template or (details.template if details is not None else None) or ""
    return {
        "model": details.digest if details is not None else FAKE,
        "template": hashlib.sha256(own.encode("utf-8", "surrogatepass")).hexdigest(),
        "prompt": PROMPT,
    }


def write(path: Path, wanted: Mapping[str, Any], calibrations: Mapping[str, Calibration]) -> None:
    body = {"version": VERSION, **wanted, "fits": {name: asdict(one) for name, one in calibrations.items()}}
    with replacing(path, mode=0o644) as file:
        file.write(json.dumps(body, indent=1).encode() + b"\n")


def read(path: Path, wanted: Mapping[str, Any]) -> dict[str, Fit]:
    """Raises ConfigError."""
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path}: larger than {LARGEST} bytes")
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    if type(body) is not dict or body.get("version") != VERSION or type(body.get("fits")) is not dict:
        raise ConfigError(f"{path}: not a file of `llamasrv calibrate`")
    for name, what in (("model", "model"), ("template", "chat template"), ("prompt", "version of llamasrv")):
        if body.get(name) != wanted[name]:
            raise ConfigError(f"{path}: made with another {what}; run `llamasrv calibrate` again")
    return {name: _fit(path, name, entry) for name, entry in body["fits"].items()}


def _fit(path: Path, name: str, entry: Any) -> Fit:
    fit = entry.get("fit") if type(entry) is dict else None
    temperature: Any = fit.get("temperature") if type(fit) is dict else None
    bias: Any = fit.get("bias") if type(fit) is dict else None
    if not _within(temperature, COLDEST - 1e-9, HOTTEST + 1e-9):
        raise ConfigError(f"{path}: fits.{name}.fit.temperature: expected a number from {COLDEST} to {HOTTEST}")
    if type(bias) is not list or len(bias) > LABELS or not all(_within(value, -WIDEST, WIDEST) for value in bias):
        raise ConfigError(f"{path}: fits.{name}.fit.bias: expected at most {LABELS} numbers up to {WIDEST:g}")
    return Fit(float(temperature), tuple(map(float, bias)))


def _within(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= high
