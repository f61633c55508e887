"""When models are loaded, how long they stay, and who makes room."""

from __future__ import annotations

import contextlib
import logging
import threading
import tracemalloc
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_driver import spec
from recording_backend import RecordingBackend
from serving import wait_until

from llamasrv.engine.base.interface import Adapter, LoadFailed
from llamasrv.engine.kv.state import SavedState
from llamasrv.engine.sampling.grammar_compiler import GrammarCompiler
from llamasrv.errors import ModelUnavailable, Unavailable
from llamasrv.models import adapters
from llamasrv.models import loader as module
from llamasrv.models.failures import MOST_FAILURES, without_folders
from llamasrv.models.loader import HOLD_AFTER
from llamasrv.models.model import DeviceShare


def in_background(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


# Loading


def test_a_model_is_loaded_when_it_is_asked_for(farm):
    f = farm().add("a", "b")
    assert f["a"].state == "unloaded"
    f.load("a")
    assert f.loaded == {"a"} and f.opened == ["a"]


def test_asking_twice_loads_once(farm):
    f = farm().add("a")
    f.gate.clear()
    f.loader.load(f["a"])
    f.loader.load(f["a"])
    f.gate.set()
    f.load("a")
    assert f.opened == ["a"] and f["a"].num_loads == 1


def test_progress_can_be_seen(farm):
    f = farm().add("a")
    f.gate.clear()
    f.loader.load(f["a"])
    wait_until(lambda: f["a"].progress == 0.5)
    assert f["a"].state == "loading" and f.registry().arriving() == {"a": 0.5}
    assert not f.loader.wait(f["a"], 0.001)


@pytest.mark.parametrize("share, line", [(0.5, "loading a: 50 %"), (1.0, "warming up a")])
def test_the_log_shows_the_progress_of_a_long_load(farm, caplog, monkeypatch, share, line):
    """Two voices told it, one of them "warming up: 100 %" and then the other "loading: 100 %"."""
    monkeypatch.setattr(logging.getLogger("llamasrv"), "propagate", True)
    caplog.set_level(logging.INFO, "llamasrv")
    f = farm(report_every=0.001).add("a")
    f.share = share
    f.gate.clear()
    f.loader.load(f["a"])
    wait_until(lambda: line in caplog.messages)
    f.gate.set()
    f.load("a")
    assert caplog.messages[-1] == "a is loaded"


def test_who_waits_may_give_up(farm):
    f = farm().add("a")
    f.gate.clear()
    f.loader.load(f["a"])
    assert not f.loader.wait(f["a"], given_up=lambda: True)


def test_the_file_is_checked_before(farm):
    checked = []
    f = farm(check=checked.append).add("a")
    f.load("a")
    assert checked == [f["a"]]


def test_different_models_are_loaded_at_the_same_time(farm):
    f = farm().add("a", "b")
    f.gate.clear()
    for name in "ab":
        f.loader.load(f[name])
    wait_until(lambda: [f[name].progress for name in "ab"] == [0.5, 0.5])


# Failing


def test_a_failure_is_reported_to_the_waiting_client(farm):
    f = farm().add("a")
    f.broken["a"] = LoadFailed("a.gguf: no good")
    f.loader.load(f["a"])
    with pytest.raises(ModelUnavailable, match=r"'a' could not be loaded: a\.gguf: no good") as caught:
        f.loader.wait(f["a"], 10)
    assert caught.value.status == 503 and f["a"].state == "failed" and not f.loader.budget.taken


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("/srv/my models/a.gguf: truncated", "a.gguf: truncated"),
        ("it crashed with its projector /opt/x/mmproj.gguf", "it crashed with its projector mmproj.gguf"),
        ("10 tokens/s, and/or https://a.example/b/c", "10 tokens/s, and/or https://a.example/b/c"),
    ],
)
def test_clients_do_not_learn_where_files_are(reason, told):
    assert without_folders(reason, Path("/srv/my models/a.gguf")) == told


def test_a_failure_is_remembered_for_a_while_and_then_tried_again(farm):
    f = farm().add("a")
    f.broken["a"] = LoadFailed("no good")
    waits = []
    for _ in range(3):
        f.loader.load(f["a"])
        with pytest.raises(ModelUnavailable):
            f.loader.wait(f["a"], 10)
        with pytest.raises(ModelUnavailable) as caught:
            f.loader.load(f["a"])
        waits.append(caught.value.retry_after)
        f.now += caught.value.retry_after
    assert waits == [2, 4, 8]
    del f.broken["a"]
    f.load("a")
    assert f["a"].failure is None


