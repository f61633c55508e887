"""Batches and locks on each kind of shelf."""

from __future__ import annotations

import time

import pytest

from llamasrv.store import StoreError
from llamasrv.store.batches import Batch, BatchNotFound, BatchStore, Entry, Journal, read_journal
from llamasrv.store.files import FileNotFound, FileStore, new_id
from llamasrv.store.folder_shelf import FolderShelf
from llamasrv.store.shelf import PIECE, Content, ExpiringLock


def batch(owner="ann", **fields):
    return Batch(new_id("batch_"), owner, "openai", "/v1/x", 1, 2, **fields)


@pytest.fixture
def server_shelf(shelf):
    if isinstance(shelf, FolderShelf):
        pytest.skip("a folder's lock is the kernel's")
    return shelf


def test_batches_are_found_by_their_owner_alone_latest_first(shelf):
    store = BatchStore(shelf)
    made = [store.create(batch(), [b"a"]) for _ in range(3)]
    store.save(made[1].moved("completed", 1))
    assert [one.id for one in store.of("ann", "openai")] == [one.id for one in reversed(made)]
    assert store.of("ann", "anthropic") == store.of("bob", "openai") == []
    assert [one.id for one in store.open_batches()] == [made[0].id, made[2].id]
    with pytest.raises(BatchNotFound):
        store.find("bob", made[0].id)
    store.sweep(2)
    assert {one.id for one in store.of("ann", "openai")} == {made[0].id, made[2].id}


def test_an_input_stays_when_its_file_is_deleted(shelf):
    files, store = FileStore(shelf, 10 * PIECE), BatchStore(shelf)
    given = b"x" * PIECE + b"\nlast\n"
    with files.writing("ann", filename="x", purpose="batch") as new:
        new.write(given)
    content = files.content("ann", new.stored.id)
    made = store.create(batch(), content)
    files.delete("ann", new.stored.id)
    assert store.input_of(made).read() == given
    with store.input_of(made).open() as file:
        assert [len(line) for line in file] == [PIECE + 1, 5]
    with pytest.raises(FileNotFound):
        store.create(batch(), content)
    store.delete(made)
    assert store.input_of(made).read() == b"" and store.of("ann", "openai") == []


def test_a_journal_goes_on_and_has_one_answer_of_each_request(shelf):
    store = BatchStore(shelf)
    made = store.create(batch(), [b"a"])
    assert list(read_journal(store.journal_of(made))) == []
    for body in ("first", "second"):
        journal = Journal(store.journal_of(made))
        for n, size in ((1, 1), (2, PIECE + 5), (3, 1)):
            journal.add(Entry(n, f"n{n}", 200, "r", body * size))
        journal.close()
    entries = list(read_journal(store.journal_of(made)))
    assert [entry.n for entry in entries] == [1, 2, 3]
    assert entries[0].body == entries[2].body == "first" and len(entries[1].body) == 5 * (PIECE + 5)


def test_contents_count_for_each_name_until_they_are_deleted(shelf):
    with shelf.writing("ann", "a", "data") as put:
        put(b"x" * 10)
    with shelf.writing("ann", "a", "data") as put:  # in its place
        put(b"x" * 7)
    assert shelf.num_bytes() == 7
    assert shelf.link("bob", "b", "input", Content(shelf, "ann", "a", "data"))
    appender = shelf.appending("bob", "b", "journal")
    appender.add(b"line\n")
    appender.close()
    assert shelf.num_bytes() == 7 + 7 + 5
    shelf.delete("ann", "a")
    assert shelf.num_bytes() == 7 + 5 and Content(shelf, "bob", "b", "input").read() == b"x" * 7
    shelf.delete("bob", "b")
    assert shelf.num_bytes() == 0


def test_a_journal_of_many_answers_is_read_whole(shelf):
    store = BatchStore(shelf)
    journal = Journal(store.journal_of(made := store.create(batch(), [b"a"])))
    for n in range(2_500):
        journal.add(Entry(n, f"n{n}", 200, "r", None))
    assert [entry.n for entry in read_journal(store.journal_of(made))] == list(range(2_500))
    journal.close()


def test_one_of_two_has_the_lock_until_it_lets_go(shelf):
    first, second = shelf.lock(), shelf.lock()
    assert first.take() and first.take() and not second.take()
    first.release()
    assert second.take()
    second.release()


def test_who_dies_loses_its_lock(server_shelf):
    assert server_shelf.renew_lock("dead", 0.3) and not server_shelf.renew_lock("heir", 0.3)
    end = time.monotonic() + 10
    while not server_shelf.renew_lock("heir", 5):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not server_shelf.renew_lock("dead", 5)
    server_shelf.release_lock("dead")  # not its own
    assert not server_shelf.renew_lock("third", 5)


def test_a_lock_is_renewed_while_it_is_held(server_shelf):
    lock = ExpiringLock(server_shelf.renew_lock, server_shelf.release_lock, 0.4)
    assert lock.take()
    time.sleep(1)
    assert not server_shelf.renew_lock("other", 1) and lock.is_held
    lock.release()
    assert server_shelf.renew_lock("other", 1)


def test_who_cannot_renew_its_lock_hears_that_it_was_lost():
    """Others may have had it meanwhile, although it can be taken again."""
    answers = iter([True])

    def renew(holder, seconds):
        if next(answers, None) is None and not answers_again:
            raise StoreError("away")
        return True

    answers_again = []
    lock = ExpiringLock(renew, lambda holder: None, 0.2)
    assert lock.take()
    end = time.monotonic() + 10
    while lock.is_held:
        assert time.monotonic() < end
        time.sleep(0.02)
    answers_again.append(True)
    assert not lock.take() and lock.take()
    lock.release()
