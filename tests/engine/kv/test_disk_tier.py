"""Prefixes on disk: a shared prefix survives a restart, and is used only if all facts are the same."""

import os
import shutil
import subprocess
import sys
from array import array
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from disk_driver import MEGABYTE, SYSTEM, Served, quick_disk, slow_disk  # noqa: F401
from engine_driver import chat, end_of
from recording_backend import RecordingBackend

from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.engine.base.interface import Adapter
from llamasrv.engine.kv import disk_tier
from llamasrv.engine.kv.disk_io import ENDING
from llamasrv.engine.kv.disk_tier import DiskTier
from llamasrv.engine.kv.lookup import most_usable
from llamasrv.engine.kv.state import SavedState, checkpoint
from llamasrv.engine.kv.tree import HolderKind, PrefixTree


class Store:
    """A DiskTier that does its file work at once, on this thread."""

    def __init__(self, folder, limit=MEGABYTE, *, model="m", digests=(), can_cut=True, **more):
        options = {"facts": {"model": model}, "largest": limit, **more}
        self.can_cut, self.tree = can_cut, PrefixTree()
        self.disk = DiskTier(
            folder,
            limit,
            self.tree,
            adapter_digests=digests,
            work=lambda job: job(),
            post=lambda act: act(),
            **options,
        )

    def write(self, text, adapters=(), size=None):
        data = np.arange(size or len(text), dtype=np.int32)
        self.disk.put(SavedState(tokens(text), data, CacheKey(adapters)))

    def drop(self, text):
        self.disk.drop(self.tree.exactly(tokens(text), CacheKey(), HolderKind.FILE).path)

    def look(self, text, adapters=()):
        """(file, usable length); None."""
        path = self.tree.walk(tokens(text), len(text) - 1, CacheKey(adapters))
        return most_usable(path, HolderKind.FILE, can_cut=self.can_cut)

    def read(self, text, adapters=()):
        """(length, entry) of the match that is read; None."""
        found = self.look(text, adapters)
        if found is None:
            return None
        given = []
        self.disk.read(found[0], lambda stored, state: given.append(state))
        (state,) = given
        return None if state is None else (found[1], state)


def tokens(text):
    return array("i", list(text.encode()))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_the_next_process_reads_what_was_written(tmp_path):
    Store(tmp_path).write("a common beginning")
    length, entry = Store(tmp_path).read("a common beginning, and more")
    assert length == 18 and isinstance(entry, SavedState) and entry.tokens == tokens("a common beginning")
    assert entry.data.tolist() == list(range(18)) and entry.data.dtype == np.int32


def test_a_shorter_common_prefix_is_found(tmp_path):
    Store(tmp_path).write("a common beginning")
    assert Store(tmp_path).read("a common end")[0] == 9
    assert Store(tmp_path, can_cut=False).read("a common end") is None


@pytest.mark.parametrize("other", [{"model": "other"}, {"facts": {"model": "m", "library": "2"}}])
def test_a_file_of_other_facts_is_not_read(tmp_path, other):
    Store(tmp_path).write("a common beginning")
    assert Store(tmp_path, **other).read("a common beginning, and more") is None


def test_a_file_in_the_wrong_folder_is_not_read(tmp_path):
    Store(tmp_path).write("a common beginning")
    store = Store(tmp_path, model="other")
    (path,) = files(tmp_path)
    (folder,) = set(tmp_path.iterdir()) - {path.parent}
    assert len(store.disk) == 0
    path.rename(folder / path.name)
    assert Store(tmp_path, model="other").read("a common beginning, and more") is None


def test_adapters_are_identified_by_their_files(tmp_path):
    Store(tmp_path, digests=("one", "two")).write("a common beginning", ((0, 1.0),))
    swapped = Store(tmp_path, digests=("two", "one"))
    assert swapped.read("a common beginning!", ((0, 1.0),)) is None
    assert swapped.read("a common beginning!", ()) is None
    assert swapped.read("a common beginning!", ((1, 0.5),)) is None
    assert swapped.read("a common beginning!", ((1, 1.0),))[0] == 18
    assert Store(tmp_path, digests=("two",)).read("a common beginning!", ((0, 1.0),)) is None