def test_many_who_ask_for_a_failed_model_cost_no_memory(farm):
    """One exception was raised to everybody: its traceback grew with each request, and kept what they had sent."""
    f = farm().add("a")
    f.broken["a"] = LoadFailed("no good")
    f.loader.load(f["a"])
    with pytest.raises(ModelUnavailable):
        f.loader.wait(f["a"], 10)

    def ask(body):
        for act in (lambda: f.loader.load(f["a"]), lambda: f.loader.wait(f["a"], 0), lambda: f["a"].engine):
            with contextlib.suppress(ModelUnavailable):
                act()
                pytest.fail(f"nothing was raised for {len(body)} bytes")

    ask(b"")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10_000):
            ask(bytes(1000))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2**20


def test_after_many_failures_only_an_explicit_wish_tries_again(farm):
    f = farm().add("a")
    f.broken["a"] = LoadFailed("no good")
    for _ in range(MOST_FAILURES):
        f.loader.load(f["a"])
        with pytest.raises(ModelUnavailable):
            f.loader.wait(f["a"], 10)
        f.now += 10_000
    with pytest.raises(ModelUnavailable):
        f.loader.load(f["a"])
    del f.broken["a"]
    f.loader.load(f["a"], anyway=True)
    assert f.loader.wait(f["a"], 10)


def test_an_unexpected_error_fails_the_load_and_nothing_else(farm):
    f = farm().add("a", "b")
    f.broken["a"] = ZeroDivisionError()
    f.loader.load(f["a"])
    with pytest.raises(ModelUnavailable, match="log has the cause"):
        f.loader.wait(f["a"], 10)
    f.load("b")


def test_an_engine_that_ends_by_itself_is_noticed_and_loaded_again(farm):
    f = farm().add("a", at_start=True)
    f.load("a")
    assert f["a"].current.stop(10)
    f.loader.tick()
    assert f.loader.wait(f["a"], 10) and f.opened == ["a", "a"]


def test_what_only_something_else_keeps_from_loading_is_tried_again_by_itself(farm, caplog):
    """Another machine that it needs is away, say: no fault of the model, so it is told at once and tried soon."""
    away = [True]

    def check(model):
        if away:
            raise Unavailable("The machine is away.")

    f = farm(check=check).add("a", at_start=True)
    for _ in range(2):
        f.loader.load(f["a"])
        with pytest.raises(Unavailable, match="is away"):
            f.loader.wait(f["a"], 10)
    assert caplog.text.count("is away") == 1 and not f["a"].failure.is_fault
    away.clear()
    f.loader.tick()
    assert f["a"].state == "failed" and f.registry().readiness().reason == "The machine is away."
    f.now += 10
    f.loader.tick()
    assert f.loader.wait(f["a"], 10) and f.registry().readiness().state == "ready"


# Staying and going


def test_an_unused_model_is_unloaded_after_a_while(farm):
    f = farm().add("a", keep_alive=5.0)
    f.load("a")
    f.loader.tick()
    assert f.loaded == {"a"} and f["a"].expires_at is not None
    f["a"].last_used -= 6
    f.loader.tick()
    assert f.loaded == set() and f["a"].num_unloads == 1 and not f.loader.budget.taken and f["a"].expires_at is None


def test_what_grammars_need_is_made_in_a_quiet_moment(farm, monkeypatch):
    """Making it holds up every answer for up to half a second."""
    prepared = []
    monkeypatch.setattr(GrammarCompiler, "prepare", lambda self: prepared.append(self))
    f = farm().add("a", "b")
    f.load("a", "b")
    f["a"].last_used -= 1
    with f["b"].lease():
        f["b"].last_used -= 1
        f.loader.tick()
    assert prepared == [f["a"].current.grammars]


def test_for_ever_is_for_ever(farm):
    f = farm().add("a", keep_alive=-1.0)
    f.load("a")
    f["a"].last_used -= 1e6
    f.loader.tick()
    assert f.loaded == {"a"} and f["a"].expires_at is None


def test_a_request_may_say_how_long_it_stays(farm):
    f = farm().add("a")
    f.load("a")
    f["a"].touch(0.0)
    f.loader.tick()
    assert f.loaded == set()


def test_a_request_cannot_send_away_what_the_operator_keeps(farm):
    f = farm().add("a", keep_alive=-1.0)
    f.load("a")
    f["a"].touch(0.0)
    f.loader.tick()
    assert f.loaded == {"a"}


def test_what_is_in_use_stays(farm):
    f = farm().add("a", keep_alive=0.0)
    f.load("a")
    with f["a"].lease():
        f["a"].last_used -= 100
        f.loader.tick()
        assert f.loaded == {"a"}
    f.loader.tick()
    assert f.loaded == set()


