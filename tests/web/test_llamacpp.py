"""llama.cpp's small routes."""

from __future__ import annotations

import pytest
from serving import wait_until

from llamasrv import files
from llamasrv.engine.engine import EngineOptions


def test_a_text_becomes_tokens_and_back(client):
    tokens = client.post("/tokenize", json={"content": "hé<|im_end|>"}).get_json()["tokens"]
    assert tokens == [104, 195, 169, 258]
    assert client.post("/detokenize", json={"tokens": tokens}).get_json() == {"content": "hé"}


def test_special_tokens_can_be_left_as_text(client):
    body = {"content": "<s>", "parse_special": False, "with_pieces": True}
    pieces = client.post("/tokenize", json=body).get_json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["<", "s", ">"]


def test_ids_outside_the_vocabulary_are_400(client):
    response = client.post("/detokenize", json={"tokens": [1, 263]})
    assert response.status_code == 400 and response.get_json()["error"]["param"] == "tokens[1]"


def test_a_long_text_is_tokenised_too(client):
    text = "word " * 20_000
    assert len(client.post("/tokenize", json={"content": text}).get_json()["tokens"]) == len(text)


def test_a_template_is_applied(client):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert client.post("/apply-template", json=body).get_json() == {
        "prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    }


def test_properties_are_told(client):
    props = client.get("/props").get_json()
    assert (props["model_alias"], props["total_slots"], props["bos_token"]) == ("fake", 8, "<s>")
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["default_generation_settings"]["params"]["temperature"] == pytest.approx(0.8)
    assert "im_start" in props["chat_template"]


def test_the_demonstration_model_says_what_it_is(client, monkeypatch):
    assert "notice" not in client.get("/props").get_json()
    monkeypatch.setattr(files, "notice_of", lambda path: files.DEMO_NOTICE)
    assert "llamasrv serve --model" in client.get("/props").get_json()["notice"]


def test_slots_show_what_runs(start):
    running = start(options=EngineOptions(parallel=2))
    client = running.client
    assert [slot["is_processing"] for slot in client.get("/slots").get_json()] == [False, False]
    body = {"prompt": "x", "ignore_eos": True, "max_tokens": 900, "stream": True}
    streams = [client.post("/v1/completions", json=body, buffered=False) for _ in range(2)]
    wait_until(lambda: len(running.engine.running) == 2)
    slots = client.get("/slots").get_json()
    assert [slot["is_processing"] for slot in slots] == [True, True]
    assert "x" not in slots[0].get("prompt", "")
    assert client.get("/slots?fail_on_no_slot=1").status_code == 503
    for stream in streams:
        stream.close()
    wait_until(lambda: not running.engine.running)
    assert client.get("/slots?fail_on_no_slot=1").status_code == 200


@pytest.mark.parametrize("path", ["/props", "/slots"])
def test_a_model_can_be_named(client, path):
    assert client.get(path, query_string={"model": "alias"}).status_code == 200
    assert client.get(path, query_string={"model": "other"}).status_code == 404
