"""The history of lines of `llamasrv chat`. On a terminal it is tried in test_cli.py."""

from __future__ import annotations

import readline

import pytest

from llamasrv.commands.line_reader import LineReader


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Reads what is typed, with a history in a folder that does not exist yet."""

    def make(*typed, most=1000):
        lines = iter(typed)
        monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
        return LineReader(tmp_path / "state" / "history", lambda line: ["/save", "/set"], most)

    return make


def known():
    return [readline.get_history_item(i + 1) for i in range(readline.get_current_history_length())]


def test_messages_are_known_in_the_next_session(reader, tmp_path):
    first = reader("one", '"""two', "lines", '"""', "secret")
    assert [first.read(), first.read(), first.read(keep=False)] == ["one", "two\nlines", "secret"]
    reader()
    assert known() == ["one", "two\nlines"]
    assert (tmp_path / "state" / "history").stat().st_mode & 0o777 == 0o600


def test_a_message_in_quotes_may_end_on_its_line(reader):
    assert reader('"""all of it"""').read() == "all of it"


def test_a_broken_history_costs_its_broken_lines_only(reader, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "history").write_text('"kept"\nbroken\n7\n"too"\n')
    reader()
    assert known() == ["kept", "too"]


def test_the_history_is_bounded(reader, tmp_path):
    first = reader(*"abcde")
    for _ in "abcde":
        first.read()
    reader(most=2)
    assert known() == ["d", "e"]
    assert (tmp_path / "state" / "history").read_text() == '"d"\n"e"\n'


def test_a_history_that_cannot_be_written_does_not_stop_a_conversation(reader, tmp_path):
    (tmp_path / "state").write_text("a file")
    assert reader("one").read() == "one"
