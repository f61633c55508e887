"""Models that other programs have downloaded: where they are, what they are called, what is skipped."""

from __future__ import annotations

import hashlib
import json
import logging
from functools import partial

import pytest
from models.test_gguf import write_model

from llamasrv.models import stores
from llamasrv.models.scan import warn_once
from llamasrv.models.stores import ollama

LAYER = "application/vnd.ollama.image."


@pytest.fixture
def home(tmp_path):
    warn_once.cache_clear()
    return tmp_path


def found(home, *names, **environ):
    """Without the folders of this machine's own service."""
    mine = {**stores.STORES, "ollama": (partial(ollama.folders, service=()), ollama.models)}
    return {one.name: one for one in stores.models(names or (stores.ALL,), {"HOME": str(home), **environ}, mine)}


class OllamaStore:
    """Writes manifests and blobs as Ollama does."""

    def __init__(self, folder, separator="-"):
        self.folder, self.separator = folder, separator
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        (folder / "manifests").mkdir(exist_ok=True)

    def blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / f"sha256{self.separator}{digest}").write_bytes(content)
        return f"sha256:{digest}"

    def model(self, **metadata) -> str:
        path = self.folder / "model.tmp"
        write_model(path, **metadata)
        content = path.read_bytes()
        path.unlink()
        return self.blob(content)

    def manifest(self, name, layers):
        path = self.folder / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        wire = [{"mediaType": LAYER + kind, "digest": digest, "size": 1} for kind, digest in layers]
        path.write_text(json.dumps({"schemaVersion": 2, "layers": wire}))


@pytest.mark.parametrize("separator", ["-", ":"])
def test_a_model_of_ollama_brings_its_parameters_and_texts(home, separator):
    """Older versions of Ollama wrote sha256: in the names of blobs."""
    store = OllamaStore(home / ".ollama" / "models", separator)
    layers = [
        ("model", store.model()),
        ("params", store.blob(b'{"temperature": 0.25, "stop": ["END"]}')),
        ("system", store.blob(b"Be brief.")),
        ("license", store.blob(b"MIT")),
        ("license", store.blob(b"and more")),
    ]
    store.manifest("registry.ollama.ai/library/llama3.2/3b", layers)
    one = found(home)["llama3.2:3b"]
    assert one.origin == "ollama" and one.header.path.parent == store.folder / "blobs"
    assert one.texts.parameters == {"temperature": 0.25, "stop": ["END"]}
    assert (one.texts.system, one.texts.license) == ("Be brief.", "MIT\nand more")


def test_names_are_those_that_ollama_lists(home):
    store = OllamaStore(home / ".ollama" / "models")
    model = store.model()
    for path in ("registry.ollama.ai/library/a/latest", "registry.ollama.ai/me/b/q4", "hf.co/owner/repo/Q8_0"):
        store.manifest(path, [("model", model)])
    assert {name: one.aliases for name, one in found(home).items()} == {
        "a:latest": ("a",),
        "me/b:q4": (),
        "hf.co/owner/repo:Q8_0": (),
    }


def test_what_cannot_be_served_is_skipped_with_its_reason(home, caplog):
    store = OllamaStore(home / ".ollama" / "models")
    library = "registry.ollama.ai/library"
    good = store.model()
    store.manifest(f"{library}/good/latest", [("model", good)])
    store.manifest(f"{library}/dangling/latest", [("model", "sha256:" + "0" * 64)])
    store.manifest(f"{library}/outside/latest", [("model", "sha256:../../../etc/passwd")])
    store.manifest(f"{library}/two/latest", [("model", good), ("model", good)])
    store.manifest(f"{library}/none/latest", [])
    store.manifest(f"{library}/other/latest", [("model", store.blob(b"not a GGUF file"))])
    store.manifest(f"{library}/params/latest", [("model", good), ("params", store.blob(b"[1]"))])
    (store.folder / "manifests" / library / "broken").mkdir()
    (store.folder / "manifests" / library / "broken" / "latest").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert set(found(home)) == {"good:latest"}
    for name, reason in (
        ("dangling", "is missing; `ollama pull` restores it"),
        ("outside", "is not a digest"),
        ("two", "names 2 model files"),
        ("none", "names no GGUF file"),
        ("other", "not a GGUF"),
        ("params", "parameters or messages are malformed"),
        ("broken", "manifest is malformed"),
    ):
        (line,) = [text for text in caplog.messages if f"{name}:latest" in text]
        assert reason in line


