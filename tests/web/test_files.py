"""OpenAI's /v1/files over Flask's test client."""

from __future__ import annotations

import errno
import io

import pytest
from store.conftest import postgres_url, redis_url, shelf_place  # noqa: F401  (fixtures)

from llamasrv.domain.key import Key
from llamasrv.web.service import WebOptions

CONTENT = b'{"a": 1}\n{"b": 2}\n'


@pytest.fixture
def client(start, shelf_place):  # noqa: F811
    url, folder = shelf_place
    return start(web=WebOptions(files_folder=folder, files_bytes=10_000), store=url).client


def upload(client, content=CONTENT, name="x.jsonl", **fields):
    fields = {"purpose": "batch", **fields}
    return client.post("/v1/files", data={**fields, "file": (io.BytesIO(content), name)})


def test_a_file_is_kept_listed_read_and_deleted(client):
    file = upload(client).get_json()
    assert file.items() >= {"object": "file", "bytes": len(CONTENT), "filename": "x.jsonl", "purpose": "batch"}.items()
    assert client.get(f"/v1/files/{file['id']}").get_json() == file
    assert client.get("/v1/files").get_json()["data"] == [file]
    assert client.get(f"/v1/files/{file['id']}/content").data == CONTENT
    assert client.delete(f"/v1/files/{file['id']}").get_json()["deleted"] is True
    assert client.get(f"/v1/files/{file['id']}").status_code == 404
    assert client.get("/v1/files").get_json()["data"] == []


def test_a_list_has_pages_and_purposes(client):
    ids = [upload(client, purpose=purpose).get_json()["id"] for purpose in ("batch", "user_data", "batch")]
    listed = client.get("/v1/files?purpose=batch&order=asc").get_json()
    assert [file["id"] for file in listed["data"]] == [ids[0], ids[2]] and listed["has_more"] is False
    page = client.get(f"/v1/files?limit=1&after={ids[2]}").get_json()
    assert [file["id"] for file in page["data"]] == [ids[1]] and page["has_more"] is True


def test_a_wrong_field_is_named_and_nothing_is_kept(client):
    for fields, param in (
        ({"purpose": ""}, "purpose"),
        ({"purpose": "party"}, "purpose"),
        ({"expires_after[seconds]": "60"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
    ):
        answer = upload(client, **fields)
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, param)
    assert client.get("/v1/files").get_json()["data"] == []


def test_a_form_without_a_file_or_with_two_is_refused(client):
    assert client.post("/v1/files", data={"purpose": "batch", "other": (io.BytesIO(b"x"), "x")}).status_code == 400
    two = [("purpose", "batch"), ("file", (io.BytesIO(b"x"), "x")), ("file", (io.BytesIO(b"y"), "y"))]
    assert (
        client.post("/v1/files", data={"purpose": "batch", "file": [entry for _, entry in two[1:]]}).status_code == 400
    )
    assert client.post("/v1/files", json={"purpose": "batch"}).status_code == 400
    assert client.get("/v1/files").get_json()["data"] == []


def test_a_file_that_expires_says_when(client):
    file = upload(client, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).get_json()
    assert file["expires_at"] == file["created_at"] + 3600


def test_a_name_is_never_a_path(client):
    for name, kept in (("../../etc/passwd", "passwd"), ("x/y.jsonl", "y.jsonl"), ("/", "file")):
        assert upload(client, name=name).get_json()["filename"] == kept


def test_all_files_together_are_bounded(client):
    assert upload(client, b"x" * 6_000).status_code == 200
    answer = upload(client, b"x" * 6_000)
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (503, "file_storage_full")
    assert upload(client, b"x" * 12_000).status_code == 413
    assert len(client.get("/v1/files").get_json()["data"]) == 1


def test_a_server_may_keep_none(start):
    answer = upload(start(web=WebOptions(files_bytes=0)).client)
    assert (answer.status_code, answer.get_json()["error"]["code"]) == (400, "unsupported_parameter")


def test_an_owner_sees_nothing_of_another(start, shelf_place):  # noqa: F811
    keys = tuple(Key.of(name, f"secret-{name}") for name in ("ann", "bob"))
    url, folder = shelf_place
    client = start(web=WebOptions(keys=keys, files_folder=folder, files_bytes=10_000), store=url).client
    ann, bob = ({"Authorization": f"Bearer secret-{name}"} for name in ("ann", "bob"))
    data = {"purpose": "batch", "file": (io.BytesIO(CONTENT), "x")}
    id = client.post("/v1/files", data=data, headers=ann).get_json()["id"]
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content"):
        with client.get(path, headers=ann) as reply:
            assert reply.status_code == 200
        assert client.get(path, headers=bob).status_code == 404
    assert client.delete(f"/v1/files/{id}", headers=bob).status_code == 404
    assert client.get("/v1/files", headers=bob).get_json()["data"] == []


def test_the_head_of_a_content_ends_its_request(start, tmp_path):
    """The record of a streamed reply is closed by whoever reads it, and nobody reads the reply to HEAD."""
    running = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000))
    data = {"purpose": "batch", "file": (io.BytesIO(CONTENT), "x")}
    id = running.client.post("/v1/files", data=data).get_json()["id"]
    reply = running.client.head(f"/v1/files/{id}/content")
    assert (reply.status_code, reply.headers["Content-Length"]) == (200, str(len(CONTENT)))
    stats = running.service.stats
    assert stats.num_open == 0 and stats.counts["/v1/files/<id>/content", 200] == 1


