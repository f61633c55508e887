"""What a saved state depends on: each option is classified."""

from dataclasses import fields, replace

import pytest

from llamasrv.engine.backend.context_params import BESIDE_STATES, state_facts
from llamasrv.engine.base.options import Adapter, EngineOptions

ANOTHER = {
    "context_cells": 512,  # some models scale positions by it
    "gpu_layers": 3, "override_kv": ("a=int:1",), "control_vectors": (Adapter("v", "v.gguf"),),
    "control_vector_layers": (1, 2), "rope_scaling": "yarn", "rope_freq_base": 5e5, "rope_freq_scale": 0.25,
    "yarn_orig_ctx": 4096, "yarn_ext_factor": 1.0, "yarn_attn_factor": 1.5, "yarn_beta_slow": 2.0,
    "yarn_beta_fast": 16.0, "flash_attn": "off", "cache_type_k": "q8_0", "cache_type_v": "q8_0",
    "deterministic": True, "swa_full": True,
}  # fmt: skip


def test_every_option_is_part_of_state_facts_or_known_not_to_matter():
    """A prefix on disk was reused after a restart with another RoPE scale: 302 wrong tokens, and another text. Add a
    new option to one of the two lists."""
    names = {field.name for field in fields(EngineOptions)}
    assert names == ANOTHER.keys() | BESIDE_STATES and not ANOTHER.keys() & BESIDE_STATES


@pytest.mark.parametrize("name", ANOTHER)
def test_state_facts_differ_by(name):
    plain = EngineOptions()
    assert state_facts(replace(plain, **{name: ANOTHER[name]})) != state_facts(plain)


def test_a_control_vector_is_identified_by_its_digest():
    def of(*more, **settings):
        return state_facts(EngineOptions(control_vectors=(Adapter(*more, **settings),)))

    assert of("a", "x.gguf", digest="d") == of("b", "y.gguf", digest="d") != of("a", "x.gguf", digest="e")
