"""Which store the settings select."""

from __future__ import annotations

import pytest

from llamasrv import config
from llamasrv.errors import ConfigError
from llamasrv.startup import service as startup_service
from llamasrv.store import DAY, StoredEntry


def store(**flags):
    return startup_service.response_store(config.load(flags, environ={}))


def test_the_default_is_a_file_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "with space%"))
    made = store()
    made.put("", StoredEntry("a", b"x"))
    assert (tmp_path / "with space%/llamasrv/responses.db").is_file()
    made.close()


def test_a_systemd_service_uses_its_state_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    store().close()
    assert (tmp_path / "responses.db").is_file()


def test_an_unwritable_folder_falls_back_to_memory_with_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("STATE_DIRECTORY", "/proc/nothing")
    made = store()
    made.put("", StoredEntry("a", b"x"))
    assert made.get("", "a").body == b"x" and "memory only" in caplog.text
    made.close()


def test_a_configured_store_must_work():
    with pytest.raises(ConfigError, match="^store.url"):
        store(store_url="sqlite:////proc/nothing/x.db")


def test_the_limits_reach_the_store():
    made = store(store_url="memory", store_max_bytes="2MiB", store_max_days=2)
    assert made.options.max_bytes == 2 * 2**20 and made.options.max_age == 2 * DAY
    made.close()
    assert store(store_url="none") is None


def test_a_password_in_the_url_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        store(store_url="postgresql://user:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(config.load({"store_url": "redis://:secret@x"}, environ={}))
