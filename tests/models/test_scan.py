"""A folder of models: what is one, what it is called, what belongs to it."""

from __future__ import annotations

import logging

import pytest
from models.test_gguf import write_model

from llamasrv.errors import ConfigError, Forbidden
from llamasrv.models.remove import remove
from llamasrv.models.scan import scan, split_name


@pytest.fixture
def put(tmp_path):
    """Writes model files into the folder."""

    def write(*names, **metadata):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_model(path, **metadata)

    return write


def names(folder):
    return {one.name: set(one.aliases) for one in scan(folder)}


def test_a_file_is_called_by_its_name_and_its_quantisation(put, tmp_path):
    put("Qwen2.5-7B-Instruct-Q4_K_M.gguf")
    (one,) = scan(tmp_path)
    assert one.name == "Qwen2.5-7B-Instruct:Q4_K_M"
    assert set(one.aliases) == {
        "Qwen2.5-7B-Instruct-Q4_K_M",
        "Qwen2.5-7B-Instruct",
        "A-tiny-model:Q4_K_M",
        "A-tiny-model",
    }


@pytest.mark.parametrize(
    ("stem", "parts"),
    [
        ("model", ("model", "")),
        ("model-q8_0", ("model", "q8_0")),
        ("model.Q8_0", ("model", "Q8_0")),
        ("Model-UD-IQ2_XXS", ("Model", "UD-IQ2_XXS")),
        ("gpt-oss-20b-mxfp4", ("gpt-oss-20b", "mxfp4")),
        ("all-MiniLM-L6-v2-F16", ("all-MiniLM-L6-v2", "F16")),
        ("Q8_0", ("Q8_0", "")),
        ("phi-2", ("phi-2", "")),
    ],
)
def test_names_are_taken_apart(stem, parts):
    assert split_name(stem) == parts


def test_an_ambiguous_name_belongs_to_no_file(put, tmp_path):
    put("m-Q8_0.gguf", "m-Q4_0.gguf")
    assert names(tmp_path) == {"m:Q8_0": {"m-Q8_0", "A-tiny-model:Q8_0"}, "m:Q4_0": {"m-Q4_0", "A-tiny-model:Q4_0"}}


def test_a_name_can_be_shown_whatever_bytes_its_file_has(put, tmp_path):
    """One such file, and every list of models was a 500; in a terminal others changed its colours."""
    put("bad\udcff-Q8_0.gguf", "new\nline.gguf", "esc\x1b[31m.gguf", " .gguf", "ünï.gguf")
    assert set(names(tmp_path)) == {"bad_:Q8_0", "new_line", "esc_[31m", "_", "ünï"}
    assert all(alias.isprintable() for aliases in names(tmp_path).values() for alias in aliases)


def test_equal_file_names_are_reported_apart_by_their_folders(put, tmp_path):
    put("one/m.gguf", "two/m.gguf")
    assert set(names(tmp_path)) == {"one/m", "two/m"}


def test_a_folder_of_its_own_is_a_name_of_a_model(put, tmp_path):
    """llama-server knows a model in a folder by the folder; its clients found none of that name here."""
    put("mine/model.gguf", "mine/mmproj-model.gguf", "two/a.gguf", "two/b.gguf")
    found = names(tmp_path)
    assert "mine" in found["model"] and not any("two" in aliases for aliases in found.values())


def test_what_was_pulled_is_found_by_its_repository(put, tmp_path):
    put("Org/Repo-GGUF/m-Q8_0.gguf", "Org/Repo-GGUF/m-Q4_0.gguf")
    found = names(tmp_path)
    assert {"Org/Repo-GGUF:Q8_0", "hf.co/Org/Repo-GGUF:Q8_0"} <= found["m:Q8_0"]


