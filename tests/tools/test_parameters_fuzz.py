"""Random parameters: a reply, an error message, or a refusal that names the field; never a crash."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamasrv.errors import InvalidRequest
from llamasrv.tools import catalogue
from llamasrv.tools.child import answer
from llamasrv.tools.toolbox import check_params

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            "f",
            "sub",
            ".",
            "..",
            "sub/f",
            "\0",
            "f\0",
            "~",
            "[",
            "[!",
            "[]a]",
            "[z-a]",
            "**",
            "(",
            "(?i)",
            "\\",
            "one",
            "two\n",
        ]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.integers(-(2**63), 2**64 - 1), texts)
edits = st.lists(
    st.one_of(scalars, st.dictionaries(st.sampled_from(["old_text", "new_text"]), scalars, max_size=2)), max_size=3
)
TOOLS = [tool for tool in catalogue.BUILT_IN if tool.name != catalogue.SHELL]
FIELDS = sorted({name for tool in TOOLS for name in tool.parameters["properties"]} - {"edits", "path"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=150, deadline=None)
@given(
    tool=st.sampled_from(TOOLS),
    params=st.fixed_dictionaries(
        {"path": texts.filter(lambda path: ".." not in path and not path.startswith(("/", "~")))},
        optional={"edits": edits, **dict.fromkeys(FIELDS, scalars)},
    ),
)
def test_any_parameters_are_run_or_refused(folder, tool, params):
    (folder / "sub").mkdir(exist_ok=True)
    for name in ("f", "sub/f"):
        if not (folder / name).is_dir():
            (folder / name).write_text("one\ntwo\n")
    try:
        given_params = check_params(tool, params)
    except InvalidRequest as refusal:
        assert refusal.param.startswith("params.")
        return
    reply = answer({"tool": tool.name, "params": given_params, "cwd": str(folder), "base64": False, "runtime": ""})
    assert isinstance(reply, dict) and json.dumps(reply)
