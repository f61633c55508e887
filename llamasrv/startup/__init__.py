"""From settings to a running service: the models, their options, and progress for the operator and systemd.

`llamasrv.startup.service` makes it. It is imported apart, by the process that serves.
"""

from llamasrv.startup.preparation import configure_log, filled_in, prepare

__all__ = ["configure_log", "filled_in", "prepare"]
