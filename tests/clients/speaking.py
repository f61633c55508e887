"""A real worker process with a model that writes and one that speaks."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess
from model import tiny_speech
from samples import wav

from llamasrv.config import paths


@contextmanager
def speaking_server(folder):
    """The demonstration model as `words`, a tiny speech pair as `voice`, and the voice `mia`."""
    if paths.demo_model() is None:
        pytest.skip("the demonstration model is not here")
    model = tiny_speech.model(folder / "tiny.gguf", "pockettts")
    projector = tiny_speech.projector(folder / "mmproj-tiny.gguf", "pockettts")
    (folder / "voices").mkdir()
    (folder / "voices" / "mia.wav").write_bytes(wav(1.5))
    (folder / "llamasrv.toml").write_text(
        f'[models.words]\npath = "{paths.demo_model()}"\n[models.voice]\npath = "{model}"\nmmproj = "{projector}"\n'
        f'[media]\nvoices = "{folder / "voices"}"\n'
    )
    server = wait_until_ready(ServerProcess(["--port", "0", "--config", folder / "llamasrv.toml", "-t", 1]))
    yield server
    server.end()
