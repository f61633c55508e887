"""file_glob_search and grep_search, in and outside of git repositories."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from llamasrv.tools.child import answer
from llamasrv.tools.listing import SEARCH_LIMITS, SearchLimits, matches


@pytest.fixture
def tree(tmp_path):
    for name in ("a.py", "src/b.py", "src/deep/c.txt", "build/out.py", "node_modules/x/y.py", ".hidden/d.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\nimport os\nlast line\n")
    return tmp_path


def use(tool, cwd, limits=SEARCH_LIMITS, **params):
    ask = {"tool": tool, "params": params, "cwd": str(cwd), "base64": False, "runtime": ""}
    return answer(ask, limits)


def found(cwd, **params):
    return [entry["path"] for entry in use("file_glob_search", cwd, path=".", **params)["entries"]]


def grep(cwd, pattern, path=".", **params):
    return use("grep_search", cwd, path=path, pattern=pattern, **params)["plain_text_response"]


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("**", "a/b", True), ("*.py", "a/b.py", True), ("*.py", "a/b.pyc", False), ("b?.py", "bc.py", True),
        ("src/*.py", "x/src/a.py", True), ("src/*.py", "src/x/a.py", False), ("src/**/*.py", "src/x/a.py", True),
        ("src/**/*.py", "src/a.py", True), ("/src/*", "x/src/a", False), ("/src/*", "src/a", True),
        ("**/src/*", "src/a", True), ("[ab].py", "a.py", True), ("[!ab].py", "a.py", False), ("[a-c]", "b", True),
        ("a+(b).py", "a+(b).py", True), ("[", "[", True), ("*", ".hidden", True), ("a\\b", "a\\b", True),
    ],
)  # fmt: skip
def test_a_pattern_matches_as_in_gitignore(pattern, path, is_match):
    assert matches(pattern, path) is is_match


def test_files_are_found_and_junk_is_not_entered(tree):
    assert found(tree, include="*.py") == [".hidden/d.py", "a.py", "src/b.py"] or found(tree, include="*.py") == [
        "a.py",
        ".hidden/d.py",
        "src/b.py",
    ]
    assert found(tree, include="src/**", exclude="*.txt") == ["src/b.py"]


def test_folders_are_found_too(tree):
    reply = use("file_glob_search", tree, path=".", type="dir", max_depth=1)
    assert "src/\n" in reply["plain_text_response"] and "build/\n" in reply["plain_text_response"]
    assert {entry["type"] for entry in reply["entries"]} == {"dir"} and reply["base"] == str(tree)
    assert "src/deep" in found(tree, type="all") and "build/out.py" not in found(tree, type="all")


def test_depth_and_number_are_limited(tree):
    assert found(tree, max_depth=1) == ["a.py"]
    reply = use("file_glob_search", tree, path=".", limit=1)
    assert len(reply["entries"]) == 1 and "Total matches: 4" in reply["plain_text_response"]
    assert "1 of 4 matches shown" in reply["plain_text_response"]


@pytest.mark.parametrize(
    ("params", "reason"),
    [({"type": "x"}, "invalid type: x"), ({"limit": 0}, "invalid limit: 0"), ({"path": "none"}, "does not exist")],
)
def test_an_impossible_search_is_an_error(tree, params, reason):
    assert reason in use("file_glob_search", tree, **{"path": ".", **params})["error"]


def test_circular_links_are_not_followed(tree):
    os.symlink(tree, tree / "src" / "up")
    assert "src/up" in found(tree, type="dir") and not any("up/" in path for path in found(tree, type="all"))


def test_a_walk_ends_at_its_time_limit(tree):
    assert (
        "truncated"
        in use("file_glob_search", tree, SearchLimits(seconds=-1.0), path=".", type="all")["plain_text_response"]
    )


def test_a_walk_ends_at_its_entry_limit(tree):
    assert (
        "truncated"
        in use("file_glob_search", tree, SearchLimits(entries=2), path=".", type="all")["plain_text_response"]
    )


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")
def test_in_a_repository_git_lists_the_files(tree):
    """Ignored files are skipped, tracked ones listed in any folder, and the repository's configuration runs nothing."""
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    (tree / ".gitignore").write_text("src/\n")
    (tree / "w\u00f6rd").write_text("x")
    subprocess.run(["git", "-C", str(tree), "config", "core.fsmonitor", f"touch {tree}/pwned; false"], check=True)
    names = found(tree)
    assert {"a.py", "build/out.py", "w\u00f6rd"} <= set(names) and not any(name.startswith("src/") for name in names)
    assert found(tree, max_depth=1) == [".gitignore", "a.py", "w\u00f6rd"]
    assert not (tree / "pwned").exists()


def test_grep_finds_lines(tree):
    assert grep(tree, "^import", include="b.py") == "src/b.py:import os\n\n---\nTotal matches: 1\n"
    assert grep(tree, "IMPORT", path="a.py", ignore_case=True, return_line_numbers=True).startswith(
        "a.py:2:import os\n"
    )
    assert "Total matches: 0" in grep(tree, "i.port|(", path="a.py", literal=True)


def test_grep_shows_context_lines(tree):
    assert grep(tree, "import", path="a.py", context_lines=1).startswith(
        "a.py-1-# a.py\na.py:2:import os\na.py-3-last line\n--\n"
    )


def test_binary_and_large_files_are_not_searched(tree):
    (tree / "a.py").write_bytes(b"import\0")
    (tree / "small").write_text("import")
    assert grep(tree, "import", limits=SearchLimits(file_bytes=10)).startswith("small:import\n\n---\nTotal matches: 1")


def test_results_are_limited(tree):
    (tree / "many").write_text("x\n" * 500)
    assert "Total matches: 100\n[limit reached" in grep(tree, "x", path="many")
    (tree / "wide").write_text("x" * 100_000)
    assert len(grep(tree, "x", path="wide")) < 3000
    assert "limit reached" in grep(tree, "x", path="many", limits=SearchLimits(output=10))


@pytest.mark.parametrize(
    ("params", "reason"), [({"pattern": "("}, "invalid regex"), ({"path": "none"}, "does not exist")]
)
def test_an_invalid_pattern_is_an_error(tree, params, reason):
    assert reason in use("grep_search", tree, **{"path": ".", "pattern": "x", **params})["error"]
