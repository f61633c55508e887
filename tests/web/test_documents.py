"""Documents in the three protocols that have them: as data, as uploaded files, and refused where they cannot be read."""

from __future__ import annotations

import base64
import io
import os
import resource
from collections import Counter

import pytest
from media.documents import pdf
from media.hostile_documents import documents
from PIL import Image
from pypdf import PdfReader, PdfWriter
from serving import RunningService

from llamasrv.domain.request import ChatPrompt, DocumentPart, GenerateRequest, MediaPart, Message
from llamasrv.errors import InvalidMedia, QueueFull
from llamasrv.media.decoder import Decoder
from llamasrv.media.limits import MediaLimits
from llamasrv.media.sources import Sources
from llamasrv.pipeline.documents import DocumentReader
from llamasrv.pipeline.media import MediaOptions
from llamasrv.web.service import WebOptions

DATA = base64.b64encode(pdf("The first page", "The second page")).decode()
FILES = int(os.environ.get("HOSTILE_FILES", "40"))  # `tox -e soak` has more
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


def test_the_rendered_prompt_has_what_the_model_reads_of_a_document(client):
    """/apply-template gave the template a document that it could not write."""
    url = f"data:application/pdf;base64,{DATA}"
    content = [{"type": "text", "text": "before"}, {"type": "file", "file": {"filename": "a.pdf", "file_data": url}}]
    prompt = client.post("/apply-template", json={"messages": [{"role": "user", "content": content}]})
    assert prompt.status_code == 200 and f"[a.pdf]\n{SHOWN}".strip() in prompt.get_json()["prompt"]
    content[1]["file"]["file_data"] = base64.b64encode(b"%PDF-1.4 broken").decode()
    assert client.post("/apply-template", json={"messages": [{"role": "user", "content": content}]}).status_code == 400


def test_an_uploaded_file_is_found_by_its_id(client):
    id = upload(client, pdf("Uploaded"))
    for reply in (
        chat(client, {"type": "file", "file": {"file_id": id}}),
        responses(client, {"type": "input_file", "file_id": id}),
        messages(client, {"type": "document", "source": {"type": "file", "file_id": id}}),
    ):
        assert "Uploaded" in said(reply)


PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


def test_an_uploaded_image_is_an_image(client):
    """It was refused as a document that is neither PDF nor text."""
    reply = messages(client, {"type": "image", "source": {"type": "file", "file_id": upload(client, PNG)}})
    assert reply.status_code == 400
    assert reply.get_json()["error"]["message"].startswith(
        "Could not process image. This model has no vision projector"
    )


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


@pytest.mark.parametrize("data", [pdf(""), b"%PDF-1.4 broken", b"\0\1\2"], ids=["scanned", "broken", "unknown"])
def test_a_document_of_a_tool_that_cannot_be_read_does_not_end_the_session(client, data):
    """The 400 came back with every later request, because the result is in the history."""
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "document", "source": source}]}
    turns = [{"role": "user", "content": "Find it"}, {"role": "assistant", "content": [use]}]
    body = {"model": "fake", "max_tokens": 200, "messages": [*turns, {"role": "user", "content": [result]}]}
    assert "[a document that cannot be read: " in said(client.post("/v1/messages", json=body))
    assert client.post("/v1/messages/count_tokens", json=body).status_code == 200
    body["messages"] = [{"role": "user", "content": [{"type": "document", "source": source}]}]
    assert client.post("/v1/messages", json=body).status_code == 400


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


def encrypted():
    writer, out = PdfWriter(PdfReader(io.BytesIO(pdf("x")))), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    "data, words",
    [
        (encrypted(), "The PDF specified is password protected. "),
        (b"%PDF-1.4 broken", "The PDF specified was not valid. "),
        (b"\0\1\2", "The PDF specified was not valid. "),
        (pdf(*["x"] * 601), "A maximum of 600 PDF pages may be provided. "),
    ],
)
def test_claude_code_finds_its_words_for_a_document(client, data, words):
    """It looks for Anthropic's words, and told its user nothing but the whole error without them."""
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
    messages = [{"role": "user", "content": [{"type": "document", "source": source}]}]
    reply = client.post("/v1/messages", json={"messages": messages, "max_tokens": 1})
    assert reply.status_code == 400 and reply.get_json()["error"]["message"].startswith(words)


def test_the_number_of_documents_is_limited(client):
    part = {"type": "file", "file": {"file_data": DATA}}
    assert chat(client, *[part] * 33).status_code == 400


def test_hostile_documents_are_read_or_refused():
    """No 5xx, whatever they are; the server still reads a good one behind them, and has not grown by them."""
    limits = MediaLimits(seconds=2.0, document_chars=2_000, pages=20)
    service = RunningService(web=WebOptions(media=MediaOptions(limits=limits)))
    client, statuses = service.client, Counter()
    try:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for data in documents(FILES, seed=25):
            file = {"filename": "a.pdf", "file_data": base64.b64encode(data).decode()}
            body = {"messages": [{"role": "user", "content": [{"type": "file", "file": file}]}], "max_tokens": 1}
            reply = client.post("/v1/chat/completions", json=body)
            statuses[reply.status_code] += 1
            assert reply.status_code in (200, 400, 413), (data[:200], reply.get_data())
        assert statuses[200] > FILES / 25 and statuses[400] > FILES / 5, statuses
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
        assert "Still here" in said(
            chat(
                client,
                {
                    "type": "file",
                    "file": {
                        "filename": "a.pdf",
                        "file_data": base64.b64encode(pdf("Still here")).decode(),
                    },
                },
            )
        )
    finally:
        service.close()


# What the documents of one request may have together


def scanned(pages):
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 0)).save(out, "JPEG")
    return pdf(*[""] * pages, picture=out.getvalue())


def read(reader, *parts):
    request = GenerateRequest((ChatPrompt((Message("user", tuple(parts)),)),))
    (message,) = reader.read(request, sees=True).prompts[0].messages
    return [part for part in message.content if isinstance(part, MediaPart)]


@pytest.fixture(scope="module")
def reader():
    decoder = Decoder(MediaLimits(count=10, document_chars=100))
    yield DocumentReader(decoder, Sources())
    decoder.close()


def test_the_scanned_pages_of_all_documents_count_together_and_with_the_images(reader):
    """Each document was read whole, gigabytes of pictures in all, before anything said that there are too many."""
    six, image = DocumentPart(scanned(6), param="here"), MediaPart("image", b"x")
    assert len(read(reader, six)) == 6
    assert len(read(reader, DocumentPart(scanned(9)), image)) == 10
    for parts in ([six, DocumentPart(scanned(5))], [six, six], [image] * 5 + [six], [DocumentPart(scanned(11))]):
        with pytest.raises(InvalidMedia, match="scanned pages"):
            read(reader, *parts)


def test_the_texts_of_all_documents_count_together(reader):
    words = DocumentPart(pdf("words " * 10))
    assert read(reader, words) == []
    with pytest.raises(InvalidMedia, match="more"):
        read(reader, words, words)
    with pytest.raises(InvalidMedia, match="more"):
        read(reader, words, DocumentPart(pdf("other " * 10)))


def test_pictures_wait_for_room_like_those_that_were_sent(start):
    """Beside what other requests hold, before they are fetched from the process that reads documents."""
    pipeline = start(web=WebOptions(media=MediaOptions(MediaLimits(held_bytes=10)))).service.pipeline
    with pytest.raises(QueueFull):
        read(pipeline.documents, DocumentPart(scanned(1)))
