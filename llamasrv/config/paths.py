"""Paths of files that ship with the package: templates, configuration examples, the demo model.

In a checkout and in an editable install `templates/` and `conf/` are next to the package; a wheel contains them. Knows
no options: options that name another folder take their default from here.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def _folder(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def templates_dir() -> Path:
    """The folder with `web/*.html` and `chat/*.jinja`."""
    return _folder("templates")


def conf_dir() -> Path:
    """The folder with gunicorn.conf.py, llamasrv.toml and the operator's other files."""
    return _folder("conf")


def demo_model() -> Path | None:
    """The embedded demonstration model, if this build contains one."""
    path = _PACKAGE / "demo" / "model.gguf"
    return path if path.is_file() else None


DEMO_NOTICE = (
    "This is the demonstration model of llamasrv: tiny, and only good for trying the server's features. "
    "For real work, serve a real model: llamasrv serve --model FILE.gguf"
)


def notice_of(model: str | Path) -> str | None:
    """What users must know about this model file, or None."""
    return DEMO_NOTICE if demo_model() is not None and Path(model) == demo_model() else None


def prefixes_dir() -> Path:
    """The default folder for prefixes kept across restarts."""
    return cache_dir() / "prefixes"


def models_dir() -> Path:
    """The default folder for pulled models."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "llamasrv" / "models"


def state_dir() -> Path:
    """The folder for state that must survive a restart."""
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]  # set by systemd
    if given:
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "llamasrv"


def cache_dir() -> Path:
    """The folder for data that can be recomputed."""
    given = os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]  # set by systemd
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "llamasrv"
