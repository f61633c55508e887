"""gunicorn's settings: `llamasrv serve` and `gunicorn -c conf/gunicorn.conf.py llamasrv.wsgi:app` both run on these.

Addresses, times and the model come from llamasrv's own options (LLAMASRV_* and the file that LLAMASRV_CONFIG names).
"""

import os

from llamasrv.web.http.worker import child_exit, settings_or_exit, when_ready  # noqa: F401 (gunicorn calls the hooks)

_settings = settings_or_exit()

bind = _settings.addresses
reuse_port = _settings.server.reuse_port
certfile = _settings.server.ssl_cert_file and str(_settings.server.ssl_cert_file)
keyfile = _settings.server.ssl_key_file and str(_settings.server.ssl_key_file)
wsgi_app = "llamasrv.wsgi:app"
worker_class = "llamasrv.web.http.worker.Worker"

# One process owns the model, its KV and its thread; none of them survives a fork.
workers = 1
preload_app = False
max_requests = 0
worker_connections = _settings.server.connections
backlog = 2048

# Watches the worker's hub only: a long request does not trip it, a blocked process does.
timeout = 60
# The worker ends streams itself at the drain timeout; gunicorn's own limit only has to come later.
graceful_timeout = int(_settings.server.drain_timeout + _settings.server.drain_notice) + 10
keepalive = _settings.server.idle_timeout
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None

limit_request_line = 8190
limit_request_fields = 100
limit_request_field_size = 8190
# Headers that would be part of the environment, the path among them: none. Other ones with an underscore are dropped.
forwarder_headers = ""
# Any proxy may say that it is reached by https: that only decides how URLs in replies begin.
forwarded_allow_ips = "*"

# It listens for commands such as adding a worker, which would load the model twice.
control_socket_disable = True

# llamasrv logs by itself, to standard error.
errorlog = None
accesslog = None
loglevel = "debug" if _settings.log.level == "debug" or _settings.log.verbose else "warning"
