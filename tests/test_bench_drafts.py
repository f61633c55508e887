"""`llamasrv bench --text`: drafts against none, on the user's own text."""

from __future__ import annotations

import pytest
from options import settings_with

from llamasrv import cli
from llamasrv.commands import bench_drafts
from llamasrv.errors import ConfigError

TEXT = "Repeat this: the same words again and again and the same words again"


def test_it_compares_on_the_same_prompts(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    path = tmp_path / "prompts.txt"
    path.write_text(TEXT)
    with pytest.raises(SystemExit) as done:
        cli.main(["bench", "--fake", "--spec", "auto", "--text", str(path), "--sequences", "2", "--tokens", "32"])
    out = capsys.readouterr().out
    assert done.value.code == 0 and "with drafts" in out
    row = next(line for line in out.splitlines() if line.strip("│ ").startswith("2 "))
    assert row.strip("│ ").endswith("6 of 6"), out


@pytest.mark.parametrize(
    "text, prompts",
    [
        ("one\ntwo\n", ["one\ntwo\n"]),
        ('"one"\n\n"two\\nlines"\n', ["one", "two\nlines"]),
        ('"quoted" text', None),
        (" \n", None),
    ],
)
def test_prompts_of_a_file(tmp_path, text, prompts):
    path = tmp_path / "prompts.txt"
    path.write_text(text)
    if prompts is None:
        with pytest.raises(ConfigError, match=r"prompts\.txt"):
            bench_drafts.read(path)
    else:
        assert bench_drafts.read(path) == prompts


def test_off_is_not_compared_with_off(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(TEXT)
    with pytest.raises(ConfigError, match="the baseline that drafts are compared with"):
        bench_drafts.run(settings_with(engine_spec="off", model_fake=True), (1,), 8, path)


def test_drafts_are_measured_on_a_text(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["bench", "--fake", "--spec", "ngram", "--sequences", "1"])
    assert done.value.code and "--text" in capsys.readouterr().err
