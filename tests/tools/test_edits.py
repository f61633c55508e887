"""edit_file: exact replacements, forgiving ones, and those that are refused."""

from __future__ import annotations

import pytest

from llamasrv.tools.child import answer


@pytest.fixture
def edit(tmp_path):
    def edit(content, *edits):
        path = tmp_path / "f"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        params = {"path": "f", "edits": [{"old_text": old, "new_text": new} for old, new in edits]}
        reply = answer({"tool": "edit_file", "params": params, "cwd": str(tmp_path), "base64": False, "runtime": ""})
        return reply.get("error") or path.read_bytes()

    return edit


def test_edits_apply_to_the_original_text(edit):
    assert edit("a\nb\nc\n", ("c", "a"), ("a", "x\ny")) == b"x\ny\nb\na\n"
    assert edit("ab", ("a", ""), ("b", "a")) == b"a"


def test_the_bytes_around_an_edit_stay(edit):
    assert edit(b"\xff one \r\n\xfe", ("one", "two")) == b"\xff two \r\n\xfe"


def test_plain_quotes_dashes_and_spaces_find_typographic_ones(edit):
    content = "say \u201chi\u201d\u00a0\u2013 now\n\u201cstay\u201d  \n"
    assert edit(content, ('"hi" - now', "bye")) == "say bye\n\u201cstay\u201d  \n".encode()


def test_whitespace_at_line_ends_is_ignored(edit):
    assert edit("if a:  \n    b\t\nc \n", ("if a:\n    b\nc", "d")) == b"d\n"


@pytest.mark.parametrize(
    ("content", "edits", "reason"),
    [
        ("a a", [("a", "b")], "found 2 occurrences of edits[0].old_text in f, it must be unique"),
        ("a\na \nb", [("a\n", "b")], "unique"),
        ("a", [("b", "c")], "could not find edits[0].old_text in f"),
        ("a", [("a", "b"), ("c", "d")], "could not find edits[1]"),
        ("abc", [("ab", "x"), ("bc", "y")], "edits[0] and edits[1] overlap in f"),
        ("bcab", [("bcab", "x"), ("a", "y")], "edits[0] and edits[1] overlap"),
        ("a", [("a", "a")], "no changes made"),
        ("a", [("", "a")], "edits[0].old_text must not be empty"),
        ("a", [(1, "a")], "edits[0] must have the strings"),
        ("a", [], "1 to 1000 edits"),
        ("a", [("  ", "b")], "could not find"),
    ],
)
def test_an_ambiguous_edit_is_refused_and_leaves_the_file(edit, content, edits, reason):
    assert reason in edit(content, *edits)


def test_a_missing_file_is_an_error(tmp_path):
    params = {"path": "none", "edits": [{"old_text": "a", "new_text": "b"}]}
    assert (
        "none"
        in answer({"tool": "edit_file", "params": params, "cwd": str(tmp_path), "base64": False, "runtime": ""})[
            "error"
        ]
    )
