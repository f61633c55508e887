"""The playground's conversations on the server: by key, bounded, changed by revision, gone when deleted."""

from __future__ import annotations

import json
import logging
import time

import pytest
from store.conftest import postgres_url, redis_url, shelf_place  # noqa: F401  (fixtures)

from llamasrv.config import load
from llamasrv.domain.key import Key
from llamasrv.errors import ConfigError
from llamasrv.web.service import WebOptions

PATH = "/ui/history"
KEYS = (Key.of("ann", "ann", ["infer"]), Key.of("bob", "bob", ["infer"]), Key.of("eve", "eve", ["embed", "metrics"]))


@pytest.fixture
def served(start, shelf_place):  # noqa: F811
    url, folder = shelf_place
    return start(web=WebOptions(files_folder=folder, files_bytes=10_000, history_days=30.0), store=url)


@pytest.fixture
def client(served):
    return served.client


def put(client, id="a", text="Hello", revision=None, **options):
    query = {"query_string": {"revision": revision}} if revision else {}
    return client.put(f"{PATH}/{id}", json={"title": text}, **query, **options)


def listed(client, **options):
    return client.get(PATH, **options).get_json()["conversations"]


def test_a_conversation_is_kept_listed_read_changed_and_deleted(client):
    first = put(client).get_json()
    assert listed(client) == [first] and (first["id"], first["deleted"]) == ("a", False)
    assert client.get(f"{PATH}/a").get_json() == {"title": "Hello"}
    second = put(client, text="Bye", revision=first["revision"]).get_json()
    assert listed(client) == [second] and client.get(f"{PATH}/a").get_json() == {"title": "Bye"}
    assert client.get(f"{PATH}/a?revision={first['revision']}").status_code == 409
    assert client.delete(f"{PATH}/a").get_json() == {"id": "a", "deleted": True}
    assert [(one["id"], one["deleted"], one["bytes"]) for one in listed(client)] == [("a", True, 0)]
    assert client.get(f"{PATH}/a").status_code == 404


def test_what_was_changed_elsewhere_is_not_overwritten(client):
    first = put(client).get_json()
    put(client, text="from here", revision=first["revision"])
    for revision in (None, first["revision"], "file-unknown"):
        reply = put(client, text="from there", revision=revision)
        assert (reply.status_code, reply.get_json()["error"]["code"]) == (409, "conversation_changed")
    assert client.get(f"{PATH}/a").get_json() == {"title": "from here"}


def test_what_was_deleted_can_be_kept_anew(client):
    first = put(client).get_json()
    client.delete(f"{PATH}/a")
    assert put(client, revision=first["revision"]).status_code == 409
    assert put(client).status_code == 200
    assert [one["deleted"] for one in listed(client)] == [False]


def test_each_key_has_its_own_and_needs_the_scope(start, tmp_path):
    options = WebOptions(files_folder=tmp_path, files_bytes=10_000, history_days=30.0, keys=KEYS)
    client = start(web=options).client
    ann, bob, eve = ({"headers": {"X-Api-Key": name}} for name in ("ann", "bob", "eve"))
    assert put(client, **ann).status_code == 200
    assert listed(client, **bob) == [] and client.get(f"{PATH}/a", **bob).status_code == 404
    client.delete(f"{PATH}/a", **bob)
    assert client.get(f"{PATH}/a", **ann).get_json() == {"title": "Hello"}
    assert client.get(PATH, **eve).status_code == 403 and put(client, **eve).status_code == 403
    access = client.get("/ui/access", **ann).get_json()
    assert (access["history"], access["key"]) == (30.0, "ann")
    assert client.get("/ui/access", **eve).get_json()["history"] is None


def test_it_is_off_by_default(client, running):
    assert running.client.get(PATH).status_code == 404 and put(running.client).status_code == 404
    assert running.client.get("/ui/access").get_json()["history"] is None


def test_bytes_count_as_the_keys_files_and_what_does_not_fit_changes_nothing(served):
    client, quota = served.client, served.service.files.quota
    first = put(client, text="x" * 6_000).get_json()
    reply = put(client, text="y" * 6_000, revision=first["revision"])
    assert reply.status_code == 503 and reply.get_json()["error"]["code"] == "file_storage_full"
    assert listed(client) == [first] and quota.used() == first["bytes"]
    served.service.batches._sweep()  # counts again
    assert quota.used() == first["bytes"]
    assert client.delete(PATH).get_json() == {"deleted": 1} and listed(client) == [] and quota.used() == 0


def test_browsers_see_that_everything_was_deleted_at_once(client):
    """They would send their copies again."""
    before = client.get(PATH).get_json()["era"]
    put(client)
    client.delete(PATH)
    era = client.get(PATH).get_json()["era"]
    client.delete(PATH)
    assert len({before, era, client.get(PATH).get_json()["era"]}) == 3


def test_number_and_age_are_bounded(served, monkeypatch):
    client = served.client
    served.service.chat_history.most = 2
    first = put(client, "a").get_json()
    put(client, "b")
    assert put(client, "c").status_code == 503 and put(client, "a", revision=first["revision"]).status_code == 200
    for id in "abcd":
        client.delete(f"{PATH}/{id}")
    assert [one["id"] for one in listed(client)] == ["c", "d"], "the oldest marks make room"
    put(client, "e")
    later = time.time() + 31 * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    assert [one["id"] for one in listed(client)] == ["c", "d"] and client.get(f"{PATH}/e").status_code == 404


def test_bodies_and_ids_are_checked(client):
    assert client.put(f"{PATH}/a", data=b"[]").status_code == 400
    assert client.put(f"{PATH}/a", data=b"{" + b"x" * 5_000_000).status_code == 413
    for id in ("..", "a b", "x" * 65, "a%2fb"):
        assert put(client, id).status_code in (400, 404), id
    assert listed(client) == []


def test_the_log_has_none_of_it(client, caplog):
    with caplog.at_level(logging.DEBUG):
        put(client, text="my secret")
        assert "secret" in client.get(f"{PATH}/a").text
    assert "secret" not in caplog.text


def test_it_needs_pages_and_room_for_files():
    for other in ({"server_ui": False}, {"store_files_bytes": 0}):
        with pytest.raises(ConfigError, match="ui_history"):
            load({"model_fake": True, "server_ui_history": 30.0, **other}, environ={})


def test_what_a_killed_server_left_of_an_old_revision_is_no_conversation(served):
    kept, owner = served.service.chat_history, ""
    old = kept._write(owner, "a", "conversation", b"{}")
    new = kept.put(owner, "a", json.dumps({"title": "new"}).encode(), old.id)
    kept._write(owner, "a", "conversation", b'{"title": "newer"}')
    _, [only] = kept.conversations(owner)
    assert only.revision > new.revision
    kept.put(owner, "a", b"{}", only.revision)
    assert len(kept.files.page(owner, limit=10, descending=False).items) == 1
