"""Pulling from a Hub that imitates the real one, through the real client."""

import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llamasrv.models import pull as pulling
from llamasrv.models.pull import PullFailed, Reference, RemoteFile, choose, has_quant, pull

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).with_name("hub.py"))
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)

MEGABYTE = 2**20


def content(size, seed=1):
    return b"GGUF" + random.Random(seed).randbytes(size - 4)


@pytest.fixture
def hub():
    with fake_hub.running() as server:
        yield server


@pytest.fixture
def get(hub, tmp_path, monkeypatch):
    """`get("hf:o/r")` pulls into a folder of the test's own; `get.seen` is the progress of the last one."""

    monkeypatch.setattr(os, "fsync", lambda fd: None)  # what only a power cut could lose is not waited for

    def pull_here(name):
        pull_here.seen = []
        return pull(name, tmp_path / "models", report=pull_here.seen.append, endpoint=hub.url)

    return pull_here


def listed(folder):
    """What a scan would find: all names that are not hidden."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not any(step.startswith(".") for step in path.relative_to(folder).parts)
    )


# Names


@pytest.mark.parametrize(
    "text, expected",
    [
        ("hf:owner/repo", ("owner/repo", "", "main")),
        ("owner/repo:Q4_K_M", ("owner/repo", "Q4_K_M", "main")),
        ("hf.co/owner/repo:latest", ("owner/repo", "", "main")),
        ("https://huggingface.co/owner/repo.v1-GGUF", ("owner/repo.v1-GGUF", "", "main")),
        ("hf:owner/repo@refs/pr/1:sub/model.gguf", ("owner/repo", "sub/model.gguf", "refs/pr/1")),
    ],
)
def test_a_name_is_a_repository_and_what_is_wanted_of_it(text, expected):
    reference = Reference.parse(text)
    assert (reference.repo, reference.wanted, reference.revision) == expected


@pytest.mark.parametrize(
    "text", ["", "repo", "a/b/c", "hf:../etc", "hf:o/..", "o/r:../x", "o /r", "hf:o/r:", "x" * 500]
)
def test_other_names_are_refused(text):
    with pytest.raises(PullFailed, match="hf:owner/repo"):
        Reference.parse(text)


def files(*paths):
    return [RemoteFile(path, 10, "sha256:" + "0" * 64) for path in paths]


def chosen(name, *paths):
    return [file.path for file in choose(files(*paths), Reference.parse(name))]


def test_the_usual_quantisation_is_taken_where_none_is_named():
    assert chosen("o/r", "m-F16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md") == ["m-Q4_K_M.gguf"]
    assert chosen("o/r", "m-F16.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    assert chosen("o/r", "only.gguf") == ["only.gguf"]


def test_a_quantisation_is_a_word_of_the_name():
    assert chosen("o/r:q4_k", "m-Q4_K_M.gguf", "m-Q4_K.gguf") == ["m-Q4_K.gguf"]
    assert has_quant("m.Q4_K_M.gguf", "q4_k_m") and not has_quant("m-IQ4_XS.gguf", "Q4_XS")


def test_a_file_can_be_named():
    assert chosen("o/r:m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]


def test_a_split_model_is_all_its_parts():
    parts = [f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert chosen("o/r:Q8_0", "m-Q4_K_M.gguf", *reversed(parts)) == parts
    with pytest.raises(PullFailed, match="part .*00002-of-00003.* is missing"):
        chosen("o/r:Q8_0", parts[0], parts[2])


def test_a_projector_for_images_comes_with_its_model():
    there = ["m-Q4_K_M.gguf", "mmproj-F32.gguf", "mmproj-m-F16.gguf"]
    assert chosen("o/r", *there) == ["m-Q4_K_M.gguf", "mmproj-m-F16.gguf"]


def test_names_that_leave_the_folder_are_not_seen():
    with pytest.raises(PullFailed, match="no GGUF file"):
        chosen("o/r", "../../m.gguf", "/m.gguf", ".hidden/m.gguf", "a//m.gguf")


# Fetching


def test_it_brings_a_model_with_what_belongs_to_it(hub, get, tmp_path):
    hub.files["o/r"] = {
        "m-Q8_0-00001-of-00002.gguf": content(2 * MEGABYTE),
        "m-Q8_0-00002-of-00002.gguf": content(MEGABYTE, 2),
        "mmproj-F16.gguf": content(1000, 3),
        "m-F16.gguf": content(1000, 4),
    }
    hub.small.add("mmproj-F16.gguf")
    paths = get("hf:o/r:Q8_0")
    assert [path.read_bytes() for path in paths] == list(hub.files["o/r"].values())[:3]
    folder = tmp_path / "models"
    assert listed(folder) == sorted(str(path.relative_to(folder)) for path in paths)
    assert not list((folder / ".partial").iterdir())
    statuses = [progress.status for progress in get.seen]
    assert statuses[0] == "pulling manifest" and statuses[-1] == "success" and "verifying" in statuses
    assert {p.total for p in get.seen if p.file == "mmproj-F16.gguf"} == {1000}


def test_what_is_there_is_not_fetched_again(hub, get):
    hub.files["o/r"] = {"m.gguf": content(MEGABYTE)}
    get("o/r")
    hub.ranges.clear()
    get("o/r")
    assert hub.ranges == []


def test_a_file_of_the_same_size_that_differs_is_fetched_again(hub, get):
    hub.files["o/r"] = {"m.gguf": content(MEGABYTE)}
    (path,) = get("o/r")
    path.write_bytes(content(MEGABYTE, 9))
    get("o/r")
    assert path.read_bytes() == content(MEGABYTE)


def test_a_broken_connection_is_taken_up_again(hub, get):
    hub.files["o/r"] = {"m.gguf": content(3 * MEGABYTE)}
    hub.cut_after = [2 * MEGABYTE + 77]
    (path,) = get("o/r")
    assert path.read_bytes() == content(3 * MEGABYTE)
    assert [start for _, start in hub.ranges] == [0, 2 * MEGABYTE]


def test_a_server_that_cannot_go_on_begins_again(hub, get):
    hub.files["o/r"] = {"m.gguf": content(3 * MEGABYTE)}
    hub.cut_after, hub.takes_ranges = [2 * MEGABYTE + 77], False
    (path,) = get("o/r")
    assert path.read_bytes() == content(3 * MEGABYTE)


def test_a_wrong_checksum_is_refused_and_leaves_nothing(hub, get, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(MEGABYTE)}
    hub.lies["m.gguf"] = content(MEGABYTE, 2)
    with pytest.raises(PullFailed, match="checksum mismatch"):
        get("o/r")
    assert listed(tmp_path / "models") == []
    hub.lies.clear()
    assert get("o/r")[0].read_bytes() == content(MEGABYTE)


def test_a_wrong_checksum_without_lfs_is_refused_too(hub, get):
    hub.files["o/r"] = {"m.gguf": content(1000)}
    hub.small.add("m.gguf")
    hub.lies["m.gguf"] = content(1000, 2)
    with pytest.raises(PullFailed, match="checksum mismatch"):
        get("o/r")


def test_more_bytes_than_announced_are_refused(hub, get, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(MEGABYTE)}
    hub.lies["m.gguf"] = content(2 * MEGABYTE)
    with pytest.raises(PullFailed, match="larger than"):
        get("o/r")
    assert listed(tmp_path / "models") == []


def test_what_is_no_model_is_refused(hub, get):
    hub.files["o/r"] = {"m.gguf": b"<html>sorry</html>"}
    with pytest.raises(PullFailed, match="not a GGUF"):
        get("o/r")


def test_a_disk_that_is_too_small_is_noticed_before(hub, get, monkeypatch):
    hub.files["o/r"] = {"m.gguf": content(MEGABYTE)}
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda path: usage._replace(free=pulling.SPARE + 1000))
    with pytest.raises(PullFailed, match="needs 1.0 MiB, but only 256.0 MiB is free"):
        get("o/r")
    assert hub.ranges == []


def test_abandoned_partial_files_are_removed(hub, get, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(1000)}
    old, new = (tmp_path / "models/.partial" / name for name in ("sha256-old", "sha256-new"))
    old.parent.mkdir(parents=True)
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    get("o/r")
    assert not old.exists() and new.exists()


def test_it_says_what_there_is_not(hub, get):
    hub.files["o/r"] = {"m-Q8_0.gguf": content(1000)}
    hub.gated.add("o/gated")
    for name, message in (
        ("o/none", "no such repository"),
        ("o/gated", "accept its terms"),
        ("o/r@v9", "no such revision"),
        ("o/r:Q2_K", "the repository has no 'Q2_K'; it has m-Q8_0.gguf"),
    ):
        with pytest.raises(PullFailed, match=message):
            get(name)


def test_a_gated_model_is_reported_when_its_file_is_refused(hub, get):
    """The Hub describes such a model to everybody, and gives its files to some."""
    hub.files["o/r"] = {"m.gguf": content(1000)}
    hub.gated_files.add("o/r")
    with pytest.raises(PullFailed, match="accept its terms"):
        get("o/r")


def test_a_hub_that_does_not_answer_is_a_line(tmp_path):
    with pytest.raises(PullFailed, match="cannot reach the Hub"):
        pull("o/r", tmp_path, endpoint="http://127.0.0.1:1")


# As a process of its own


def command(hub, tmp_path, *arguments, **options):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LLAMASRV_")}
    return subprocess.Popen(
        [sys.executable, "-m", "llamasrv", "pull", "hf:o/r", "--models-dir", str(tmp_path / "models"), *arguments],
        env={**environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_test", "HF_HOME": str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_the_command_prints_where_the_model_is(hub, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(1000)}
    out, err = (process := command(hub, tmp_path)).communicate(timeout=60)
    assert process.returncode == 0 and out == f"{tmp_path}/models/o/r/m.gguf\n"
    assert "100 %" in err
    assert {token for _, token in hub.asked} == {"Bearer hf_test"}
    assert all("o/r/" in path for path, _ in hub.asked), "it asked for more than the model"


def test_killed_in_the_middle_it_lists_nothing_and_goes_on_later(hub, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(4 * MEGABYTE)}
    hub.hold_after = 3 * MEGABYTE
    process = command(hub, tmp_path, "--json")
    for line in process.stdout:
        if '"pulling"' in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert listed(tmp_path / "models") == []
    hub.hold_after = None
    hub.go_on.set()
    process = command(hub, tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert Path(out.strip()).read_bytes() == content(4 * MEGABYTE)
    assert hub.ranges[-1][1] >= MEGABYTE


def test_a_write_that_fails_is_a_line_and_the_next_pull_goes_on(hub, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(4 * MEGABYTE)}
    small = command(
        hub, tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MEGABYTE, 2 * MEGABYTE))
    )
    _, err = small.communicate(timeout=60)
    assert small.returncode == 69 and "too large" in err and "Traceback" not in err
    assert listed(tmp_path / "models") == []
    whole = command(hub, tmp_path)
    out, _ = whole.communicate(timeout=60)
    assert Path(out.strip()).read_bytes() == content(4 * MEGABYTE) and hub.ranges[-1][1] == 2 * MEGABYTE


def test_two_at_once_do_not_write_over_each_other(hub, tmp_path):
    hub.files["o/r"] = {"m.gguf": content(2 * MEGABYTE)}
    hub.hold_after = MEGABYTE
    first = command(hub, tmp_path, "--json")
    for line in first.stdout:
        if '"pulling"' in line:
            break
    second = command(hub, tmp_path)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 69 and "another process is fetching" in err
    hub.go_on.set()
    first.communicate(timeout=60)
    assert first.returncode == 0


# Pull and serve in one command


def test_serve_fetches_the_repository_that_it_is_given(hub, tmp_path):
    from llamasrv.commands.pull import fetch
    from llamasrv.config import load
    from llamasrv.errors import ConfigError

    hub.files["o/r"] = {"m-Q4_K_M.gguf": content(MEGABYTE), "m-Q8_0.gguf": content(MEGABYTE, 2)}
    flags = {"model_hf_repo": "o/r:Q8_0", "models_dir": tmp_path / "models"}
    fetch(load({**flags, "model_offline": True}, environ={}), endpoint=hub.url)
    assert pulling.pulled("hf:o/r:Q8_0", tmp_path / "models") is None
    fetch(load(flags, environ={}), endpoint=hub.url)
    assert pulling.pulled("hf:o/r:Q8_0", tmp_path / "models").read_bytes() == hub.files["o/r"]["m-Q8_0.gguf"]
    hub.ranges.clear()
    fetch(load(flags, environ={}), endpoint=hub.url)
    assert hub.ranges == []
    with pytest.raises(ConfigError, match="model.hf_repo = 'o/none'"):
        fetch(load({**flags, "model_hf_repo": "o/none"}, environ={}), endpoint=hub.url)
