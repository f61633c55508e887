"""Hostile files and batches: an answer or a 4xx for each, nothing lost, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import resource
import time

import pytest
from serving import wait_until
from store.conftest import postgres_url, redis_url, shelf_place  # noqa: F401  (fixtures)
from web.hostile_batches import URL, inputs
from web.test_batches import MESSAGES, ask, ended, run  # noqa: F401

from llamasrv.store.batches import StoredBatch
from llamasrv.web.jobs.batch_input import check_input
from llamasrv.web.service import WebOptions

ENDED = ("completed", "failed")
FILES = int(os.environ.get("HOSTILE_FILES", "100"))  # `tox -e soak` has more


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def send(client, data):
    form = {"purpose": "batch", "file": (io.BytesIO(data), "in.jsonl")}
    file = client.post("/v1/files", data=form)
    assert file.status_code == 200, file.get_data()
    body = {"input_file_id": file.get_json()["id"], "endpoint": URL, "completion_window": "24h"}
    return client.post("/v1/batches", json=body).get_json()


@pytest.fixture
def roomy(start, tmp_path):
    service = start(web=WebOptions(files_folder=tmp_path, files_bytes=500_000_000))
    yield service
    service.service.batches.close()


def test_hostile_files_end_with_all_their_lines(roomy):
    client, before = roomy.client, peak()
    made = []
    for data in inputs(FILES, seed=25):
        made.append(send(client, data)["id"])
        if len(made) % 50 == 0:  # a key has so many open ones at most
            wait_until(lambda: client.get(f"/v1/batches/{made[-1]}").get_json()["status"] in ENDED, 60)
    wait_until(lambda: all(client.get(f"/v1/batches/{id}").get_json()["status"] in ENDED for id in made), 60)
    statuses = set()
    for id in made:
        batch = client.get(f"/v1/batches/{id}").get_json()
        statuses.add(batch["status"])
        counts = batch["request_counts"]
        assert counts["completed"] + counts["failed"] == counts["total"], batch
        if batch["status"] == "failed":
            assert batch["errors"]["data"] and counts["completed"] == 0
        if batch["error_file_id"]:
            for line in client.get(f"/v1/files/{batch['error_file_id']}/content").data.splitlines():
                assert 400 <= json.loads(line)["response"]["status_code"] < 500, line
    assert statuses == {"completed", "failed"}
    assert peak() - before < 300_000  # kB


def test_a_line_without_an_end_is_not_read_whole(tmp_path):
    """A file of one line was read into memory, however large it was."""
    path = tmp_path / "in"
    with path.open("wb") as file:
        file.truncate(2**30)
    batch = StoredBatch("batch_", "", "openai", URL, 0, 0)
    before = peak()
    with path.open("rb") as file:
        errors, total = check_input(file, batch, 1_000_000, 1_000)
    assert errors[0]["code"] == "line_too_long" and total == 0 and peak() - before < 50_000


def test_a_line_of_too_many_values_is_not_parsed(tmp_path):
    """Parsing 600,000 small objects held the GIL for 0.2 s."""
    path = tmp_path / "in"
    path.write_bytes(b'{"custom_id": "a", "url": "%b", "body": {"x": [' % URL.encode() + b"[]," * 1_000 + b"0]}}")
    with path.open("rb") as file:
        errors, total = check_input(file, StoredBatch("batch_", "", "openai", URL, 0, 0), 1_000_000, 1_000)
    assert "more than 1000 keys and values" in errors[0]["message"] and total == 0


def test_a_file_of_empty_lines_ends(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(b"\n" * 2_000_000)
    began = time.monotonic()
    with path.open("rb") as file:
        errors, _ = check_input(file, StoredBatch("batch_", "", "openai", URL, 0, 0), 1_000_000, 1_000)
    assert errors[0]["code"] == "too_many_requests" and time.monotonic() - began < 5


def test_a_request_that_cannot_be_written_again_is_answered(run):  # noqa: F811
    """Deep enough to be read but not to be written, it ended the worker, and its line had no answer."""
    client = run().client
    deep = '{"a":' * 300 + "1" + "}" * 300
    line = f'{{"custom_id": "a", "url": "{URL}", "body": {{"messages": [], "metadata": {deep}}}}}'
    batch = ended(client, send(client, line.encode())["id"])
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    [answer] = client.get(f"/v1/files/{batch['error_file_id']}/content").data.splitlines()
    assert json.loads(answer)["response"]["status_code"] == 400


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_request_whose_answering_fails_is_answered(run, monkeypatch, protocol):  # noqa: F811
    """Whatever goes wrong here costs one request, not the batch."""
    service = run()

    def failing(owner, path, body, job):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.service.batches, "send", failing)
    if protocol == "openai":
        body = {"messages": [{"role": "user", "content": "x"}]}
        batch = ended(
            service.client,
            send(service.client, json.dumps({"custom_id": "a", "url": URL, "body": body}).encode())["id"],
        )
        assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    else:
        made = service.client.post(MESSAGES, json={"requests": [ask("a")]}).get_json()
        batch = ended(service.client, made["id"], MESSAGES)
        assert batch["request_counts"]["errored"] == 1
        assert b"secret" not in service.client.get(batch["results_url"]).data


@pytest.mark.parametrize("length", [200 * 2**20, 2**40, -1, "x"])
def test_an_upload_that_claims_to_be_larger_than_it_is_is_refused(run, length):  # noqa: F811
    client = run().client
    edge = "edge"
    data = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc'.encode()
    head = {"CONTENT_LENGTH": str(length), "CONTENT_TYPE": f"multipart/form-data; boundary={edge}"}
    began = time.monotonic()
    answer = client.post("/v1/files", input_stream=io.BytesIO(data), environ_overrides=head)
    assert 400 <= answer.status_code < 500 and time.monotonic() - began < 5
    assert client.get("/v1/files").get_json()["data"] == []
