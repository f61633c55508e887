"""A background response outlives its server: another one goes on with it, and its readers notice nothing."""

from __future__ import annotations

import json

import pytest
from serving import RunningService, wait_until
from store.database_servers import postgres_server, redis_server, running
from web.test_responses import Held, add_up, create, get, made, payloads, text_of

from llamasrv.domain.key import Key
from llamasrv.store import StoreError
from llamasrv.store.runs import Delivered
from llamasrv.web.jobs import take_over
from llamasrv.web.jobs.background import RunTimes
from llamasrv.web.service import WebOptions

pytestmark = pytest.mark.processes  # `tox -e processes`

ANN = Key("ann", Key.of("ann", "secret").digest, concurrency=1, tokens_per_minute=1000)
TEXT = " ".join(f"word{n}" for n in range(30))


@pytest.fixture(
    scope="module", params=[("redis", redis_server), ("psycopg", postgres_server)], ids=["redis", "postgres"]
)
def url(request):
    library, server = request.param
    pytest.importorskip(library)
    for _, url in running(server):
        yield url


@pytest.fixture
def two(request, url):
    """Two servers that share a store; with a true parameter they know a key."""
    web = WebOptions(keys=(ANN,)) if getattr(request, "param", None) else None
    services = [RunningService(store=url, web=web) for _ in range(2)]
    for service in services:
        service.service.background.times = RunTimes(claim=0, listen=0.01)  # sees at once that a claim is gone
    yield services
    for service in services:
        service.close()


class HeldAfter(Held):
    """Keeps the model from computing after so many steps, until it is let go."""

    def __init__(self, service, steps):
        super().__init__(service)
        held, backend = service.backend.decode, service.backend
        free = type(backend).decode
        self._left = steps

        def decode():
            self._left -= 1
            free(backend) if self._left >= 0 else held()

        backend.decode = decode


def leave(service):
    """Its server computes nothing more, and nobody renews its claims."""
    runs = service.service.background.runs
    for run in runs.runs():
        runs.release(run.id)


def ended(client, id):
    wait_until(lambda: get(client, id).get_json()["status"] not in ("queued", "in_progress"))
    return get(client, id).get_json()


def read(response):
    """The first events of a stream, until there is text."""
    body, data = iter(response.response), b""
    while b"output_text.delta" not in data:
        data += next(body)
    return [block.split(b"\ndata: ")[1].decode() for block in data.split(b"\n\n")[:-1]]


def test_an_unread_response_starts_over(two):
    one, other = two
    held = Held(one)
    id = made(one.client, "Hello", background=True)["id"]
    other.service.take_over.look()
    assert other.service.background.find("", id) is None  # its server lives
    leave(one)
    other.service.take_over.look()
    final = ended(other.client, id)
    assert final["status"] == "completed" and text_of(final) == "You said: Hello"
    wait_until(lambda: not other.service.background.runs.runs())
    held.let_go()
    wait_until(lambda: not len(one.service.background))
    assert get(one.client, id).get_json() == final


def test_a_stream_goes_on_after_what_its_reader_has_seen(two, caplog):
    one, other = two
    held = HeldAfter(one, 12)
    response = create(one.client, TEXT, background=True, stream=True)
    seen = read(response)
    id = json.loads(seen[0])["response"]["id"]
    leave(one)
    other.service.take_over.look()
    rest = payloads(get(other.client, id, stream="true", starting_after=len(seen) - 1))
    whole = [*seen, *rest]
    assert [json.loads(event)["sequence_number"] for event in whole] == list(range(len(whole)))
    final = add_up(whole)
    assert final == get(other.client, id).get_json() and final["status"] == "completed"
    assert text_of(final).startswith("You said: word0")
    assert payloads(get(other.client, id, stream="true")) == whole
    held.let_go()
    response.close()
    wait_until(lambda: not len(one.service.background))
    assert get(one.client, id).get_json() == final
    assert f"another server has taken over response {id}" in caplog.text  # the first one was only asleep


JSON = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "^[a-z]{90}$"}}}


@pytest.mark.parametrize("more", [{"text": JSON}, {"include": ["message.output_text.logprobs"]}])
def test_what_cannot_be_continued_fails_with_the_next_number(two, more):
    one, other = two
    held = HeldAfter(one, 12)
    response = create(one.client, TEXT, background=True, stream=True, **more)
    seen = read(response)
    id = json.loads(seen[0])["response"]["id"]
    leave(one)
    other.service.take_over.look()
    (last,) = payloads(get(other.client, id, stream="true", starting_after=len(seen) - 1))
    event = json.loads(last)
    assert event["type"] == "response.failed" and event["sequence_number"] == len(seen)
    assert "cannot be continued" in event["response"]["error"]["message"]
    held.let_go()
    response.close()


def test_what_ends_every_server_is_given_up(two):
    one, other = two
    held = Held(one)
    id = made(one.client, background=True)["id"]
    runs = other.service.background.runs
    (run,) = runs.runs()
    runs.save(run._replace(attempts=take_over.ATTEMPTS))
    leave(one)
    other.service.take_over.look()
    assert get(other.client, id).get_json()["status"] == "failed" and not runs.runs()
    held.let_go()


