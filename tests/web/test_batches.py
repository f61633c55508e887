"""Batches of OpenAI's and Anthropic's clients over Flask's test client: made, worked off, cancelled, taken up again."""

from __future__ import annotations

import errno
import io
import json
import os

import pytest
from serving import wait_until
from store.conftest import postgres_url, redis_url, shelf_place  # noqa: F401  (fixtures)

from llamasrv.domain.decide import DecisionSettings
from llamasrv.domain.key import Key
from llamasrv.store import StoreError
from llamasrv.store.batches import BatchResult, Journal, read_journal
from llamasrv.store.folder_shelf import FolderShelf
from llamasrv.store.shelf import StoredContent, owner_key
from llamasrv.web.jobs.batches import SHORTEST_REST
from llamasrv.web.service import WebOptions

CHAT = "/v1/chat/completions"
ENDLESS = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 150_000, "ignore_eos": True}


@pytest.fixture
def run(start, shelf_place):  # noqa: F811
    """A service that keeps files and batches in the test's folder or server; it stops with the test."""
    services = []
    url, folder = shelf_place

    def run(**options):
        web = WebOptions(files_folder=folder, files_bytes=10_000_000, **options.pop("web", {}))
        service = start(web=web, store=url, **options)
        services.append(service)
        return service

    yield run
    for service in services:
        service.service.batches.close()


def line(name, url=CHAT, **body):
    body = {"messages": [{"role": "user", "content": f"Hello {name}"}], "max_tokens": 3, **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def upload(client, *lines, headers=None):
    content = "\n".join(lines).encode()
    form = {"purpose": "batch", "file": (io.BytesIO(content), "in.jsonl")}
    return client.post("/v1/files", data=form, headers=headers).get_json()["id"]


def create(client, *lines, endpoint=CHAT, headers=None, **more):
    body = {"input_file_id": upload(client, *lines, headers=headers), "endpoint": endpoint, "completion_window": "24h"}
    return client.post("/v1/batches", json={**body, **more}, headers=headers).get_json()


def ended(client, id, path="/v1/batches"):
    shown = {}

    def has_ended():
        shown.update(client.get(f"{path}/{id}").get_json())
        return shown.get("status") in ("completed", "failed", "expired", "cancelled") or (
            shown.get("processing_status") == "ended"
        )

    wait_until(has_ended)
    return shown


def content(client, id):
    return [json.loads(line) for line in client.get(f"/v1/files/{id}/content").data.splitlines()]


def test_a_batch_answers_every_line_under_its_name(run):
    client = run().client
    made = create(client, *(line(f"n{n}") for n in range(20)), metadata={"job": "test"})
    assert (made["object"], made["status"], made["metadata"]) == ("batch", "validating", {"job": "test"})
    batch = ended(client, made["id"])
    assert batch["status"] == "completed" and batch["error_file_id"] is None
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    answers = content(client, batch["output_file_id"])
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"n{n}" for n in range(20))
    assert all(answer["response"]["status_code"] == 200 and answer["error"] is None for answer in answers)
    assert answers[0]["response"]["body"]["object"] == "chat.completion"
    assert len({answer["id"] for answer in answers}) == 20
    assert batch["usage"]["output_tokens"] == 60


def test_what_is_refused_is_in_a_file_of_its_own(run):
    client = run().client
    batch = ended(client, create(client, line("good"), line("bad", temperature=99))["id"])
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    [bad] = content(client, batch["error_file_id"])
    assert (bad["custom_id"], bad["response"]["status_code"]) == ("bad", 400)
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert [good["custom_id"] for good in content(client, batch["output_file_id"])] == ["good"]


@pytest.mark.parametrize(
    "url, body",
    [("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"})],
)
def test_other_endpoints_answer_too(run, url, body):
    client = run().client
    batch = ended(client, create(client, json.dumps({"custom_id": "a", "url": url, "body": body}), endpoint=url)["id"])
    assert batch["request_counts"]["completed"] == 1


