"""Files that were never loaded go through another process first."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys

import pytest
from model import tiny_models, tiny_projectors

from llamasrv.engine.base.interface import LoadFailed
from llamasrv.models import trial
from llamasrv.models.details import Details, describe
from llamasrv.models.gguf import read_header
from llamasrv.models.trial import Trials, check_files, try_file


def one(tmp_path, name="m"):
    path = tmp_path / f"{name}.gguf"
    path.touch()
    return Details(path=path, digest=f"sha256:{name}")


def test_a_file_is_tried_once(tmp_path):
    tried = []
    trials = Trials(run=lambda path, timeout: tried.append(path.name))
    for name in ("a", "a", "b", "a"):
        trials.check(one(tmp_path, name), 10)
    assert tried == ["a.gguf", "b.gguf"]


def test_a_file_is_tried_again_with_its_projector(tmp_path):
    projector = tiny_projectors.projector(tmp_path / "mmproj.gguf", "llava")
    tried = []
    trials = Trials(run=lambda path, timeout, *projector: tried.append(len(projector)))
    alone = one(tmp_path)
    for details in (
        alone,
        dataclasses.replace(alone, projector=projector),
        dataclasses.replace(alone, projector=projector),
    ):
        trials.check(details, 10)
    assert tried == [0, 1]


def test_a_file_that_has_vanished_or_changed_is_refused(tmp_path):
    """The library's own line says only that loading failed, and what the list says of a model is of its old file."""
    path = tiny_models.llama(tmp_path / "m.gguf")
    details = dataclasses.replace(describe(read_header(path)), projector=tmp_path / "mmproj.gguf")
    with pytest.raises(LoadFailed, match="mmproj.gguf: the file is gone; SIGHUP"):
        check_files(details)
    details = dataclasses.replace(details, projector=None)
    check_files(details)
    tiny_models.llama(path, seed=2)
    with pytest.raises(LoadFailed, match="m.gguf: the file has changed; SIGHUP"):
        check_files(details)
    path.unlink()
    with pytest.raises(LoadFailed, match="m.gguf: the file is gone; SIGHUP"):
        check_files(details)


def test_what_passed_is_remembered_by_the_next_process(tmp_path):
    tried = []
    for version in ("1", "1", "2"):
        Trials(tmp_path / "deep/store", version=version, run=lambda *_: tried.append(1)).check(one(tmp_path), 10)
    assert len(tried) == 2  # another version of the library judges anew


def test_what_failed_is_not_remembered(tmp_path):
    def refuse(path, timeout):
        raise LoadFailed("no")

    for _ in range(2):
        with pytest.raises(LoadFailed):
            Trials(tmp_path / "store", run=refuse).check(one(tmp_path), 10)


def test_without_a_place_to_remember_it_is_tried_all_the_same(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "garbage").write_bytes(b"\xff\xfe\n")
    tried = []
    for store in (tmp_path / "file/store", tmp_path / "garbage"):
        Trials(store, run=lambda *_: tried.append(1)).check(one(tmp_path), 10)
    assert tried == [1, 1]


def test_a_model_without_a_file_needs_no_trial():
    Trials(run=None).check(Details(), 10)


def test_a_good_file_passes(tmp_path):
    try_file(tiny_models.llama(tmp_path / "m.gguf"), 60)


@pytest.mark.parametrize("kind", ["gemma3", "omni"])
def test_a_good_projector_passes(tmp_path, kind):
    text = tiny_projectors.text_model(tmp_path / "m.gguf", kind)
    try_file(text, 60, tiny_projectors.projector(tmp_path / "mmproj.gguf", kind))


def test_a_projector_that_crashes_the_library_is_refused(tmp_path):
    """The library finds tensors by name while it encodes and does not look whether they are there."""
    text = tiny_projectors.text_model(tmp_path / "m.gguf", "qwen2vl")
    path = tiny_projectors.projector(tmp_path / "mmproj.gguf", "qwen2vl")
    path.write_bytes(path.read_bytes().replace(b"v.blk.0.attn_out.weight", b"v.blk.0.attn_xut.weight"))
    with pytest.raises(LoadFailed):
        try_file(text, 60, path)


def test_a_file_that_the_library_refuses_is_reported_with_its_reason(tmp_path):
    path = tiny_models.llama(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"lxama"))
    with pytest.raises(LoadFailed, match="unknown model architecture"):
        try_file(path, 60)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})", "crashed the trial process (SIGKILL)"),
        ("import os; os.abort()", "crashed the trial process (SIGABRT)"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import time; time.sleep(60)", "took more than 1 s"),
    ],
)
def test_a_crash_is_a_refusal(tmp_path, monkeypatch, code, reason):
    real = trial.spawn.run
    monkeypatch.setattr(
        trial.spawn, "run", lambda args, given, **more: real([sys.executable, "-c", code], given, **more)
    )
    with pytest.raises(LoadFailed) as caught:
        try_file(tmp_path / "m.gguf", 1)
    assert reason in str(caught.value)


def test_a_trial_leaves_the_cores_to_models_that_serve(tmp_path, monkeypatch):
    own, real = os.nice(0), trial.spawn.run
    wanted = min(own + trial.spawn.NICE, 19)
    wait = f"while os.nice(0) == {own} and {own} < {wanted}: time.sleep(0.01)"  # it is lowered just after its start
    code = f"import os, time\n{wait}\nraise SystemExit(os.nice(0))"
    monkeypatch.setattr(
        trial.spawn, "run", lambda args, given, **more: real([sys.executable, "-c", code], given, **more)
    )
    with pytest.raises(LoadFailed, match=f"exit code {wanted}"):
        try_file(tmp_path / "m.gguf", 60)


def test_a_file_that_makes_the_library_abort_does_not_end_this_process(tmp_path):
    """The header is right and all data is there, so that only loading it shows what is wrong with it."""
    path = tiny_models.llama(tmp_path / "m.gguf")
    data = bytearray(path.read_bytes())
    at = data.index(b"llama.attention.head_count") + len(b"llama.attention.head_count") + 4
    data[at : at + 4] = (0).to_bytes(4, "little")
    path.write_bytes(data)
    assert describe(read_header(path)).digest
    with pytest.raises(LoadFailed):
        try_file(path, 60)
