"""A response whose body is JSON already, as most routes return it."""

from __future__ import annotations

from flask import Response


def json_answer(body: bytes) -> Response:
    return Response(body, 200, content_type="application/json")