@pytest.mark.parametrize("status", ["cancelled", None])
def test_what_was_cancelled_or_deleted_meanwhile_is_not_taken_over(two, status):
    one, other = two
    held = Held(one)
    id = made(one.client, background=True)["id"]
    leave(one)
    if status is None:
        assert other.client.delete(f"/v1/responses/{id}").status_code == 200
    else:
        other.client.post(f"/v1/responses/{id}/cancel")
    other.service.take_over.look()
    assert not other.service.background.runs.runs() and not len(other.service.background)
    assert get(other.client, id).status_code == (404 if status is None else 200)
    held.let_go()


def test_what_a_drain_cuts_off_goes_on_elsewhere(two):
    one, other = two
    held = HeldAfter(one, 12)
    response = create(one.client, TEXT, background=True, stream=True)
    seen = read(response)
    id = json.loads(seen[0])["response"]["id"]
    run = one.service.background.find("", id)
    assert run.wait(0) is False
    one.service.background.hand_over()
    seen = [*seen, *(chunk.decode() for chunk in run.chunks(len(seen), 0))]
    held.let_go()
    response.close()
    wait_until(lambda: not len(one.service.background))
    (left,) = other.service.background.runs.runs()
    assert left.attempts == 0  # it ended no server
    other.service.take_over.look()
    whole = [*seen, *payloads(get(other.client, id, stream="true", starting_after=len(seen) - 1))]
    assert [json.loads(event)["sequence_number"] for event in whole] == list(range(len(whole)))
    final = add_up(whole)
    assert final == get(one.client, id).get_json() and final["status"] == "completed"


def test_what_has_ended_is_not_handed_over(two):
    one, other = two
    id = made(one.client, "Hello", background=True)["id"]
    final = ended(one.client, id)
    one.service.background.hand_over()
    other.service.take_over.look()
    assert get(other.client, id).get_json() == final and final["status"] == "completed"


def test_a_server_that_drains_takes_over_nothing(two):
    one, other = two
    held = Held(one)
    id = made(one.client, background=True)["id"]
    leave(one)
    other.engine.drain()
    other.service.take_over.look()
    assert other.service.background.find("", id) is None
    assert [run.attempts for run in other.service.background.runs.runs()] == [1]
    assert get(other.client, id).get_json()["status"] != "failed"
    other.service.take_over.close()
    other.service.take_over.look()
    held.let_go()
    assert ended(one.client, id)["status"] == "completed"


@pytest.mark.parametrize("two", [True], indirect=True)
def test_what_is_taken_over_counts_for_its_key(two):
    one, other = two
    for service in two:
        service.client.environ_base["HTTP_AUTHORIZATION"] = "Bearer secret"
    held = Held(one)
    id = made(one.client, "Hello", background=True)["id"]
    leave(one)
    there = Held(other)
    other.service.take_over.look()
    quota = other.service.access.quotas["ann"]
    assert quota.num_open == 1
    assert create(other.client, "x", background=True).status_code == 429  # it runs one already
    there.let_go()
    assert ended(other.client, id)["status"] == "completed"
    wait_until(lambda: quota.num_open == 0)
    assert quota._tokens.level < 1000 - 10
    held.let_go()


def test_a_server_that_is_full_leaves_it_to_others(two):
    one, other = two
    held = Held(one)
    id = made(one.client, background=True)["id"]
    other.service.background._most = 0
    leave(one)
    other.service.take_over.look()
    assert other.service.background.find("", id) is None
    held.let_go()
    assert ended(one.client, id)["status"] == "completed"


def test_a_journal_that_ends_while_it_is_read_is_no_error(two, monkeypatch):
    one, other = two
    id = made(one.client, "Hello", background=True)["id"]

    def told(owner, id):
        ended(one.client, id)
        raise StoreError("a part of it is gone")

    monkeypatch.setattr(other.service.background.runs, "delivered", told)
    there = take_over.DistantRun(other.service.background.memory, other.service.background.runs, "", id, 0.01)
    assert json.loads(there.chunks(0, 10)[-1])["type"] == "response.completed" and there.done


def test_a_journal_that_was_read_to_its_end_is_not_followed_by_a_failure(two, monkeypatch):
    one, other = two
    held = Held(one)
    id = made(one.client, "Hello", background=True)["id"]
    runs = other.service.background.runs
    there = take_over.DistantRun(other.service.background.memory, runs, "", id, 0.01)
    held.let_go()
    ended(one.client, id)
    wait_until(lambda: not runs.runs())
    whole = [event.encode() for event in payloads(get(one.client, id, stream="true"))]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "delivered", lambda owner, id: Delivered(whole))
        assert there.chunks(0, 10) == whole and not there.done
    assert there.chunks(len(whole), 10) == [] and there.done  # its run is gone meanwhile


def test_a_stream_is_read_from_any_server(two):
    one, other = two
    held = HeldAfter(one, 12)
    response = create(one.client, TEXT, background=True, stream=True)
    id = json.loads(read(response)[0])["response"]["id"]
    there = get(other.client, id, stream="true")
    seen = read(there)
    held.let_go()
    response.close()
    rest = payloads(get(other.client, id, stream="true", starting_after=len(seen) - 1))
    assert add_up([*seen, *rest]) == ended(one.client, id)
    there.close()