QUESTION = {"type": "predicate", "instructions": "Is it a greeting?"}
DECIDE = "/v1/decisions"


def decide(name, **body):
    body = {"model": "fake", "input": f"Hello {name}", "questions": [QUESTION], **body}
    return json.dumps({"custom_id": name, "method": "POST", "url": DECIDE, "body": body})


def test_decisions_are_answered_as_they_are_outside_of_a_batch(run):
    client = run(model={"decisions": DecisionSettings(0.0)}).client
    lines = [decide(f"n{n}") for n in range(10)] + [decide("none", questions=[])]
    batch = ended(client, create(client, *lines, endpoint=DECIDE)["id"])
    assert batch["request_counts"] == {"total": 11, "completed": 10, "failed": 1}
    [bad] = content(client, batch["error_file_id"])
    assert bad["response"]["status_code"] == 400 and bad["response"]["body"]["error"]["param"] == "questions"
    for answer in content(client, batch["output_file_id"]):
        alone = client.post(DECIDE, json=json.loads(decide(answer["custom_id"]))["body"]).get_json()
        assert answer["response"]["body"]["answers"] == alone["answers"]
    assert batch["usage"]["input_tokens"] > 0


def test_decisions_of_a_cancelled_batch_are_given_up(run):
    """They went on: only generations could be cancelled."""
    service = run(context=200_000, num_cells=400_000, model={"decisions": DecisionSettings(0.0)})
    with service.client.post(CHAT, json=ENDLESS) as person:
        next(person.response)
        id = create(service.client, decide("a"), endpoint=DECIDE)["id"]
        wait_until(lambda: service.engine.num_open > 1)
        service.client.post(f"/v1/batches/{id}/cancel")
        assert ended(service.client, id)["status"] == "cancelled"
        assert service.engine.num_open == 1


MISTAKES = (
    (["{"], "invalid_json_line"),
    (['{"custom_id": "a"}'], "mismatched_url"),
    ([line("a"), line("a")], "duplicate_custom_id"),
    ([line("a", url="/v1/completions")], "mismatched_url"),
    ([line("a", stream=True)], "invalid_request"),
    ([line("")], "missing_required_parameter"),
    ([""], "empty_file"),
)


def test_an_input_with_a_mistake_fails_as_a_whole_and_says_where(run):
    service = run()
    for lines, code in MISTAKES:
        batch = ended(service.client, create(service.client, *lines)["id"])
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == code
        assert service.engine.num_open == 0


def test_a_batch_of_nothing_that_is_there_is_refused(run):
    client = run().client
    body = {"input_file_id": "file-" + "0" * 36, "endpoint": CHAT, "completion_window": "24h"}
    assert client.post("/v1/batches", json=body).status_code == 404
    id = upload(client, line("a"))
    for wrong in ({"endpoint": "/v1/none"}, {"completion_window": "1h"}):
        answer = client.post("/v1/batches", json={**body, "input_file_id": id, **wrong})
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, *wrong)


def test_a_batch_waits_while_another_client_is_answered(run):
    """Deferred requests get no step beside a request of a person's."""
    service = run(context=200_000, num_cells=400_000)
    with service.client.post(CHAT, json=ENDLESS) as person:
        next(person.response)
        id = create(service.client, line("a"))["id"]
        wait_until(lambda: service.client.get(f"/v1/batches/{id}").get_json()["status"] == "in_progress")
        wait_until(lambda: service.engine.num_open == 2)
        steps = service.engine.metrics.steps
        wait_until(lambda: service.engine.metrics.steps > steps + 100)
        assert service.client.get(f"/v1/batches/{id}").get_json()["request_counts"]["completed"] == 0
    assert ended(service.client, id)["status"] == "completed"


