"""Routes that change models, over Flask's test client: off by default, strict, and in Ollama's words."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import threading
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from model import tiny_models

from llamasrv.errors import Unavailable
from llamasrv.models import derived, gguf
from llamasrv.models.derived import DerivedModel
from llamasrv.models.details import Details
from llamasrv.models.model import Model
from llamasrv.web.routes import ollama_manage
from llamasrv.web.service import WebOptions

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).parents[1] / "models" / "hub.py")
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)

MODEL = b"GGUF" + random.Random(1).randbytes(100_000)
DIGEST = "sha256:" + hashlib.sha256(MODEL).hexdigest()
ROUTES = [
    ("POST", "/api/copy", {"source": "fake", "destination": "b"}),
    ("POST", "/api/create", {"model": "b", "from": "fake"}),
    ("DELETE", "/api/delete", {"model": "fake"}),
    ("POST", "/api/pull", {"model": "hf.co/o/r"}),
    ("POST", f"/api/blobs/{DIGEST}", {}),
]


@pytest.fixture
def manager(start, tmp_path):
    manager = start(web=WebOptions(manage=True, folder=tmp_path))
    manager.refreshed = []
    manager.service.refresh = manager.service.pulls.on_pulled = lambda: manager.refreshed.append(True)
    return manager


@pytest.fixture
def managing(manager):
    return manager.client


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with fake_hub.running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / ".home"))
        yield server


def error(response):
    body = response.get_json()
    assert set(body) == {"error"} and type(body["error"]) is str
    return body["error"]


@pytest.mark.parametrize("method, path, body", ROUTES)
def test_models_are_not_managed_unless_the_operator_allows_it(client, method, path, body):
    response = client.open(path, method=method, json=body)
    assert response.status_code == 403 and "--models-manage" in error(response)


# Blobs


def test_a_file_is_brought_once(managing, tmp_path):
    assert managing.head(f"/api/blobs/{DIGEST}").status_code == 404
    assert managing.post(f"/api/blobs/{DIGEST}", data=MODEL).status_code == 201
    assert derived.blob(tmp_path, DIGEST).read_bytes() == MODEL
    assert managing.head(f"/api/blobs/{DIGEST}").status_code == 200
    assert managing.post(f"/api/blobs/{DIGEST}", data=MODEL).status_code == 200


def test_another_file_than_was_announced_is_refused(managing, tmp_path):
    response = managing.post(f"/api/blobs/{DIGEST}", data=b"other")
    assert response.status_code == 400 and "mismatch" in error(response)
    assert managing.post("/api/blobs/md5:0", data=b"other").status_code == 400
    assert not list((tmp_path / ".blobs").iterdir())


def test_a_file_that_breaks_off_is_refused_and_nothing_of_it_stays(managing, tmp_path):
    class Broken:
        def read(self, most):
            raise ValueError("chunks that are none")

    short = {"wsgi.input": BytesIO(b"GG"), "CONTENT_LENGTH": "9"}
    broken = {"wsgi.input": Broken(), "CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    for environ in (short, broken):
        response = managing.post(f"/api/blobs/{DIGEST}", environ_overrides=environ)
        assert response.status_code == 400 and error(response)
    assert not list((tmp_path / ".blobs").iterdir())


# Create, copy, delete


@pytest.mark.parametrize(
    "body, status, words",
    [
        ({"from": "other"}, 404, "model 'other' not found"),
        ({"from": "fake"}, 400, "has no file"),
        ({"files": {"m.gguf": DIGEST}}, 400, "upload it first"),
        ({"from": "fake", "template": "{{ .Prompt }}"}, 400, "Jinja"),
        ({"from": "fake", "quantize": "q9"}, 400, "unknown type 'q9'"),
        ({"from": "fake", "quantize": "q4_0"}, 400, "has no file"),
        ({"from": "fake", "adapters": {"a": DIGEST}}, 400, "adapters"),
        ({"from": "fake", "model": "../b"}, 400, "not a valid model name"),
        ({}, 400, "what to create the model from"),
    ],
)
def test_what_no_model_can_be_made_of_is_refused(managing, body, status, words):
    response = managing.post("/api/create", json={"model": "b", **body})
    assert response.status_code == status and words in error(response)


def test_few_templates_are_tried_at_once(monkeypatch):
    """Each takes up to a gigabyte and a core: as many processes ran as clients asked for."""
    running, over, places = [], threading.Event(), threading.Semaphore(0)

    def try_template(source):
        running.append(source)
        places.release()
        assert over.wait(30)

    monkeypatch.setattr(ollama_manage, "try_template", try_template)
    trials = ollama_manage.TemplateTrials(2, wait_seconds=0.01)
    threads = [threading.Thread(target=trials.check, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
        assert places.acquire(timeout=30)
    with pytest.raises(Unavailable, match="busy trying other templates"):
        trials.check("c")
    over.set()
    for thread in threads:
        thread.join(30)
    trials.check("d")
    assert running == ["a", "b", "d"]


def test_a_file_that_is_no_model_is_refused(managing):
    managing.post(f"/api/blobs/{DIGEST}", data=MODEL)
    response = managing.post("/api/create", json={"model": "b", "files": {"m.gguf": DIGEST}})
    assert response.status_code == 400 and "not a GGUF model" in error(response)


# Quantise


@pytest.fixture
def blob_of(managing, tmp_path):
    """Brings a tiny model and answers with the digest of its file."""

    def bring(**shape):
        data = tiny_models.llama(tmp_path / "base.gguf", **shape).read_bytes()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert managing.post(f"/api/blobs/{digest}", data=data).status_code == 201
        return digest

    return bring


def test_a_model_is_made_in_another_number_format(managing, blob_of, tmp_path):
    body = {"model": "small", "files": {"m.gguf": blob_of()}, "quantize": "q8_0"}
    lines = [json.loads(line) for line in managing.post("/api/create", json=body).data.splitlines()]
    assert lines[-1] == {"status": "success"} and lines[-2]["status"] == "writing manifest"
    steps = [line for line in lines if line["status"] == "quantizing F32 model to Q8_0"]
    assert len(steps) > 3 and steps[-1]["completed"] == steps[-1]["total"] > 3
    (one,) = derived.read(tmp_path)
    assert one.name == "small" and gguf.read_header(one.file(tmp_path)).file_type == "Q8_0"
    assert sorted(path.name for path in (tmp_path / ".blobs").iterdir()) == sorted(
        [one.file(tmp_path).name, derived.blob(tmp_path, body["files"]["m.gguf"]).name]
    )


def test_what_is_quantised_already_is_refused(managing, blob_of, tmp_path):
    body = {"model": "small", "files": {"m.gguf": blob_of()}, "quantize": "q8_0", "stream": False}
    assert managing.post("/api/create", json=body).get_json() == {"status": "success"}
    again = f"sha256:{derived.read(tmp_path)[0].file(tmp_path).name.removeprefix('sha256-')}"
    response = managing.post("/api/create", json={**body, "model": "smaller", "files": {"m.gguf": again}})
    assert response.status_code == 400 and "the model is Q8_0 already" in error(response)


def test_one_is_quantised_at_a_time(managing, blob_of):
    body = {"model": "small", "files": {"m.gguf": blob_of(layers=20)}, "quantize": "q8_0"}
    first = managing.post("/api/create", json=body, buffered=False)
    next(first.iter_encoded())
    response = managing.post("/api/create", json=body)
    assert response.status_code == 503 and "Another model is being quantised" in error(response)
    first.close()


def test_a_client_that_leaves_ends_it(managing, blob_of, tmp_path):
    body = {"model": "small", "files": {"m.gguf": blob_of(layers=20)}, "quantize": "q8_0"}
    response = managing.post("/api/create", json=body, buffered=False)
    next(response.iter_encoded())
    response.close()
    assert derived.read(tmp_path) == [] and len(list((tmp_path / ".blobs").iterdir())) == 1
    again = {"model": "small", "files": {"m.gguf": blob_of()}, "quantize": "q8_0", "stream": False}
    assert managing.post("/api/create", json=again).get_json() == {"status": "success"}


def test_a_made_model_is_forgotten_and_its_file_stays(manager, tmp_path):
    one = DerivedModel("fake", "base", "base.gguf")
    (tmp_path / "base.gguf").write_bytes(b"GGUF")
    derived.write(tmp_path, one)
    model = manager.service.registry.default
    model.settings = replace(model.settings, derived=one)
    assert manager.client.delete("/api/delete", json={"name": "FAKE"}).data == b""
    assert derived.read(tmp_path) == [] and manager.refreshed and (tmp_path / "base.gguf").exists()


def test_a_model_that_others_are_made_of_is_not_deleted(manager, tmp_path, monkeypatch):
    path = tmp_path / "base.gguf"
    monkeypatch.setattr(Model, "details", Details(path=path, parts=(path,)))
    derived.write(tmp_path, DerivedModel("derived", "fake", "base.gguf"))
    response = manager.client.delete("/api/delete", json={"model": "fake"})
    assert response.status_code == 400 and "derived was created from it" in error(response)


def test_a_model_of_the_configuration_is_not_deleted(managing):
    assert managing.delete("/api/delete", json={"model": "fake"}).status_code == 403
    assert managing.delete("/api/delete", json={"model": "other"}).status_code == 404


def test_what_answers_to_every_name_is_not_deleted_under_any(start, tmp_path):
    client = start(aliases=("*",), web=WebOptions(manage=True, folder=tmp_path)).client
    assert client.post("/api/show", json={"model": "whatever"}).status_code == 200
    assert client.delete("/api/delete", json={"model": "whatever"}).status_code == 404


def test_the_name_of_another_model_is_not_taken(manager, tmp_path, monkeypatch):
    monkeypatch.setattr(Model, "details", Details(path=tmp_path / "base.gguf"))
    for body in ({"source": "fake", "destination": "ALIAS"}, {"source": "fake", "destination": "fake:latest"}):
        response = manager.client.post("/api/copy", json=body)
        assert response.status_code == 400 and "already names a model" in error(response)
    assert manager.client.post("/api/copy", json={"source": "fake", "destination": "new"}).status_code == 200
    assert [one.path for one in derived.read(tmp_path)] == ["base.gguf"]


def test_models_are_not_pushed(managing):
    assert managing.post("/api/push", json={"model": "fake"}).status_code == 400


# Pull


def lines(response):
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.data.splitlines()]


def test_a_pull_is_reported_line_by_line(manager, hub, tmp_path):
    hub.files["o/r"] = {"m-Q8_0.gguf": MODEL}
    found = lines(manager.client.post("/api/pull", json={"model": "hf.co/o/r:Q8_0"}))
    statuses = [line["status"] for line in found]
    assert statuses[0] == "pulling manifest" and statuses[-2:] == ["writing manifest", "success"]
    short = DIGEST.partition(":")[2][:12]
    assert {f"pulling {short}", "verifying sha256 digest"} <= set(statuses)
    last = [line for line in found if line["status"] == f"pulling {short}"][-1]
    assert last["digest"] == DIGEST and last["total"] == len(MODEL)
    assert (tmp_path / "o/r/m-Q8_0.gguf").read_bytes() == MODEL and manager.refreshed


def test_a_pull_may_be_reported_only_at_its_end(manager, hub):
    hub.files["o/r"] = {"m-Q8_0.gguf": MODEL}
    response = manager.client.post("/api/pull", json={"model": "hf.co/o/r", "stream": False})
    assert response.get_json() == {"status": "success"}


def test_a_pull_that_fails_says_so_in_a_line(manager, hub):
    *_, last = lines(manager.client.post("/api/pull", json={"model": "hf.co/no/body"}))
    assert set(last) == {"error"} and "no/body" in last["error"]
    response = manager.client.post("/api/pull", json={"model": "hf.co/no/body", "stream": False})
    assert response.status_code == 404 and "no/body" in error(response)


def test_a_pull_without_a_hub_is_a_502_that_says_what_to_do(manager, monkeypatch):
    """It was a 500, as if the server had failed."""
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@127.0.0.1:1")
    response = manager.client.post("/api/pull", json={"model": "hf.co/o/r", "stream": False})
    assert response.status_code == 502
    said = error(response)
    assert "cannot reach the Hub at http://127.0.0.1:1: check this machine's network" in said and "secret" not in said
    *_, last = lines(manager.client.post("/api/pull", json={"model": "hf.co/o/r"}))
    assert last == {"error": said}
    response = manager.client.post("/api/pull", json={"model": "127.0.0.1:9/library/llama3.2", "stream": False})
    assert response.status_code == 502 and "check this machine's network" in error(response)


@pytest.mark.parametrize("name", ["fake", "FAKE:latest", "alias"])
def test_a_pull_of_what_is_served_has_succeeded(client, name):
    """Clients pull before they ask; where managing is off that was a 403, else a name that is no repository."""
    assert [line["status"] for line in lines(client.post("/api/pull", json={"model": name}))][-1] == "success"
    response = client.post("/api/pull", json={"model": name, "stream": False})
    assert response.get_json() == {"status": "success"}


def test_a_pull_of_what_only_the_catch_all_answers_to_is_a_pull(start):
    client = start(aliases=("*",)).client
    assert client.post("/api/pull", json={"model": "llama3"}).status_code == 403


def test_a_pull_that_fails_has_one_line_of_an_error_and_it_is_the_last(manager, hub):
    told = ["error" in line for line in lines(manager.client.post("/api/pull", json={"model": "hf.co/no/body"}))]
    assert told == [False] * (len(told) - 1) + [True]


def test_a_name_that_is_no_repository_is_refused_at_once(managing):
    response = managing.post("/api/pull", json={"model": "../llama3"})
    assert response.status_code == 400 and "llama3" in error(response)
