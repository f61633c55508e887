"""Checks across several options."""

from __future__ import annotations

import os
import re
from ipaddress import ip_network
from pathlib import Path
from typing import NoReturn

from llamasrv.config.settings import OPTIONS, Settings
from llamasrv.domain.option import Option
from llamasrv.engine.base.options import FLOAT_CACHE_TYPES
from llamasrv.errors import ConfigError

# In a container the address does not show who can reach it: that depends on the published ports.
CONTAINER_FILES = (Path("/.dockerenv"), Path("/run/.containerenv"))
CONTAINER_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST")


def check_together(s: Settings) -> None:
    """Raises ConfigError for options that contradict each other."""
    _check_model(s)
    _check_engine(s)
    _check_server(s)
    _check_reach(s)


def _refuse(first: str, message: str) -> NoReturn:
    raise ConfigError(f"{_option_named(first).key}: {message}")


def _check_model(s: Settings) -> None:
    if s.model.fake and s.model.path is not None:
        _refuse("model_fake", "a fake model and model.path are mutually exclusive")
    if s.model.hf_repo is not None and (s.model.fake or s.model.path is not None):
        _refuse("model_hf_repo", "give the repository or the model, not both")
    if s.model.hf_file is not None and s.model.hf_repo is None:
        _refuse("model_hf_file", "requires its repository: --hf-repo OWNER/REPO")
    if s.model.draft_repo is not None and s.engine.draft_model is not None:
        _refuse("model_draft_repo", "give the repository of the draft model or its file, not both")
    if s.model.fake and s.engine.rpc:
        _refuse("engine_rpc", "a fake model cannot run on other machines")
    if s.model.chat_template is not None and s.model.chat_template_file is not None:
        _refuse("model_chat_template", "give the template or the file, not both")


def _check_engine(s: Settings) -> None:
    if s.engine.rpc and s.engine.devices:
        _refuse("engine_device", "engine.rpc already uses those machines and all local devices")
    if s.engine.split_mode == "none" and s.engine.tensor_split:
        _refuse("engine_tensor_split", "engine.split_mode = none puts the whole model on one device")
    if s.engine.tensor_split and (s.engine.gpu_layers == 0 or s.engine.devices == ("none",)):
        _refuse("engine_tensor_split", "has no effect: no layer is placed on a device")
    if s.engine.batch_size < s.engine.places:
        _refuse(
            "engine_batch_size",
            f"{s.engine.batch_size} is less than engine.parallel = {s.engine.places}: "
            "each sequence needs one row of the batch",
        )
    if s.engine.ubatch_size > s.engine.batch_size:
        _refuse("engine_ubatch_size", f"{s.engine.ubatch_size} is more than engine.batch_size = {s.engine.batch_size}")
    if s.engine.flash_attn == "off" and s.engine.cache_type_v not in FLOAT_CACHE_TYPES:
        _refuse("engine_cache_type_v", f"{s.engine.cache_type_v} needs flash attention, but engine.flash_attn is off")


def _check_server(s: Settings) -> None:
    if (s.server.ssl_key_file is None) != (s.server.ssl_cert_file is None):
        _refuse("server_ssl_cert_file", "TLS needs both --ssl-cert-file and --ssl-key-file")
    if s.server.api_prefix is not None and not re.fullmatch(r"(/[\w.~-]+)+/?", s.server.api_prefix):
        _refuse("server_api_prefix", f"{s.server.api_prefix!r} must be a path such as /llm")
    for name in ("predict_route", "health_route"):
        path = getattr(s.server, name)
        if path is not None and not re.fullmatch(r"(/[\w.~:@-]+)+", path):
            _refuse(f"server_{name}", f"{path!r} must be a path such as /{name.partition('_')[0]}")
    if s.server.ui_history is not None and not (s.server.ui and s.store.files_bytes):
        _refuse("server_ui_history", "needs the pages (--ui) and room for files (--files-max-bytes)")
    for network in s.server.monitor_networks:
        try:
            ip_network(network)
        except ValueError as error:
            _refuse("server_monitor_networks", f"{error}; write a network such as 10.0.0.0/8 or fd00::/8")


def _check_reach(s: Settings) -> None:
    """Who can connect, and what they could do without a key."""
    if not s.hosts:
        _refuse("server_host", f"{s.server.host!r} is not an address")
    if has_tools(s) and not s.server.allow_keyless and is_open(s):
        _refuse(
            "server_host",
            f"{s.server.host} is reachable from other machines, which could run programs here, "
            "and no API key is set: use --api-key-file (or --allow-keyless if intended)",
        )
    if not s.server.allow_keyless and is_open(s) and not in_container():
        _refuse(
            "server_host",
            f"{s.server.host} is reachable from other machines and no API key is set: "
            "use --api-key-file (or --allow-keyless if intended)",
        )


def has_tools(settings: Settings) -> bool:
    """Whether clients may run anything on this machine."""
    tools = settings.tools
    return bool(tools.names or tools.mcp_servers_config or tools.mcp_servers_json)


def has_keys(settings: Settings) -> bool:
    return bool(settings.server.api_key) or settings.server.api_key_file is not None


def is_open(settings: Settings) -> bool:
    """Whether other machines can connect without a key."""
    return not has_keys(settings) and not all(map(_is_local, settings.hosts))


def in_container() -> bool:
    return any(map(os.environ.get, CONTAINER_VARIABLES)) or any(path.exists() for path in CONTAINER_FILES)


def _is_local(host: str) -> bool:
    host = host.strip("[]")
    return host.endswith(".sock") or host in ("localhost", "::1") or host.startswith("127.")


def _option_named(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)
