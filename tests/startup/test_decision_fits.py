"""Files of `llamasrv calibrate`: read back as written; of another model, or malformed, they are refused by name."""

import json

import pytest

from llamasrv.domain.decide import Fit
from llamasrv.errors import ConfigError
from llamasrv.pipeline.decide.calibration import Calibration, Quality
from llamasrv.startup import decision_fits

QUALITY = Quality(0.5, 0.2, 0.1, 0.9)
FOUND = {
    "choice": Calibration(Fit(2.0, (0.5, -0.5)), 60, QUALITY, QUALITY),
    "score": Calibration(Fit(), 20, QUALITY, QUALITY),
}
OWN = decision_fits.identity(None, "template")


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "fits.json"
    decision_fits.write(path, OWN, FOUND)
    return path


def test_fits_come_back(written):
    assert decision_fits.of(written, None, "template") == {"choice": Fit(2.0, (0.5, -0.5)), "score": Fit()}


def test_without_a_file_there_are_none():
    assert decision_fits.of(None, None, None) == {}


@pytest.mark.parametrize(("name", "told"), [("model", "model"), ("template", "chat template"), ("prompt", "version")])
def test_a_file_of_another_model_is_refused_by_name(written, name, told):
    with pytest.raises(ConfigError, match=f"fits.json.*another {told}"):
        decision_fits.read(written, {**OWN, name: "other"})


@pytest.mark.parametrize("text", [
    "", "{", "[]", "{}", '{"version": 2}', "[" * 100_000,
    *(json.dumps({"version": 1, **OWN, "fits": fits}) for fits in (
        [], {"choice": 1}, {"choice": {}}, {"choice": {"fit": {"temperature": 0, "bias": []}}},
        {"choice": {"fit": {"temperature": True, "bias": []}}}, {"choice": {"fit": {"temperature": 1, "bias": ["x"]}}},
        {"choice": {"fit": {"temperature": 1, "bias": [0] * 300}}}, {"choice": {"fit": {"temperature": 1, "bias": [1e9]}}},
    )),
])  # fmt: skip
def test_a_malformed_file_is_refused_by_name(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="bad.json"):
        decision_fits.read(path, OWN)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="none.json"):
        decision_fits.read(tmp_path / "none.json", OWN)