def test_in_the_hubs_own_cache_a_model_goes_by_its_repository(put, tmp_path):
    """llama-server lists its cache so: OWNER/REPO:QUANT, of the snapshot that is the latest."""
    put("models--me--m-GGUF/snapshots/abc/m-Q8_0.gguf", "models--me--m-GGUF/snapshots/old/m-Q8_0.gguf")
    (tmp_path / "models--me--m-GGUF" / "refs").mkdir()
    (tmp_path / "models--me--m-GGUF" / "refs" / "main").write_text("abc")
    (one,) = scan(tmp_path)
    assert one.name == "me/m-GGUF:Q8_0" and "abc" in str(one.header.path)
    assert {"me/m-GGUF", "m:Q8_0", "hf.co/me/m-GGUF:Q8_0"} <= set(one.aliases)


def test_a_split_model_is_one(put, tmp_path):
    put("big-Q8_0-00001-of-00002.gguf", "big-Q8_0-00002-of-00002.gguf", split__count=2)
    (one,) = scan(tmp_path)
    assert one.name == "big:Q8_0" and len(one.details.parts) == 2


def test_what_is_not_whole_is_not_there(put, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("llamasrv"), "propagate", True)
    put("half-00001-of-00002.gguf", split__count=2)
    put("good.gguf", ".partial/hidden.gguf")
    whole = (tmp_path / "good.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "page.gguf").write_text("<html>404</html>")
    (tmp_path / "good.gguf.part").write_bytes(whole)
    (tmp_path / "vocab.gguf").write_bytes((tmp_path / "good.gguf").read_bytes())
    write_model(tmp_path / "vocab.gguf", tensors=0)
    assert set(names(tmp_path)) == {"good"}
    assert all(name in caplog.text for name in ("cut.gguf", "empty.gguf", "page.gguf"))


def test_a_projector_belongs_to_the_model_beside_it(put, tmp_path):
    put("gemma/gemma-Q8_0.gguf", "gemma/mmproj-F32.gguf", "gemma/mmproj-F16.gguf", "plain/plain.gguf")
    projectors = {one.name: one.details.projector for one in scan(tmp_path)}
    assert projectors == {"gemma:Q8_0": tmp_path / "gemma/mmproj-F16.gguf", "plain": None}


def test_where_all_lie_together_a_projector_is_recognised_by_its_name(put, tmp_path):
    put("gemma-Q8_0.gguf", "gemma-mmproj-F16.gguf", "qwen-Q8_0.gguf")
    projectors = {one.name: one.details.projector for one in scan(tmp_path)}
    assert projectors == {"gemma:Q8_0": tmp_path / "gemma-mmproj-F16.gguf", "qwen:Q8_0": None}


def test_a_link_that_leads_in_circles_ends(put, tmp_path):
    put("m.gguf")
    (tmp_path / "again").symlink_to(tmp_path)
    assert len(scan(tmp_path)) <= 2


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a folder"):
        scan(tmp_path / "none")


# Deleting


def test_deleting_takes_all_parts_and_empty_folders(put, tmp_path):
    put("org/repo/m-00001-of-00002.gguf", "org/repo/m-00002-of-00002.gguf", split__count=2)
    put("other.gguf")
    found = {one.name: one for one in scan(tmp_path)}
    assert len(remove(found["m"].details, tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["other.gguf"]


def test_a_projector_that_another_model_needs_stays(put, tmp_path):
    put("g/g-Q8_0.gguf", "g/g-Q4_0.gguf", "g/mmproj.gguf")
    found = {one.name: one for one in scan(tmp_path)}
    remove(found["g:Q8_0"].details, tmp_path)
    assert (tmp_path / "g/mmproj.gguf").is_file()
    remove(found["g:Q4_0"].details, tmp_path)
    assert not (tmp_path / "g").exists()


def test_nothing_outside_of_the_folder_is_deleted(put, tmp_path):
    put("inside/m.gguf", "outside.gguf")
    found = {one.name: one for one in scan(tmp_path)}
    with pytest.raises(Forbidden):
        remove(found["outside"].details, tmp_path / "inside")
    assert (tmp_path / "outside.gguf").is_file()


def test_a_link_is_deleted_and_not_what_it_leads_to(put, tmp_path):
    put("store/m.gguf")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "m.gguf").symlink_to(tmp_path / "store/m.gguf")
    (one,) = scan(folder)
    remove(one.details, folder)
    assert not (folder / "m.gguf").is_symlink() and (tmp_path / "store/m.gguf").is_file()
