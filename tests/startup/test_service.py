"""From settings to engines: what is filled in, what is refused, what is handed on."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace

import pytest
from model.tiny_models import llama
from options import settings_with

from llamasrv import startup
from llamasrv.config import Settings, load, paths
from llamasrv.domain.key import Key
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.startup import model_options
from llamasrv.startup import service as startup_service
from llamasrv.store import DailyUsage, StoreOptions, day_of, open_store
from llamasrv.web.ops.usage import UsageBook
from llamasrv.web.service import WebOptions


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_context_and_threads_are_filled_in(tiny, monkeypatch):
    monkeypatch.setattr(startup.preparation.machine, "available_cores", lambda: 5)
    settings = startup.prepare(settings_with(model_path=tiny))
    assert settings.engine.context_cells == 4 * 2048
    assert (settings.engine.threads, settings.engine.threads_batch) == (5, 5)


@pytest.mark.parametrize(
    "chosen, yields", [({}, True), ({"engine_threads": 3}, False), ({"engine_threads_batch": 3}, False)]
)
def test_only_an_automatic_number_of_threads_changes_with_the_load(tiny, chosen, yields):
    assert startup.prepare(settings_with(model_path=tiny, **chosen)).engine.yields_threads is yields


def test_what_the_operator_chose_stays(tiny):
    chosen = settings_with(model_path=tiny, engine_ctx_size=512, engine_threads=3, engine_threads_batch=4)
    assert startup.prepare(chosen) == chosen


def test_preparing_twice_changes_nothing(tiny):
    once = startup.prepare(settings_with(model_path=tiny))
    assert startup.prepare(once) == once


def test_the_embedded_model_is_served_where_none_is_named(tiny, monkeypatch):
    monkeypatch.setattr(paths, "demo_model", lambda: tiny)
    settings = startup.prepare(Settings())
    assert settings.model.path == tiny
    assert model_options.served_name(settings) == "demo"


def test_without_any_model_the_refusal_says_what_to_give(monkeypatch):
    monkeypatch.setattr(paths, "demo_model", lambda: None)
    with pytest.raises(ConfigError, match="--model FILE.gguf"):
        startup.prepare(Settings())


@pytest.mark.parametrize(
    ("file", "aliases", "name"),
    [
        ("some-model.Q8_0.gguf", (), "some-model.Q8_0"),
        ("big-00001-of-00003.gguf", (), "big"),
        ("m.gguf", ("gpt-4o", "other"), "gpt-4o"),
        ("m.gguf", ("*", "other"), "other"),
        ("m.gguf", ("*",), "m"),
    ],
)
def test_a_model_is_called_by_its_first_alias_or_its_file(tmp_path, file, aliases, name):
    assert model_options.served_name(settings_with(model_path=tmp_path / file, model_alias=aliases)) == name


def test_all_names_of_a_model_find_it():
    service = startup_service.build(settings_with(model_fake=True, model_alias=("first", "second", "*")))
    try:
        for name in ("first", "second", "fake", "anything", None):
            assert service.registry.find(name).name == "first"
    finally:
        assert service.registry.stop(10)


def test_a_template_may_be_named_written_or_read(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("{{ 1 }}")
    assert "im_start" in model_options.template_source(settings_with(model_chat_template="chatml"))
    assert model_options.template_source(settings_with(model_chat_template="{{ 2 }}")) == "{{ 2 }}"
    assert model_options.template_source(settings_with(model_chat_template_file=path)) == "{{ 1 }}"
    assert model_options.template_source(Settings()) is None


def test_a_text_without_jinja_is_a_template_if_it_can_be_no_name():
    """It was taken for the misspelled name of a template, and the server did not start."""
    text = "This is not a chat template, it is"
    assert model_options.template_source(settings_with(model_chat_template=text)) == text
    assert model_options.template_source(settings_with(model_chat_template="{{ 2 }}" * 1000)) == "{{ 2 }}" * 1000
    for misspelled in ("chat-ml", "my templates/chatml.jinja"):
        with pytest.raises(ConfigError, match="neither Jinja source nor one of"):
            model_options.template_source(settings_with(model_chat_template=misspelled))


def test_every_engine_option_comes_from_a_setting():
    """Set to something else, each option of the command line changes the engine's."""
    changed = load(
        dict(
            engine_ctx_size=512,
            engine_ctx_per_sequence=300,
            engine_parallel=2,
            engine_threads=3,
            engine_threads_batch=4,
            engine_batch_size=5,
            engine_ubatch_size=4,
            engine_n_gpu_layers=7,
            engine_flash_attn="on",
            engine_cache_type_k="q8_0",
            engine_cache_type_v="q4_0",
            engine_deterministic=True,
            engine_queue_limit=8,
            engine_step_target_ms=9,
            engine_backend_sampling=True,
            cache_pin_share=0.5,
            cache_session_seconds=6,
            cache_ram=10,
            cache_swap=11,
            cache_idle_cells=12,
            engine_coalesce_ms=13,
            limits_unread_tokens=16,
            engine_embeddings=True,
            engine_pooling="cls",
            engine_embedding_ctx=14,
            cache_disk=15,
            model_adapters=("a=b",),
            engine_rpc=("host:1",),
            engine_load_mode="none",
            engine_lazy_mode="on",
            engine_repack=False,
            engine_check_tensors=True,
            engine_numa="isolate",
            engine_split_mode="row",
            engine_main_gpu=1,
            engine_tensor_split="1,2",
            engine_override_tensor="a=CPU",
            engine_kv_offload=False,
            engine_op_offload=False,
            engine_rope_scaling="yarn",
            engine_rope_freq_base=1e6,
            engine_rope_freq_scale=0.5,
            engine_yarn_orig_ctx=9,
            engine_yarn_ext_factor=1,
            engine_yarn_attn_factor=1,
            engine_yarn_beta_slow=1,
            engine_yarn_beta_fast=32,
            engine_context_shift=True,
            engine_keep=3,
            engine_warmup=False,
            engine_swa_full=True,
            cache_checkpoints=17,
            engine_override_kv="a=int:1",
            model_control_vectors="a.gguf",
            model_control_vector_layers="1-2",
            engine_cpu_range="0",
            engine_prio=1,
            engine_poll=3,
            engine_fit="off",
            engine_fit_target="1",
            engine_fit_ctx=300,
            engine_spec="off",
            model_draft="d.gguf",
            engine_draft_n_gpu_layers=1,
            engine_draft_max=5,
            engine_draft_rollback=2,
            model_mmproj="a.gguf",
            engine_mmproj_offload=False,
            model_image_min_tokens=1,
            model_image_max_tokens=2,
            cache_media=17,
        ),
        environ={},
    )
    made, default = model_options.engine_options(changed), EngineOptions()
    same = [f.name for f in dataclasses.fields(made) if getattr(made, f.name) == getattr(default, f.name)]
    assert sorted(same) == [
        "devices",
        "digest",
        "mmproj_digest",
        "mtp",
        "yields_threads",
    ]  # from the model's file; and not beside other machines
    assert (made.step_target, made.context_cells) == (0.009, 256)


