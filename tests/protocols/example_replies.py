"""Writes templates/web/example_replies.json: what the fake model answers to the example of each operation.

    python tests/protocols/example_replies.py

`test_openapi.py` compares the file's shape with what is answered today.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/media"), str(ROOT)]

from fake_speech import FakeSpeech  # noqa: E402
from samples import wav  # noqa: E402
from serving import RunningService  # noqa: E402

from llamasrv.config import keys  # noqa: E402
from llamasrv.config.key_file import KeyFile  # noqa: E402
from llamasrv.engine.backend.fake_projector import FakeProjector  # noqa: E402
from llamasrv.engine.base.interface import Adapter  # noqa: E402
from llamasrv.engine.base.options import EngineOptions  # noqa: E402
from llamasrv.pipeline.media import MediaOptions  # noqa: E402
from llamasrv.protocols.operations import OPERATIONS  # noqa: E402
from llamasrv.web.service import WebOptions  # noqa: E402

FILE = ROOT / "templates/web/example_replies.json"
FORM = {"audio_sample": "mia.wav", "file": "hello.wav"}
LINE = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]},
}
MOST_EVENTS, MOST_TEXT, MOST_NUMBERS, MOST_ITEMS = 8, 1200, 4, 3
"""What is shown of a stream, of other text, of a vector and of a list."""
HEADERS = {"Authorization": "Bearer secret-root"}
ORDER = ("POST", "PUT", "GET", "PATCH", "DELETE")
SUCCESS = {"success": True}
BY_HAND: dict[str, object] = {
    "POST /models": SUCCESS,
    "DELETE /models": SUCCESS,
    "POST /models/load": SUCCESS,
    "POST /models/unload": SUCCESS,
    "GET /models/sse": 'data: {"model":"llama","event":"model_status","data":{"status":"loading"}}\n\n'
    'data: {"model":"org/name:Q4_K_M","event":"download_progress","data":{"name.gguf":{"done":1048576,"total":8388608}}}\n\n',
    "POST /api/pull": '{"status":"pulling manifest"}\n{"status":"pulling 0123456789ab","digest":"sha256:0123456789ab",'
    '"total":8388608,"completed":1048576}\n{"status":"success"}\n',
    "POST /api/create": '{"status":"writing manifest"}\n{"status":"success"}\n',
    "POST /tools": {"plain_text_response": "Linux\n\n[exit code: 0]"},
    "GET /v1/stream": 'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","choices":[{"index":0,'
    '"delta":{"content":"Hello"},"finish_reason":null}]}\n\n',
    "POST /v1/batches/<id>/cancel": {"id": "batch_0123456789abcdef", "object": "batch", "status": "cancelling"},
    "POST /v1/messages/batches/<id>/cancel": {
        "id": "msgbatch_0123456789abcdef",
        "type": "message_batch",
        "processing_status": "canceling",
    },
    "POST /admin/requests/<id>/cancel": {"id": "req-0123456789abcdef", "cancelled": 1},
    "GET /admin/configuration": '[server]\nhost = "127.0.0.1"\nport = 8080\napi_key = "***"\n',
    "GET /admin/hub/<path:repo>": {
        "data": [
            {"name": "org/name:Q4_K_M", "quantization": "Q4_K_M", "size": 8388608, "needs": 12582912, "fit": "memory"}
        ]
    },
}
"""What takes a model's file, the Hub, an adapter or an exact moment; or tells of the machine that records it."""
UNREACHABLE = (
    *BY_HAND, "POST /api/copy", "DELETE /api/delete", "POST /api/blobs", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter", "GET /admin/hub", "GET /debug",
    "GET /openapi.json", "DELETE /v1/stream", "GET /cors-proxy", "POST /cors-proxy",
)  # fmt: skip
ADAPTERS = (Adapter("sql", "/models/sql.gguf"),)
BODIES = {
    "POST /props": {},
    "POST /predict": {
        "instances": [{"@requestFormat": "chatCompletions", "messages": [{"role": "user", "content": "Hello"}]}]
    },
    "PUT /ui/history/<id>": {"title": "Greetings", "turns": {"root": {"children": [], "selected": 0}}},
    "POST /v1/conversations/<id>": {"metadata": {"topic": "greetings"}},
    "POST /v1/conversations/<id>/items": {"items": [{"role": "user", "content": "And goodbye"}]},
}
"""Of those that have no example of their own, or need one of this server's."""


def recorded(folder: Path) -> dict[str, object]:
    """Replies by operation."""
    path = folder / "keys.toml"
    path.write_text(keys.entry("root", "secret-root", ["admin", "infer", "embed", "metrics", "tools"], {}))
    (folder / "voices").mkdir()
    (folder / "voices" / "mia.wav").write_bytes(wav(1.5))
    media = MediaOptions(voices=folder / "voices", voice_uploads=3)
    web = WebOptions(
        files_folder=folder / "files",
        files_bytes=1 << 24,
        history_days=30.0,
        tools=("get_info",),
        slots=True,
        props=True,
        predict=True,
        slot_folder=folder,
        keys=tuple(keys.read(path)),
    )
    services = [
        RunningService(web=web, pooling="mean", projector=FakeProjector(), aliases=("llama", "demo")),
        RunningService(
            web=web, pooling="rank", aliases=("llama",), adapters=ADAPTERS, options=EngineOptions(adapters=ADAPTERS)
        ),
        RunningService(speech=FakeSpeech(), web=WebOptions(keys=web.keys, media=media)),
    ]
    services[0].service.key_file = KeyFile(path)
    services[0].service.reread_keys = lambda: tuple(keys.read(path))
    found: dict[str, object] = {}
    try:
        for running in services:
            _walk(running.client, found)
    finally:
        for running in services:
            running.service.pipeline.media.close()
            running.close()
    return {name: (found | BY_HAND)[name] for name in OPERATIONS if name in found or name in BY_HAND}


