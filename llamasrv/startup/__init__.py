"""From settings to a running service: the models, their options, what an operator and systemd are told meanwhile."""

from llamasrv.startup.service import build, configure_log, prepare, update, filled_in

__all__ = ["build", "configure_log", "prepare", "update", "filled_in"]
