"""Help: the usual first, all by topic, and the manual's sections by words."""

from __future__ import annotations

import re

import pytest

from llamasrv import cli
from llamasrv.commands.help import TOPICS, USUAL_COMMANDS, USUAL_FLAGS
from llamasrv.config import OPTIONS


@pytest.fixture
def llamasrv(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        assert end.value.code == 0
        return capsys.readouterr().out

    return call


def test_the_usual_commands_come_first(llamasrv):
    out = llamasrv("--help")
    usual, _, others = out.partition("Usual commands:")[2].partition("Other commands:")
    assert re.findall(r"^  (\w+)", usual, re.M) == list(USUAL_COMMANDS)
    assert {"bench", "key", "migrate"} <= set(re.findall(r"^  (\w+)", others, re.M)) and "list" not in others.split()


def test_the_help_of_serve_is_one_screen_and_all_of_it_is_a_flag_away(llamasrv):
    short, whole = llamasrv("serve", "--help"), llamasrv("serve", "--help-all")
    assert len(short.splitlines()) < 60 and "--help-all" in short and "--rope-scale" not in short
    assert USUAL_FLAGS - {"config_file"} <= {option.name for option in OPTIONS}
    assert all(option.flags[-1] in whole for option in OPTIONS)
    assert [topic for topic in TOPICS if f"Topic {topic}:" not in whole] == []


def test_a_command_without_many_options_shows_them_all(llamasrv):
    assert "--scope" in llamasrv("key", "--help") and "--help-all" not in llamasrv("key", "--help")


def test_every_command_has_help_of_a_few_screens(llamasrv):
    """`migrate` took --help for a command to rewrite, and `models`, which has a command of its own, showed all options."""
    for name in cli.cli.commands:
        assert llamasrv(name, "-h") == llamasrv(name, "--help")
        assert "Usage: llamasrv" in llamasrv(name, "--help") and len(llamasrv(name, "--help").splitlines()) < 90
    assert "Commands:\n  rm" in llamasrv("models", "--help") and "--rope-scale" in llamasrv("models", "--help-all")


def test_help_takes_a_command_a_topic_or_nothing(llamasrv):
    assert llamasrv("help", "key") == llamasrv("key", "--help")
    assert "--cache-disk" in llamasrv("help", "cache") and "--port" not in llamasrv("help", "cache")
    assert llamasrv("help") == llamasrv("--help")


def test_words_find_a_section_of_the_manual_and_the_names_of_others(llamasrv):
    out = llamasrv("help", "rotate", "keys", "without", "downtime")
    assert out.startswith("## Rotate keys without downtime\n") and "also:" not in out
    assert re.search(r"^Other sections: .*\bKeys\b", out, re.M)


def test_a_flag_is_explained_by_its_name_here_or_elsewhere(llamasrv):
    assert "memory" in llamasrv("help", "--cache-ram").lower()
    assert "one machine" not in llamasrv("help", "tensor-parallel-size")
    assert len(llamasrv("help", "cache-").splitlines()) <= 2 * 12 + 1