@pytest.mark.parametrize("where", range(0, 400, 7))
def test_a_damaged_file_is_ignored_or_deleted(tmp_path, where):
    Store(tmp_path).write("a common beginning")
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[where % len(data)] ^= 0x5A
    path.write_bytes(data)
    found = Store(tmp_path).read("a common beginning, and more")
    if found is not None:  # the harmless bytes: what the head does not need
        assert found[1].data.tolist() == list(range(18)) and found[1].tokens == tokens("a common beginning")


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_ignored(tmp_path, share):
    Store(tmp_path).write("a common beginning")
    (path,) = files(tmp_path)
    os.truncate(path, int(path.stat().st_size * share))
    assert Store(tmp_path).read("a common beginning, and more") is None


def test_a_deleted_file_leaves_the_index(tmp_path):
    store = Store(tmp_path)
    store.write("a common beginning")
    files(tmp_path)[0].unlink()
    assert store.read("a common beginning, and more") is None and len(store.disk) == 0


def test_the_least_recently_used_files_of_any_model_are_evicted(tmp_path):
    limit = 250_000  # two of them
    Store(tmp_path, limit, model="old").write("first of all models", size=20_000)
    (first,) = files(tmp_path)
    os.utime(first, (1, 1))
    store = Store(tmp_path, limit)
    store.write("second beginning", size=20_000)
    assert store.read("second beginning!") and first.exists()
    store.write("third beginning", size=20_000)
    assert store.read("third beginning!") and store.read("second beginning!") and not first.exists()
    (second,) = [path for path in files(tmp_path) if path == store.look("second beginning!")[0].path]
    os.utime(second, (1, 1))
    store.write("fourth beginning", size=20_000)
    assert store.read("fourth beginning!") and store.read("second beginning!") is None
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit


def test_states_above_the_limit_are_not_written(tmp_path):
    Store(tmp_path, largest=100).write("a common beginning", size=26)
    assert files(tmp_path) == []


def test_a_state_whose_file_would_pass_the_limit_is_never_wanted_so_that_it_is_not_copied_in_vain(tmp_path):
    """Its bytes fit, with the tokens and the head they do not. It was copied every 20 seconds."""
    store = Store(tmp_path, 100_000)
    text = tokens("a common beginning")
    assert not store.disk.wants(text, len(text), CacheKey(), 50_000)
    assert store.disk.wants(text, len(text), CacheKey(), 30_000)
    store.write("a common beginning", size=12_500)
    assert files(tmp_path) == [] and store.disk.can_write


def test_as_many_last_checkpoints_are_written_as_the_limit_allows(tmp_path):
    store = Store(tmp_path, 100_000)
    state = SavedState(tokens("a common beginning"), np.arange(5, dtype=np.int32), CacheKey())
    room = np.arange(2_500, dtype=np.int32)
    state.points = tuple(checkpoint(state.tokens[:length], room, CacheKey()) for length in (2, 4, 6, 8, 10))
    store.disk.put(state)
    assert [point.length for point in store.read("a common beginning!")[1].points] == [6, 8, 10]


