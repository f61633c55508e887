"""OpenAI's audio routes: a recording to text, and text to speech."""

from __future__ import annotations

import io

from flask import Blueprint, Response, request

from llamasrv.errors import MissingParameter
from llamasrv.media.spoken import TYPES
from llamasrv.pipeline.voices import MAX_CLIP_BYTES
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.speech import (
    SpeechEndpoint,
    parse_voice,
    speech_models,
    voice_body,
    voice_deleted,
    voice_list,
)
from llamasrv.protocols.openai.transcriptions import FORMATS, Transcriptions
from llamasrv.web.http.multipart import read_form
from llamasrv.web.routes.embeddings import read_parsed
from llamasrv.web.routes.generate import in_words_of, respond
from llamasrv.web.routes.models import heed_autoload
from llamasrv.web.service import Service
from llamasrv.web.streams.speech import speech_response
from llamasrv.web.streams.streaming import Client
from llamasrv.web.views import current, json_answer


def blueprint(service: Service) -> Blueprint:
    routes = Blueprint("audio", __name__)
    limits = service.options.limits
    transcriptions, speech = Transcriptions(limits), SpeechEndpoint(limits)

    @routes.post("/v1/audio/transcriptions")
    @routes.post("/audio/transcriptions")
    def transcribe() -> Response:
        fields, recording = _read_recording("file", limits, limits.body_bytes)
        asked, options = transcriptions.parse_form(
            fields, recording, owner=current().owner, timeout=service.options.timeout
        )
        current().ignored += transcriptions.unheard(fields)
        response = respond(service, asked, transcriptions.reply(options), transcriptions.names)
        if not asked.stream and response.status_code == 200:
            response.headers["Content-Type"] = FORMATS[options.format]
        return response

    @routes.post("/v1/audio/speech")
    @routes.post("/audio/speech")
    def speak() -> Response:
        environ = request.environ
        asked, options = read_parsed(service, speech)
        record = current().record
        heed_autoload(service, asked.model)
        with in_words_of(speech, asked):
            spoken = service.pipeline.submit_speech(asked)
        record.model = spoken.model
        return speech_response(
            spoken,
            record,
            client=Client.of(environ),
            keepalive=service.options.keepalive,
            content_type=TYPES[spoken.format],
            as_events=options.as_events,
        )

    _add_voices(routes, service)
    return routes


def _add_voices(routes: Blueprint, service: Service) -> None:
    """Routes for voices: those available, and the owner's uploaded ones."""
    limits = service.options.limits

    @routes.get("/v1/audio/voices")
    @routes.get("/audio/voices")
    def voices() -> Response:
        names, own = service.pipeline.voice_names(request.args.get("model")), service.pipeline.voices
        return json_answer(voice_list(names, own.uploaded(current().owner)))

    @routes.post("/v1/audio/voices")
    @routes.post("/audio/voices")
    def create_voice() -> Response:
        owner, known = current().owner, service.pipeline.voices
        known.check_upload(owner)
        fields, recording = _read_recording("audio_sample", limits, min(limits.body_bytes, MAX_CLIP_BYTES))
        voice = parse_voice(fields)
        return json_answer(voice_body(known.upload(owner, new_id("voice_"), voice.name, voice.consent, recording)))

    @routes.delete("/v1/audio/voices/<id>")
    @routes.delete("/audio/voices/<id>")
    def delete_voice(id: str) -> Response:
        service.pipeline.voices.delete(current().owner, id)
        return json_answer(voice_deleted(id))

    @routes.get("/v1/audio/models")
    @routes.get("/audio/models")
    def models() -> Response:
        return json_answer(speech_models([model.name for model in service.pipeline.speaking()]))


def _read_recording(name: str, limits: Limits, most: int) -> tuple[dict[str, list[str]], bytes]:
    """The form of at most `most` bytes: its fields and its first file of this name. Raises MissingParameter if
    there is none."""
    recording = io.BytesIO()

    def open_file(field: str) -> io.BytesIO:
        return recording if field == name and not recording.tell() else io.BytesIO()

    form = read_form(request.environ, most=most, open_file=open_file, patience=limits.body_seconds)
    if name not in form.files:
        raise MissingParameter(name)
    return form.fields, recording.getvalue()
