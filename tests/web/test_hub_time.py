"""Nothing that a client sizes is computed on the hub: every stream would wait for it.

Each body is as large as the limits let it be, of what costs most for its size.
"""

from __future__ import annotations

import io
import time
from threading import get_ident

import orjson
import pytest
from hub_time import HubTime, post
from prometheus_client.exposition import generate_latest
from serving import RunningService

from llamasrv.concurrency import compute_off_hub, native_lock
from llamasrv.domain.events import Usage
from llamasrv.protocols.anthropic.threads import Turn, new_message_id
from llamasrv.protocols.openai.batches import answer_line
from llamasrv.protocols.openai.conversations import StoredConversation
from llamasrv.protocols.openai.responses.stored import Stored
from llamasrv.store import StoredEntry, StoreOptions, open_store
from llamasrv.store.batches import BatchStore, StoredBatch, read_journal
from llamasrv.store.folder_shelf import FolderShelf
from llamasrv.web.jobs.active_batch import ActiveBatch
from llamasrv.web.jobs.batch_input import PIECE, InputLine, check_input, lines_of
from llamasrv.web.jobs.batch_sender import Answer
from llamasrv.web.ops import metrics
from llamasrv.web.service import WebOptions
from llamasrv.web.sockets.websocket import WebSocket
from llamasrv.web.stored.responses import asking

CHAT, NATIVE, GEMINI = "/v1/chat/completions", "/completion", "/v1beta/models/fake:"
MANY = 9_999


@pytest.fixture
def hub_time(monkeypatch):
    return HubTime(monkeypatch)


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_what_is_too_long_is_found_and_what_leaves_the_hub_is_not(hub_time):
    with hub_time:
        burn(0.001)
        compute_off_hub(lambda: burn(0.05))
    with pytest.raises(AssertionError, match="of CPU on the hub"), hub_time:
        burn(10 * hub_time.most)


TURN = {"role": "user", "content": "x"}
ITEM = {"type": "message", **TURN}
TEXT = "word " * 200_000


def deep(levels):
    return {"a": deep(levels - 1)} if levels else 1


BODIES = {
    "a prompt of small objects": ("/v1/completions", {"prompt": "x", "max_tokens": 1, "metadata": [deep(60)] * 1_000}, 200),
    "many messages": (CHAT, {"messages": [TURN] * MANY}, 400),
    "many messages of Anthropic's": ("/v1/messages", {"messages": [TURN] * MANY, "max_tokens": 1}, 400),
    "many messages to count": ("/v1/messages/count_tokens", {"messages": [TURN] * MANY}, 400),
    "many messages of Ollama's": ("/api/chat", {"model": "fake", "messages": [TURN] * MANY}, 400),
    "many items": ("/v1/responses", {"input": [ITEM] * MANY, "store": False}, 400),
    "many items to count": ("/v1/responses/input_tokens", {"input": [ITEM] * MANY}, 400),
    "many parts": (f"{GEMINI}generateContent", {"contents": [{"role": "user", "parts": [{"text": "x"}] * 999}] * 100}, 400),
    "as many parts as are taken": (f"{GEMINI}countTokens", {"contents": [{"role": "user", "parts": [{"text": "x"}] * 999}] * 20}, 400),
    "many parts to count": (f"{GEMINI}countTokens", {"contents": [{"role": "user", "parts": [{"text": "x"}] * 999}] * 100}, 400),
    "many unknown fields": (CHAT, {"messages": [TURN], "max_tokens": 1, **{f"u{n}": 1 for n in range(140_000)}}, 200),
    "many unknown options": ("/api/chat", {"model": "fake", "messages": [TURN], "stream": False, "options": {
        "num_predict": 1, **{f"u{n}": 1 for n in range(140_000)}}}, 200),
    "many tools": (CHAT, {"messages": [TURN], "tools": [
        {"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object", "properties": {
            f"p{i}": {"type": "string"} for i in range(20)}}}} for n in range(1000)]}, 400),
    "a schema of many references": (CHAT, {"messages": [TURN], "max_tokens": 1, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/$defs/d0", "$defs": {
            f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 3} for n in range(200)} | {"d200": {"type": "string"}}}}}}, 200),
    "a schema of many objects": (CHAT, {"messages": [TURN], "max_tokens": 1, "response_format": {
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {
            f"p{n}": {"type": "object", "properties": {f"q{m}": {"type": "integer"} for m in range(10)}} for n in range(90)}}}}}, 200),
    "many token ids": (NATIVE, {"prompt": [5] * 290_000}, 400),
    "many biases": (NATIVE, {"prompt": "x", "n_predict": 1, "logit_bias": [[5, 1.0]] * MANY}, 200),
    "many prompts": ("/v1/completions", {"prompt": ["x"] * 512, "max_tokens": 1, "n": 1}, 400),
    "many inputs": ("/v1/embeddings", {"input": ["x"] * 2048}, 400),
    "a batch of many requests": ("/v1/messages/batches", {"requests": [{"custom_id": f"c{n}", "params": {}} for n in range(49_000)]}, 200),
    "a long text to tokenize": ("/tokenize", {"content": TEXT}, 200),
    "a long text with its pieces": ("/tokenize", {"content": TEXT, "with_pieces": True}, 400),
    "a text with its pieces": ("/tokenize", {"content": TEXT[:100_000], "with_pieces": True}, 200),
    "many token ids and texts": ("/tokenize", {"content": [5] * 290_000}, 200),
    "many token ids to a text": ("/detokenize", {"tokens": [5] * 290_000}, 200),
    "a long template": ("/apply-template", {"messages": [TURN] * MANY}, 200),
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    service = RunningService(web=WebOptions(files_folder=folder, files_bytes=1 << 30))
    for path in {path for path, _, _ in BODIES.values()}:  # what is made once is made now
        service.client.post(
            path, json={"messages": [TURN], "input": "x", "prompt": "x", "content": "x", "max_tokens": 1}
        )
    yield service
    service.close()


