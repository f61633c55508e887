"""Work that nobody waits for gives way to requests that somebody does, from their first byte on."""

from __future__ import annotations

import json
import time

from serving import wait_until
from web.test_batches import CHAT, ENDLESS, create, ended, line

from llamasrv.web.jobs.idle_gate import HOLD, PATIENCE, REST, BackgroundJob, IdleGate
from llamasrv.web.service import WebOptions


class Run:
    cancelled = False

    def cancel(self):
        self.cancelled = True


def test_without_anybody_there_is_nothing_to_wait_for():
    idle_gate, started = IdleGate(lambda seconds: None), time.monotonic()
    for _ in range(10):
        idle_gate.wait()
    assert time.monotonic() - started < PATIENCE * 5


def test_it_waits_for_running_requests_but_not_forever():
    idle_gate = IdleGate(lambda seconds: None)
    idle_gate.enter()
    started = time.monotonic()
    idle_gate.wait()
    assert time.monotonic() - started >= PATIENCE * 0.9
    idle_gate.leave()


def test_after_a_recent_request_pieces_keep_a_distance():
    """One after the other kept the hub busy, and whoever came waited for the end of one."""
    idle_gate = IdleGate(lambda seconds: None)
    idle_gate.enter()
    idle_gate.leave()
    started = time.monotonic()
    idle_gate.wait()
    idle_gate.wait()
    assert time.monotonic() - started >= 2 * REST * 0.9


def test_engines_hold_deferrable_work_back_as_long_as_there_is_some():
    told = []
    idle_gate = IdleGate(told.append)
    idle_gate.enter()
    idle_gate.leave()
    assert told == []
    idle_gate.num_workers = 1
    idle_gate.enter()
    idle_gate.enter()
    idle_gate.leave()
    idle_gate.leave()
    assert told == [HOLD, HOLD, 0.0]


def test_an_errand_that_is_called_off_ends_whenever_it_began():
    job, early, late = BackgroundJob(IdleGate(lambda seconds: None)), Run(), Run()
    job.started(early)
    job.cancel()
    job.started(late)
    assert early.cancelled and late.cancelled


def test_every_request_that_came_has_gone(start):
    service = start(context=200_000, num_cells=400_000)
    for body in ({"messages": [{"role": "user", "content": "x"}]}, {"messages": 1}, {"stream": True}):
        service.client.post(CHAT, json=body).get_data()
    assert service.service.idle_gate.num_present == 0
    with service.client.post(CHAT, json=ENDLESS) as stream:
        next(stream.response)
        assert service.service.idle_gate.num_present == 1
    wait_until(lambda: not service.service.idle_gate.num_present)


def test_a_request_that_is_being_computed_ends_with_its_batch(start, tmp_path):
    """Cancelling a batch waited for the ends of the requests under way, however long they were."""
    service = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000_000), context=200_000, num_cells=400_000)
    try:
        endless = line("long", max_tokens=150_000, ignore_eos=True)
        id = create(service.client, endless)["id"]
        wait_until(lambda: service.engine.metrics.generated_tokens or service.engine.view.running)
        service.client.post(f"/v1/batches/{id}/cancel")
        batch = ended(service.client, id)
        assert batch["status"] == "cancelled" and batch["request_counts"]["completed"] == 0
        errors = service.client.get(f"/v1/files/{batch['error_file_id']}/content").data.splitlines()
        assert [json.loads(error)["error"]["code"] for error in errors] == ["batch_cancelled"]
        wait_until(lambda: service.engine.num_open == 0)
    finally:
        service.service.batches.close()
