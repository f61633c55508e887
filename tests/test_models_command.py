"""`llamasrv models`: the list, and deleting."""

from __future__ import annotations

import io
import os
import re

import pytest
from model.tiny_models import bert, llama

from llamasrv import cli
from llamasrv.config import paths
from llamasrv.domain.option import PREFIX


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs a command in this process: (exit code, standard output, standard error)."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path / "pulled")

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["models", *map(str, arguments)])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "models"
    (place / "org/repo").mkdir(parents=True)
    llama(place / "org/repo/chat-Q8_0.gguf")
    bert(place / "embed.gguf")
    return place


def line_of(out, name):
    (line,) = [line for line in out.splitlines() if line.startswith(f"{name} ")]
    return [cell.strip() for cell in re.split(r"\s{2,}", line.strip())]


def test_it_lists_what_would_be_served(run, folder):
    code, out, err = run("--models-dir", folder, "--port", 1)
    assert code == 0 and not err
    name, size, quantisation, context, state, able = line_of(out, "chat:Q8_0")
    assert (quantisation, context, able, state) == ("F32", "2048", "completion", "no server") and size.endswith("kB")
    assert line_of(out, "embed")[5] == "embedding"


def test_it_asks_a_running_server_what_is_loaded(run, folder, serve):
    server = serve("--models-dir", folder, "--no-check-models")
    server.wait_for("serves on demand")
    port = server.wait_for("serves on demand").partition("127.0.0.1:")[2].partition(":")[0]
    assert line_of(run("--models-dir", folder, "--port", port)[1], "embed")[4] == "unloaded"


def test_rm_deletes_the_files(run, folder):
    code, out, _ = run("--models-dir", folder, "rm", "--yes", "org/repo")
    assert code == 0 and out.strip() == str(folder / "org/repo/chat-Q8_0.gguf")
    assert [path.name for path in folder.iterdir()] == ["embed.gguf"]


def test_rm_asks_before(run, folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run("--models-dir", folder, "rm", "embed")[0] != 0
    assert (folder / "embed.gguf").is_file()


def test_rm_of_an_unknown_model_says_which_may_be_meant(run, folder):
    code, out, err = run("--models-dir", folder, "rm", "-y", "embet")
    assert code == 78 and "did you mean embed?" in err


def test_rm_of_the_demonstration_model_says_why_it_stays(run, folder):
    """It was told that there is no such model, although it is listed."""
    code, out, err = run("--models-dir", folder, "rm", "demo")
    assert code == 78 and err == "llamasrv: demo is a part of llamasrv, and cannot be deleted\n"


@pytest.mark.parametrize("arguments", [[], ["--models-dir", "empty"]])
def test_where_there_is_none_it_says_how_to_get_one(run, tmp_path, monkeypatch, arguments):
    """One command that downloads and serves; which model, it leaves to whoever reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, out, err = run("--port", 1, *arguments)
    assert code == 0 and not err and line_of(out, "demo")
    *_, first, second = out.splitlines()
    assert first.split() == ["llamasrv", "serve", "--model", "FILE.gguf"]
    assert second.split() == ["llamasrv", "serve", "--model", "hf:OWNER/REPO:QUANT"]


def test_where_there_is_no_demonstration_model_either_it_says_so_too(run, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "demo_model", lambda: None)
    code, _, err = run("--port", 1)
    assert code == 78 and "--model hf:OWNER/REPO:QUANT" in err


def test_with_models_it_says_no_more(run, folder):
    assert "OWNER" not in run("--models-dir", folder, "--port", 1)[1]
