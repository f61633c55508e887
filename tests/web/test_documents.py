"""Documents in the three protocols that have them: as data, as uploaded files, and refused where they cannot be read."""

from __future__ import annotations

import base64
import io
import resource
import time
from collections import Counter

import pytest
from media.documents import pdf
from media.hostile_documents import documents
from serving import RunningService

from llamasrv.media.limits import MediaLimits
from llamasrv.pipeline.media import MediaOptions
from llamasrv.web.service import WebOptions

DATA = base64.b64encode(pdf("The first page", "The second page")).decode()
SHOWN = "[page 1 of 2]\nThe first page\n\n[page 2 of 2]\nThe second page\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    service = RunningService(web=WebOptions(files_folder=tmp_path_factory.mktemp("files"), files_bytes=10_000_000))
    yield service
    service.close()


@pytest.fixture
def client(running):
    return running.client


def chat(client, *parts):
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": list(parts)}]})


def responses(client, *parts):
    return client.post("/v1/responses", json={"input": [{"role": "user", "content": list(parts)}]})


def messages(client, *blocks):
    body = {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": list(blocks)}]}
    return client.post("/v1/messages", json=body)


def said(reply):
    """What the fake model was told, which it says again."""
    body = reply.get_json()
    assert reply.status_code == 200, body
    if "choices" in body:
        return body["choices"][0]["message"]["content"]
    return (body["output"][0]["content"] if "output" in body else body["content"])[0]["text"]


def upload(client, data):
    form = {"purpose": "user_data", "file": (io.BytesIO(data), "x.pdf")}
    return client.post("/v1/files", data=form).get_json()["id"]


def test_a_pdf_is_read_page_by_page_in_every_protocol(client):
    url = f"data:application/pdf;base64,{DATA}"
    of_chat = said(chat(client, {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}))
    of_responses = said(responses(client, {"type": "input_file", "filename": "a.pdf", "file_data": url}))
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    of_messages = said(messages(client, {"type": "document", "source": source, "title": "a.pdf"}))
    assert of_chat == of_responses == f"You said: [a.pdf]\n{SHOWN}".rstrip("\n") or SHOWN.strip() in of_chat
    assert SHOWN.strip() in of_responses and SHOWN.strip() in of_messages and "a.pdf" in of_messages


def test_an_uploaded_file_is_found_by_its_id(client):
    id = upload(client, pdf("Uploaded"))
    for reply in (
        chat(client, {"type": "file", "file": {"file_id": id}}),
        responses(client, {"type": "input_file", "file_id": id}),
        messages(client, {"type": "document", "source": {"type": "file", "file_id": id}}),
    ):
        assert "Uploaded" in said(reply)


def test_a_text_file_is_text(client):
    data = base64.b64encode("Grüße".encode()).decode()
    assert "Grüße" in said(chat(client, {"type": "file", "file": {"filename": "a.txt", "file_data": data}}))


def test_what_a_tool_found_may_be_a_document(client):
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "document", "source": source}]}
    turns = [{"role": "user", "content": "Find it"}, {"role": "assistant", "content": [use]}]
    body = {"model": "fake", "max_tokens": 200, "messages": [*turns, {"role": "user", "content": [result]}]}
    assert "The second page" in said(client.post("/v1/messages", json=body))


def test_tokens_are_counted_with_the_document(client):
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    body = {"model": "fake", "messages": [{"role": "user", "content": [{"type": "document", "source": source}]}]}
    count = client.post("/v1/messages/count_tokens", json=body).get_json()["input_tokens"]
    usage = client.post("/v1/messages", json={**body, "max_tokens": 5}).get_json()["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


@pytest.mark.parametrize(
    "file, place",
    [
        ({"file_data": base64.b64encode(b"\0\1\2").decode()}, "file_data"),
        ({"file_data": base64.b64encode(b"%PDF-1.4 broken").decode()}, "file_data"),
        ({"file_data": "???"}, "file_data"),
        ({"file_data": base64.b64encode(b"").decode()}, "file_data"),
        ({"file_id": "file-" + "0" * 36}, "file_id"),
        ({"file_url": "http://localhost/x.pdf"}, "file_url"),
        ({"file_data": DATA, "filename": 3}, "filename"),
        ({}, None),
    ],
)
def test_what_cannot_be_read_is_named(client, file, place):
    reply = chat(client, {"type": "text", "text": "See:"}, {"type": "file", "file": file})
    error = reply.get_json()["error"]
    where = "messages[0].content[1].file" + (f".{place}" if place else "")
    assert (reply.status_code, error["param"]) == (400, where), error


def test_there_may_be_so_many(client):
    part = {"type": "file", "file": {"file_data": DATA}}
    assert chat(client, *[part] * 33).status_code == 400


def test_500_hostile_documents_are_read_or_refused():
    """No 5xx, whatever they are; the server still reads a good one behind them, and has not grown by them."""
    limits = MediaLimits(seconds=2.0, document_chars=2_000, pages=20)
    service = RunningService(web=WebOptions(media=MediaOptions(limits=limits)))
    client, statuses = service.client, Counter()
    try:
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        for data in documents(500, seed=25):
            file = {"filename": "a.pdf", "file_data": base64.b64encode(data).decode()}
            body = {"messages": [{"role": "user", "content": [{"type": "file", "file": file}]}], "max_tokens": 1}
            reply = client.post("/v1/chat/completions", json=body)
            statuses[reply.status_code] += 1
            assert reply.status_code in (200, 400, 413), (data[:200], reply.get_data())
        assert statuses[200] > 20 and statuses[400] > 100, statuses
        assert time.monotonic() - began < 120
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
        assert "Still here" in said(chat(client, {"type": "file", "file": {
            "filename": "a.pdf", "file_data": base64.b64encode(pdf("Still here")).decode(),
        }}))  # fmt: skip
    finally:
        service.close()