def test_without_settings_the_engine_runs_on_its_own_defaults():
    assert model_options.engine_options(Settings()) == EngineOptions()


def test_limits_keys_and_times_reach_the_web(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("two\n")
    options = startup_service.web_options(
        settings_with(
            limits_stops=3,
            limits_body_bytes=4096,
            limits_timeout=None,
            server_api_key=("one",),
            server_api_key_file=keys,
        )
    )
    assert (options.limits.stops, options.limits.body_bytes, options.timeout) == (3, 4096, None)
    assert options.keys == (Key.unnamed("one"), Key.unnamed("two"))


def test_data_kept_under_key_positions_is_reported_with_the_way_to_recover_it(caplog):
    store = open_store("memory", StoreOptions())
    store.add_usage(
        [
            DailyUsage(day_of(time.time()), owner, "m", 1, 2, 0, 3, 0.1)
            for owner in ("key-2", "key-1", "key-12ab", "ann")
        ]
    )
    service = SimpleNamespace(options=WebOptions(), usage=UsageBook(store))
    startup_service.warn_of_renamed_keys(service, Settings())
    assert not caplog.records
    startup_service.warn_of_renamed_keys(service, settings_with(server_api_key=("one",)))
    (line,) = caplog.messages
    assert "key-1, key-2 " in line and "[keys.key-1]" in line and "ann" not in line and "key-12ab" not in line


def test_routes_and_comments_are_as_the_options_say():
    made = startup_service.web_options(settings_with(server_slots=False, server_props=True, server_keepalive=None))
    assert (made.slots, made.props) == (False, True) and made.keepalive > 1e6
    made = startup_service.web_options(Settings())
    assert (made.slots, made.props, made.keepalive) == (True, False, 15.0)


def test_verbose_is_debug_and_what_the_library_says(monkeypatch):
    seen = []
    monkeypatch.setattr(startup.preparation.log, "configure", lambda **options: seen.append(options))
    startup.configure_log(settings_with(log_verbose=True))
    startup.configure_log(Settings())
    assert [(one["level"], one["llama"]) for one in seen] == [("debug", True), ("info", False)]


@pytest.mark.parametrize("reuse_port, told", [(True, 1), (False, 0)])
def test_replicas_that_share_no_store_are_warned_of(reuse_port, told, caplog):
    store = open_store("memory", StoreOptions())
    startup_service.warn_of_unshared_store(settings_with(server_reuse_port=reuse_port), store)
    store.close()
    startup_service.warn_of_unshared_store(settings_with(server_reuse_port=reuse_port), None)  # nothing is kept
    assert caplog.text.count("previous_response_id") == told
