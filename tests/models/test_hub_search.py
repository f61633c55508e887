"""Models on a Hub are found by words, with the quantisations that fit here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from llamasrv.errors import HubUnreachable
from llamasrv.models import hub_search
from llamasrv.models.hub_search import ask, verdict
from llamasrv.models.memory import need_of_file

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).with_name("hub.py"))
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)
GIB = 1 << 30


@pytest.fixture
def hub():
    with fake_hub.running() as server:
        yield server


@pytest.mark.parametrize(
    "needs, memory, devices, told",
    [
        (4 * GIB, 8 * GIB, 0, {"fit": "memory"}),
        (9 * GIB, 8 * GIB, 0, {"fit": "no"}),
        (4 * GIB, 8 * GIB, 4 * GIB, {"fit": "gpu"}),
        (10 * GIB, 8 * GIB, 4 * GIB, {"fit": "partly", "share": 0.4}),
        (13 * GIB, 8 * GIB, 4 * GIB, {"fit": "no"}),
    ],
)
def test_a_model_fits_on_the_gpu_partly_in_memory_or_not(needs, memory, devices, told):
    assert verdict(needs, memory, devices) == told


def test_repositories_are_found_and_their_quantisations_listed(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.files["o/Tiny-GGUF"] = {
        "Tiny-Q8_0.gguf": b"x" * 800,
        "Tiny-Q4_K_M-00001-of-00002.gguf": b"x" * 200,
        "odd.gguf": b"x" * 900,
        "Tiny-Q4_K_M-00002-of-00002.gguf": b"x" * 300,
        "mmproj-F16.gguf": b"x" * 50,
        "README.md": b"x",
    }
    assert ask("tiny") == [{"repo": "o/Tiny-GGUF", "downloads": 12345, "gated": False}]
    assert ask("nothing", "like", "it") == []
    found = ask("--repo", "o/Tiny-GGUF")
    names = [(one["name"], one["size"]) for one in found]
    assert names == [("hf:o/Tiny-GGUF:Q4_K_M", 550), ("hf:o/Tiny-GGUF:Q8_0", 850), ("hf:o/Tiny-GGUF:odd.gguf", 950)]
    assert found[0]["needs"] == need_of_file(550) and found[0]["fit"] in ("gpu", "partly", "memory", "no")
    with pytest.raises(HubUnreachable, match="no such repository"):
        ask("--repo", "o/none")


def test_a_hub_that_is_away_is_reported(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachable, match="cannot be reached"):
        ask("tiny")


def test_a_child_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(hub_search.sys, "executable", "/nowhere")
    with pytest.raises(HubUnreachable):
        ask("tiny")
