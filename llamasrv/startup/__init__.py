"""From settings to a running service: the models, their options, and progress for the operator and systemd."""

from llamasrv.startup.service import build, configure_log, prepare, update, filled_in

__all__ = ["build", "configure_log", "prepare", "update", "filled_in"]
