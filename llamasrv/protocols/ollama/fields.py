"""Fields that several endpoints share: sampling options, keep-alive, thinking, format, images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llamasrv.domain.request import Content, MediaPart
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.forms import CLOSED
from llamasrv.protocols.common.loader import Nested
from llamasrv.protocols.common.media import from_base64
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import (
    HONOURED,
    Count,
    Flag,
    Ignored,
    Invalid,
    StreamFlag,
    String,
    WireField,
    WireSchema,
    check_length,
    expect,
    rows,
    wrong_type,
)
from llamasrv.protocols.common.thinking import EFFORTS
from llamasrv.protocols.telemetry import RETURN_PROGRESS

_KINDS = {int: "integer", float: "float32"}


class OllamaOption(WireField):
    """A number in `options`; errors use Ollama's words."""

    def __init__(self, kind: type, low: float, high: float, **place: Any) -> None:
        super().__init__(**place)
        self.kind, self.low, self.high = kind, low, high

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Any:
        if type(value) is float and self.kind is int and value.is_integer():
            value = int(value)
        if type(value) is not int and not (type(value) is float and self.kind is float):
            raise _mistyped(str(attr), _KINDS[self.kind])
        if not self.low <= value <= self.high:
            raise Invalid(f"out of range. Expected a value from {self.low:g} to {self.high:g}.")
        return self.kind(value)


class OllamaStops(WireField):
    """A string, or several; empty ones do not count."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        stops = [value] if type(value) is str else value
        if type(stops) is not list or not all(type(stop) is str for stop in stops):
            raise _mistyped("stop", "an array of strings")
        limits = self.limits
        stops = [stop for stop in stops if stop]
        check_length(stops, limits.stops, "entries")
        if any(len(stop) > limits.stop_chars for stop in stops):
            raise Invalid(f"string too long. Expected at most {limits.stop_chars} characters.")
        return tuple(stops)


def _mistyped(key: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f'option "{key}" must be of type {kind}', param=f"options.{key}", code="invalid_type")


_OF_LOADING = (
    "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "vocab_only", "use_mmap",
    "use_mlock", "f16_kv", "logits_all", "tfs_z", "penalize_newline",
)  # fmt: skip


class OptionsSchema(WireSchema):
    """Options for loading are the operator's (num_ctx has an effect when a model is created); the rest is ignored, as
    at Ollama."""

    class Meta(WireSchema.Meta):
        include = {name: Ignored() for name in _OF_LOADING}

    temperature = OllamaOption(float, 0, 1e6, to="sampling.temperature")
    top_k = OllamaOption(int, -1, INT_MAX, to="sampling.top_k")
    top_p = OllamaOption(float, 0, 1, to="sampling.top_p")
    min_p = OllamaOption(float, 0, 1, to="sampling.min_p")
    typical_p = OllamaOption(float, 0, 1, to="sampling.typical_p")
    repeat_penalty = OllamaOption(float, 1e-6, 1e6, to="sampling.repeat_penalty")
    repeat_last_n = OllamaOption(int, -1, INT_MAX, to="sampling.repeat_last_n")
    presence_penalty = OllamaOption(float, -100, 100, to="sampling.presence_penalty")
    frequency_penalty = OllamaOption(float, -100, 100, to="sampling.frequency_penalty")
    mirostat = OllamaOption(int, 0, 2, to="sampling.mirostat")
    mirostat_tau = OllamaOption(float, 0, 1e6, to="sampling.mirostat_tau")
    mirostat_eta = OllamaOption(float, 0, 1e6, to="sampling.mirostat_eta")
    seed = OllamaOption(int, -(2**63), 2**64 - 1, to="sampling.seed", via=lambda seed: max(seed, -1))
    num_predict = OllamaOption(int, -INT_MAX, INT_MAX, to="max_tokens", via=lambda most: most if most > 0 else None)
    num_ctx = OllamaOption(int, 0, INT_MAX)
    stop = OllamaStops(to="stop")


class OllamaOptions(Nested):
    schema = OptionsSchema


_READ = ", ".join(row.field for row in rows(OptionsSchema) if row.verdict == HONOURED and row.field != "num_ctx")
_OPTIONS = f"{_READ}; absent ones: the model's own; others have no effect"

_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEP = r"(\d+\.?\d*|\.\d+)(ns|us|\u00b5s|ms|s|m|h)"
_DURATION = re.compile(rf"([+-]?)((?:{_STEP})+|0)")

FOR_EVER = -1.0


class KeepAlive(WireField):
    """Seconds, or a duration such as "1h30m". Negative: forever; 0: unload afterwards."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> float:
        if type(value) is str:
            seconds = duration(value)
            if seconds is None:
                raise Invalid(f"expected a duration such as '5m', but got '{value[:40]}'.")
        elif type(value) in (int, float):
            seconds = float(value) if abs(value) < 1e12 else 1e12
        else:
            raise wrong_type("a number of seconds or a duration", value)
        return FOR_EVER if seconds < 0 else min(seconds, 1e9)


def duration(text: str) -> float | None:
    """The seconds of a duration with units; None if it is not a duration."""
    match = _DURATION.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_STEP, match[2]))
    return -seconds if match[1] == "-" else seconds


class OllamaThink(WireField):
    """True, false, or an effort."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool | str:
        if type(value) is bool:
            return value
        if type(value) is not str or value not in EFFORTS:
            raise Invalid(f"expected true, false or one of {', '.join(EFFORTS)}.")
        return value


class Format(WireField):
    """Empty, "json", or a JSON schema."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Content | None:
        if value == "":
            return None
        if value == "json":
            return Content("json", name="format")
        if type(value) is not dict:
            raise Invalid('expected "json" or a JSON schema.')
        return Content("json", value, name="format")


class Images(WireField):
    """Images in base64."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[MediaPart, ...]:
        return images(value, self.limits.parts, str(attr))


def images(value: Any, most: int, field: str, *path: int | str) -> tuple[MediaPart, ...]:
    """Plain base64, or a data: URL. Other URLs are not fetched; Ollama does not fetch any."""
    expect(list, value, *path, what="an array of images in base64")
    check_length(value, most, "images", *path)
    return tuple(_image(image, field, *path, i) for i, image in enumerate(value))


def _image(image: Any, field: str, *path: int | str) -> MediaPart:
    text = image.partition(",")[2] if type(image) is str and image.startswith("data:") else image
    return from_base64(text, "image", field, *path)


class OllamaModelSchema(WireSchema):
    """The fields of every endpoint that uses a model."""

    model = String("a name or alias", to="model")
    keep_alive = KeepAlive("seconds or a duration; 0: unloaded afterwards, negative: never", to="keep_alive")
    options = OllamaOptions(_OPTIONS, to=None)


class AnswerSchema(OllamaModelSchema):
    """The fields that chat and generate have in common."""

    generates = True

    options = OllamaOptions(_OPTIONS)
    stream = Flag("absent: true", to="stream", load_default=True)
    format = Format(f'"json" or a JSON schema; {CLOSED}', to="content")
    think = OllamaThink("true, false or an effort; refused where the model has no thinking")
    logprobs = Flag()
    top_logprobs = Count(0, "top_logprobs", "needs `logprobs`")
    shift = Ignored("a full context ends the answer")
    return_progress = StreamFlag(RETURN_PROGRESS, to="with_progress")


def model_of(data: Mapping[str, Any]) -> str:
    name = data.get("model")
    if not name:
        raise InvalidRequest("model is required", param="model", code="missing_required_parameter")
    return str(name)