@pytest.fixture
def app(service):
    return service.app


@pytest.mark.parametrize("path, body, status", BODIES.values(), ids=BODIES)
def test_a_large_body_leaves_the_hub(app, hub_time, path, body, status):
    data = orjson.dumps(body)
    assert len(data) <= 4 << 20
    with hub_time:
        got, reply = post(app, path, data, HTTP_ANTHROPIC_VERSION="2023-06-01")
    assert got == status, reply[:300]


BROKEN = {
    "escaped quotes before spaces": b'{"' + b'\\"' * 99 + b'":[' + b" " * 3850 + b"]",
    "a long string": b'{"a":"' + b"\\\\" * 100_000,
    "many open arrays": b'{"a":' + b"[" * 1000,
    "many keys": b"{" + b'"a":1,' * 20_000,
    "many escaped quotes": b'{"a":"' + b'\\"' * 100_000,
    "spaces": b'{"a":[' + b" " * 200_000,
}


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN)
def test_a_broken_body_is_refused_at_once(app, hub_time, body):
    """A body of 4 KB held the interpreter for eight seconds while the key in front of its mistake was looked for."""
    with hub_time:
        began = time.process_time()
        assert post(app, "/v1/completions", body)[0] == 400
        assert time.process_time() - began < 0.5


def test_an_upload_leaves_the_hub(app, hub_time):
    """A large upload stopped every stream for as long as it took: its parts were looked for, and written, on the hub."""
    part = b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
    content = b"\r\n--y" * 1_000_000
    body = part % (b"purpose", b"", b"user_data") + part % (b"file", b'; filename="a"', content) + b"--x--\r\n"
    with hub_time:
        status, reply = post(app, "/v1/files", body, CONTENT_TYPE="multipart/form-data; boundary=x")
    assert status == 200 and orjson.loads(reply)["bytes"] == len(content)