def test_a_cancelled_batch_says_what_was_not_answered(run):
    service = run(context=200_000, num_cells=400_000)
    with service.client.post(CHAT, json=ENDLESS) as person:
        next(person.response)
        id = create(service.client, *(line(f"n{n}") for n in range(30)))["id"]
        wait_until(lambda: service.client.get(f"/v1/batches/{id}").get_json()["status"] == "in_progress")
        assert service.client.post(f"/v1/batches/{id}/cancel").get_json()["status"] == "cancelling"
    batch = ended(service.client, id)
    assert batch["status"] == "cancelled"
    errors = content(service.client, batch["error_file_id"])
    assert {answer["error"]["code"] for answer in errors} == {"batch_cancelled"}
    assert batch["request_counts"]["completed"] + len(errors) == 30
    assert service.client.post(f"/v1/batches/{id}/cancel").status_code == 409


def test_a_batch_goes_on_after_a_restart_with_what_is_not_answered(run):
    """The journal of a killed server ends amid a line; nothing is lost, and nothing is answered twice."""
    first = run()
    batches = first.service.batches
    batches.close()  # it takes nothing up
    id = create(first.client, *(line(f"n{n}") for n in range(10)))["id"]
    batch = batches.batches.find("", id)
    batches.batches.save(batch.moved("in_progress", 1, total=10))
    journal = Journal(batches.batches.journal_of(batch))
    for n in (1, 3):
        journal.add(BatchResult(n, f"n{n - 1}", 200, "req-x", b'{"from": "before"}'))
    journal.close()
    kept = batches.batches.journal_of(batch)
    if isinstance(kept.shelf, FolderShelf):  # a server has a line or has it not
        with kept.shelf.path(*kept[1:]).open("ab") as file:
            file.write(b'[5,"n4",200,"req-')
    second = run()
    second.service.batches.wake()
    batch = ended(second.client, id)
    answers = content(second.client, batch["output_file_id"])
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"n{n}" for n in range(10))
    assert [a["custom_id"] for a in answers if a["response"]["body"] == {"from": "before"}] == ["n0", "n2"]


def test_two_servers_on_one_shelf_work_off_a_batch_once(run):
    first, second = run(), run()
    ids = [create(service.client, *(line(f"n{n}") for n in range(10)))["id"] for service in (first, second)]
    for id in ids:
        batch = ended(first.client, id)
        assert len(content(first.client, batch["output_file_id"])) == 10


class AwayOnce(FolderShelf):
    """Fails like a server that is away for a moment, amid an input or while an answer is written."""

    def __init__(self, root, when):
        super().__init__(root)
        self.when = when
        self.failures = 0

    def fail(self):
        self.failures += 1
        raise StoreError("away")

    def pieces(self, owner, id, part):
        reads = part == "input" and sum(1 for _ in self.root.rglob("*.journal"))
        for piece in super().pieces(owner, id, part):
            yield piece[:500]
            if self.when == "reading" and reads and not self.failures:
                self.fail()
            yield piece[500:]

    def appending(self, owner, id, part):
        appender = super().appending(owner, id, part)
        written = []

        class Appender:
            close = appender.close

            def add(_, line):
                written.append(line)
                if self.when == "writing" and len(written) == 3 and not self.failures:
                    self.fail()
                appender.add(line)

        return Appender()


@pytest.mark.parametrize("when", ["reading", "writing"])
def test_a_batch_goes_on_when_its_server_was_away(start, tmp_path, when):
    """No line is lost: what was not written is answered again."""
    service = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000_000))
    runner = service.service.batches
    shelf = runner.batches.shelf = AwayOnce(tmp_path / "batches", when)
    try:
        batch = ended(service.client, create(service.client, *(line(f"n{n}") for n in range(10)))["id"])
        names = [answer["custom_id"] for answer in content(service.client, batch["output_file_id"])]
        assert sorted(names) == [f"n{n}" for n in range(10)] and shelf.failures == 1
        assert batch["status"] == "completed" and batch["request_counts"]["completed"] == 10
    finally:
        runner.close()


