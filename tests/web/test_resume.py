"""Streams that go on without their client."""

from __future__ import annotations

import json
import time

import pytest
from serving import RunningService, wait_until

from llamasrv.domain.key import Key
from llamasrv.errors import QueueFull
from llamasrv.web.routes.ollama import NDJSON
from llamasrv.web.service import WebOptions
from llamasrv.web.streams import resume

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


def begin(client, name, *, path="/v1/chat/completions", headers=(), **body):
    head = {"X-Conversation-Id": name, **dict(headers)}
    return client.post(path, json={**CHAT, "temperature": 0, **body}, headers=head, buffered=False)


def follow(client, name, start=0, **headers):
    return client.get("/v1/stream", query_string={"conv_id": name, "from": start}, headers=headers)


def lookup(client, *names):
    return client.post("/v1/streams/lookup", json={"conversation_ids": list(names)}).get_json()


def test_a_stream_is_read_again_from_any_byte(client):
    whole = begin(client, "a").get_data()
    assert whole.endswith(b"data: [DONE]\n\n") and whole.count(b'"content":"') > 1
    for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
        assert follow(client, "a", start).get_data() == whole[start:]


def test_a_stream_goes_on_when_its_client_leaves(start):
    running = start()
    client = running.client
    reply = begin(client, "b", path="/completion", prompt="x", n_predict=300, ignore_eos=True)
    next(reply.response)
    reply.close()
    wait_until(lambda: lookup(client, "b")[0]["is_done"])
    events = [json.loads(event[6:]) for event in follow(client, "b").get_data(as_text=True).split("\n\n") if event]
    assert events[-1]["tokens_predicted"] == 300 and events[-1]["stop_type"] == "limit"


def test_without_a_name_a_client_that_leaves_ends_its_stream(start):
    running = start()
    body = {"prompt": "x", "n_predict": 900, "ignore_eos": True, "stream": True}
    reply = running.client.post("/completion", json=body, buffered=False)
    reply.close()
    wait_until(lambda: running.engine.num_open == 0)
    assert "cancelled" in running.engine.metrics.finished


def test_several_follow_while_it_is_written(start):
    running = start()
    client = running.client
    first = begin(client, "c", path="/completion", prompt="x", n_predict=200, ignore_eos=True)
    followers = [follow(client, "c") for _ in range(3)]
    texts = [reply.get_data() for reply in (first, *followers)]
    assert len(set(texts)) == 1 and texts[0].count(b"data: ") > 1


def test_a_stream_can_be_ended(start):
    running = start()
    client = running.client
    begin(client, "d", path="/completion", prompt="x", n_predict=900, ignore_eos=True)
    assert client.delete("/v1/stream?conv_id=d").status_code == 204
    wait_until(lambda: running.engine.num_open == 0)
    assert follow(client, "d").status_code == 404
    assert client.delete("/v1/stream?conv_id=d").status_code == 204


def test_the_same_name_again_ends_the_one_before(start):
    running = start()
    client = running.client
    begin(client, "e", path="/completion", prompt="x", n_predict=900, ignore_eos=True)
    whole = begin(client, "e").get_data()
    assert follow(client, "e").get_data() == whole
    wait_until(lambda: running.engine.num_open == 0)


def test_streams_are_looked_up_by_name_and_by_what_is_before_the_model(client):
    begin(client, "f::fake").get_data()
    begin(client, "g").get_data()
    wait_until(lambda: all(one["is_done"] for one in lookup(client, "f", "g")))
    found = {one["conversation_id"]: one for one in lookup(client, "f", "g", "nobody")}
    assert set(found) == {"f::fake", "g"}
    assert found["g"]["total_bytes"] > 100 and found["g"]["completed_at"] >= found["g"]["started_at"] > 0


@pytest.mark.parametrize(
    "query, status", [("", 400), ("conv_id=nobody", 404), ("conv_id=h&from=-1", 400), ("conv_id=h&from=x", 400)]
)
def test_wrong_questions_are_refused(client, query, status):
    begin(client, "h").get_data()
    assert client.get(f"/v1/stream?{query}").status_code == status


@pytest.mark.parametrize("name", ["Gespräch", "会話"])
def test_a_name_in_any_script_is_found_again(client, name):
    """A header comes as Latin-1, a query and a body as UTF-8: the stream was a 404."""
    whole = begin(client, name.encode().decode("latin-1")).get_data()
    assert follow(client, name).get_data() == whole and lookup(client, name)[0]["is_done"]


@pytest.mark.parametrize("name", ["", "a" * 257, "a\x7f"])
def test_a_name_has_bounds(client, name):
    assert begin(client, name).status_code == 400


def test_an_error_before_the_first_token_is_a_real_one_and_nothing_is_kept(client):
    assert begin(client, "i", max_tokens=-7).status_code == 400
    assert follow(client, "i").status_code == 404


