"""Entry point for gunicorn: `gunicorn -c conf/gunicorn.conf.py llamasrv.wsgi:app`.

Importing this module starts the engines, so it belongs in the worker, never in the process that forks it.
"""

from __future__ import annotations

from llamasrv import config
from llamasrv.startup.service import build

service = build(config.current())

from llamasrv.web.app import create_app  # noqa: E402 (the model loads meanwhile)

app = create_app(service)
if service.options.files_bytes:
    service.batches.start()
if service.take_over is not None:
    service.take_over.start()
