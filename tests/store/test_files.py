"""Files on each kind of shelf: written whole or not at all, bounded, gone when their time is over."""

from __future__ import annotations

import os
import time

import pytest

from llamasrv.store.files import FileNotFound, FileStore, NoRoomForFiles, new_id
from llamasrv.store.folder_shelf import FolderShelf
from llamasrv.store.shelf import PIECE


def add(store, content=b"abc", owner="", **settings):
    with store.writing(owner, filename="x", purpose="batch", **settings) as new:
        new.write(content)
    return new.stored


def pieces_in(shelf):
    """The number of pieces that a server keeps, of whatever."""
    if hasattr(shelf, "connection"):
        with shelf.connection() as db:
            return db.execute("SELECT count(*) FROM llamasrv_pieces").fetchone()[0]
    return len(shelf.db.keys("llamasrv:blob:*:*"))


def test_a_file_that_is_not_written_whole_is_not_there(shelf):
    store = FileStore(shelf, 100)
    with pytest.raises(RuntimeError), store.writing("", filename="x", purpose="batch") as new:
        new.write(b"abc")
        raise RuntimeError
    assert store.of("") == [] and shelf.records() == []


def test_a_folder_has_nothing_of_a_file_that_is_not_written_whole(tmp_path):
    store = FileStore(FolderShelf(tmp_path), 100)
    with pytest.raises(RuntimeError), store.writing("", filename="x", purpose="batch") as new:
        new.write(b"abc")
        raise RuntimeError
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [0, 1, PIECE, 3 * PIECE + 7])
def test_a_content_is_read_as_it_was_written(shelf, size):
    store, given = FileStore(shelf, 10 * PIECE), os.urandom(size)
    with store.writing("ann", filename="x", purpose="batch") as new:
        new.write_all(given[start : start + 700_000] for start in range(0, size, 700_000))
    content = store.content("ann", new.stored.id)
    assert new.stored.bytes == size and content.read() == given
    assert all(0 < len(piece) <= PIECE for piece in content.pieces())


def test_a_deleted_file_is_gone(shelf):
    store = FileStore(shelf, 100)
    file = add(store, owner="ann")
    with pytest.raises(FileNotFound):
        store.delete("bob", file.id)
    content = store.content("ann", file.id)
    store.delete("ann", file.id)
    assert store.of("ann") == [] and store.num_bytes() == 0 and content.read() == b""


def test_files_of_all_owners_share_the_room(shelf):
    store = FileStore(shelf, 10)
    add(store, b"x" * 6, owner="ann")
    with pytest.raises(NoRoomForFiles):
        add(store, b"x" * 6, owner="bob")
    assert store.of("bob") == [] and store.num_bytes() == 6


def test_an_expired_file_is_gone(shelf):
    store = FileStore(shelf, 100)
    kept, gone = add(store, lifetime=1000), add(store, lifetime=0)
    assert [file.id for file in store.of("")] == [kept.id]
    with pytest.raises(FileNotFound):
        store.find("", gone.id)
    assert store.num_bytes() == 3


def test_what_a_killed_process_left_is_swept(tmp_path):
    shelf = FolderShelf(tmp_path)
    store = FileStore(shelf, 100)
    kept = add(store)
    [record] = shelf.records()
    path = shelf.path(record.owner, kept.id, "data")
    folder = path.parent
    for name in (".file-x.data.1-1", "file-" + "0" * 36 + ".data"):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (1, 1))
    os.utime(path, (1, 1))
    store.sweep()
    assert sorted(path.name for path in folder.iterdir()) == [f"{kept.id}.data", f"{kept.id}.json"]


def test_what_a_killed_process_left_in_a_server_is_swept(shelf):
    if isinstance(shelf, FolderShelf):
        pytest.skip("a folder's is above")
    kept = add(FileStore(shelf, 100))
    [record] = shelf.records()
    half = shelf.writing(record.owner, "file-half", "data")
    half.__enter__()(b"x" * (PIECE + 1))  # and never ends
    before = pieces_in(shelf)
    shelf.sweep(time.time() + 60)
    assert pieces_in(shelf) == before - 1 and FileStore(shelf, 100).content("", kept.id).read() == b"abc"


def test_ids_of_one_millisecond_keep_their_order():
    """Pages of batches that were made at once showed them in any order."""
    ids = [new_id("file-") for _ in range(1_000)]
    assert ids == sorted(ids) and len(set(ids)) == 1_000
