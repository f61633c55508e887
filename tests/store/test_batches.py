"""Batches and locks on each kind of shelf."""

from __future__ import annotations

import errno
import os
import time

import pytest

from llamasrv.store import StoreError
from llamasrv.store.batches import BatchNotFound, BatchResult, BatchStore, Journal, StoredBatch, read_journal
from llamasrv.store.files import FileNotFound, FileStore, new_id
from llamasrv.store.folder_shelf import FolderAppender, FolderShelf
from llamasrv.store.redis_shelf import RedisShelf
from llamasrv.store.shelf import PIECE, ExpiringLock, StoredContent, owner_key
from llamasrv.store.storage_quota import StorageFull


def batch(owner="ann", **fields):
    return StoredBatch(new_id("batch_"), owner, "openai", "/v1/x", 1, 2, **fields)


def listed(store, owner, protocol="openai"):
    return [one.id for one in store.page(owner, protocol, limit=100).items]


@pytest.fixture
def server_shelf(shelf):
    if isinstance(shelf, FolderShelf):
        pytest.skip("a folder's lock is the kernel's")
    return shelf


def test_only_the_owner_finds_batches_newest_first(shelf):
    store = BatchStore(shelf)
    made = [store.create(batch(), [b"a"]) for _ in range(3)]
    store.end(made[1].moved("completed", 1))
    assert listed(store, "ann") == [one.id for one in reversed(made)]
    assert listed(store, "ann", "anthropic") == listed(store, "bob") == []
    assert [one.id for one in store.open_batches()] == [made[0].id, made[2].id]
    with pytest.raises(BatchNotFound):
        store.find("bob", made[0].id)
    store.sweep(2)
    assert listed(store, "ann") == [made[2].id, made[0].id]


def test_a_batch_keeps_its_input_after_the_file_is_deleted(shelf):
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
    assert store.input_of(made).read() == b"" and listed(store, "ann") == []


def test_a_reopened_journal_has_one_result_per_request(shelf):
    store = BatchStore(shelf)
    made = store.create(batch(), [b"a"])
    assert list(read_journal(store.journal_of(made))) == []
    for body in (b'"first"', b'"second"'):
        journal = Journal(store.journal_of(made))
        for n, size in ((1, 1), (2, PIECE + 5), (3, 1)):
            journal.add(BatchResult(n, f"n{n}", 200, "r", body * size))
        journal.close()
    entries = list(read_journal(store.journal_of(made)))
    assert [entry.n for entry in entries] == [1, 2, 3]
    assert entries[0].body == entries[2].body == b'"first"' and len(entries[1].body) == 7 * (PIECE + 5)


def test_a_journal_keeps_bodies_as_they_are(shelf):
    store = BatchStore(shelf)
    content = store.journal_of(store.create(batch(), [b"a"]))
    journal = Journal(content)
    journal.add(BatchResult(1, "a\tb", 200, "r", b'{"a":\n\t1}', {"input_tokens": 3}))
    journal.close()
    assert list(read_journal(content)) == [BatchResult(1, "a\tb", 200, "r", b'{"a": \t1}', {"input_tokens": 3})]


def test_a_journal_of_an_earlier_version_is_read(shelf):
    store = BatchStore(shelf)
    content = store.journal_of(store.create(batch(), [b"a"]))
    lines = shelf.appending(content.owner, content.id, content.part)
    lines.add(b'[1,"a",200,"r",{"b":"\\t"}]\n[2,"b",null,"","expired"]\n')
    lines.close()
    assert [(entry.n, entry.body) for entry in read_journal(content)] == [(1, b'{"b": "\\t"}'), (2, b'"expired"')]


def test_a_content_with_two_links_counts_once(shelf):
    """A batch's input stopped counting when its file was deleted, so that a client could fill the disk."""
    quota = FileStore(shelf, 1_000).quota
    with shelf.writing("ann", "a", "data") as put:
        put(b"x" * 7)
    assert shelf.link("ann", "b", "input", StoredContent(shelf, "ann", "a", "data"))
    appender = shelf.appending("ann", "b", "journal")
    appender.add(b"line\n")
    appender.close()
    assert quota.used() == 7 + 5
    shelf.delete("ann", "a")
    assert quota.used() == 7 + 5 and StoredContent(shelf, "ann", "b", "input").read() == b"x" * 7
    shelf.drop("ann", "b", "journal")
    assert quota.used() == 7 and StoredContent(shelf, "ann", "b", "journal").read() == b""
    shelf.delete("ann", "b")
    assert quota.used() == 0


def test_requests_and_results_over_the_quota_are_refused(shelf):
    """Batches did not count towards the quota."""
    quota, store = FileStore(shelf, 200).quota, BatchStore(shelf)
    with pytest.raises(StorageFull):
        store.create(batch(), [b"x" * 250])
    assert quota.used() == 0 and list(shelf.records()) == [] and shelf.open_ids() == []
    made = store.create(batch(), [b"x" * 99])
    journal = Journal(store.journal_of(made))
    journal.add(BatchResult(1, "n1", 200, "r", b"x" * 20))
    with pytest.raises(StorageFull):
        journal.add(BatchResult(2, "n2", 200, "r", b"x" * 80))
    journal.add(BatchResult(3, "n3", 200, "r", b"x" * 20))
    journal.close()
    assert [entry.n for entry in read_journal(store.journal_of(made))] == [1, 3]
    store.end(made.moved("failed", 1))
    assert quota.used() == 0 and store.find("ann", made.id).status == "failed"


