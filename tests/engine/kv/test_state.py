"""The file format of states: what was written is read back, everything else is refused."""

from __future__ import annotations

import json
import struct
import zlib
from array import array

import numpy as np
import pytest

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.kv import state as state_file
from llamasrv.engine.kv.state import SavedState, checkpoint

FACTS = state_file.as_facts({"model": "m", "sizes": (1, 2)})
TOKENS = array("i", [1, -2, 300_000])
STATE = np.arange(40, dtype=np.uint16)
SAVED = SavedState(TOKENS, STATE, CacheKey(scope="ann"))
SAVED.points = (checkpoint(TOKENS[:2], STATE[:5], SAVED.cache_key),)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "state"
    with open(path, "wb") as file:
        size = state_file.write(file, SAVED, facts=FACTS, adapters=[["d", 0.5]])
    assert size == path.stat().st_size
    return path


def read(path, facts=FACTS):
    with open(path, "rb") as file:
        head = state_file.read_head(file, facts)
        tokens = state_file.read_tokens(file, head)
        return head, state_file.read_state(file, head, tokens, CacheKey(scope=head.scope))


def test_a_written_state_is_read_back(path):
    head, state = read(path)
    assert (head.adapters, state.cache_key, state.tokens) == ([["d", 0.5]], SAVED.cache_key, TOKENS)
    assert state.data.dtype == STATE.dtype and (state.data == STATE).all()
    (point,) = state.points
    assert point.tokens == TOKENS[:2] and (point.data == STATE[:5]).all()


def test_a_truncated_file_is_refused(path):
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError):
            read(path)


def test_any_changed_byte_is_detected(path):
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError):
            read(path)


def test_a_file_made_for_other_facts_is_refused(path):
    with pytest.raises(ValueError, match="another model or another build"):
        read(path, {"model": "other"})


def test_a_file_of_another_version_is_refused(path):
    data = path.read_bytes()
    start = len(state_file.MAGIC) + 8
    length = struct.unpack_from("<I", data, len(state_file.MAGIC))[0]
    head = json.dumps({**json.loads(data[start : start + length]), "format": state_file.FORMAT + 1}).encode()
    path.write_bytes(state_file.MAGIC + struct.pack("<II", len(head), zlib.crc32(head)) + head + data[start + length :])
    with pytest.raises(ValueError, match="another version"):
        read(path)
