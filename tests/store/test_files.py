"""Files on each kind of shelf: written whole or not at all, bounded, expiring."""

from __future__ import annotations

import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from llamasrv.store import StoreOptions, open_store
from llamasrv.store.files import FileNotFound, FileStore, new_id
from llamasrv.store.folder_shelf import FolderShelf
from llamasrv.store.paging import UnknownPlace
from llamasrv.store.shelf import PIECE
from llamasrv.store.storage_quota import StorageFull


def add(store, content=b"abc", owner="", purpose="batch", **settings):
    with store.writing(owner, filename="x", purpose=purpose, **settings) as new:
        new.write(content)
    return new.stored


def listed(store, owner=""):
    return store.page(owner, limit=1_000, descending=False).items


def pieces_in(shelf):
    """The number of pieces on a server."""
    if hasattr(shelf, "connection"):
        with shelf.connection() as db:
            return db.execute("SELECT count(*) FROM llamasrv_pieces").fetchone()[0]
    return len(shelf.db.keys("llamasrv:blob:*:*"))


def test_an_unfinished_file_does_not_exist(shelf):
    store = FileStore(shelf, 100)
    with pytest.raises(RuntimeError), store.writing("", filename="x", purpose="batch") as new:
        new.write(b"abc")
        raise RuntimeError
    assert listed(store, "") == [] and list(shelf.records()) == []


def test_an_unfinished_file_leaves_nothing_in_the_folder(tmp_path):
    store = FileStore(FolderShelf(tmp_path), 100)
    with pytest.raises(RuntimeError), store.writing("", filename="x", purpose="batch") as new:
        new.write(b"abc")
        raise RuntimeError
    assert not [path for path in tmp_path.glob("[!.]*/*") if path.is_file()]


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
    assert listed(store, "ann") == [] and store.num_bytes() == 0 and content.read() == b""


def test_all_owners_share_the_quota(shelf):
    store = FileStore(shelf, 10)
    add(store, b"x" * 6, owner="ann")
    with pytest.raises(StorageFull):
        add(store, b"x" * 6, owner="bob")
    assert listed(store, "bob") == [] and store.num_bytes() == 6


def test_an_expired_file_is_gone(shelf):
    store = FileStore(shelf, 100)
    kept, gone = add(store, lifetime=1000), add(store, lifetime=0)
    assert [file.id for file in listed(store, "")] == [kept.id]
    with pytest.raises(FileNotFound):
        store.find("", gone.id)
    assert store.num_bytes() == 3


def test_leftovers_of_a_killed_process_are_swept(tmp_path):
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


def test_leftovers_of_a_killed_process_on_a_server_are_swept(shelf):
    if isinstance(shelf, FolderShelf):
        pytest.skip("a folder's is above")
    kept = add(FileStore(shelf, 2 * PIECE))
    [record] = shelf.records()
    half = shelf.writing(record.owner, "file-half", "data")
    half.__enter__()(b"x" * (PIECE + 1))  # and never ends
    before = pieces_in(shelf)
    shelf.sweep(time.time() + 60)
    assert pieces_in(shelf) == before - 1 and FileStore(shelf, 2 * PIECE).content("", kept.id).read() == b"abc"


def test_ids_of_one_millisecond_keep_their_order():
    """Batches created within a millisecond were listed in random order."""
    ids = [new_id("file-") for _ in range(1_000)]
    assert ids == sorted(ids) and len(set(ids)) == 1_000


def test_a_page_reads_only_what_it_shows(shelf, monkeypatch):
    """Listing the first of ten thousand files read all of them."""
    store = FileStore(shelf, 10_000)
    ids = [add(store, purpose=("batch", "vision")[n % 2]).id for n in range(10)]
    read, asked = shelf.read, []
    monkeypatch.setattr(shelf, "read", lambda owner, some: asked.extend(some) or read(owner, some))

    def page(**query):
        found = store.page("", **{"limit": 3, "descending": False, **query})
        return [ids.index(file.id) for file in found.items], found.has_more

    assert page() == ([0, 1, 2], True) and len(asked) == 4
    assert page(descending=True, after=ids[2]) == ([1, 0], False)
    assert page(descending=True, before=ids[2]) == ([5, 4, 3], True)
    assert page(purpose="vision", limit=4) == ([1, 3, 5, 7], True)
    assert page(purpose="vision", limit=5) == ([1, 3, 5, 7, 9], False)
    with pytest.raises(UnknownPlace):
        page(after="file-none")