def test_unloading_lets_work_finish_and_takes_no_new(farm):
    f = farm().add("a")
    f.load("a")
    engine = f["a"].current
    f["a"].acquire()
    going = in_background(f.loader.unload, f["a"])
    wait_until(lambda: f["a"].state == "unloading")
    assert f["a"].current is None and engine.status.state == "ready"
    stream = engine.submit([spec([1, 2, 3], max_tokens=2)])
    f["a"].release()
    going.join(10)
    assert f["a"].state == "unloaded" and not stream.open_choices
    items = stream.take()
    assert items[-1].error is None, items


def test_asked_for_while_it_goes_it_comes_back(farm):
    f = farm().add("a")
    f.load("a")
    f["a"].acquire()
    in_background(f.loader.unload, f["a"])
    wait_until(lambda: f["a"].state == "unloading")
    f.loader.load(f["a"])
    f["a"].release()
    assert f.loader.wait(f["a"], 10) and f.opened == ["a", "a"]


# Memory


def test_the_least_recently_used_makes_room(farm):
    f = farm(limit=25).add("a", "b", "c")
    f.load("a", "b")
    f["a"].touch()
    f.load("c")
    assert f.loaded == {"a", "c"} and f.loader.budget.taken == 20


def test_no_more_make_room_than_have_to(farm):
    f = farm(limit=100).add("small", size=10).add("large", size=60).add("new", size=50)
    f.load("small", "large", "new")
    assert f.loaded == {"small", "new"}


def test_no_more_are_loaded_than_may_be(farm):
    f = farm(limit=100, most_loaded=2).add("a", "b", "c")
    f.load("a", "b")
    f["a"].touch()
    f.load("c")
    assert f.loaded == {"a", "c"} and f.loader.budget.taken == 20


def test_one_at_a_time_may_be_any(farm):
    f = farm(most_loaded=1).add("a", "b")
    f.load("a", "b", "a")
    assert f.loaded == {"a"} and f.opened == ["a", "b", "a"]


def test_those_that_stay_for_ever_go_last(farm):
    f = farm(limit=25).add("a", keep_alive=-1.0).add("b", "c")
    f.load("a", "b")
    f["a"].last_used -= 1000
    f.load("c")
    assert f.loaded == {"a", "c"}


def test_what_can_never_fit_is_refused(farm):
    f = farm(limit=25).add("huge", size=2**21)
    f.loader.load(f["huge"])
    with pytest.raises(ModelUnavailable, match="needs 2 MiB of memory; --memory-limit allows 0 MiB"):
        f.loader.wait(f["huge"], 10)


def test_without_a_limit_the_free_memory_counts(farm):
    free = [15]
    f = farm(free_memory=lambda: free[0]).add("a", "b")
    f.load("a")
    free[0] = 5
    f.loader.on_unload.append(lambda model: free.__setitem__(0, 15))
    f.load("b")
    assert f.loaded == {"b"}


def test_without_free_memory_at_all_it_fails(farm):
    f = farm(free_memory=lambda: 5).add("a")
    f.loader.load(f["a"])
    with pytest.raises(ModelUnavailable, match="0 MiB is free"):
        f.loader.wait(f["a"], 10)


def test_what_is_in_use_is_waited_for(farm):
    f = farm(limit=10).add("a", "b")
    f.load("a")
    f["a"].acquire()
    f.loader.load(f["b"])
    assert not f.loader.wait(f["b"], 0.02) and f.loaded == {"a"}
    f["a"].release()
    assert f.loader.wait(f["b"], 10) and f.loaded == {"b"}


def test_after_a_while_one_in_use_takes_no_new_work(farm):
    """Else a model that always has a request would keep all others out for ever."""
    f = farm(limit=10).add("a", "b")
    f.load("a")
    f["a"].acquire()
    f.loader.load(f["b"])
    f.now += HOLD_AFTER
    wait_until(lambda: f["a"].state == "unloading")
    f.loader.load(f["a"])
    f["a"].release()
    assert f.loader.wait(f["b"], 10)
    assert f.loader.wait(f["a"], 10) and f.opened[:3] == ["a", "b", "a"]


def test_a_model_with_waiting_requests_is_not_unloaded_next(farm):
    f = farm(limit=25).add("a", "b", "c")
    f.load("a", "b")
    f["a"].last_used -= 1000
    f["a"].awaited.append(None)
    f.load("c")
    f["a"].awaited.pop()
    assert f.loaded == {"a", "c"}


