"""What only the options together can tell."""

from __future__ import annotations

from llamasrv.config.option import Option
from llamasrv.config.settings import OPTIONS, Settings
from llamasrv.errors import ConfigError


def check_together(s: Settings) -> None:
    def refuse(first: str, message: str) -> None:
        raise ConfigError(f"{_option_named(first).key}: {message}")

    if s.model.fake and s.model.path is not None:
        refuse("model_fake", "a fake model and model.path exclude each other")
    if s.model.fake and s.engine.rpc:
        refuse("engine_rpc", "a fake model is computed nowhere else")
    if s.model.chat_template is not None and s.model.chat_template_file is not None:
        refuse("model_chat_template", "give the template or the file, not both")
    if s.engine.batch_size < s.engine.parallel:
        refuse("engine_batch_size", f"{s.engine.batch_size} is less than engine.parallel = {s.engine.parallel}: "
               "each sequence needs a row of the batch")  # fmt: skip
    if s.engine.ubatch_size > s.engine.batch_size:
        refuse("engine_ubatch_size", f"{s.engine.ubatch_size} is more than engine.batch_size = {s.engine.batch_size}")
    if s.engine.flash_attn == "off" and s.engine.cache_type_v not in ("f32", "f16", "bf16"):
        refuse("engine_cache_type_v", f"{s.engine.cache_type_v} needs flash attention, and engine.flash_attn is off")
    if not s.server.allow_keyless and not _is_local(s) and not s.server.api_key and s.server.api_key_file is None:
        refuse("server_host", f"{s.server.host} can be reached from other machines and there is no key: "
               "give --api-key-file (or --allow-keyless if that is meant)")  # fmt: skip


def _is_local(settings: Settings) -> bool:
    host = settings.server.host.strip("[]")
    return settings.socket_path is not None or host in ("localhost", "::1") or host.startswith("127.")


def _option_named(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)