def test_a_rare_purpose_is_found_in_few_reads(shelf, monkeypatch):
    store = FileStore(shelf, 10_000)
    ids = [add(store, purpose="vision" if n == 39 else "batch").id for n in range(40)]
    read, visits = shelf.read, []
    monkeypatch.setattr(shelf, "read", lambda owner, some: visits.append(len(some)) or read(owner, some))
    found = store.page("", limit=1, descending=False, purpose="vision")
    assert [file.id for file in found.items] == ids[-1:] and visits == [2, 4, 8, 16, 10]


def test_an_owner_has_a_share_of_the_quota(shelf):
    """One key could use up the quota, so that no other could store a byte."""
    store = FileStore(shelf, 10)
    store.quota.share = 5
    add(store, b"x" * 5, owner="ann")
    with pytest.raises(StorageFull, match="share"):
        add(store, b"x", owner="ann")
    add(store, b"x" * 5, owner="bob")
    assert store.num_bytes() == 10


def test_the_number_of_files_per_owner_is_bounded(shelf):
    store = FileStore(shelf, 100, most=2)
    first, _ = add(store), add(store)
    add(store, owner="bob")
    with pytest.raises(StorageFull):
        add(store)
    store.delete("", first.id)
    add(store)


def test_sweeping_releases_the_bytes_of_expired_files(shelf):
    """It counted until its owner read it, so that others were refused."""
    store = FileStore(shelf, 5)
    add(store, b"x" * 5, owner="ann", lifetime=0)
    with pytest.raises(StorageFull):
        add(store, b"x" * 5, owner="bob")
    store.sweep()
    assert store.num_bytes() == 0
    add(store, b"x" * 5, owner="bob")


def test_a_failed_upload_releases_its_bytes(shelf):
    store = FileStore(shelf, 100, most=1)
    with pytest.raises(RuntimeError), store.writing("", filename="x", purpose="batch") as new:
        new.write(b"x" * 60)
        raise RuntimeError
    assert store.num_bytes() == 0 and add(store, b"x" * 60).bytes == 60


def test_servers_on_one_shelf_share_the_quota(shelf_place):
    url, folder = shelf_place
    stores = [open_store(url, StoreOptions()) for _ in range(2)]
    one, other = (FileStore(store.shelf("files") or FolderShelf(folder), 10) for store in stores)
    add(one, b"x" * 6)
    with pytest.raises(StorageFull):
        add(other, b"x" * 6)
    assert one.num_bytes() == other.num_bytes() == 6
    for store in stores:
        store.close()


def test_recounting_corrects_the_sums(shelf):
    """A killed process leaves its reservations, and earlier versions counted nothing."""
    store = FileStore(shelf, 1_000, most=5)
    add(store, b"x" * 6, owner="ann")
    before = store.quota.ledger.sums()
    store.quota.take("anybody", 500, 500)
    store.quota.add_record("files", "anybody", 5)
    for name, total in before.items():
        store.quota.ledger.add(name, 7 - total)
    store.quota.recount({"files": shelf})
    assert {name: total for name, total in store.quota.ledger.sums().items() if total} == before


def test_a_sum_never_falls_below_zero(shelf):
    ledger = shelf.ledger()
    assert ledger.add("a", -5) and ledger.add("a", 3, 3) and not ledger.add("a", 1, 3) and ledger.add("a", -9)
    assert not ledger.add("b", 4, 3)
    assert {name: total for name, total in ledger.sums().items() if total} == {}


def test_two_who_delete_the_two_names_of_a_file_at_once_free_its_bytes_once(tmp_path):
    """A failed batch's input and its upload: each saw the other's name, and nobody gave the bytes back."""
    shelf = FolderShelf(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        for n in range(300):
            ours, theirs = tmp_path / "a" / f"{n}.data", tmp_path / "b" / f"{n}.data"
            for path in (ours, theirs):
                path.parent.mkdir(exist_ok=True)
            ours.write_bytes(b"x" * 10)
            theirs.hardlink_to(ours)
            both = threading.Barrier(2)

            def delete(owner, n=n, both=both):
                both.wait()
                return shelf._unlink(owner, str(n), "data")

            assert sum(pool.map(delete, ("a", "b"))) == 10


def test_deleting_releases_its_lock_where_closing_is_deferred(tmp_path, monkeypatch):
    """gevent defers os.close() of a folder, on a native thread for ever: the next deletion waited without end."""
    store = FileStore(FolderShelf(tmp_path / "files"), 100)
    files = [add(store, b"x") for _ in range(2)]
    close = os.close

    def close_regular(fd):
        if stat.S_ISREG(os.fstat(fd).st_mode):
            close(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", close_regular)
        for file in files:
            store.delete("", file.id)
    assert store.num_bytes() == 0
