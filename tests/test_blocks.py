"""The blocks of the documents: each is run as it stands (tests/manual/blocks.py), or a table says why not.

Here is what is cheap: syntax, command lines that exist, files that are accepted.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import click
import pytest
from doc_blocks import NOT_RUN, PAGES, blocks, commands, why_not

from llamasrv import cli, config
from llamasrv.config import keys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHELL = blocks("sh")
COMMANDS = [command for block in SHELL for command in commands(block)]
LLAMASRV = [
    match[1]
    for command in COMMANDS
    for match in re.finditer(r"(?:bin/|^|&& )llamasrv (?!launch)(.*)", command)
    if "pip install" not in command
]


def test_every_block_has_a_language():
    """But pictures: the map, a header of a reply, code of another program's file."""
    unnamed = [str(block) for block in blocks("")]
    assert [name.partition(":")[0] for name in unnamed] == [
        "README.md",
        "conf/growing.md",
        "llamasrv/protocols/README.md",
        "llamasrv/protocols/README.md",
    ]


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_a_shell_can_read_it(block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("line", LLAMASRV)
def test_its_command_and_its_options_exist(line):
    words = shlex.split(re.split(r" &$| [<|] ", line)[0], comments=True)
    context = cli.cli.make_context("llamasrv", ["x"], resilient_parsing=True)
    command = cli.cli.get_command(context, words[0])
    assert command is not None, words[0]
    try:
        command.make_context(words[0], words[1:], parent=context)
    except click.exceptions.Exit:
        pass


def test_every_reason_not_to_run_a_command_has_one():
    assert [part for part in NOT_RUN if not any(part in command for command in COMMANDS)] == []
    assert sum(why_not(command) is None for command in COMMANDS) > 0.6 * len(COMMANDS)


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_a_file_in_toml_is_accepted(block, tmp_path):
    text = block.text.replace("= CTX", "= 8192")
    file = tmp_path / "file.toml"
    file.write_text(text)
    if block.text.startswith("[keys."):
        assert keys.parse(text)
    elif "model_provider" in text:  # another program's
        assert tomllib.loads(text)["model_providers"]["llamasrv"]["base_url"].endswith("/v1")
    else:
        assert config.load(config=file, environ={})


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_a_file_in_json_is_valid(block):
    assert json.loads(re.sub(r"\bCTX\b", "8192", block.text))


def test_every_page_of_the_manual_is_looked_at():
    assert len({block.page for block in blocks("sh", "toml", "json", "python")}) >= len(PAGES) - 1