def test_a_server_that_lost_its_lock_leaves_its_batches_to_the_other(run):
    """The other one has ended it meanwhile, or goes on with it. Where they share a server, both answer and the other one
    ends it."""
    service = run(context=200_000, num_cells=400_000)
    runner = service.service.batches
    with service.client.post(CHAT, json=ENDLESS) as person:
        next(person.response)
        id = create(service.client, *(line(f"n{n}") for n in range(3)))["id"]
        wait_until(lambda: service.engine.num_open > 1)
        mine, runner.lock = runner.lock, NoLock()
        mine.release()
        runner.wake()
        other = run()
        if runner.batches.shelf.claims() is None:
            wait_until(lambda: service.engine.num_open == 1)
            assert service.client.get(f"/v1/batches/{id}").get_json()["status"] == "in_progress"
            other.service.batches.wake()
            ended(other.client, id)
    other.service.batches.wake()
    batch = ended(other.client, id)
    assert batch["request_counts"]["completed"] == 3
    assert len(content(other.client, batch["output_file_id"])) == 3


class NoLock:
    def take(self):
        return False

    def release(self):
        pass


def test_a_journal_that_was_cut_off_has_its_whole_lines(tmp_path):
    shelf = FolderShelf(tmp_path)
    content, path = StoredContent(shelf, "ann", "batch", "journal"), shelf.path("ann", "batch", "journal")
    for size in (1, 70_000):
        journal = Journal(content)
        journal.add(BatchResult(size, "a", 200, "r", b"x" * size))
        journal.close()
        with path.open("ab") as file:
            file.write(b"[3," + b"y" * size)
    Journal(content).close()
    assert [entry.n for entry in read_journal(content)] == [1, 70_000] and path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_batch_whose_answers_have_no_room_fails_and_says_so(start, shelf_place, protocol):  # noqa: F811
    """It was ended over and over, in a busy loop that filled the log, and went on so after a restart."""
    url, folder = shelf_place
    service = start(web=WebOptions(files_folder=folder, files_bytes=20_000), store=url)
    client, runner = service.client, service.service.batches
    try:
        if protocol == "openai":
            batch = ended(client, create(client, *(line(f"n{n}") for n in range(60)))["id"])
            assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "file_storage_full"
            assert batch["output_file_id"] is batch["error_file_id"] is None
            counts = batch["request_counts"]
            assert 0 < counts["completed"] and counts["completed"] + counts["failed"] == counts["total"] == 60
            [input] = client.get("/v1/files").get_json()["data"]
            wait_until(lambda: runner.files.num_bytes() == input["bytes"])
        else:
            made = client.post(MESSAGES, json={"requests": [ask(f"n{n}") for n in range(90)]}).get_json()
            batch = ended(client, made["id"], MESSAGES)
            counts = batch["request_counts"]
            assert counts["errored"] and counts["succeeded"] + counts["errored"] == 90
            results = [json.loads(one) for one in client.get(batch["results_url"]).data.splitlines()]
            assert sorted(one["custom_id"] for one in results) == sorted(f"n{n}" for n in range(90))
            assert sum(one["result"]["type"] == "succeeded" for one in results) == counts["succeeded"]
            assert "room" in str([one["result"] for one in results if one["result"]["type"] == "errored"][0])
        wait_until(lambda: runner.batches.open_batches() == [])
    finally:
        runner.close()


def test_failed_batches_do_not_fill_the_disk_by_and_by(start, shelf_place):  # noqa: F811
    """Their inputs were kept for a month and counted nowhere, once the uploaded file was deleted."""
    url, folder = shelf_place
    service = start(web=WebOptions(files_folder=folder, files_bytes=10_000), store=url)
    client, runner = service.client, service.service.batches
    try:
        for _ in range(5):
            batch = ended(client, create(client, "x" * 7_000)["id"])
            assert batch["status"] == "failed"
            assert client.delete(f"/v1/files/{batch['input_file_id']}").status_code == 200
            wait_until(lambda: runner.files.num_bytes() == 0)
        big = [ask("a", messages=[{"role": "user", "content": "x" * 11_000}])]
        refused = client.post(MESSAGES, json={"requests": big})
        assert refused.status_code == 529 and "room" in refused.get_data(as_text=True)
        assert runner.files.num_bytes() == 0
    finally:
        runner.close()


