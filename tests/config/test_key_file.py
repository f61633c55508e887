"""The keys file as the console edits it."""

from __future__ import annotations

import os
import sys

import pytest

from llamasrv.config import keys
from llamasrv.config.key_file import KeyFile
from llamasrv.domain.key import Key
from llamasrv.errors import InvalidRequest, NotFound

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DIGEST = "a" * 64
TEXT = f"""\
# Keys of the house.

[keys.ann]  # since spring
sha256 = "{DIGEST}"  # laptop
scopes = [
    "infer",
    "embed",
]
concurrency = 2

# Bob's is for the build machines.
[ keys."bob.ci" ]
sha256 = "{DIGEST}"
# the end
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(TEXT)
    path.chmod(0o640)
    return KeyFile(path)


def test_a_new_key_is_added_and_only_its_digest_is_written(file):
    secret = file.create("eve", {"scopes": ["infer"], "concurrency": 4, "tokens_per_minute": None})
    text = file.path.read_text()
    assert text.startswith(TEXT) and secret not in text
    eve = keys.read(file.path)[2]
    assert (eve.name, eve.digest, eve.concurrency) == ("eve", Key.of("eve", secret).digest, 4)
    assert file.path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(InvalidRequest, match="already exists"):
        file.create("eve", {})
    with pytest.raises(InvalidRequest, match="A name must consist"):
        file.create('x"]', {})


def test_fields_change_and_comments_stay(file):
    file.change("ann", {"scopes": ["infer"], "concurrency": None, "requests_per_minute": 60})
    assert file.path.read_text() == TEXT.replace(
        'scopes = [\n    "infer",\n    "embed",\n]\nconcurrency = 2\n', 'scopes = ["infer"]\nrequests_per_minute = 60\n'
    )


def test_a_rotated_key_keeps_the_old_secret_for_a_while(file):
    secret = file.rotate("ann", 2_000_000_000.0)
    ann = keys.read(file.path)[0]
    assert ann.digest == Key.of("ann", secret).digest
    assert (ann.old_digest, ann.old_expires) == (bytes.fromhex(DIGEST), 2_000_000_000.0)
    assert "# laptop" in file.path.read_text()
    file.rotate("ann", None)
    assert keys.read(file.path)[0].old_digest is None


def test_a_revoked_key_goes_and_leaves_the_others_and_the_comments(file):
    file.revoke("ann")
    text = file.path.read_text()
    assert tomllib.loads(text)["keys"].keys() == {"bob.ci"}
    assert "# Keys of the house." in text and "# Bob's is for the build machines." in text
    with pytest.raises(InvalidRequest, match="The last key"):
        file.revoke("bob.ci")
    with pytest.raises(NotFound, match="no key named 'ann'"):
        file.revoke("ann")


@pytest.mark.parametrize(
    "text", [f'keys = {{ ann = {{ sha256 = "{DIGEST}" }} }}\n', f'[keys]\nann.sha256 = "{DIGEST}"\n']
)
def test_a_file_that_is_written_otherwise_is_left_alone(file, text):
    file.path.write_text(text)
    with pytest.raises(InvalidRequest, match="changed by hand"):
        file.change("ann", {"concurrency": 4})
    assert file.path.read_text() == text


def test_it_says_why_a_file_cannot_be_changed(tmp_path, monkeypatch):
    assert "--api-key-file" in KeyFile(None).obstacle()
    assert "one key per line" in KeyFile(tmp_path / "keys.txt").obstacle()
    (tmp_path / "keys.toml").write_text(TEXT)
    assert KeyFile(tmp_path / "keys.toml").obstacle() is None
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InvalidRequest, match="may not write"):
        KeyFile(tmp_path / "keys.toml").revoke("ann")
