"""The committed model, opened once."""

from pathlib import Path

import llama_cpp
import pytest

from llamasrv import demo
from llamasrv.demo import MODEL

# Corpus, training and evaluation are in the checkout alone, and what is tested may be an installed wheel.
WORKSHOP = str(Path(__file__).resolve().parents[2] / "llamasrv" / "demo")
if WORKSHOP not in demo.__path__:
    demo.__path__.append(WORKSHOP)


@pytest.fixture(scope="session")
def model_file():
    if not MODEL.exists():
        pytest.skip("the demo model is still in training")
    return MODEL


@pytest.fixture(scope="session")
def vocabulary(model_file):
    return llama_cpp.Llama(str(model_file), vocab_only=True, verbose=False)


@pytest.fixture(scope="session")
def reader(model_file):
    from llamasrv.demo.evaluate import Reader

    return Reader(model_file, threads=1)