def test_expired_files_are_removed_where_there_is_no_batch(run):
    """They were looked for only when a batch was begun."""
    service = run()
    runner, files = service.service.batches, service.service.files
    runner.start()

    def is_empty_an_hour_later():
        runner._next_sweep = 0.0  # again and again: a sweep that is under way sets it when it ends
        runner.wake()
        return files.num_bytes() == 0

    for _ in range(2):
        with files.writing("ann", filename="x", purpose="batch", lifetime=0) as new:
            new.write(b"x" * 9)
        wait_until(is_empty_an_hour_later)


def test_batches_are_worked_on_where_sweeping_fails(run, monkeypatch):
    service = run()
    runner = service.service.batches

    def failing():
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(runner.files, "sweep", failing)
    assert ended(service.client, create(service.client, line("a"))["id"])["status"] == "completed"


class FullOnce(FolderShelf):
    """A disk that has no room for answers, nor for the records of one batch, until there is."""

    full = frozenset()  # of these batches

    def __init__(self, root):
        super().__init__(root)
        self.refused = 0

    def refuse(self):
        self.refused += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    def put(self, owner, id, body, **state):
        if id in self.full:
            self.refuse()
        super().put(owner, id, body, **state)

    def appending(self, owner, id, part):
        appender = super().appending(owner, id, part)

        class Appender:
            close = appender.close

            def add(_, line):
                if id in self.full:
                    self.refuse()
                appender.add(line)

        return Appender()


def test_a_batch_on_a_full_disk_rests_and_computes_nothing_anew(start, tmp_path):
    """It was taken up again every two seconds, each time for eight answers that could not be kept; and other batches
    waited until it had ended."""
    service = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000_000))
    runner, client = service.service.batches, service.client
    room, shelf = runner.files.quota, FullOnce(tmp_path / "batches")
    shelf.quota, runner.batches.shelf = room, shelf
    sent, send = [], runner.send
    runner.send = lambda owner, path, body, job: sent.append(body) or send(owner, path, body, job)
    hold, runner.wake = runner.wake, lambda: None
    try:
        stuck = create(client, *(line(f"n{n}") for n in range(20)))["id"]
        runner.batches.save(runner.batches.find("", stuck).moved("in_progress", 1, total=20))
        shelf.full = {stuck}
        runner.wake = hold
        runner.wake()
        wait_until(lambda: shelf.refused > 2)
        computed = len(sent)
        assert ended(client, create(client, line("other"))["id"])["status"] == "completed"
        looks, before = 0, shelf.refused
        while looks < 20:  # it looks around again and again, and tries it seldom
            looks += 1
            runner.wake()
            wait_until(lambda: not runner._news.is_set())
        assert shelf.refused - before < 4 and len(sent) == computed + 1 <= 9 + 1
        shelf.full = frozenset()
        batch = ended(client, stuck)
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_error"
    finally:
        runner.close()


def test_a_batch_that_cannot_be_ended_rests_longer_each_time(start, tmp_path):
    """On a full disk it was tried, and told in the log, every two seconds for as long as the disk was full: what was
    done in vain for it meanwhile counted as its success."""
    service = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000_000))
    runner = service.service.batches
    rests, is_full, end = [], [True], runner.batches.end

    def refused(batch):
        if is_full:
            rests.append(runner._rests.get(batch.id))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        end(batch)

    runner.batches.end = refused
    stuck = create(service.client, line("a"))["id"]
    wait_until(lambda: runner.wake() or len(rests) >= 3)
    is_full.clear()
    assert [rest and rest.seconds for rest in rests[:3]] == [None, SHORTEST_REST, 2 * SHORTEST_REST]
    assert ended(service.client, stuck)["status"] == "completed"