def test_waiting_for_memory_has_an_end(farm):
    f = farm(limit=10, load_timeout=30.0, hold_after=1e9).add("a", "b")
    f.load("a")
    f["a"].acquire()
    f.loader.load(f["b"])
    f.now += 31
    with pytest.raises(Unavailable, match="not enough memory for this model while other models are in use"):
        f.loader.wait(f["b"], 10)
    f["a"].release()
    f.load("b")  # it was no fault of the model


def test_first_come_first_served(farm):
    f = farm(limit=30).add("a", size=30).add("big", size=30).add("small", size=5)
    f.load("a")
    f["a"].acquire()
    f.loader.load(f["big"])
    f.loader.load(f["small"])
    f["a"].release()
    assert f.loader.wait(f["small"], 10)
    assert f.opened == ["a", "big", "small"]


# Ends


def test_a_retired_model_is_unloaded_once_unused(farm):
    f = farm().add("a", keep_alive=-1.0)
    f.load("a")
    f["a"].acquire()
    going = in_background(f.loader.close_when_unused, f["a"])
    wait_until(lambda: f["a"].state == "unloading")
    f["a"].release()
    going.join(10)
    assert not going.is_alive() and f["a"].state == "unloaded"


def test_nothing_is_loaded_while_the_server_ends(farm):
    f = farm().add("a", "b")
    f.load("a")
    f.loader.drain()
    assert f["a"].current.status.state == "draining"
    with pytest.raises(Unavailable, match="shutting down"):
        f.loader.load(f["b"])


def test_a_load_that_is_under_way_when_the_server_ends_is_given_up(farm):
    f = farm().add("a")
    f.gate.clear()
    f.loader.load(f["a"])
    wait_until(lambda: f["a"].state == "loading")
    f.loader.drain()
    f.gate.set()
    with pytest.raises(Unavailable, match="shutting down"):
        f.loader.wait(f["a"], 10)
    assert f["a"].current is None


def test_loading_and_unloading_are_announced(farm):
    f = farm().add("a")
    told = []
    f.loader.on_load.append(lambda model: told.append(("load", model.current.status.state)))
    f.loader.on_unload.append(lambda model: told.append(("unload", model.current)))
    f.load("a")
    f.loader.unload(f["a"])
    assert told == [("load", "ready"), ("unload", None)]


def test_a_model_that_cannot_be_prepared_is_not_loaded(farm):
    f = farm().add("a")

    def refuse(model):
        raise LoadFailed("its template")

    f.loader.on_load.append(refuse)
    f.loader.load(f["a"])
    with pytest.raises(ModelUnavailable, match="its template"):
        f.loader.wait(f["a"], 10)
    assert f["a"].current is None


def test_many_ask_for_more_than_fits(farm, monkeypatch):
    """Three models, room for two, eight who ask at random: everybody is served, and the books are right."""
    import random

    for name in ("HOLD_AFTER", "LEAST_HOLD"):
        monkeypatch.setattr(module, name, -1.0)  # the clock of this test stands still
    f = farm(limit=25).add("a", "b", "c")
    done, most = [], []

    def ask(seed):
        choose = random.Random(seed)
        for _ in range(25):
            model = f[choose.choice("abc")]
            while True:
                model.acquire()
                engine = model.current if not model.phase else None
                if engine is not None:
                    stream = engine.submit([spec([1, 2], max_tokens=1)])
                    model.release()
                    break
                model.release()
                model.awaited.append(None)
                f.loader.load(model)
                f.loader.wait(model, 10)
                model.awaited.pop()
            while stream.open_choices:
                stream.wait(1)
                stream.take()
            done.append(model.name)
            most.append(f.loader.budget.taken)

    threads = [in_background(ask, seed) for seed in range(8)]
    for thread in threads:
        thread.join(60)
    assert len(done) == 200 and max(most) <= 25
    loads = sum(model.num_loads for model in f.models.values())
    unloads = sum(model.num_unloads for model in f.models.values())
    wait_until(lambda: not any(model.phase for model in f.models.values()))
    assert loads == len(f.opened) > 3 and loads - unloads == len(f.loaded) <= 2
    assert f.loader.budget.taken == 10 * len(f.loaded)


# Devices


def on(device, size, *, capacity=100):
    return {device: DeviceShare(size, capacity)}


def test_the_device_that_lacks_room_gets_it(farm):
    """The least recently used model of all lies elsewhere: it stays."""
    f = farm(limit=10**6).add("other", devices=on("GPU1", 90)).add("a", "b", devices=on("GPU0", 50))
    f.add("new", devices=on("GPU0", 40))
    f.load("other", "a", "b")
    f["other"].last_used -= 1000
    f["b"].last_used -= 500
    f.load("new")
    assert f.loaded == {"other", "a", "new"}


