"""The committed model, opened once."""

import llama_cpp
import pytest

from llamasrv.demo import MODEL


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
