"""The committed model, opened once."""

import llama_cpp
import pytest

from llamasrv.demo import MODEL


@pytest.fixture(scope="session")
def vocabulary():
    return llama_cpp.Llama(str(MODEL), vocab_only=True, verbose=False)


@pytest.fixture(scope="session")
def reader():
    from llamasrv.demo.evaluate import Reader

    return Reader(MODEL, threads=1)
