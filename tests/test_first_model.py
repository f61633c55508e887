"""`llamasrv run` on a machine without models."""

from __future__ import annotations

import os
import re

import pytest

from llamasrv import cli
from llamasrv.commands.first_model import SUGGESTIONS
from llamasrv.domain.option import PREFIX


@pytest.fixture
def llamasrv(tmp_path, monkeypatch, capsys):
    """Runs a command with this input from a terminal, or from none; what it pulls and runs is noted."""
    for name in [n for n in os.environ if n.startswith((PREFIX, "OLLAMA_", "HF_", "LLAMA_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("llamasrv.models.stores.models", lambda names: iter(()))
    done = []
    monkeypatch.setattr("llamasrv.commands.pull.run", lambda settings, names, as_json: done.append(("pull", *names)))
    monkeypatch.setattr("llamasrv.commands.chat.run_model", lambda *given: done.append(("run", *given[1:3])))

    def call(*words, answer=None, memory=8 << 30, cores=8):
        monkeypatch.setattr("llamasrv.commands.first_model.available_cores", lambda: cores)
        monkeypatch.setattr("llamasrv.commands.first_model.available_memory", lambda: memory)
        monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None)
        monkeypatch.setattr("click.termui.visible_prompt_func", lambda text: answer)
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        out = capsys.readouterr()
        return end.value.code, out.out, out.err, done

    return call


def test_one_question_downloads_the_largest_model_that_fits_and_starts_it(llamasrv):
    code, out, err, done = llamasrv("run", answer="")
    assert code == 0, err
    assert done == [("pull", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M"), ("run", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", None)]
    assert len(re.findall(r"  fits$", out, re.M)) == 4 and out.count("needs about") == 2 and "8.0 GiB" in out


def test_another_number_downloads_that_model(llamasrv):
    assert llamasrv("run", answer="1")[3][0] == ("pull", SUGGESTIONS[0].repository)


def test_few_cores_are_proposed_a_model_that_answers_soon(llamasrv):
    assert llamasrv("run", answer="", cores=2)[3][0] == ("pull", "hf:Qwen/Qwen3-1.7B-GGUF:Q8_0")


def test_the_smallest_is_proposed_where_none_fits(llamasrv):
    assert llamasrv("run", answer="", memory=1 << 20)[3][0] == ("pull", SUGGESTIONS[0].repository)


def test_without_a_terminal_one_line_says_what_to_type(llamasrv):
    code, out, err, done = llamasrv("run")
    assert (code, out, done) == (78, "", []) and err.count("\n") == 1
    assert "`llamasrv run hf:Qwen/Qwen3-8B-GGUF:Q4_K_M`" in err


def test_a_download_that_fails_starts_nothing(llamasrv, monkeypatch):
    monkeypatch.setattr("llamasrv.commands.pull.run", lambda settings, names, as_json: 69)
    code, _, _, done = llamasrv("run", answer="")
    assert code == 69 and done == []