def test_a_name_belongs_to_its_key():
    keys = tuple(Key.of(name, f"secret-{name}") for name in ("ann", "bob"))
    running = RunningService(web=WebOptions(keys=keys))
    client = running.client
    ann, bob = ({"Authorization": f"Bearer secret-{name}"} for name in ("ann", "bob"))
    whole = begin(client, "a", headers=ann).get_data()
    assert follow(client, "a", **bob).status_code == 404
    assert client.delete("/v1/stream?conv_id=a", headers=bob).status_code == 204
    assert follow(client, "a", **ann).get_data() == whole
    running.close()


def test_only_the_end_of_a_long_stream_is_kept(running):
    kept = running.service.streams.hold("", resume.ResumableStream("j", max_bytes=20))
    for piece in (b"12345678", b"abcdefgh", b"ABCDEFGH"):
        kept.add(piece)
    kept.completed = resume.time.time()
    refused = follow(running.client, "j", 7)
    assert refused.status_code == 400 and "8" in refused.get_json()["error"]["message"]
    assert follow(running.client, "j", 10).get_data() == b"cdefghABCDEFGH"


def test_a_reader_that_falls_too_far_behind_gets_an_error():
    kept = resume.ResumableStream("a", max_bytes=10)
    follower = resume.StreamReader(kept, 0, keepalive=1.0)
    for piece in (b"12345678", b"abcdefgh", b"ABCDEFGH"):
        kept.add(piece)
    kept.completed = 1.0
    assert b"bytes before 16 are no longer kept" in next(follower)
    assert list(follower) == []


def test_nothing_follows_that_error():
    """An error and [DONE] were followed by what came later."""
    kept = resume.ResumableStream("a", max_bytes=10)
    follower = resume.StreamReader(kept, 0, keepalive=0.01)
    for piece in (b"12345678", b"abcdefgh"):
        kept.add(piece)
    assert next(follower).endswith(b"data: [DONE]\n\n")
    kept.add(b"more")
    assert list(follower) == []


def test_a_silent_stream_of_lines_gets_no_comments(monkeypatch):
    kept = resume.ResumableStream("a", NDJSON)
    read = []

    def scripted(start, timeout):
        read.append(start)
        if len(read) == 3:
            kept.add(b"{}\n")
        return ResumableStream.read(kept, start, 0) if len(read) < 5 else None

    ResumableStream = resume.ResumableStream
    monkeypatch.setattr(kept, "read", scripted)
    assert list(resume.StreamReader(kept, 0, keepalive=1.0)) == [b"{}\n"]
    assert len(read) == 5


def test_what_is_followed_is_called_what_it_is(client):
    body = {"messages": CHAT["messages"], "model": "fake"}
    whole = client.post("/api/chat", json=body, headers={"X-Conversation-Id": "ollama"}).get_data()
    followed = follow(client, "ollama")
    assert followed.content_type == "application/x-ndjson" and followed.get_data() == whole
    begin(client, "openai").get_data()
    with follow(client, "openai") as followed:
        assert followed.content_type.startswith("text/event-stream")


def test_reading_on_costs_what_is_read_and_not_what_is_kept():
    """Each read went through all pieces: a stream of n pieces took n * n steps for each reader."""
    kept = resume.ResumableStream("a")
    for _ in range(20_000):
        kept.add(b"data: {}\n\n")
    began = time.thread_time()
    for start in range(0, kept.total, 10):
        kept.read(max(start, kept.total - 10), 0)
    assert time.thread_time() - began < 2  # 30 s before


def test_what_ended_long_ago_is_dropped(running, monkeypatch):
    client = running.client
    begin(client, "k").get_data()
    wait_until(lambda: lookup(client, "k")[0]["is_done"])
    monkeypatch.setattr(running.service.streams, "kept_seconds", -1.0)
    assert follow(client, "k").status_code == 404


def test_the_oldest_ended_one_makes_room_and_running_ones_do_not():
    streams = resume.Streams(max_streams=2)
    for n, name in enumerate("ab"):
        kept = streams.hold("", resume.ResumableStream(name))
        kept.completed = resume.time.time() + n
    assert streams.name_of("", {resume.HEADER: "c"}) == "c"
    assert [kept.name for kept in streams.matching("", ["a", "b"])] == ["b"]
    for name in "bc":
        streams.hold("", resume.ResumableStream(name))
    with pytest.raises(QueueFull):
        streams.name_of("", {resume.HEADER: "d"})
    assert streams.name_of("", {resume.HEADER: "c"}) == "c"


def test_a_name_may_have_any_letters(client):
    """It was kept in one encoding and looked for in another."""
    name = "Gespräch 🎈"
    given = name.encode().decode("latin-1")  # bytes, as a header carries them
    whole = begin(client, given).get_data()
    assert follow(client, name).get_data() == whole
    assert [one["conversation_id"] for one in lookup(client, name)] == [name]
    begin(client, "Gespr\xe4ch").get_data()  # not UTF-8: as it is
    with follow(client, "Gespräch") as followed:
        assert followed.status_code == 200