def _walk(client, found: dict[str, object]) -> None:
    ids = {"/ui/history": "0f8fad5b-d9cb-469f-a165-70867728950e"}  # which the page makes
    for name in sorted(OPERATIONS, key=_place):
        method, path = name.split()
        operation = OPERATIONS[name]
        if (
            name in found
            or name.startswith(UNREACHABLE)
            or path.startswith(UNREACHABLE)
            or operation.status not in (200, 201)
        ):
            continue
        body = BODIES.get(name, operation.example)
        if name == "POST /v1/batches":
            body = {**body, "input_file_id": ids.get("/v1/files")}
        if path.endswith("/cancel"):  # of one that runs
            made = client.post(
                path.removesuffix("/<id>/cancel"),
                json={"model": "fake", "input": "Hello", "background": True},
                headers=HEADERS,
            )
            ids[path.removesuffix("/<id>/cancel") + "/"] = made.get_json()["id"]
        address = _address(path, ids)
        if address is None:
            continue
        headers = HEADERS
        if name == "POST /v1/files":
            data = {"purpose": "batch", "file": (io.BytesIO(json.dumps(LINE).encode()), "batch.jsonl")}
            reply = client.post(address, data=data, headers=headers)
        elif operation.form:
            words = {key: text for key, text in (operation.example or {}).items() if key != operation.form}
            data = {**words, operation.form: (io.BytesIO(wav(1.5)), FORM[operation.form])}
            reply = client.post(address, data=data, headers=headers)
        else:
            reply = client.open(address, method=method, json=body if method != "GET" else None, headers=headers)
        text, kind = reply.get_data(as_text="audio" not in reply.content_type), reply.content_type.partition(";")[0]
        if reply.status_code not in (200, 201):
            if "-v" in sys.argv:
                print(f"{name}: {reply.status_code} {text[:150]!r}")
            continue
        if kind == "application/json":
            value = json.loads(text)
            if isinstance(value, dict):
                made = value.get("id") or value.get("name") or ""
                if method == "POST" and isinstance(made, str):
                    ids.setdefault(path, made.rpartition("/")[2])
                if path.endswith("/items") and value.get("data"):
                    ids[address] = value["data"][-1]["id"]
            found[name] = _short(value)
        elif kind in (
            "text/event-stream",
            "application/x-ndjson",
            "application/x-jsonl",
            "text/plain",
            "application/octet-stream",
        ):
            found[name] = _stable(text[:MOST_TEXT])


def _place(name: str) -> tuple[int, int]:
    """Things are made, shown, changed and deleted, inner ones first."""
    method, path = name.split()
    return ORDER.index(method), -path.count("/") if method == "DELETE" else 0


def _address(path: str, ids: dict[str, str]) -> str | None:
    """The path with ids of what was made before; None where nothing was."""
    if "<path:name>" in path:
        return path.replace("<path:name>", "fake")
    if path.startswith("/slots/"):
        return "/slots/0?action=erase"
    while match := re.search(r"<[^>]+>", path):
        made = ids.get(path[: match.start()] if path.endswith("/cancel") else path[: match.start()].rstrip("/"))
        if made is None:
            return None
        path = path[: match.start()] + made + path[match.end() :]
    return path


def _short(value):
    """Without the length of vectors and lists, and what differs each time."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list):
        most = MOST_NUMBERS if value and isinstance(value[0], float) else MOST_ITEMS
        return [_short(item) for item in value[:most]]
    if isinstance(value, str):
        return _stable(value)
    if isinstance(value, float):
        return round(value, 4)
    return 1_800_000_000 if isinstance(value, int) and value > 1_600_000_000 and not isinstance(value, bool) else value


def _stable(text: str) -> str:
    text = text.replace(str(Path.cwd()), "/srv/llamasrv")
    text = re.sub(r"sk-[\w-]{10,}", "sk-...", text)
    text = re.sub(r"\b([a-z_]+[-_])[0-9a-zA-Z]{20,}\b", r"\g<1>0123456789abcdef", text)
    text = re.sub(r"20\d\d-\d\d-\d\dT[\d:.]+(Z|\+00:00)?", "2030-01-01T00:00:00Z", text)
    text = re.sub(r"\b20\d\d-\d\d-\d\d\b", "2030-01-01", text)
    return re.sub(r"\b1[6-9]\d{8}(\.\d+)?\b", "1800000000", text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        replies = recorded(Path(folder))
    FILE.write_text(json.dumps(replies, indent=1, ensure_ascii=False) + "\n")
    missing = [name for name in OPERATIONS if name not in replies]
    print(f"{len(replies)} of {len(OPERATIONS)}; none for: {', '.join(missing)}")
