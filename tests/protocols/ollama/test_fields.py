"""Options, durations, forms, images: what is read, and what is refused in the words that clients know."""

from __future__ import annotations

import base64

import pytest

from llamasrv.domain.request import Content, MediaPart, TextPart
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.chat import OllamaChat
from llamasrv.protocols.ollama.fields import duration
from llamasrv.protocols.ollama.wire import dumps, timestamp, with_tag

CHAT = OllamaChat(Limits(stops=4))
HELLO = [{"role": "user", "content": "Hello"}]


def parse(**body):
    return CHAT.parse({"model": "m", "messages": HELLO, **body})[0]


def refused(**body):
    with pytest.raises(InvalidRequest) as caught:
        parse(**body)
    return caught.value


def test_options_become_sampling_and_what_is_absent_stays_so():
    assert parse().sampling == {} and parse(options={}).sampling == {}
    options = {
        "temperature": 0, "top_k": 40.0, "top_p": 0.9, "min_p": 0.1, "typical_p": 1, "repeat_penalty": 1.1,
        "repeat_last_n": 64, "presence_penalty": 0.5, "frequency_penalty": 0.5, "mirostat": 1, "seed": 42,
    }  # fmt: skip
    found = parse(options=options).sampling
    assert found == options and type(found["top_k"]) is int and type(found["temperature"]) is float


def test_length_and_stops_are_options_too():
    request = parse(options={"num_predict": 7, "stop": ["a", "b"]})
    assert (request.max_tokens, request.stop) == (7, ("a", "b"))
    assert parse(options={"num_predict": -1}).max_tokens is None
    assert parse(options={"num_predict": -2, "stop": "x"}).stop == ("x",)
    assert parse(options={"seed": -5}).sampling == {"seed": -1}
    assert parse(options={"num_ctx": 4096}).sampling == {}


def test_unknown_options_and_those_of_loading_have_no_effect():
    options = {"num_gpu": 1, "numa": True, "tfs_z": 1.0, "low_vram": None, "invented": "x"}
    assert parse(options=options).sampling == {}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"top_k": 1.5}, 'option "top_k" must be of type integer'),
        ({"top_k": True}, 'option "top_k" must be of type integer'),
        ({"stop": [1]}, 'option "stop" must be of type an array of strings'),
        ({"top_p": 2}, "options.top_p"),
        ({"stop": ["x"] * 5}, "options.stop"),
        ({"stop": ["x" * 300]}, "options.stop"),
        ([], "options"),
    ],
)
def test_wrong_options_are_named(options, words):
    assert words in refused(options=options).message


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("5m", 300), ("1h30m", 5400), ("-1s", -1), ("0", 0), ("1.5h", 5400), ("300ms", 0.3), ("+2s", 2), (".5s", 0.5),
        ("1us", 1e-6),
        ("5", None), ("", None), ("m", None), ("5 m", None), ("1h-1m", None), ("5d", None), ("1" * 100 + "s", None),
    ],
)  # fmt: skip
def test_durations_are_read_as_go_writes_them(text, seconds):
    found = duration(text)
    assert found == seconds if seconds is None else found == pytest.approx(seconds)


@pytest.mark.parametrize("wire, seconds", [(60, 60), (0, 0), (-1, -1), ("-5m", -1), ("10m", 600), (1e300, 1e9)])
def test_keep_alive_is_seconds_or_a_duration(wire, seconds):
    assert parse(keep_alive=wire).keep_alive == seconds


@pytest.mark.parametrize("wire", ["soon", True, [5]])
def test_a_keep_alive_that_is_none_is_named(wire):
    assert refused(keep_alive=wire).param == "keep_alive"


def test_the_form_of_the_answer():
    assert parse(format="").content is None and parse(format=None).content is None
    assert parse(format="json").content == Content("json")
    assert parse(format={"type": "object"}).content == Content("json", {"type": "object"})
    assert refused(format="xml").param == refused(format=3).param == "format"


def test_thinking_is_on_off_or_an_effort():
    assert parse().prompts[0].template_kwargs == {}
    assert parse(think=True).prompts[0].template_kwargs["enable_thinking"] is True
    assert parse(think=False).prompts[0].template_kwargs["enable_thinking"] is False
    assert parse(think="high").prompts[0].template_kwargs["reasoning_effort"] == "high"
    assert refused(think="loud").param == refused(think=3).param == "think"


def test_images_come_in_base64_with_or_without_a_prefix():
    data = base64.b64encode(b"png").decode()
    for wire in (data, f"data:image/png;base64,{data}"):
        (message,) = parse(messages=[{"role": "user", "content": "x", "images": [wire]}]).prompts[0].messages
        assert message.content == (TextPart("x"), MediaPart("image", b"png"))
    assert refused(messages=[{"role": "user", "images": ["?"]}]).param == "messages[0].images[0]"


def test_a_model_must_be_named():
    for name in (None, ""):
        assert refused(model=name).message == "model is required"


def test_it_streams_unless_told_otherwise():
    assert parse().stream and not parse(stream=False).stream


def test_what_is_written_is_one_line_in_ascii():
    assert dumps({"x": "ü\u2028🎈"}) == b'{"x":"\\u00fc\\u2028\\ud83c\\udf88"}'


def test_times_have_nanoseconds():
    assert timestamp(5.25) == "1970-01-01T00:00:05.250000000Z"
    assert len(timestamp()) == len(timestamp(5.25))


def test_names_are_shown_with_their_tag():
    assert with_tag("a") == "a:latest" and with_tag("a:b") == "a:b" and with_tag("h:80/a") == "h:80/a:latest"
