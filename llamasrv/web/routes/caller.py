"""The caller whose request a view answers."""

from __future__ import annotations

from flask import request


def caller() -> str:
    """The name of the API key; "" where none is needed."""
    name: str = request.environ["llamasrv.record"].owner
    return name
