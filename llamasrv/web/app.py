"""The Flask application: one table of blueprints, and the hooks that every route shares."""

from __future__ import annotations

from flask import Flask

from llamasrv.web.service import Service


def create_app(service: Service) -> Flask:
    """The WSGI application around `service`. Makes no thread and loads no model."""
    app = Flask("llamasrv", static_folder=None)
    app.extensions["llamasrv"] = service
    return app
