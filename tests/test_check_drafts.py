"""`llamasrv check` says what drafts come from."""

from __future__ import annotations

import pytest
from model.tiny_models import llama
from options import settings_with

from llamasrv.commands.check import draft_sources
from llamasrv.errors import ConfigError
from llamasrv.models import gguf
from llamasrv.startup import model_options


@pytest.fixture
def tiny(tmp_path):
    return llama(tmp_path / "tiny.gguf")


def told(tiny, **values):
    return draft_sources(settings_with(model_path=tiny, **values), gguf.read_header(tiny))


def test_it_says_where_drafts_come_from(tiny):
    assert told(tiny) == "from prompts, answers and predictions, where they pay"
    assert told(tiny, engine_spec="off") == "off"
    assert told(tiny, engine_deterministic=True) == "off, because --deterministic is set"
    assert str(tiny) in told(tiny, model_draft=tiny)
    assert str(tiny) not in told(tiny, model_draft=tiny, engine_spec="ngram")


def test_a_draft_model_has_to_be_named(tiny):
    with pytest.raises(ConfigError, match="--model-draft"):
        told(tiny, engine_spec="draft")


def test_its_memory_counts(tiny):
    header = gguf.read_header(tiny)
    plain, with_draft = (
        model_options.needed_memory(settings_with(model_path=tiny, engine_ctx_size=512, **more), header)
        for more in ({}, {"model_draft": tiny})
    )
    assert with_draft.total > plain.total + header.size


def test_a_missing_draft_model_is_an_error(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.gguf"):
        model_options.needed_memory(settings_with(model_draft=tmp_path / "nowhere.gguf"), gguf.read_header(tiny))
