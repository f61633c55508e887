"""Files that are replaced whole."""

from __future__ import annotations

import os

import pytest

from llamasrv.atomic_file import replacing


@pytest.mark.parametrize("durable", [False, True])
def test_a_reader_finds_the_old_file_or_the_new_one(tmp_path, durable):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(path, durable=durable) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_block_that_raises_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
