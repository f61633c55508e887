"""Fields that several endpoints share: sampling options, keep-alive, thinking, format, images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from llamasrv.domain.request import Content, MediaPart
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.forms import CLOSED
from llamasrv.protocols.common.media import from_base64
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import Count, Flag, Ignored, Invalid, String, WireField, WireSchema, wrong_type
from llamasrv.protocols.common.thinking import EFFORTS
from llamasrv.protocols.telemetry import RETURN_PROGRESS


class Range(NamedTuple):
    """The range of an option, and the sampling parameter that it sets."""

    kind: type
    low: float
    high: float
    name: str


OPTIONS = {
    "temperature": Range(float, 0, 1e6, "temperature"),
    "top_k": Range(int, -1, INT_MAX, "top_k"),
    "top_p": Range(float, 0, 1, "top_p"),
    "min_p": Range(float, 0, 1, "min_p"),
    "typical_p": Range(float, 0, 1, "typical_p"),
    "repeat_penalty": Range(float, 1e-6, 1e6, "repeat_penalty"),
    "repeat_last_n": Range(int, -1, INT_MAX, "repeat_last_n"),
    "presence_penalty": Range(float, -100, 100, "presence_penalty"),
    "frequency_penalty": Range(float, -100, 100, "frequency_penalty"),
    "mirostat": Range(int, 0, 2, "mirostat"),
    "mirostat_tau": Range(float, 0, 1e6, "mirostat_tau"),
    "mirostat_eta": Range(float, 0, 1e6, "mirostat_eta"),
    "seed": Range(int, -(2**63), 2**64 - 1, "seed"),
    "num_predict": Range(int, -INT_MAX, INT_MAX, "num_predict"),
    "num_ctx": Range(int, 0, INT_MAX, "num_ctx"),
}
"""Those that are read. What concerns loading is the operator's (num_ctx has its effect where a model is made), and the
rest is ignored as Ollama does."""

_OF_LOADING = frozenset((
    "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "vocab_only", "use_mmap",
    "use_mlock", "f16_kv", "logits_all", "tfs_z", "penalize_newline", "stop",
))  # fmt: skip
"""Ollama's others."""

_NAMED = ", ".join(name for name in OPTIONS if name != "num_ctx")
_KINDS = {int: "integer", float: "float32"}


class Chosen(NamedTuple):
    """What `options` asked for. `max_tokens` None: until the model stops."""

    sampling: Mapping[str, Any] = {}
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_ctx: int | None = None


class Options(WireField):
    def unknown_in(self, value: Any) -> Iterable[str]:
        return (name for name in value if name not in OPTIONS and name not in _OF_LOADING)

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Chosen:
        if type(value) is not dict:
            raise wrong_type("an object", value)
        sampling = {
            allowed.name: _number(key, value[key], allowed)
            for key, allowed in OPTIONS.items()
            if value.get(key) is not None
        }
        most = sampling.pop("num_predict", -1)
        if sampling.get("seed", 0) < 0:
            sampling["seed"] = -1
        length = sampling.pop("num_ctx", 0)
        return Chosen(sampling, most if most > 0 else None, self._stops(value.get("stop")), length or None)

    def _stops(self, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        stops = [value] if type(value) is str else value
        if type(stops) is not list or not all(type(stop) is str for stop in stops):
            raise _mistyped("stop", "an array of strings")
        limits = self.limits
        stops = [stop for stop in stops if stop]
        if len(stops) > limits.stops:
            raise Invalid(f"array too long. Expected at most {limits.stops} entries, but got {len(stops)}.", "stop")
        if any(len(stop) > limits.stop_chars for stop in stops):
            raise Invalid(f"string too long. Expected at most {limits.stop_chars} characters.", "stop")
        return tuple(stops)


def _number(key: str, value: Any, allowed: Range) -> Any:
    if type(value) is float and allowed.kind is int and value.is_integer():
        value = int(value)
    if type(value) is not int and not (type(value) is float and allowed.kind is float):
        raise _mistyped(key, _KINDS[allowed.kind])
    if not allowed.low <= value <= allowed.high:
        raise Invalid(f"out of range. Expected a value from {allowed.low:g} to {allowed.high:g}.", key)
    return allowed.kind(value)


def _mistyped(key: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f'option "{key}" must be of type {kind}', param=f"options.{key}", code="invalid_type")


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


class Think(WireField):
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
    if type(value) is not list:
        raise wrong_type("an array of images in base64", value, *path)
    if len(value) > most:
        raise Invalid(f"array too long. Expected at most {most} images, but got {len(value)}.", *path)
    return tuple(_image(image, field, *path, i) for i, image in enumerate(value))


def _image(image: Any, field: str, *path: int | str) -> MediaPart:
    text = image.partition(",")[2] if type(image) is str and image.startswith("data:") else image
    return from_base64(text, "image", field, *path)


class ModelSchema(WireSchema):
    """The fields of every endpoint that uses a model."""

    model = String("a name or alias")
    keep_alive = KeepAlive("seconds or a duration; 0: unloaded afterwards, negative: never")
    options = Options(f"{_NAMED}, stop; absent ones: the model's own; others have no effect")


class AnswerSchema(ModelSchema):
    """The fields that chat and generate have in common."""

    generates = True

    stream = Flag("absent: true")
    format = Format(f'"json" or a JSON schema; {CLOSED}')
    think = Think("true, false or an effort; refused where the model has no thinking")
    logprobs = Flag()
    top_logprobs = Count(0, "top_logprobs", "needs `logprobs`")
    shift = Ignored("a full context ends the answer")
    return_progress = Flag(RETURN_PROGRESS)


def model_of(data: Mapping[str, Any]) -> str:
    name = data.get("model")
    if not name:
        raise InvalidRequest("model is required", param="model", code="missing_required_parameter")
    return str(name)
