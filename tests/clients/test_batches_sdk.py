"""Files and batches as the official SDKs use them, against real server processes on the fake model."""

from __future__ import annotations

import json
import os
import signal
import time

import anthropic
import openai
import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure
from conftest import ServerProcess
from faults.front import resident, worker_of
from store.conftest import redis_url, wipe  # noqa: F401  (fixture)

from llamasrv.store.shelf import LOCK_SECONDS

pytestmark = pytest.mark.processes  # `tox -e processes`

CHAT = "/v1/chat/completions"
LINES = int(os.environ.get("SOAK_BATCH_LINES", "600"))  # of the batch beside which memory is looked at


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """One server for tests with keys of their own, so that none sees another's batches."""
    flags = ["--files", tmp_path_factory.mktemp("files"), "--api-key", "one,two,three,four"]
    server = ServerProcess(["--port", "0", "--fake", "--embeddings", *flags])
    yield server.url
    server.end()


@pytest.fixture
def start(tmp_path):
    servers = []

    def start(*flags):
        servers.append(ServerProcess(["--port", "0", "--fake", "--files", tmp_path, *flags]))
        return wait_until_ready(servers[-1])

    yield start
    for server in servers:
        server.end()


def lines(count, endpoint=CHAT, **body):
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **body}
    return "".join(
        json.dumps({"custom_id": f"n{n}", "method": "POST", "url": endpoint, "body": body}) + "\n" for n in range(count)
    ).encode()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