def test_a_failing_disk_is_logged_once_and_harmless(tmp_path, monkeypatch, caplog):
    store = Store(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    store.write("a common beginning")
    assert "No space left" in caplog.text and files(tmp_path) == [] and store.look("a common b") is None
    monkeypatch.undo()
    store.write("a common beginning")
    assert store.read("a common beginning!")


def test_after_a_failed_write_copying_pauses(tmp_path, monkeypatch, caplog):
    """A state of perhaps a gigabyte was copied in every step, and each time the full disk was logged."""
    now = [0.0]
    store = Store(tmp_path, clock=lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    tried = []
    for _ in range(2000):
        now[0] += 1.0
        if store.disk.wants(tokens("a common beginning"), 18, CacheKey(), 100):
            tried.append(now[0])
            store.write("a common beginning")
    assert [b - a for a, b in zip(tried, tried[1:])] == [20.0, 40.0, 80.0, 160.0, 320.0, 640.0]
    assert caplog.text.count("Read-only file system") == 1
    monkeypatch.undo()
    now[0] += 3600.0
    store.write("a common beginning")
    assert store.disk.can_write and store.read("a common beginning!")


@pytest.mark.parametrize("free, kept", [(0, 5), (100, 5), (255, 0), (10_000, 5)])
def test_on_a_disk_filled_by_others_nothing_is_deleted(tmp_path, monkeypatch, caplog, free, kept):
    """With less than 256 MiB free the whole folder was deleted, and then nothing written: one number served as limit
    and as free space."""
    store = Store(tmp_path, 1000 * MEGABYTE, spare=256 * MEGABYTE)
    for n in range(5):
        store.write(chr(65 + n) * 20, size=MEGABYTE // 8)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free * MEGABYTE))
    store.write("a common beginning", size=MEGABYTE // 8)
    if free == 255:  # what five small files leave is enough
        assert store.read("a common beginning!") and len(store.disk) < 6
    else:
        assert len(files(tmp_path)) == len(store.disk) == kept + (free == 10_000)
        assert ("MiB free" in caplog.text) is (free < 256)


def test_the_engine_stops_writing_when_its_disk_is_full(tmp_path, monkeypatch):
    served = Served(tmp_path)
    for end in ("one", "two"):
        served.ask(chat(SYSTEM + end))
    served.written(1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    copied, put = [], served.core.disk.put
    monkeypatch.setattr(served.core.disk, "put", lambda state: (copied.append(served.now), put(state)))
    for n in range(8):
        served.ask(chat(f"{n} is where another one begins " * 8))
        served.now += 30.0
        for _ in range(100):
            served.turn()
            while served.core.disk._writing:
                served.engine.take_mail(1)
    assert 2 <= len(copied) <= 5 and served.core.metrics.prefixes_written == 1
    assert len(list(tmp_path.rglob(f"*{ENDING}"))) == 1
    served.end()


def test_the_index_keeps_the_most_recently_used_files(tmp_path):
    """The files were chosen by their names, and their tokens took any amount of memory."""
    for n in range(20):
        Store(tmp_path).write(chr(65 + n) * 100)
        os.utime(max(files(tmp_path), key=lambda path: path.stat().st_mtime_ns), (n, n))
    store = Store(tmp_path, largest=32 * 4 * 1000)
    assert len(store.disk) == 10
    assert store.read("T" * 101) and store.read("K" * 101) and store.read("J" * 101) is None
    store.write("new " * 25)
    assert len(store.disk) == 10 and store.read("L" * 101) is None, "it was used before K"
    assert len(files(tmp_path)) == 21, "files stay"


def test_an_unusable_folder_only_turns_the_disk_cache_off(tmp_path, caplog):
    (tmp_path / "file").write_text("x")
    store = Store(tmp_path / "file" / "folder")
    store.write("a common beginning")
    assert "disk is off" in caplog.text


def test_files_are_readable_by_their_owner_only(tmp_path):
    Store(tmp_path).write("a common beginning")
    (path,) = files(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_unfinished_files_of_a_killed_process_are_never_read_and_deleted(tmp_path):
    store = Store(tmp_path)
    store.write("a common beginning")
    (path,) = files(tmp_path)
    half = path.with_name(".half.123")
    half.write_bytes(path.read_bytes()[:100])
    assert len(Store(tmp_path).disk) == 1 and half.exists()  # it may be another process's
    os.utime(half, (0, 0))
    assert len(Store(tmp_path).disk) == 1 and not half.exists()


WRITER = """
import os
import sys
from array import array
from pathlib import Path
import numpy as np
from llamasrv.engine.kv.disk_tier import DiskTier
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.kv.tree import PrefixTree
os.fsync = lambda fd: None
disk = DiskTier(
    Path(sys.argv[1]), 2**30, PrefixTree(), facts={"model": "m"}, largest=2**30, work=lambda job: job(), post=lambda act: act()
)
for n in range(200):
    data = np.full(2**18, n, np.int32)
    disk.put(SavedState(array("i", [n] * 50), data))
    print(n, flush=True)
"""


@pytest.mark.parametrize("after", range(3))
def test_killed_while_it_writes_it_leaves_only_whole_files(tmp_path, after):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    for _ in range(1 + 3 * after):
        process.stdout.readline()
    process.kill()
    process.wait()
    process.stdout.close()
    store = Store(tmp_path, 2**30)
    assert len(store.disk) == len(list(tmp_path.rglob(f"*{ENDING}"))) >= 1 + 3 * after
    for n in range(1 + 3 * after):
        _, entry = store.read(chr(n) * 51)
        assert set(entry.data.tolist()) == {n}


# Several servers


def test_a_server_finds_what_another_has_written_meanwhile(tmp_path):
    one, other = Store(tmp_path), Store(tmp_path, most_new=2)
    for n in range(5):
        one.write(f"{n} a common beginning")
    assert other.read("4 a common beginning, and more") is None
    for expected in (2, 4, 5, 5):
        other.disk.look(inf)
        assert len(other.disk) == expected
    assert {other.read(f"{n} a common beginning, and more")[0] for n in range(5)} == {20}
    other.write("0 a common beginning")
    assert len(files(tmp_path)) == 5  # the same content has the same name


def test_between_two_looks_nothing_is_read_again(tmp_path, monkeypatch):
    one, other = Store(tmp_path), Store(tmp_path)
    one.write("a common beginning")
    other.disk.look(inf)
    monkeypatch.setattr(other.disk._io, "_newest", lambda: pytest.fail("the folder is as it was"))
    other.disk.look(inf)
    other.disk.look(-inf)  # it is not time


def test_what_another_has_deleted_leaves_the_index(tmp_path, caplog):
    one, other = Store(tmp_path), Store(tmp_path)
    one.write("a common beginning")
    other.disk.look(inf)
    one.drop("a common beginning")
    assert other.read("a common beginning, and more") is None  # it was about to be read
    one.write("another one, as long")
    other.disk.look(inf)
    one.drop("another one, as long")
    other.disk.look(inf)
    assert len(other.disk) == 0 and not caplog.records
    one.write("a common beginning")
    other.disk.look(inf)
    assert len(other.disk) == 1


def test_the_limit_is_of_the_folder_whoever_writes(tmp_path):
    both = [Store(tmp_path, 200_000) for _ in range(2)]
    for n in range(8):
        both[n % 2].write(f"{n} a common beginning", size=10_000)
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 200_000
    assert len(files(tmp_path)) >= 2


def test_another_scope_stays_cold_for_another_server(tmp_path):
    one, other = Served(tmp_path), Served(tmp_path)
    for text in ("one", "two"):
        one.ask(chat(SYSTEM + text), scope="ann")
    one.written(1)
    other.now += disk_tier.LOOK + 1
    other.engine.host.turn()
    while not len(other.core.disk):
        other.engine.take_mail(1)
    assert other.ask(chat(SYSTEM + "three"), scope="bob") == 0
    assert other.ask(chat(SYSTEM + "four"), scope="ann") > len(SYSTEM)
    assert other.core.metrics.prefixes_read == 1
    one.end()
    other.end()


# With an engine


def test_a_system_prompt_is_warm_after_a_restart(tmp_path):
    served = Served(tmp_path)
    assert served.ask(chat(SYSTEM + "one")) == 0
    assert served.core.metrics.prefixes_written == 0
    assert served.ask(chat(SYSTEM + "two")) > len(SYSTEM)
    served.written(1)
    served.end()
    again = Served(tmp_path)
    assert again.ask(chat(SYSTEM + "three")) > len(SYSTEM)
    assert again.core.metrics.prefixes_read == 1
    again.end()


def test_a_shared_prefix_is_written_at_once_and_the_rest_at_the_end(tmp_path):
    served = Served(tmp_path)
    served.ask(chat(SYSTEM + "one secret"))
    served.ask(chat(SYSTEM + "two secret"))
    served.written(1)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob(f"*{ENDING}"))
    assert np.array(list(b"system"), np.int32).tobytes() in written
    assert np.array(list(b"secret"), np.int32).tobytes() not in written
    served.end()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob(f"*{ENDING}"))
    assert np.array(list(b"secret"), np.int32).tobytes() in written


def test_continuing_a_conversation_writes_nothing(tmp_path):
    served = Served(tmp_path)
    first = chat(SYSTEM)
    served.ask(first)
    said = served.backend.vocab.tokenize(first) + list(served.sequences[0].tokens[served.sequences[0].num_prompt :])
    assert served.ask([*said, *served.backend.vocab.tokenize("\n" + chat("and?"))]) > len(SYSTEM)
    assert served.core.metrics.prefixes_written == 0 and not served.core.disk._writing
    served.end()


def test_a_prefix_of_other_adapters_stays_cold(tmp_path):
    adapters = (Adapter("one", "one.gguf", digest="d1"),)
    served = Served(tmp_path, RecordingBackend(adapters=adapters))
    for end in ("one", "two"):
        served.ask(chat(SYSTEM + end), adapters=((0, 1.0),))
    served.written(1)
    served.end()
    again = Served(tmp_path, RecordingBackend(adapters=adapters))
    assert again.ask(chat(SYSTEM + "three")) == 0
    assert again.ask(chat(SYSTEM + "four"), adapters=((0, 1.0),)) > len(SYSTEM)
    again.end()


def test_a_prefix_of_another_scope_stays_cold(tmp_path):
    served = Served(tmp_path)
    for end in ("one", "two"):
        served.ask(chat(SYSTEM + end), scope="ann")
    served.written(1)
    served.end()
    again = Served(tmp_path)
    assert again.ask(chat(SYSTEM + "three"), scope="bob") == again.ask(chat(SYSTEM + "four")) == 0
    assert again.core.metrics.prefixes_read == 0
    assert again.ask(chat(SYSTEM + "five"), scope="ann") > len(SYSTEM)
    again.end()


def test_equal_prefixes_of_two_scopes_are_separate(tmp_path):
    served = Served(tmp_path)
    for number, scope in enumerate(("ann", "bob"), 1):
        for end in ("one", "two"):
            served.ask(chat(SYSTEM + end), scope=scope)
        served.written(number)
    assert len(list(tmp_path.rglob(f"*{ENDING}"))) == 2
    served.end()


def test_a_large_state_is_not_copied_while_others_run(tmp_path):
    served = Served(tmp_path)
    served.core.memory.busy_bytes = 100
    served.ask(chat(SYSTEM + "one"))
    other = served.submit(chat("hello " * 20))
    served.turn(3)
    assert served.ask(chat(SYSTEM + "two")) > len(SYSTEM) and not served.core.disk._writing
    served.finish()
    assert end_of(other.take())
    served.ask(chat(SYSTEM + "three"))
    served.written(1)
    served.end()


def test_running_sequences_continue_while_a_file_is_read(tmp_path, monkeypatch):
    served = Served(tmp_path)
    for end in ("one", "two"):
        served.ask(chat(SYSTEM + end))
    served.written(1)
    served.end()
    again = Served(tmp_path)
    running = again.submit(chat("hello " * 20))
    again.turn(3)
    gate = slow_disk(monkeypatch)
    waiting = again.submit(chat(SYSTEM + "three"))
    before = len(running.take())
    again.turn(10)
    assert before and len(running.take()) >= 9 and not waiting.take()
    gate.set()
    while again.engine.num_open:
        again.engine.host.turn()
    assert end_of(waiting.take()).num_reused > len(SYSTEM)
    again.end()


def test_a_disk_slower_than_computing_is_not_waited_for(tmp_path, monkeypatch):
    served = Served(tmp_path)
    for end in ("one", "two"):
        served.ask(chat(SYSTEM + end))
    served.written(1)
    served.end()
    again = Served(tmp_path)
    again.core.reads.patience = 0.0
    again.core.scheduler.cost.prompt_seconds = lambda count: count * 0.0005
    gate = slow_disk(monkeypatch)
    assert again.ask(chat(SYSTEM + "three")) == 0
    gate.set()
    again.end()


def test_without_a_digest_or_with_split_cells_nothing_is_written(tmp_path):
    for options in ({"digest": ""}, {"disk_bytes": 0}):
        served = Served(tmp_path, **options)
        assert served.core.disk is None
        served.end()


def test_a_dropped_prefix_stays_gone_after_a_restart(tmp_path):
    store = Store(tmp_path)
    store.write("a common beginning")
    assert not store.disk.wants(tokens("a common beginning"), 18, CacheKey(), 100)
    assert store.read("a common beginning!")
    store.drop("a common beginning")
    assert store.read("a common beginning!") is None and Store(tmp_path).read("a common beginning!") is None
    assert store.disk.wants(tokens("a common beginning"), 18, CacheKey(), 100)