def test_an_id_that_is_none_is_not_found(client):
    for id in ("file-", "file-../../x", "file-" + "0" * 36, "%2e%2e%2fx", "file-" + "0" * 500):
        assert client.get(f"/v1/files/{id}").status_code == 404


def test_anthropic_s_clients_get_their_shapes(client):
    headers = {"anthropic-version": "2023-06-01"}
    form = {"file": (io.BytesIO(b"%PDF-"), "x.pdf")}
    file = client.post("/v1/files", data=form, headers=headers).get_json()
    assert (
        file.items() >= {"type": "file", "mime_type": "application/pdf", "size_bytes": 5, "filename": "x.pdf"}.items()
    )
    assert client.get("/v1/files", headers=headers).get_json()["data"] == [file]
    assert client.get(f"/v1/files/{file['id']}", headers=headers).get_json() == file
    deleted = client.delete(f"/v1/files/{file['id']}", headers=headers).get_json()
    assert deleted == {"id": file["id"], "type": "file_deleted"}


def test_a_full_disk_is_said_to_be_full(start, tmp_path, monkeypatch):
    """It was an internal error, with a traceback in the log."""
    service = start(web=WebOptions(files_folder=tmp_path, files_bytes=10_000))
    files = service.service.files

    def full(*args, **state):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.shelf, "put", full)
    answer = upload(service.client)
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (507, "insufficient_storage", "server_error")
    monkeypatch.setattr(service.service.batches.batches.shelf, "put", full)
    body = {"requests": [{"custom_id": "a", "params": {}}]}
    assert service.client.post("/v1/messages/batches", json=body).status_code == 507
    assert files.num_bytes() == 0 and not [path for path in tmp_path.glob("*/[!.]*/*")]


def test_one_key_among_several_has_half_of_the_room(start, shelf_place):  # noqa: F811
    """One could take all of it."""
    keys = tuple(Key.of(name, f"secret-{name}") for name in ("ann", "bob"))
    url, folder = shelf_place
    client = start(web=WebOptions(keys=keys, files_folder=folder, files_bytes=10_000), store=url).client
    answers = []
    for name, size in (("ann", 4_000), ("ann", 4_000), ("bob", 4_000)):
        data = {"purpose": "batch", "file": (io.BytesIO(b"x" * size), "x")}
        head = {"Authorization": f"Bearer secret-{name}"}
        answers.append(client.post("/v1/files", data=data, headers=head).status_code)
    assert answers == [200, 503, 200]