def test_it_copies_where_hard_links_are_unsupported(tmp_path, monkeypatch):
    """On a file system without hard links, creating a batch failed."""

    def refusing(*args):
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refusing)
    shelf = FolderShelf(tmp_path)
    files, store = FileStore(shelf, 100), BatchStore(shelf)
    with files.writing("ann", filename="x", purpose="batch") as new:
        new.write(b"line\n")
    made = store.create(batch(), files.content("ann", new.stored.id))
    assert files.num_bytes() == 10
    files.delete("ann", new.stored.id)
    assert store.input_of(made).read() == b"line\n" and files.num_bytes() == 5


def test_a_line_half_written_to_a_full_disk_is_truncated(tmp_path, monkeypatch):
    """The next line was lost, too, and closing the journal failed again."""
    journal = FolderAppender(tmp_path / "journal")
    journal.add(b"first\n")
    file = journal._file

    class Full:
        def __getattr__(self, name):
            return getattr(file, name)

        def write(self, data):
            if len(data) <= 3:
                raise OSError(errno.ENOSPC, "full")
            return file.write(data[:-3])

    monkeypatch.setattr(journal, "_file", Full())
    with pytest.raises(OSError):
        journal.add(b"second\n")
    monkeypatch.setattr(journal, "_file", file)
    journal.add(b"third\n")
    journal.close()
    assert (tmp_path / "journal").read_bytes() == b"first\nthird\n"


def test_open_batches_are_found_without_reading_others(shelf, monkeypatch):
    """Every two seconds a month of records was read."""
    store = BatchStore(shelf)
    made = [store.create(batch(), [b"a"]) for _ in range(5)]
    for one in made[1:]:
        store.end(one.moved("completed", 1))
    read, asked = shelf.read, []
    monkeypatch.setattr(shelf, "read", lambda owner, some: asked.extend(some) or read(owner, some))
    assert [one.id for one in store.open_batches()] == asked == [made[0].id]
    assert store.num_open("ann", "openai") == 1 and store.num_open("bob", "openai") == 0


def test_open_batches_of_earlier_versions_are_resumed(shelf):
    """Earlier versions did not mark open batches."""
    store = BatchStore(shelf)
    made = [store.create(batch(), [b"a"]) for _ in range(2)]
    store.save(made[1].moved("completed", 1))
    for one in made:
        shelf.close(owner_key("ann"), one.id)
    assert store.open_batches() == []
    store.sweep(0)
    assert [one.id for one in store.open_batches()] == [made[0].id]


def test_a_new_batch_replaces_the_oldest_ended_one(shelf):
    """OpenAI's clients cannot delete batches."""
    FileStore(shelf, 1_000)
    store = BatchStore(shelf, most=3)
    made = [store.create(batch(), [b"a"]) for _ in range(3)]
    store.end(made[1].moved("completed", 1))
    made.append(store.create(batch(), [b"a"]))
    assert listed(store, "ann") == [made[3].id, made[2].id, made[0].id]


def test_a_long_journal_is_read_completely(shelf):
    store = BatchStore(shelf)
    journal = Journal(store.journal_of(made := store.create(batch(), [b"a"])))
    for n in range(2_500):
        journal.add(BatchResult(n, f"n{n}", 200, "r", b"null"))
    assert [entry.n for entry in read_journal(store.journal_of(made))] == list(range(2_500))
    journal.close()


def test_only_one_of_two_holds_the_lock(shelf):
    first, second = shelf.lock(), shelf.lock()
    assert first.take() and first.take() and not second.take()
    first.release()
    assert second.take()
    second.release()


def test_the_lock_of_a_dead_holder_expires(server_shelf):
    assert server_shelf.renew_lock("dead", 0.3) and not server_shelf.renew_lock("heir", 0.3)
    end = time.monotonic() + 10
    while not server_shelf.renew_lock("heir", 5):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not server_shelf.renew_lock("dead", 5)
    server_shelf.release_lock("dead")  # not its own
    assert not server_shelf.renew_lock("third", 5)


def test_a_claim_has_one_holder_and_expires_with_it(server_shelf):
    first, second = server_shelf.claims(), server_shelf.claims(0.001)
    assert first.take("batch:0") and first.take("batch:0") and not second.take("batch:0")
    assert second.take("batch:1")
    end = time.monotonic() + 10
    while not first.take("batch:1"):
        assert time.monotonic() < end


def test_only_the_holder_releases_a_claim(server_shelf):
    first, second = server_shelf.claims(), server_shelf.claims()
    assert first.take("run")
    second.release("run")
    assert not second.take("run")
    first.release("run")
    assert second.take("run")


def test_an_answer_that_comes_after_the_end_of_its_batch_is_dropped(server_shelf):
    """Another server had it under way. In Redis it would have stayed for good."""
    store = BatchStore(server_shelf)
    made = store.create(batch(), [b"a"])
    journal = Journal(store.journal_of(made))
    store.end(made.moved("completed", 1))
    journal.add(BatchResult(1, "n1", 200, "r", b"null"))
    assert list(read_journal(store.journal_of(made))) == []
    if isinstance(server_shelf, RedisShelf):
        assert server_shelf.db.keys("llamasrv:blob:*") == []


def test_a_lock_is_renewed_while_it_is_held(server_shelf):
    lock = ExpiringLock(server_shelf.renew_lock, server_shelf.release_lock, 0.4)
    assert lock.take()
    time.sleep(1)
    assert not server_shelf.renew_lock("other", 1) and lock.is_held
    lock.release()
    assert server_shelf.renew_lock("other", 1)


def test_a_lock_that_cannot_be_renewed_is_reported_lost():
    """Even if it can be acquired again: another process may have held it meanwhile."""
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