def created(client, count):
    file = client.files.create(file=("in.jsonl", lines(count)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


def completed(client, id):
    def look():
        batch = client.batches.retrieve(id)
        return batch if batch.status in ("completed", "failed") else None

    return until(look)


def names_in(client, file_id):
    return [json.loads(line)["custom_id"] for line in client.files.content(file_id).text.splitlines()]


def test_openai_s_batches(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="one", max_retries=0) as client:
        batch = completed(client, created(client, 50).id)
        assert batch.status == "completed" and batch.request_counts.completed == 50
        assert sorted(names_in(client, batch.output_file_id)) == sorted(f"n{n}" for n in range(50))
        assert [one.id for one in client.batches.list()] == [batch.id]
        files = list(client.files.list())
        assert [file.purpose for file in files] == ["batch_output", "batch"]
        assert client.files.delete(files[0].id).deleted


def expire_locks(url):
    """As if the seconds were over for which a lock or a claim outlives its holder (tests/store/test_batches.py waits for
    them). Servers that live lose theirs, too: what they answer twice counts once."""
    with pytest.importorskip("redis").Redis.from_url(url) as db:
        locks = [*db.keys("llamasrv:*:lock"), *db.keys("llamasrv:*:claim:*")]
        assert all(db.pttl(lock) <= LOCK_SECONDS * 1000 for lock in locks)
        for lock in locks:
            db.pexpire(lock, 1)


@pytest.mark.timeout(600)
def test_a_batch_in_redis_is_answered_by_all_servers_also_when_some_are_killed(redis_url):  # noqa: F811
    """All its lines were answered by one of three servers."""
    wipe(redis_url)
    flags = ["--port", "0", "--fake", "--store", redis_url]
    servers = [wait_until_ready(ServerProcess(flags)) for _ in range(4)]
    *living, second, first = servers
    count = max(6_000, LINES)

    def answered(server):
        return figure(server, "llamasrv_generated_tokens_total") / 4

    try:
        with openai.OpenAI(base_url=living[0].url + "/v1", api_key="none", max_retries=0) as client:
            id = created(client, count).id
            for gone, least in ((first, 50), (second, 200)):
                until(lambda: all(answered(server) > least for server in (*living, gone)))  # noqa: B023
                gone.end()
                expire_locks(redis_url)
            batch = until(lambda: (now := client.batches.retrieve(id)).status == "completed" and now, 300)
            names = names_in(client, batch.output_file_id)
        assert batch.request_counts.completed == count
        assert len(names) == len(set(names)) == count
        assert all(answered(server) >= count / 4 / 4 for server in living)
    finally:
        for server in servers:
            server.end()


def test_openai_s_batches_of_embeddings(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="two", max_retries=0) as client:
        line = {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"input": "Hello", "model": "fake"},
        }
        file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        batch = completed(client, batch.id)
        [answer] = client.files.content(batch.output_file_id).text.splitlines()
        assert json.loads(answer)["response"]["body"]["data"][0]["object"] == "embedding"


def test_anthropic_s_batches(url):
    with anthropic.Anthropic(base_url=url, api_key="three", max_retries=0) as client:
        params = {"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        requests = [{"custom_id": f"n{n}", "params": params} for n in range(20)]
        batch = client.messages.batches.create(requests=requests)
        until(lambda: client.messages.batches.retrieve(batch.id).processing_status == "ended")
        results = list(client.messages.batches.results(batch.id))
        assert {result.custom_id for result in results} == {f"n{n}" for n in range(20)}
        assert all(result.result.type == "succeeded" and result.result.message.content for result in results)
        assert [one.id for one in client.messages.batches.list()] == [batch.id]
        assert client.messages.batches.delete(batch.id).id == batch.id


def test_anthropic_s_files(url):
    with anthropic.Anthropic(base_url=url, api_key="four", max_retries=0) as client:
        file = client.beta.files.upload(file=("x.txt", b"Once upon a time", "text/plain"))
        assert [one.id for one in client.beta.files.list()] == [file.id] and file.size_bytes == 16
        source = {"type": "file", "file_id": file.id}
        content = [{"type": "document", "source": source}, {"type": "text", "text": "Tell it."}]
        message = client.beta.messages.create(
            model="fake",
            max_tokens=100,
            messages=[{"role": "user", "content": content}],
            betas=["files-api-2025-04-14"],
        )
        assert "Once upon a time" in message.content[0].text
        assert client.beta.files.delete(file.id).id == file.id


def test_a_batch_survives_a_kill(start):
    """No line is lost, and none is answered twice."""
    first = start()
    with openai.OpenAI(base_url=first.url + "/v1", api_key="none", max_retries=0) as client:
        id = created(client, 500).id
        until(lambda: client.batches.retrieve(id).request_counts.completed > 50)
        first.signal(signal.SIGKILL)
        first.exit_code()
    second = start()
    with openai.OpenAI(base_url=second.url + "/v1", api_key="none", max_retries=0) as client:
        batch = completed(client, id)
        names = names_in(client, batch.output_file_id)
        assert batch.request_counts.completed == 500
        assert len(names) == len(set(names)) == 500


def test_a_message_batch_survives_a_kill(start):
    """The same in Anthropic's shape: each request has one result."""
    params = {"model": "fake", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    first = start()
    with anthropic.Anthropic(base_url=first.url, api_key="none", max_retries=0) as client:
        id = client.messages.batches.create(requests=[{"custom_id": f"n{n}", "params": params} for n in range(500)]).id
        until(lambda: figure(first, "llamasrv_generated_tokens_total") > 100)
        assert client.messages.batches.retrieve(id).processing_status == "in_progress"
        first.signal(signal.SIGKILL)
        first.exit_code()
    second = start()
    with anthropic.Anthropic(base_url=second.url, api_key="none", max_retries=0) as client:
        until(lambda: client.messages.batches.retrieve(id).processing_status == "ended")
        results = list(client.messages.batches.results(id))
        assert sorted(r.custom_id for r in results) == sorted(f"n{n}" for n in range(500))
        assert {r.result.type for r in results} == {"succeeded"}


@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_a_batch(start):
    """Requests are read and answers written one at a time. SOAK_BATCH_LINES=10000 for as many."""
    server = start("--cache-ram", "0")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        completed(client, created(client, 300).id)
        before = resident(worker_of(server))
        id = created(client, LINES).id
        most = 0

        def has_ended():
            nonlocal most
            most = max(most, resident(worker_of(server)))
            return client.batches.retrieve(id).status == "completed"

        until(has_ended, 60 + LINES / 20)
        assert client.batches.retrieve(id).request_counts.completed == LINES
    print(f"\n{LINES} lines: {(most - before) / 2**20:+.1f} MiB of {before / 2**20:.0f}")
    assert most - before < 12 * 2**20