def test_of_two_projectors_the_first_is_used(home):
    store = OllamaStore(home / ".ollama" / "models")
    eyes = [store.model(**{"general.architecture": "clip", "clip.has_vision_encoder": True, "n": n}) for n in (1, 2)]
    store.manifest("registry.ollama.ai/library/a/latest", [("model", store.model()), *(("projector", e) for e in eyes)])
    one = found(home)["a:latest"]
    assert one.details.projector.name == eyes[0].replace(":", "-") and "vision" in one.details.capabilities


def test_variables_name_other_folders(home):
    store = OllamaStore(home / "elsewhere")
    store.manifest("registry.ollama.ai/library/a/latest", [("model", store.model())])
    assert set(found(home, OLLAMA_MODELS=str(home / "elsewhere"))) == {"a:latest"}


def test_lm_studio_may_have_moved_its_folder(home):
    for folder in (home / ".lmstudio", home / "moved"):
        path = folder / "models" / "publisher" / "repo-GGUF" / f"{folder.name.strip('.')}-Q4_K_M.gguf"
        path.parent.mkdir(parents=True)
        write_model(path)
    (home / ".lmstudio-home-pointer").write_text(str(home / "moved"))
    assert set(found(home)) == {"lmstudio:Q4_K_M", "moved:Q4_K_M"}
    assert "publisher/repo-GGUF:Q4_K_M" in found(home)["moved:Q4_K_M"].aliases


def test_files_of_llama_cpp_are_named_by_their_manifest(home):
    folder = home / ".cache" / "llama.cpp"
    folder.mkdir(parents=True)
    write_model(folder / "acme_tiny-GGUF_tiny-Q8_0.gguf")
    write_model(folder / "loose-Q8_0.gguf")
    (folder / "manifest=acme=tiny-GGUF=latest.json").write_text('{"ggufFile": {"rfilename": "tiny-Q8_0.gguf"}}')
    (folder / "manifest=acme=broken=latest.json").write_text('{"ggufFile": null}')
    models = found(home)
    assert set(models) == {"acme/tiny-GGUF:Q8_0", "loose:Q8_0"}
    assert "acme/tiny-GGUF" in models["acme/tiny-GGUF:Q8_0"].aliases


def test_the_hubs_cache_lists_the_latest_snapshot(home):
    repo = home / ".cache" / "huggingface" / "hub" / "models--acme--big-GGUF"
    for commit in ("1" * 40, "2" * 40):
        (repo / "snapshots" / commit).mkdir(parents=True)
        write_model(repo / "snapshots" / commit / "big-Q4_0.gguf")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("2" * 40)
    one = found(home, "hub")["acme/big-GGUF:Q4_0"]
    assert one.origin == "hub" and "2" * 40 in str(one.header.path)


def test_nothing_is_written(home):
    store = OllamaStore(home / ".ollama" / "models")
    store.manifest("registry.ollama.ai/library/a/latest", [("model", store.model())])
    before = sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*"))
    assert found(home)
    assert sorted((path, path.stat().st_mtime_ns) for path in home.rglob("*")) == before


def test_what_is_skipped_is_logged_once(home, caplog):
    """A command reads the stores several times."""
    folder = home / ".lmstudio" / "models" / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "cut.gguf").write_bytes(b"GGUF")
    found(home), found(home)
    assert [text for text in caplog.messages if "cut.gguf" in text] == caplog.messages[:1]