def test_many_log_probabilities_leave_the_hub(app, hub_time):
    """Eight answers of 700 tokens with 20 alternatives each took it 240 ms to write."""
    body = {"messages": [TURN], "max_tokens": 500, "n": 2, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    with hub_time:
        status, reply = post(app, CHAT, orjson.dumps(body))
    entries = [entry for choice in orjson.loads(reply)["choices"] for entry in choice["logprobs"]["content"]]
    assert status == 200 and len(entries) == 1000 and {len(entry["top_logprobs"]) for entry in entries} == {20}


def test_metrics_leave_the_hub(app, hub_time, monkeypatch):
    """Importing the library at the first scrape took the hub 28 ms, and every text up to 20 ms."""
    places = []
    monkeypatch.setattr(
        metrics, "generate_latest", lambda registry: places.append(get_ident()) or generate_latest(registry)
    )
    with hub_time:
        status, text = post(app, "/metrics", b"", REQUEST_METHOD="GET")
    assert status == 200 and b"llamasrv_build" in text and get_ident() not in places and len(places) == 1


STORED = {
    "its items": ("GET", "/v1/conversations/{conversation}/items?limit=100", None, 200),
    "an item more": ("POST", "/v1/conversations/{conversation}/items", {"items": [ITEM]}, 200),
    "other metadata": ("POST", "/v1/conversations/{conversation}", {"metadata": {"a": "b"}}, 200),
    "a response to it": ("POST", "/v1/responses", {"input": "x", "conversation": "{conversation}"}, 400),
    "a response to a response": ("POST", "/v1/responses", {"input": "x", "previous_response_id": "{response}"}, 400),
    "a response": ("GET", "/v1/responses/{response}", None, 200),
    "its input": ("GET", "/v1/responses/{response}/input_items?limit=100", None, 200),
    "a message to a thread": ("POST", "/v1/messages", {"max_tokens": 1, "messages": [TURN], "thread": {
        "type": "continue", "previous_message_id": "{message}"}}, 400),
}  # fmt: skip


@pytest.fixture(scope="module")
def stored(service):
    """Ids of what is as long as the limits let it be: 9,999 items of 2 kB."""
    text = "x" * 2_000
    items = [{**ITEM, "id": f"msg_{n}", "content": [{"type": "input_text", "text": text}]} for n in range(MANY - 1)]
    conversation = StoredConversation.new({})._replace(items=items)
    said = orjson.loads(post(service.app, "/v1/responses", b'{"input": "x", "max_output_tokens": 16}')[1])
    response = Stored(said, items, [])
    message = new_message_id()
    turn = Turn([{"role": "user", "content": text}, {"role": "assistant", "content": "y"}] * 4_000, [], {})
    for id, body in ((conversation.id, conversation), (said["id"], response), (message, turn)):
        service.store.put("", StoredEntry(id, body.pack()))
    return {"conversation": conversation.id, "response": said["id"], "message": message}


@pytest.mark.parametrize("blocks", [True, False], ids=["file", "sockets"])
@pytest.mark.parametrize("method, path, body, status", STORED.values(), ids=STORED)
def test_what_is_stored_is_read_and_written_off_the_hub(
    service, stored, hub_time, monkeypatch, method, path, body, status, blocks
):
    """A conversation of 24 MB took the hub 90 ms to parse, and as long to write. `blocks`: where the store is a server,
    waiting for it is the hub's, and what is computed is not."""
    monkeypatch.setattr(service.store, "blocks", blocks)
    monkeypatch.setattr(service.store, "options", service.store.options._replace(compute=compute_off_hub))
    text = orjson.dumps(body).decode()
    for name, id in stored.items():
        path, text = (part.replace("{" + name + "}", id) for part in (path, text))
    path, _, query = path.partition("?")
    with hub_time:
        got, reply = post(service.app, path, text.encode(), REQUEST_METHOD=method, QUERY_STRING=query)
    assert got == status, reply[:300]


def test_what_is_stored_in_memory_is_read_and_written_off_the_hub(hub_time):
    """A row of 24 MB took the hub 27 to 41 ms, each time."""
    store, places = open_store("memory", StoreOptions(lock=native_lock)), []
    with store.connection() as db:
        db.set_trace_callback(lambda statement: places.append(get_ident()))
    with hub_time:
        asking(store, store.put, "", StoredEntry("a", b"x"))
        assert asking(store, store.get, "", "a") == StoredEntry("a", b"x")
        assert asking(store, store.chain, "", "a") == [StoredEntry("a", b"x")]
    assert len(places) >= 4 and get_ident() not in places


LINES = {
    "many lists": {"metadata": [[] for _ in range(149_000)]},
    "many objects": {"metadata": [{f"a{n}": "x" * 25} for n in range(90_000)]},
    "a text of marks": {"prompt": '[,:"' * 790_000},
}


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
@pytest.mark.parametrize("body", LINES.values(), ids=LINES)
def test_a_large_line_of_a_batch_leaves_the_hub(hub_time, protocol, body):
    """A line of 4 MB took it 25 ms to check, and again to send."""
    line = orjson.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}) + b"\n"
    batch = StoredBatch("batch_1", "", protocol, CHAT, 0, 0)
    with hub_time:
        errors, total = check_input(io.BytesIO(line), batch, len(line), 300_000)
        (read,) = lines_of(io.BytesIO(line), batch)
    assert not errors and total == 1 and (read.custom_id, orjson.loads(read.body)) == ("a", body)