def test_a_batch_that_was_killed_while_it_ended_leaves_nothing_behind(run):
    """Its requests are dropped by whoever takes it up."""
    service = run()
    batches = service.service.batches.batches
    id = create(service.client, line("a"))["id"]
    ended(service.client, id)
    batch = batches.find("", id)

    def nothing_is_left():
        return batches.open_batches() == [] and batches.input_of(batch).read() == b""

    wait_until(nothing_is_left)
    with batches.shelf.writing(owner_key(""), id, "input") as put:
        put(b"x")
    batches.save(batch)
    service.service.batches.wake()
    wait_until(nothing_is_left)
    assert batches.find("", id) == batch


def test_batches_are_listed_latest_first_and_only_their_owners(run):
    keys = tuple(Key.of(name, f"secret-{name}") for name in ("ann", "bob"))
    client = run(web={"keys": keys}).client
    ann, bob = ({"Authorization": f"Bearer secret-{name}"} for name in ("ann", "bob"))
    ids = [create(client, line("a"), headers=ann)["id"] for _ in range(3)]
    listed = client.get("/v1/batches?limit=2", headers=ann).get_json()
    assert [batch["id"] for batch in listed["data"]] == ids[:0:-1] and listed["has_more"] is True
    assert client.get("/v1/batches", headers=bob).get_json()["data"] == []
    assert client.get(f"/v1/batches/{ids[0]}", headers=bob).status_code == 404
    assert client.post(f"/v1/batches/{ids[0]}/cancel", headers=bob).status_code == 404


# ---------------------------------------------------------------- Anthropic's

MESSAGES = "/v1/messages/batches"


def ask(name, **params):
    body = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}], **params}
    return {"custom_id": name, "params": body}


def test_a_message_batch_has_results(run):
    client = run().client
    made = client.post(MESSAGES, json={"requests": [ask("a"), ask("b"), ask("c", temperature=99)]}).get_json()
    assert (made["type"], made["processing_status"]) == ("message_batch", "in_progress")
    assert made["request_counts"]["processing"] == 3 and made["results_url"] is None
    batch = ended(client, made["id"], MESSAGES)
    assert batch["request_counts"] == {"processing": 0, "succeeded": 2, "errored": 1, "canceled": 0, "expired": 0}
    assert batch["results_url"].endswith(f"{MESSAGES}/{made['id']}/results")
    results = {r["custom_id"]: r["result"] for r in map(json.loads, client.get(batch["results_url"]).data.splitlines())}
    assert results["a"]["type"] == "succeeded" and results["a"]["message"]["type"] == "message"
    assert results["c"]["type"] == "errored" and results["c"]["error"]["error"]["type"] == "invalid_request_error"
    assert client.get(MESSAGES).get_json()["data"] == [batch]
    assert client.delete(f"{MESSAGES}/{made['id']}").get_json() == {"id": made["id"], "type": "message_batch_deleted"}
    assert client.get(f"{MESSAGES}/{made['id']}").status_code == 404


def test_message_batches_with_a_mistake_are_refused(run):
    client, twice, other = run().client, [ask("a"), ask("a")], [ask("not a name")]
    for requests in (None, [], [{}], twice, other, [ask("a", stream=True)], [{"custom_id": "a"}]):
        answer = client.post(MESSAGES, json={"requests": requests})
        assert answer.status_code == 400 and answer.get_json()["type"] == "error", requests


def test_message_batches_have_pages(run):
    client = run().client
    ids = [client.post(MESSAGES, json={"requests": [ask("a")]}).get_json()["id"] for _ in range(4)][::-1]
    for id in ids:
        ended(client, id, MESSAGES)

    def page(query):
        body = client.get(f"{MESSAGES}?{query}").get_json()
        return [batch["id"] for batch in body["data"]], body["has_more"]

    assert page("limit=3") == (ids[:3], True)
    assert page(f"after_id={ids[1]}") == (ids[2:], False)
    assert page(f"before_id={ids[3]}&limit=2") == (ids[1:3], True)
    assert client.get(f"{MESSAGES}?after_id=none").status_code == 400


def test_a_batch_of_one_protocol_is_not_found_by_the_other(run):
    client = run().client
    id = client.post(MESSAGES, json={"requests": [ask("a")]}).get_json()["id"]
    assert client.get(f"/v1/batches/{id}").status_code == 404
