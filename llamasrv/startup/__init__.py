"""From settings to a running service: the models, their options, and progress for the operator and systemd.

`llamasrv.startup.service` builds the service. Only the process that serves imports it.
"""

from llamasrv.startup.preparation import configure_log, filled_in, prepare

__all__ = ["configure_log", "filled_in", "prepare"]
