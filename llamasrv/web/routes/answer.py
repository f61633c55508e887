"""An answer that is JSON already, as most routes give it."""

from __future__ import annotations

from flask import Response


def json_answer(body: bytes) -> Response:
    return Response(body, 200, content_type="application/json")
