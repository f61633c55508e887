"""A home folder with models where other programs keep them: LM Studio, the Hub, llama.cpp and Ollama, whole and broken."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import gguf
import pytest
import tiny_models
import tiny_projectors

from llamasrv.domain.option import PREFIX

OLD, NEW = "1" * 40, "2" * 40  # commits
LAYER = "application/vnd.ollama.image."

SERVED = {
    # LM Studio
    "studio:Q8_0": "lmstudio",
    "older:Q8_0": "lmstudio",
    "parted:Q8_0": "lmstudio",
    # the Hub's cache, links to blobs
    "acme/linked-GGUF:Q8_0": "hub",
    "acme/parted-GGUF:Q4_0": "hub",
    # llama.cpp's own cache, before it moved to the Hub's layout
    "acme/cached-GGUF:Q8_0": "llama.cpp",
    "loose:Q8_0": "llama.cpp",
    # Ollama
    "tiny:latest": "ollama",
    "me/old:1b": "ollama",
    "hf.co/acme/eyes:Q8_0": "ollama",
}
"""The names under which models have to be listed and served, and whose they are."""

NOT_SERVED = ("dangling", "broken", "torn", "cut", "partial")
"""Words of the names of what is there but is not whole."""


def move_in(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Make this the home folder, without folders that other variables name and those of the machine."""
    for name in [n for n in os.environ if n.startswith((PREFIX, "OLLAMA_", "HF_", "LLAMA_", "XDG_"))]:
        patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("OLLAMA_MODELS", str(home / ".ollama" / "models"))


def fill(home: Path) -> None:
    """Put all stores into this home folder."""
    model = tiny_models.llama(home / "model.gguf")
    _lm_studio(home, model)
    _hub(home / ".cache" / "huggingface" / "hub", model)
    _llama_cpp(home / ".cache" / "llama.cpp", model)
    _ollama(home / ".ollama" / "models", model)


def split(model: Path, folder: Path, stem: str) -> list[Path]:
    """The model in two files."""
    reader = gguf.GGUFReader(model)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(None, arch, split_max_tensors=-(-len(reader.tensors) // 2))
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], item)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    folder.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(folder / f"{stem}.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{stem}-*.gguf"))


def _put(model: Path, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(model, path)
    return path


def _lm_studio(home: Path, model: Path) -> None:
    folder = home / ".lmstudio" / "models" / "acme"
    _put(model, folder / "studio-GGUF" / "studio-Q8_0.gguf")
    _put(model, home / ".cache" / "lm-studio" / "models" / "acme" / "older-GGUF" / "older-Q8_0.gguf")
    split(model, folder / "parted-GGUF", "parted-Q8_0")
    split(model, folder / "torn-GGUF", "torn-Q8_0")[1].unlink()
    _put(model, folder / "partial-GGUF" / "partial-Q8_0.gguf.part")
    (folder / "cut-GGUF").mkdir()
    (folder / "cut-GGUF" / "cut-Q8_0.gguf").write_bytes(model.read_bytes()[:2000])


def _hub(cache: Path, model: Path) -> None:
    for name, files in (
        ("linked", {"linked-Q8_0.gguf": model.read_bytes()}),
        ("parted", {p.name: p.read_bytes() for p in split(model, cache.parent, "parted-Q4_0")}),
    ):
        repo = cache / f"models--acme--{name}-GGUF"
        for folder in (repo / "blobs", repo / "refs", repo / "snapshots" / OLD, repo / "snapshots" / NEW):
            folder.mkdir(parents=True)
        (repo / "refs" / "main").write_text(NEW)
        for file, content in files.items():
            blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
            blob.write_bytes(content)
            for commit in (OLD, NEW):
                (repo / "snapshots" / commit / file).symlink_to(Path("../../blobs") / blob.name)
    dangling = cache / "models--acme--dangling-GGUF" / "snapshots" / NEW / "dangling-Q8_0.gguf"
    dangling.parent.mkdir(parents=True)
    dangling.symlink_to("../../blobs/gone")
    for path in cache.parent.glob("parted-*.gguf"):
        path.unlink()


def _llama_cpp(cache: Path, model: Path) -> None:
    _put(model, cache / "acme_cached-GGUF_cached-Q8_0.gguf")
    _put(model, cache / "loose-Q8_0.gguf")
    _put(model, cache / "acme_partial-GGUF_partial-Q8_0.gguf.downloadInProgress")
    (cache / "manifest=acme=cached-GGUF=latest.json").write_text('{"ggufFile": {"rfilename": "cached-Q8_0.gguf"}}')
    (cache / "manifest=acme=broken-GGUF=latest.json").write_text('{"ggufFile": ')


def _ollama(folder: Path, model: Path) -> None:
    (folder / "blobs").mkdir(parents=True)

    def blob(content: bytes, separator: str = "-") -> str:
        digest = hashlib.sha256(content).hexdigest()
        (folder / "blobs" / f"sha256{separator}{digest}").write_bytes(content)
        return f"sha256:{digest}"

    def manifest(name: str, *layers: tuple[str, str]) -> None:
        path = folder / "manifests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"layers": [{"mediaType": LAYER + kind, "digest": digest} for kind, digest in layers]})
        )

    seeing = tiny_projectors.text_model(folder / "seeing.tmp", "gemma3").read_bytes()
    eyes = [tiny_projectors.projector(folder / f"{seed}.tmp", "gemma3", seed=seed).read_bytes() for seed in (3, 4)]
    for path in folder.glob("*.tmp"):
        path.unlink()
    whole = ("model", blob(model.read_bytes()))
    library = "registry.ollama.ai/library"
    manifest(f"{library}/tiny/latest", whole, ("system", blob(b"Be brief.")), ("license", blob(b"MIT")))
    older = tiny_models.llama(folder / "older.tmp", seed=9).read_bytes()
    (folder / "older.tmp").unlink()
    manifest("registry.ollama.ai/me/old/1b", ("model", blob(older, ":")))
    manifest("hf.co/acme/eyes/Q8_0", ("model", blob(seeing)), *(("projector", blob(one)) for one in eyes))
    manifest(f"{library}/dangling/latest", ("model", "sha256:" + "0" * 64))
    manifest(f"{library}/torn/latest", whole, ("params", "sha256:" + "3" * 64))
    (folder / "manifests" / library / "broken").mkdir()
    (folder / "manifests" / library / "broken" / "latest").write_text("{")
