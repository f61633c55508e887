"""Key files: what is right, and what is wrong with a line of its own."""

from __future__ import annotations

import re
import sys

import pytest
from click.testing import CliRunner

from llamasrv.cli import cli
from llamasrv.config import keys, load
from llamasrv.domain.key import SCOPES, Key
from llamasrv.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DIGEST = "a" * 64


def settings(path, **more):
    return load({"server_api_key_file": str(path), **more}, environ={})


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "keys.toml"
        path.write_text(text)
        return path

    return write


def test_a_key_has_a_digest_scopes_and_bounds(file):
    path = file(
        f'[keys.ann]\nsha256 = "{DIGEST}"\nscopes = ["infer"]\nconcurrency = 4\n[keys.bob]\nsha256 = "{DIGEST}"'
    )
    ann, bob = keys.of(settings(path))
    assert ann == Key("ann", bytes.fromhex(DIGEST), frozenset(["infer"]), concurrency=4)
    assert bob.scopes == frozenset(SCOPES)


def test_keys_that_were_given_directly_may_do_everything(file):
    path = file(f'[keys.ann]\nsha256 = "{DIGEST}"')
    assert [key.name for key in keys.of(settings(path, server_api_key="one"))] == [Key.unnamed("one").name, "ann"]


def test_a_key_without_a_name_keeps_what_it_is_called_when_others_come_and_go(tmp_path):
    """They were called by their places: with a line removed, the next key had what the one before it had stored."""
    path = tmp_path / "keys"

    def names(*lines):
        path.write_text("\n".join(lines))
        return {line: key.name for line, key in zip(lines, keys.of(settings(path)))}

    before = names("sk-former", "sk-alice")
    after = names("sk-alice", "sk-bob")
    assert after["sk-alice"] == before["sk-alice"]
    assert after["sk-bob"] not in before.values()
    assert all(re.fullmatch("key-[0-9a-f]{12}", name) for name in (*before.values(), *after.values()))


def test_a_key_that_is_given_twice_is_one_key(tmp_path):
    path = tmp_path / "keys"
    path.write_text("one\ntwo\none\n")
    assert keys.of(settings(path, server_api_key="two")) == (Key.unnamed("two"), Key.unnamed("one"))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "expected"),
        ("[keys]", "expected"),
        ("[[", "not valid TOML"),
        ('other = 1\n[keys.a]\nsha256 = "x"', "expected only"),
        ("[keys.a]", r"keys\.a\.sha256"),
        ('[keys.a]\nsha256 = "abc"', "64 hexadecimal"),
        (f'[keys.a]\nsha256 = "{DIGEST}"\nscope = ["infer"]', "did you mean scopes"),
        (f'[keys.a]\nsha256 = "{DIGEST}"\nscopes = ["all"]', "expected a list of infer"),
        (f'[keys.a]\nsha256 = "{DIGEST}"\nconcurrency = 0', "1 or more"),
        (f'[keys.a]\nsha256 = "{DIGEST}"\nconcurrency = true', "1 or more"),
        (f'[keys."a b"]\nsha256 = "{DIGEST}"', "a name must"),
        (f'[keys.{Key.unnamed("one").name}]\nsha256 = "{DIGEST}"', "collides with"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(file, text, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        keys.of(settings(file(text), server_api_key="one"))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        keys.of(settings(tmp_path / "none.toml"))


def test_a_new_key_is_written_as_its_digest_and_shown_once(tmp_path):
    path = tmp_path / "keys.toml"
    runner = CliRunner()
    first = runner.invoke(cli, ["key", "ann", "--file", str(path), "--scope", "infer", "--concurrency", "2"])
    second = runner.invoke(cli, ["key", "bob", "--file", str(path)])
    assert first.exit_code == second.exit_code == 0, first.output
    assert path.stat().st_mode & 0o777 == 0o600
    ann, bob = keys.read(path)
    assert ann == Key.of("ann", first.stdout.strip(), ["infer"]).__class__(
        "ann", ann.digest, frozenset(["infer"]), concurrency=2
    )
    assert ann.digest == Key.of("ann", first.stdout.strip()).digest
    assert bob == Key.of("bob", second.stdout.strip())
    assert first.stdout.strip() not in path.read_text()


def test_a_name_is_taken_once(tmp_path):
    path = tmp_path / "keys.toml"
    assert CliRunner().invoke(cli, ["key", "ann", "--file", str(path)]).exit_code == 0
    again = CliRunner().invoke(cli, ["key", "ann", "--file", str(path)])
    assert isinstance(again.exception, ConfigError)
    assert len(keys.read(path)) == 1


def test_without_a_file_the_entry_is_printed():
    out = CliRunner().invoke(cli, ["key", "ann"]).stdout
    key, _, entry = out.partition("\n")
    assert re.fullmatch(r"sk-[\w-]{43}", key)
    assert bytes.fromhex(tomllib.loads(entry)["keys"]["ann"]["sha256"]) == Key.of("ann", key).digest
