"""Pulling from Ollama's registry, made on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from models.test_gguf import write_model

from llamasrv.models import ollama_registry
from llamasrv.models.ollama_registry import RegistryName
from llamasrv.models.pull import CHUNK, PullFailed
from llamasrv.models.pulls import reference
from llamasrv.models.remove import remove
from llamasrv.models.stores import ollama

LAYER = "application/vnd.ollama.image."


class Registry:
    """`blobs` by digest and `manifests` by path; `cut`: the number of bytes after which the next blob breaks off."""

    def __init__(self):
        self.blobs, self.manifests, self.ranges, self.headers = {}, {}, [], []
        self.cut = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                registry.headers.append(dict(self.headers))
                kind, last = self.path.split("/")[-2:]
                content = registry.manifests.get(self.path) if kind == "manifests" else registry.blobs.get(last)
                if content is None:
                    self.send_error(404)
                    return
                start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
                if kind == "blobs":
                    registry.ranges.append(start)
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(content) - start))
                self.end_headers()
                cut, registry.cut = (
                    (registry.cut, None) if kind == "blobs" and len(content) > 1000 else (None, registry.cut)
                )
                self.wfile.write(content[start:][:cut])

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def layer(self, kind, content):
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {"mediaType": LAYER + kind, "digest": digest, "size": len(content)}

    def offer(self, name, layers, **more):
        path, _, tag = name.partition(":")
        self.manifests[f"/v2/{path}/manifests/{tag}"] = json.dumps({"layers": layers, **more}).encode()


@pytest.fixture
def registry():
    made = Registry()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def get(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)

    def pull(name):
        pull.seen = []
        return ollama_registry.pull(RegistryName.parse(f"{registry.host}/{name}"), tmp_path, report=pull.seen.append)

    return pull


@pytest.fixture
def weights(tmp_path) -> bytes:
    path = tmp_path / "model.tmp"
    write_model(path)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2:latest"),
        ("llama3.2:3b", "registry.ollama.ai/library/llama3.2:3b"),
        ("ollama:me/model:q4", "registry.ollama.ai/me/model:q4"),
        ("localhost:5000/me/model", "localhost:5000/me/model:latest"),
        ("hf:owner/repo:Q4_K_M", "hf:owner/repo:Q4_K_M"),
        ("hf.co/owner/repo", "hf:owner/repo"),
        ("owner/repo:Q8_0", "hf:owner/repo:Q8_0"),
    ],
)
def test_names_of_the_registry_and_of_the_hub_are_told_apart(text, full):
    assert reference(text) == full


@pytest.mark.parametrize("text", ["../x", "a/../b", "ollama:a/b/c/d", "x:..", "a b", "ollama:", "/x", "http://x/y/z/1"])
def test_other_names_are_refused(text):
    with pytest.raises(PullFailed):
        reference(text)


def test_a_model_is_pulled_with_its_texts_and_listed(registry, get, weights, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    layers = [
        registry.layer("model", weights),
        registry.layer("params", b'{"top_k": 7}'),
        registry.layer("system", b"Be brief."),
    ]
    registry.offer("library/tiny:1b", layers, config=registry.layer("config", b"{}"))
    (path,) = get("library/tiny:1b")
    assert path.read_bytes() == weights
    (one,) = ollama.models(tmp_path / "ollama")
    assert one.name == f"{registry.host}/library/tiny:1b"
    assert one.texts.system == "Be brief." and one.texts.parameters == {"top_k": 7}
    assert not any("secret" in str(headers) for headers in registry.headers)
    assert get.seen[0].status == "pulling manifest" and get.seen[-1].status == "success"
    registry.ranges.clear()
    get("library/tiny:1b")
    assert registry.ranges == []  # everything is there


def test_an_interrupted_pull_goes_on_where_it_was(registry, get, weights, monkeypatch):
    monkeypatch.setattr("llamasrv.models.pull.time.sleep", lambda seconds: None)
    weights += bytes(2 * CHUNK)
    registry.offer("library/tiny:latest", [registry.layer("model", weights)])
    registry.cut = CHUNK + 600
    (path,) = get("library/tiny")
    assert path.read_bytes() == weights and registry.ranges == [0, CHUNK]


@pytest.mark.parametrize(
    ("layers", "line"),
    [
        ("nothing", "its manifest is malformed"),
        ([{"mediaType": LAYER + "model", "digest": "sha256:../../x", "size": 1}], "its manifest is malformed"),
        ([{"mediaType": LAYER + "model", "digest": "sha256:" + "0" * 64, "size": -1}], "its manifest is malformed"),
        (
            [{"mediaType": LAYER + "params", "digest": "sha256:" + "0" * 64, "size": 1 << 30}],
            "its manifest is malformed",
        ),
        ([], "it has no GGUF file"),
        ([{"mediaType": LAYER + "model", "digest": "sha256:" + "0" * 64, "size": 10}], "404"),
    ],
)
def test_a_manifest_that_cannot_be_followed_leaves_nothing(registry, get, tmp_path, layers, line):
    registry.offer("library/tiny:latest", layers)
    with pytest.raises(PullFailed, match=line):
        get("library/tiny")
    assert not (tmp_path / "ollama" / "manifests").exists()


def test_a_blob_with_other_content_is_discarded(registry, get, weights, tmp_path):
    layer = registry.layer("model", weights)
    registry.blobs[layer["digest"]] = weights[:-1] + b"x"
    registry.offer("library/tiny:latest", [layer])
    with pytest.raises(PullFailed, match="checksum mismatch"):
        get("library/tiny")
    assert not (tmp_path / "ollama" / "manifests").exists()


def test_what_is_not_there_and_who_does_not_answer_is_said(registry, get, tmp_path):
    with pytest.raises(PullFailed, match="no such model or tag"):
        get("library/none")
    with pytest.raises(PullFailed, match=r"cannot reach 127\.0\.0\.1:9 \(Connection refused\)"):
        ollama_registry.pull(RegistryName.parse("127.0.0.1:9/library/x"), tmp_path)


def test_a_pulled_model_is_deleted_with_the_blobs_that_no_other_needs(registry, get, weights, tmp_path):
    shared = registry.layer("system", b"Be brief.")
    registry.offer("library/a:latest", [registry.layer("model", weights), shared])
    registry.offer("library/b:latest", [registry.layer("model", weights + b"\0"), shared])
    get("library/a"), get("library/b")
    one, other = ollama.models(tmp_path / "ollama")
    gone = remove(one.details, tmp_path)
    assert one.header.path in gone and [left.name for left in ollama.models(tmp_path / "ollama")] == [other.name]
    assert (tmp_path / "ollama" / "blobs" / shared["digest"].replace(":", "-")).exists()
    assert all(isinstance(path, Path) for path in gone)
