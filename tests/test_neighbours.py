"""Every module has a test of its name, or a neighbour that covers it: this list says which."""

from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "llamasrv", ROOT / "tests"

# By the test, or the folder of tests, that covers them; `demo/` is a room of its own.
NEIGHBOURS = {
    "chat/test_grammar.py": "chat/argument_rules chat/rules chat/written",
    "chat/test_probe.py": "chat/probe/call_marks chat/probe/layouts chat/probe/marks chat/probe/shown",
    "chat/test_parser.py": "chat/calls chat/channel_messages chat/emitter chat/formats chat/literals chat/scanner chat/thoughts chat/values",
    "chat/test_candidates.py": "chat/notations/holes",
    "chat/test_round_trip.py": "chat/notations/base chat/notations/braces chat/notations/in_header chat/notations/json_object"
    " chat/notations/keyword_call chat/notations/named chat/notations/tagged",
    "chat/test_sandbox.py": "chat/sandbox/budget chat/sandbox/calls chat/sandbox/filters chat/sandbox/rewriting",
    "chat/test_template.py": "chat/guard chat/renderer",
    "chat/test_normalise.py": "chat/traits",
    "chat/test_parse_command.py": "commands/learned_format commands/parse",
    "clients": "wsgi domain/request domain/events",
    "config/test_llama_server.py": "config/foreign_flag config/llama_flags config/llama_models"
    " config/llama_values config/preset",
    "config/test_rivals.py": "config/foreign config/other_flags config/rival_values config/vllm_flags",
    "config/test_settings.py": "config/check config/docgen config/option config/sampling config/sections domain/option domain/prices",
    "engine/drafts/test_drafts.py": "engine/drafts/draft engine/step/drafter engine/drafts/sequence_drafts",
    "engine/drafts/test_ngram.py": "engine/drafts/acceptance",
    "engine/kv/test_checkpoints.py": "engine/kv/checkpointing",
    "engine/kv/test_disk_tier.py": "engine/kv/disk_io engine/kv/manager",
    "engine/kv/test_host_cache.py": "engine/kv/disk_writer",
    "engine/kv/test_lookup.py": "engine/kv/match",
    "engine/kv/test_tree.py": "engine/kv/timelines",
    "engine/kv/test_policy.py": "engine/kv/pinning",
    "clients/test_realtime.py": "web/sockets/realtime_answers web/sockets/realtime_hearing",
    "clients/test_responses_socket.py": "web/sockets/inner_requests web/sockets/websocket",
    "web/test_realtime.py": "web/sockets/realtime_limits",
    "engine/media/test_media_in_the_engine.py": "engine/media/check engine/media/encoder engine/base/media_timeline"
    " engine/media/turns engine/backend/fake_projector",
    "engine/test_speaker.py": "engine/base/side_thread engine/vocoder",
    "engine/backend/test_utterance.py": "engine/base/sound_track",
    "engine/sampling/test_candidates.py": "domain/params engine/sampling/logprobs",
    "engine/step/test_scheduler.py": "engine/step/order engine/step/plan",
    "engine/test_engine.py": "engine/base/arrays engine/core engine/backend/fake engine/base/interface"
    " engine/step/refused_steps"
    " domain/sequence_spec",
    "faults/test_input.py": "web/http/body",
    "media/test_decoder.py": "media/child media/pictures media/sniff media/sounds",
    "model/test_backend_context.py": "engine/backend/bound_batch engine/backend/context"
    " engine/backend/lane_memory engine/backend/library"
    " engine/backend/memory_kind engine/backend/model_info engine/backend/sampler_chain engine/backend/vocabulary",
    "model/test_draft_model.py": "engine/drafts/model_source",
    "model/test_engine_on_models.py": "engine/backend/warm_up",
    "model/test_fit_on_devices.py": "engine/backend/breakdown engine/backend/measure engine/base/use startup/load_plans",
    "model/test_placement.py": "commands/devices engine/backend/control_vector engine/backend/gguf_file"
    " engine/base/placement_rules engine/base/tensor_names models/devices",
    "model/test_projectors.py": "engine/backend/media_rows",
    "model/test_rpc.py": "models/remote",
    "model/test_saved_slots.py": "engine/backend/lane_state web/stored/slots",
    "models/test_loader.py": "models/failures models/model models/memory_budget",
    "models/test_memory.py": "engine/base/machine",
    "models/test_scan.py": "models/remove",
    "models/test_stores.py": "models/model_texts models/stores/lmstudio",
    "pages": "web/routes/ui web/routes/hub",
    "pipeline/test_cache_report.py": "pipeline/fingerprint",
    "pipeline/test_chat_defaults.py": "domain/defaults protocols/common/thinking",
    "pipeline/test_compaction.py": "domain/summary pipeline/compacted_run",
    "pipeline/test_loaded_model.py": "pipeline/sampling",
    "pipeline/decide/test_work.py": "domain/decide pipeline/decide/book",
    "pipeline/test_pipeline.py": "pipeline/constraint pipeline/loaded_models pipeline/submitter",
    "pipeline/test_run.py": "pipeline/load_wait pipeline/run_usage",
    "protocols/anthropic/test_blocks.py": "protocols/anthropic/turns",
    "protocols/anthropic/test_messages.py": "protocols/anthropic/reply",
    "web/test_cached_contents.py": "protocols/gemini/cached",
    "protocols/gemini/test_generate.py": "protocols/gemini/config protocols/gemini/contents protocols/gemini/reply"
    " protocols/gemini/schemas protocols/gemini/wire",
    "protocols/llamacpp/test_completion.py": "protocols/llamacpp/final",
    "protocols/llamacpp/test_small_routes.py": "protocols/llamacpp/props protocols/llamacpp/slots"
    " protocols/llamacpp/tokenize",
    "protocols/ollama/test_chat.py": "protocols/ollama/reply protocols/ollama/wire",
    "protocols/openai/test_chat.py": "protocols/common/forms protocols/common/sampling protocols/common/wire"
    " protocols/openai/chunks",
    "protocols/openai/test_completions.py": "protocols/common/prompts",
    "protocols/openai/test_custom_tools.py": "protocols/openai/custom",
    "protocols/openai/test_embeddings.py": "domain/computed protocols/openai/rerank",
    "protocols/openai/test_realtime_session.py": "protocols/openai/realtime/items protocols/openai/realtime/response"
    " protocols/openai/realtime/session",
    "protocols/openai/test_responses.py": "protocols/openai/responses/ids protocols/openai/responses/items",
    "protocols/openai/test_responses_events.py": "protocols/openai/responses/events protocols/openai/responses/reply"
    " protocols/openai/responses/stored",
    "protocols/test_writer.py": "protocols/fold protocols/reader protocols/reply",
    "startup/test_service.py": "startup/companions startup/model_options startup/preparation",
    "store/test_batches.py": "store/folder_shelf store/postgres_shelf store/redis_shelf store/shelf",
    "store/test_files.py": "store/paging store/storage_quota",
    "store/test_quotas.py": "store/postgres_quotas store/redis_quotas",
    "store/test_store.py": "store/postgres store/redis store/sql store/sqlite",
    "test_check_drafts.py": "commands/check",
    "test_bench_url.py": "commands/load_profiles",
    "test_chat_commands.py": "commands/chat_files commands/chat_markdown commands/chat_session commands/chat_terminal",
    "test_cli.py": "commands/flags commands/group commands/bench commands/doctor commands/key commands/serve commands/server",
    "chat/test_any_order.py": "chat/notations/rows",
    "test_launch.py": "commands/launch_programs",
    "test_way_in.py": "commands/create commands/running commands/show startup/resolver startup/store_texts",
    "tools/test_files.py": "tools/child",
    "tools/test_lifeline.py": "tools/reaper",
    "tools/test_mcp_servers.py": "tools/line_process tools/mcp_peer",
    "tools/test_runtime.py": "tools/container",
    "tools/test_search.py": "tools/listing",
    "tools/test_toolbox.py": "tools/catalogue tools/file_tools tools/shell tools/tool",
    "tools/test_command.py": "tools/environment",
    "web/test_admission.py": "web/front web/context domain/key",
    "web/test_admin.py": "web/ops/recent",
    "web/test_batches.py": "web/routes/paging web/jobs/active_batch web/jobs/batch_output web/jobs/batch_sender",
    "pipeline/test_tool_search.py": "domain/found_tools",
    "protocols/test_openapi.py": "protocols/operations",
    "protocols/test_sdk_members.py": "protocols/anthropic/client_tools protocols/openai/responses/client_tools",
    "web/test_cache_header.py": "protocols/anthropic/cache",
    "web/test_conversations.py": "web/stored/changes",
    "web/test_control.py": "web/streams/running",
    "web/test_embeddings.py": "pipeline/held_media protocols/llamacpp/embedding protocols/openai/classify"
    " protocols/openai/score",
    "web/test_hostile_batches.py": "web/jobs/batch_input",
    "web/test_idempotency.py": "web/routes/once",
    "web/test_llamacpp.py": "web/views web/routes/llamacpp_slots",
    "web/test_llamacpp_tools.py": "web/streams/tool_stream",
    "web/test_models_pull.py": "models/pulls",
    "web/test_ollama_manage.py": "models/derived_files",
    "web/test_other_servers.py": "protocols/lmstudio protocols/sglang",
    "web/test_ops.py": "engine/base/metrics web/ops/diagnostics web/ops/llama_metrics web/ops/metrics",
    "web/test_responses.py": "web/jobs/background web/jobs/follower",
    "web/test_streaming.py": "web/streams/body",
    "web/test_take_over.py": "protocols/openai/responses/resumed",
    "web/test_resume.py": "protocols/llamacpp/streams web/routes/llamacpp_streams",
    "web/test_speech.py": "pipeline/uploaded_voices",
    "model/test_speech.py": "engine/backend/speech_projector",
    "web/test_transcriptions.py": "web/routes/audio",
}
COVERED = {module: test for test, modules in NEIGHBOURS.items() for module in modules.split()}


@cache
def own_tests():
    return {path.stem.removeprefix("test_") for path in TESTS.rglob("test_*.py")}


def modules():
    """Such as `chat/parser`."""
    paths = (path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__"))
    return sorted(path.with_suffix("").as_posix() for path in paths if path.parts[0] != "demo")


def test_every_module_has_a_test_of_its_name_or_a_neighbour():
    alone = [module for module in modules() if module.rpartition("/")[2] not in own_tests() and module not in COVERED]
    assert not alone, f"write tests/**/test_NAME.py, or name in NEIGHBOURS the test that covers it: {alone}"


def test_the_list_names_only_what_exists_and_needs_a_neighbour():
    gone = {
        module
        for module, test in COVERED.items()
        if not ((PACKAGE / f"{module}.py").is_file() and (TESTS / test).exists())
    }
    with_own_test = {module for module in COVERED if module.rpartition("/")[2] in own_tests()}
    assert not gone
    assert not with_own_test