def test_a_line_without_end_is_read_in_pieces():
    """A file of one line of 60 MB took the hub 31 ms, to put together what was too long."""
    sizes = []

    class Input(io.BytesIO):
        def readline(self, size):
            sizes.append(size)
            return super().readline(size)

    batch, longest = StoredBatch("batch_1", "", "openai", CHAT, 0, 0), 2_500_000
    errors, _ = check_input(Input(b"{}\n" + b"x" * 6_000_000), batch, longest, 300_000)
    assert errors[-1]["code"] == "line_too_long" and errors[-1]["line"] == 2
    assert max(sizes) == PIECE and len(sizes) == 4
    fits = orjson.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": {"a": "x" * 2_000_000}})
    assert check_input(Input(fits + b"\n" + fits.replace(b'"a",', b'"b",')), batch, longest, 300_000) == ([], 2)


def test_a_large_answer_of_a_batch_leaves_the_hub(hub_time, tmp_path):
    """Embeddings of 500 texts were parsed, and written into the journal number by number."""
    shelf = FolderShelf(tmp_path)
    store = BatchStore(shelf)
    batch = store.create(StoredBatch("batch_" + "0" * 36, "ann", "openai", CHAT, 0, 2**40), [b"{}"])
    data = [{"index": n, "embedding": [0.1234567 + n] * 1_000} for n in range(100)]
    body = orjson.dumps({"object": "list", "data": data})
    active = ActiveBatch(batch, store)
    with hub_time:
        active.answer(InputLine(1, "a", b"{}"), Answer(200, "r", body, Usage(prompt_tokens=7)))
        active.recount()
        (entry,) = read_journal(store.journal_of(batch))
        line = answer_line("x", *entry[1:5])
    active.close()
    assert orjson.loads(line)["response"]["body"]["data"] == data
    assert active.counted(batch).usage["input_tokens"] == 7 and active.counted(batch).succeeded == 1


HANDSHAKE = {
    "SERVER_PROTOCOL": "HTTP/1.1", "HTTP_UPGRADE": "websocket", "HTTP_CONNECTION": "Upgrade",
    "HTTP_SEC_WEBSOCKET_KEY": "dGhlIHNhbXBsZSBub25jZQ==", "HTTP_SEC_WEBSOCKET_VERSION": "13",
}  # fmt: skip


class Sink:
    def __init__(self):
        self.sent = []

    def sendall(self, data):
        self.sent.append(len(data))


def test_a_large_message_of_a_socket_leaves_the_hub(hub_time):
    """A conversation's item of 4 MB took it 21 ms, most of it for the frame."""
    sink = Sink()
    socket = WebSocket(sink, HANDSHAKE, None, most_bytes=1, write_timeout=5)
    socket.accept()
    message = orjson.dumps({"item": "\u20ac" * 5_000_000})
    with hub_time:
        socket.send(message)
    assert sink.sent[-1] > len(message)
