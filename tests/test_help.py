"""Help: the usual first, all by topic, and the manual's sections by words."""

from __future__ import annotations

import re
import shlex

import pytest

from llamasrv import cli
from llamasrv.commands.help import TOPICS, USUAL_COMMANDS, USUAL_FLAGS
from llamasrv.config import OPTIONS, manual

HOW_TO = manual.page_text("howto")


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


def test_help_takes_a_command_a_topic_or_nothing(llamasrv):
    assert llamasrv("help", "key") == llamasrv("key", "--help")
    assert "--cache-disk" in llamasrv("help", "cache") and "--port" not in llamasrv("help", "cache")
    assert llamasrv("help") == llamasrv("--help")


QUESTIONS = [
    ("limit a key to 10 requests a minute", "Limit a key to 10 requests a minute"),
    ("two models on one GPU", "Two models on one GPU"),
    ("why was my request slow", "Why was my request slow"),
    ("rotate keys without downtime", "Rotate keys without downtime"),
    ("who uses how much", "Who uses how much"),
    ("three machines", "Three machines"),
    ("log fields", "What the fields of a log line mean"),
    ("upgrading", "Upgrade"),
    ("backup", "Backup"),
    ("troubleshoot", "Troubleshooting by message"),
    ("claude code", "Agents and evaluations"),
    ("lora adapter", "LoRA adapters"),
    ("exit codes", "Signals and exit codes"),
]
SCREEN = 40  # lines


@pytest.mark.parametrize(("words", "title"), QUESTIONS, ids=[words for words, _ in QUESTIONS])
def test_words_find_a_section_of_the_manual(llamasrv, words, title):
    out = llamasrv("help", *words.split())
    assert out.startswith(f"## {title}\n")
    assert title not in HOW_TO or len(out.splitlines()) <= SCREEN


def test_the_commands_of_the_how_tos_are_run_as_they_are(llamasrv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("llamasrv.commands.serve.run", lambda settings: print("served"))
    (tmp_path / "llamasrv.toml").write_text("")
    text = re.sub(r"\bHOST\b", "127.0.0.1", HOW_TO)
    commands = re.findall(r"^\.venv/bin/llamasrv (.*)$", text, re.M)
    assert len(commands) >= 8
    for command in commands:
        assert llamasrv(*shlex.split(command)), command
    assert (tmp_path / "keys.toml").read_text().count("[keys.") == 2
