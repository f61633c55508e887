"""A real model with its projector, in the real worker process: pictures are counted, computed once, and found again."""

from __future__ import annotations

import base64

import openai
import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess
from model import tiny_projectors
from samples import png, wav


@pytest.fixture(scope="module", params=["qwen2vl", "gemma3"])
def client(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    text = tiny_projectors.text_model(folder / "tiny.gguf", request.param)
    tiny_projectors.projector(folder / "mmproj-tiny.gguf", request.param)
    server = wait_until_ready(ServerProcess(["--port", "0", "--model", text, "-c", 2048, "-t", 1]))
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        client.cuts = request.param != "gemma3"  # a sliding window keeps a short prompt whole or not at all
        yield client
    server.end()


def asked(text, colour=(255, 0, 0)):
    url = "data:image/png;base64," + base64.b64encode(png(150, 90, colour)).decode()
    return [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]}
    ]


def test_a_picture_is_counted_computed_once_and_found_again(client):
    counted = client.post("/chat/completions/input_tokens", body={"messages": asked("one")}, cast_to=object)
    first = client.chat.completions.create(model="tiny", messages=asked("one"), max_tokens=4, temperature=0)
    assert first.usage.prompt_tokens == counted["input_tokens"] > 20
    again = client.chat.completions.create(model="tiny", messages=asked("one"), max_tokens=4, temperature=0)
    assert again.choices[0].message.content == first.choices[0].message.content
    other = client.chat.completions.create(model="tiny", messages=asked("two"), max_tokens=4)
    assert (
        other.usage.prompt_tokens_details.cached_tokens > 15 or not client.cuts
    )  # the picture, which comes before the text
    blue = client.chat.completions.create(model="tiny", messages=asked("one", (0, 0, 255)), max_tokens=4)
    assert blue.usage.prompt_tokens_details.cached_tokens < 15


def test_what_its_projector_does_not_take_is_refused(client):
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(0.2)).decode(), "format": "wav"}}
    with pytest.raises(openai.BadRequestError, match="no audio projector"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [part]}])
