"""OpenAI's audio routes: a recording to text."""

from __future__ import annotations

import io

from flask import Blueprint, Response, request

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.openai.transcriptions import FORMATS, Transcriptions
from llamasrv.web.http.multipart import read_form
from llamasrv.web.routes.generate import respond
from llamasrv.web.service import Service
from llamasrv.web.views import current


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("audio", __name__)
    limits = service.options.limits
    transcriptions = Transcriptions(limits)

    @routes.post("/v1/audio/transcriptions")
    @routes.post("/audio/transcriptions")
    def transcribe() -> Response:
        environ = request.environ
        recording = io.BytesIO()

        def open_file(name: str) -> io.BytesIO:
            return recording if name == "file" and not recording.tell() else io.BytesIO()

        form = read_form(environ, most=limits.body_bytes, open_file=open_file, patience=limits.body_seconds)
        if "file" not in form.files:
            text = "Missing required parameter: 'file'."
            raise InvalidRequest(text, param="file", code="missing_required_parameter")
        asked, options = transcriptions.parse_form(
            form.fields, recording.getvalue(), owner=current().owner, timeout=service.options.timeout
        )
        current().ignored += transcriptions.unheard(form.fields)
        response = respond(service, asked, transcriptions.reply(options), transcriptions.names)
        if not asked.stream and response.status_code == 200:
            response.headers["Content-Type"] = FORMATS[options.format]
        return response

    return routes
