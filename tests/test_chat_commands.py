"""The commands within a conversation of `llamasrv chat`."""

from __future__ import annotations

import pytest

from llamasrv.commands.chat import ChatSession, changed


def test_a_conversation_that_was_saved_is_loaded_again(tmp_path):
    talk = ChatSession("http://u", system="Be brief.", turns=[{"role": "user", "content": "Hi ☃"}])
    assert changed(talk, "/save", str(tmp_path / "talk.json")).startswith("saved 1 messages")
    other = ChatSession("http://u")
    assert changed(other, "/load", str(tmp_path / "talk.json")).startswith("loaded 1 messages")
    assert (other.system, other.turns) == (talk.system, talk.turns)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"system": null, "messages": [1]}', '{"system": 1, "messages": 2}'])
def test_a_file_that_is_no_conversation_changes_nothing(tmp_path, text):
    (tmp_path / "talk.json").write_text(text)
    talk = ChatSession("http://u", turns=[{"role": "user", "content": "Hi"}])
    assert "not a conversation" in changed(talk, "/load", str(tmp_path / "talk.json"))
    assert "No such file" in changed(talk, "/load", str(tmp_path / "none"))
    assert len(talk.turns) == 1 and talk.system is None


def test_another_model_answers_from_then_on():
    talk = ChatSession("http://u")
    changed(talk, "/model", "demo")
    assert talk.model == "demo"
