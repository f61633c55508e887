"""Files in a folder: written whole or not at all, bounded, gone when their time is over."""

from __future__ import annotations

import os

import pytest

from llamasrv.store.files import FileNotFound, FileStore, NoRoomForFiles, new_id


def add(store, content=b"abc", owner="", **settings):
    with store.writing(owner, filename="x", purpose="batch", **settings) as new:
        new.write(content)
    return new.stored


def test_a_file_that_is_not_written_whole_is_not_there(tmp_path):
    store = FileStore(tmp_path, 100)
    with pytest.raises(RuntimeError), store.writing("", filename="x", purpose="batch") as new:
        new.write(b"abc")
        raise RuntimeError
    assert store.of("") == [] and not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_files_of_all_owners_share_the_room(tmp_path):
    store = FileStore(tmp_path, 10)
    add(store, b"x" * 6, owner="ann")
    with pytest.raises(NoRoomForFiles):
        add(store, b"x" * 6, owner="bob")
    assert store.of("bob") == [] and store.num_bytes() == 6


def test_an_expired_file_is_gone(tmp_path):
    store = FileStore(tmp_path, 100)
    kept, gone = add(store, lifetime=1000), add(store, lifetime=0)
    assert [file.id for file in store.of("")] == [kept.id]
    with pytest.raises(FileNotFound):
        store.find("", gone.id)
    assert store.num_bytes() == 3


def test_what_a_killed_process_left_is_swept(tmp_path):
    store = FileStore(tmp_path, 100)
    kept = add(store)
    folder = store.path("", kept.id).parent
    for name in (".file-x.data.1-1", "file-" + "0" * 36 + ".data"):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (1, 1))
    os.utime(store.path("", kept.id), (1, 1))
    store.sweep()
    assert sorted(path.name for path in folder.iterdir()) == [f"{kept.id}.data", f"{kept.id}.json"]


def test_ids_of_one_millisecond_keep_their_order():
    """Pages of batches that were made at once showed them in any order."""
    ids = [new_id("file-") for _ in range(1_000)]
    assert ids == sorted(ids) and len(set(ids)) == 1_000
