"""The Hub's own cache: found where its library and llama-server look for it."""

from pathlib import Path

import pytest

from llamasrv.models import hub_cache

COMMIT = "0123456789abcdef"


@pytest.mark.parametrize(
    "environ, folder",
    [
        ({"LLAMA_CACHE": "/a", "HF_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/a"),
        ({"HF_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HUGGINGFACE_HUB_CACHE": "/d", "HF_HOME": "/c"}, "/d"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/e"}, "/c/hub"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": "/e"}, "/e/huggingface/hub"),
        ({}, Path.home() / ".cache/huggingface/hub"),
    ],
)
def test_the_first_variable_that_is_set_names_it(environ, folder):
    assert hub_cache.folder(environ) == Path(folder)


@pytest.fixture
def cache(tmp_path):
    here = tmp_path / "models--owner--repo"
    (here / "snapshots" / COMMIT).mkdir(parents=True)
    (here / "refs").mkdir()
    (here / "refs" / "main").write_text(COMMIT + "\n")
    return tmp_path


def test_a_snapshot_is_found_by_branch_or_by_commit(cache):
    wanted = cache / "models--owner--repo" / "snapshots" / COMMIT
    assert hub_cache.snapshot("owner/repo", cache=cache) == wanted
    assert hub_cache.snapshot("owner/repo", COMMIT, cache=cache) == wanted


def test_what_was_not_fetched_is_not_found(cache):
    assert hub_cache.snapshot("owner/other", cache=cache) is None
    assert hub_cache.snapshot("owner/repo", "v2", cache=cache) is None
    (cache / "models--owner--repo" / "refs" / "main").write_bytes(b"\xff")
    assert hub_cache.snapshot("owner/repo", cache=cache) is None


def test_a_reference_does_not_lead_out_of_the_cache(cache):
    """The file of a branch is not ours: a path in it is no commit."""
    (cache / "elsewhere").mkdir()
    (cache / "models--owner--repo" / "refs" / "main").write_text("../../elsewhere")
    assert hub_cache.snapshot("owner/repo", cache=cache) is None