def test_one_model_may_lie_on_several_devices(farm):
    f = farm(limit=10**6).add("wide", devices=on("GPU0", 60) | on("GPU1", 60)).add("a", devices=on("GPU1", 30))
    f.add("b", devices=on("GPU1", 30)).add("c", devices=on("GPU0", 50))
    f.load("wide", "a")
    assert f.loaded == {"wide", "a"}
    f["wide"].last_used -= 1000
    f.load("b")
    assert f.loaded == {"a", "b"}
    f.load("c")
    assert f.loaded == {"a", "b", "c"}


def test_a_model_larger_than_its_device_is_reported_at_once(farm):
    f = farm(limit=10**6).add("a", devices=on("GPU1", 50)).add("huge", devices=on("GPU0", 2**21, capacity=2**20))
    f.load("a")
    f.loader.load(f["huge"])
    with pytest.raises(ModelUnavailable, match="it needs 2 MiB on GPU0, where 1 MiB is usable"):
        f.loader.wait(f["huge"], 10)
    assert f.loaded == {"a"}


def test_what_goes_where_is_chosen_by_what_the_others_would_give_back(farm):
    f = farm(limit=10**6).add("a", devices=on("GPU0", 70)).add("b")
    seen = []

    def fit(held):
        seen.append(dict(held))
        return replace(f["b"].load_plan, devices=on("GPU0", 60))

    f["b"].load_plan = replace(f["b"].load_plan, fit=fit)
    f.load("a", "b")
    assert seen == [{"GPU0": 70}] and f.loaded == {"b"}
    f.load("a", "b")
    assert seen[1] == {"GPU0": 70}  # chosen anew at each load


def test_a_model_that_fits_no_device_is_reported_with_the_reason(farm):
    f = farm(limit=10**6).add("a")

    def fit(held):
        raise LoadFailed("it needs 3.0 GiB on GPU0, where 1.0 GiB may be used")

    f["a"].load_plan = replace(f["a"].load_plan, fit=fit)
    f.loader.load(f["a"])
    with pytest.raises(ModelUnavailable, match="3.0 GiB on GPU0"):
        f.loader.wait(f["a"], 10)
    assert f.opened == []


def test_adapters_that_were_added_are_loaded_again(farm):
    """They were listed, and gone, once their model had made room and come back."""
    f = farm(limit=10).add("a", "b")
    f.loader.on_load.append(adapters.load_again)
    f.load("a")
    adapters.add(f["a"], Adapter("sql", "/sql.gguf"))
    f.load("b", "a")
    assert f["a"].engine.model.num_adapters == 1 and [one.name for one in f["a"].adapters] == ["sql"]


# Estimates and figures


def with_measure(farm, name, answer):
    """The load plan of a model whose memory can be asked for; `asked` counts."""
    asked = []

    def measure():
        asked.append(name)
        return answer

    farm[name].load_plan = replace(farm[name].load_plan, measure=measure, beside=5)
    return asked


def test_an_estimate_that_is_a_near_thing_is_measured(farm):
    """A model of 90 by an estimate was refused where all may take 80, although it takes 60."""
    f = farm(limit=80).add("a", size=90)
    asked = with_measure(f, "a", 55)
    f.load("a")
    assert asked == ["a"] and f["a"].memory == f.loader.budget.taken == 60


def test_an_estimate_with_room_to_spare_is_not(farm):
    f = farm(limit=80).add("a", size=40)
    asked = with_measure(f, "a", 55)
    f.load("a")
    assert asked == [] and f["a"].memory == 40


def test_once_it_is_loaded_the_librarys_own_figure_counts(farm, monkeypatch):
    monkeypatch.setattr(RecordingBackend, "host_bytes", 33)
    f = farm(limit=80).add("a", size=40)
    f.load("a")
    assert f["a"].memory == f.loader.budget.taken == 33


def test_what_a_model_takes_now_counts_what_its_caches_hold_not_what_they_may_hold(farm):
    """`llamasrv ps` showed 788 MiB for a model of 1 MiB: bounds of checkpoints and of encoded media."""
    f = farm(limit=2000).add("a", size=1000)
    f["a"].load_plan = replace(f["a"].load_plan, beside=900, reserved=890)
    assert f["a"].memory_used == 0
    f.load("a")
    assert (f["a"].memory, f["a"].memory_used) == (1000, 110)
    f["a"].prefixes.host.limit = 10_000
    f["a"].prefixes.host.put(SavedState(array("i", range(4)), np.zeros(20, np.uint8)))
    assert f["a"].memory_used == 110 + f["a"].prefixes.used > 130
