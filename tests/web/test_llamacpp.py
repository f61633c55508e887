"""llama.cpp's small routes."""

from __future__ import annotations

import json
import threading

import pytest
from serving import wait_until

from llamasrv.config import paths
from llamasrv.engine.backend.fake import FakeVocabulary
from llamasrv.engine.engine import EngineOptions
from llamasrv.protocols.limits import Limits
from llamasrv.web.service import WebOptions


def test_a_text_becomes_tokens_and_back(client):
    tokens = client.post("/tokenize", json={"content": "hé<|im_end|>"}).get_json()["tokens"]
    assert tokens == [104, 195, 169, 258]
    assert client.post("/detokenize", json={"tokens": tokens}).get_json() == {"content": "hé", "prompt": "hé"}


def test_an_evaluation_harness_finds_a_tokenizer(client):
    """lm-eval asks for vLLM's routes: /tokenizer_info was a 404, and /tokenize missed 'content', so that nothing could be
    scored without a tokenizer from elsewhere."""
    info = client.get("/tokenizer_info").get_json()
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "<|im_end|>") and "im_start" in info["chat_template"]
    eos = client.post("/tokenize", json={"prompt": info["eos_token"], "add_special_tokens": False}).get_json()
    assert eos == {"count": 1, "max_model_len": 1024, "tokens": [258]}
    tokens = client.post("/tokenize", json={"prompt": "hé", "add_special_tokens": False}).get_json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).get_json()["prompt"] == "hé"


def test_special_tokens_can_be_left_as_text(client):
    body = {"content": "<s>", "parse_special": False, "with_pieces": True}
    pieces = client.post("/tokenize", json=body).get_json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["<", "s", ">"]


def test_ids_outside_the_vocabulary_are_400(client):
    response = client.post("/detokenize", json={"tokens": [1, 263]})
    assert response.status_code == 400 and response.get_json()["error"]["param"] == "tokens[1]"


def test_texts_and_ids_are_tokenised_in_turn(client):
    """Refused until now, though llama-server takes for `content` what it takes for a prompt."""
    body = {"content": ["a", 258, "b<s>"], "parse_special": False}
    found = client.post("/tokenize", json=body).get_json()["tokens"]
    assert found == [97, 258, 98, 60, 115, 62]
    response = client.post("/tokenize", json={"content": ["a", 263], "with_pieces": True})
    assert response.status_code == 400 and response.get_json()["error"]["param"] == "content[1]"


def test_a_long_text_is_tokenised_too(client):
    text = "word " * 20_000
    assert len(client.post("/tokenize", json={"content": text}).get_json()["tokens"]) == len(text)


def test_very_long_texts_are_tokenised_in_turn_and_hold_up_no_other(client, monkeypatch):
    """4 MB of spaces take seconds, and two such requests took all threads from everybody."""
    began, may_end, sizes = threading.Event(), threading.Event(), []
    tokenize = FakeVocabulary.tokenize

    def slow(self, text, **more):
        sizes.append(len(text))
        if len(text) > 400_000:
            began.set()
            assert may_end.wait(30)
        return tokenize(self, text[:100_000], **more)

    monkeypatch.setattr(FakeVocabulary, "tokenize", slow)
    codes = []
    huge = [
        threading.Thread(
            target=lambda: codes.append(client.post("/tokenize", json={"content": " " * 500_000}).status_code)
        )
        for _ in range(2)
    ]
    for thread in huge:
        thread.start()
    assert began.wait(30)
    assert client.post("/tokenize", json={"content": "a" * 50_000}).status_code == 200
    may_end.set()
    for thread in huge:
        thread.join()
    assert codes == [200, 200] and sizes == [500_000, 50_000, 500_000]


def test_a_template_is_applied(client):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert client.post("/apply-template", json=body).get_json() == {
        "prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    }


def test_properties_are_reported(client):
    props = client.get("/props").get_json()
    assert (props["model_alias"], props["total_slots"], props["bos_token"]) == ("fake", 8, "<s>")
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["default_generation_settings"]["params"]["temperature"] == pytest.approx(0.8)
    assert "im_start" in props["chat_template"]


def test_the_demonstration_model_says_what_it_is(client, monkeypatch):
    assert "notice" not in client.get("/props").get_json()
    monkeypatch.setattr(paths, "notice_of", lambda path: paths.DEMO_NOTICE)
    assert "llamasrv serve --model" in client.get("/props").get_json()["notice"]


def test_slots_show_what_runs(start):
    running = start(options=EngineOptions(parallel=2))
    client = running.client
    assert [slot["is_processing"] for slot in client.get("/slots").get_json()] == [False, False]
    body = {"prompt": "x", "ignore_eos": True, "max_tokens": 900, "stream": True}
    streams = [client.post("/v1/completions", json=body, buffered=False) for _ in range(2)]
    wait_until(lambda: len(running.engine.view.running) == 2)
    slots = client.get("/slots").get_json()
    assert [slot["is_processing"] for slot in slots] == [True, True]
    assert "x" not in slots[0].get("prompt", "")
    assert client.get("/slots?fail_on_no_slot=1").status_code == 503
    for stream in streams:
        stream.close()
    wait_until(lambda: not running.engine.view.running)
    assert client.get("/slots?fail_on_no_slot=1").status_code == 200


@pytest.mark.parametrize("path", ["/props", "/slots"])
def test_a_model_can_be_named(client, path):
    assert client.get(path, query_string={"model": "alias"}).status_code == 200
    assert client.get(path, query_string={"model": "other"}).status_code == 404


# Completion and filling in


def test_a_completion_is_answered_in_llama_cpps_words(client):
    for path in ("/completion", "/completions"):
        body = client.post(path, json={"prompt": "abc", "n_predict": 4, "temperature": 0}).get_json()
        assert (body["content"], body["stop"], body["stop_type"]) == (" and", True, "limit")
        assert (body["tokens_evaluated"], body["tokens_predicted"], body["prompt"]) == (3, 4, "abc")


def test_a_completion_streams_without_an_end_mark(client):
    reply = client.post("/completion", json={"prompt": "abc", "n_predict": 4, "temperature": 0, "stream": True})
    assert reply.content_type.startswith("text/event-stream")
    chunks = [json.loads(event.removeprefix("data: ")) for event in reply.get_data(as_text=True).split("\n\n") if event]
    assert "".join(chunk["content"] for chunk in chunks) == " and"
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [token for chunk in chunks for token in chunk["tokens"]] == list(b" and")


def test_mixed_prompts_are_one(client):
    body = client.post("/completion", json={"prompt": [97, "bc", 256], "n_predict": 1}).get_json()
    assert body["prompt"] == "abc<s>" and body["tokens_evaluated"] == 4


def test_several_prompts_are_answered_with_a_list(client):
    body = client.post("/completion", json={"prompt": ["abc", [97]], "n_predict": 1, "n_cmpl": 2}).get_json()
    assert [(one["index"], one["prompt"]) for one in body] == [(0, "abc"), (1, "abc"), (2, "a"), (3, "a")]


def test_a_place_is_filled_in(client):
    body = client.post("/infill", json={"input_prefix": "ab", "input_suffix": "cd", "n_predict": 2}).get_json()
    assert body["prompt"] == "<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>"


WARM_UP = {
    "n_predict": 0,
    "samplers": [],
    "response_fields": [""],
    "cache_prompt": True,
    "stream": False,
    "temperature": 0.0,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
}
"""What editors' plugins send ahead with each piece of context."""


def test_an_editor_warms_its_context(client):
    """The empty path was refused, so nothing was computed ahead and the first completion waited for all of it."""
    context = {"input_extra": [{"filename": "a.py", "text": "def warm():\n    return 1\n" * 4}], "input_suffix": ""}
    warmed = client.post("/infill", json={**context, "input_prefix": "", "prompt": "", **WARM_UP})
    assert (warmed.status_code, warmed.get_json()) == (200, {})
    body = client.post("/infill", json={**context, "input_prefix": "x = ", "n_predict": 1}).get_json()
    assert body["timings"]["cache_n"] > 100 and body["timings"]["cache_n"] > 0.8 * body["tokens_evaluated"]


def test_a_prompt_is_warmed(client):
    prompt = "a text that comes again: " * 8
    assert client.post("/completion", json={"prompt": prompt, **WARM_UP}).get_json() == {}
    body = client.post("/completion", json={"prompt": prompt + "!", "n_predict": 1}).get_json()
    assert body["timings"]["cache_n"] >= len(prompt) - 1


@pytest.mark.parametrize("body", [{"prompt": "a" * 1024}, {"prompt": [300]}, {"prompt": "a", "n_predict": "x"}])
def test_errors_have_llama_cpps_shape(client, body):
    reply = client.post("/completion", json=body)
    error = reply.get_json()["error"]
    assert reply.status_code == error["code"] == 400 and error["message"]


def test_a_chat_and_its_prompt_say_the_same(client):
    """The same conversation as a chat, and as the text that the template makes of it."""
    talk = {"messages": [{"role": "user", "content": "Hellö"}], "temperature": 0}
    chat = client.post("/v1/chat/completions", json=talk).get_json()
    prompt = client.post("/apply-template", json=talk).get_json()["prompt"]
    native = client.post("/completion", json={"prompt": prompt, "temperature": 0}).get_json()
    assert native["content"] == chat["choices"][0]["message"]["content"] == "You said: Hellö"
    assert native["tokens_evaluated"] == chat["usage"]["prompt_tokens"] and native["prompt"] == prompt


@pytest.mark.parametrize(
    "more", [{}, {"enable_thinking": True}, {"enable_thinking": False}, {"reasoning_effort": "low"}]
)
def test_the_prompt_that_is_shown_has_the_tokens_of_the_chat(start, more):
    """It thought by default where a chat did not: two tokens more than the chat that it was to explain."""
    source = (
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
    )
    client = start(model={"chat_template": source}).client
    talk = {"messages": [{"role": "user", "content": "Hellö"}], "max_tokens": 2, **more}
    used = client.post("/v1/chat/completions", json=talk).get_json()["usage"]["prompt_tokens"]
    prompt = client.post("/apply-template", json=talk).get_json()["prompt"]
    for asked in ({"content": prompt}, {"prompt": prompt}):
        assert len(client.post("/tokenize", json=asked).get_json()["tokens"]) == used


_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_ASK = {"role": "user", "content": "Hellö <|im_end|>"}


@pytest.mark.parametrize(
    "talk",
    [
        {"messages": [_ASK]},
        {"messages": [_ASK], "tools": [_TOOL]},
        {"messages": [_ASK], "tools": [_TOOL], "tool_choice": "none"},
        {
            "messages": [
                _ASK,
                {"role": "assistant", "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            ]
        },
        {"messages": [_ASK, {"role": "assistant", "content": "So"}]},
        {
            "messages": [_ASK, {"role": "assistant", "content": "So"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
        {"messages": [_ASK, {"role": "assistant", "content": "So"}], "add_generation_prompt": False},
    ],
)
def test_the_tokens_of_a_chat_are_those_that_it_computes(client, talk):
    """`messages` were a 400, and a template went on with a last message of the assistant's where a chat did not."""
    reply = client.post("/v1/chat/completions", json={**talk, "max_tokens": 1, "verbose": True}).get_json()
    tokens = client.post("/tokenize", json=talk).get_json()
    assert len(tokens["tokens"]) == tokens["count"] == reply["usage"]["prompt_tokens"]
    prompt = client.post("/apply-template", json=talk).get_json()["prompt"]
    assert prompt == reply["__verbose"]["prompt"]
    pieces = client.post("/tokenize", json={**talk, "with_pieces": True}).get_json()["tokens"]
    assert [piece["id"] for piece in pieces] == tokens["tokens"]


def test_a_chat_and_a_text_are_not_tokenized_together(client):
    refused = client.post("/tokenize", json={"messages": [_ASK], "content": "x"})
    assert refused.status_code == 400 and "'messages'" in refused.get_json()["error"]["message"]


def test_the_tokens_of_a_chat_are_counted(client):
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    used = client.post("/v1/chat/completions", json=chat).get_json()["usage"]["prompt_tokens"]
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert client.post(path, json=chat).get_json() == {"object": "response.input_tokens", "input_tokens": used}


# Slots in files

LONG = "abcdefghij" * 10


@pytest.fixture
def keeping(start, tmp_path):
    return start(web=WebOptions(slot_folder=tmp_path / "slots"))


def complete(client, prompt):
    return client.post("/completion", json={"prompt": prompt, "n_predict": 5, "temperature": 0}).get_json()


def test_a_slot_goes_to_a_file_and_back(keeping, start, tmp_path):
    client = keeping.client
    slot = complete(client, LONG)["id_slot"]
    saved = client.post(f"/slots/{slot}?action=save", json={"filename": "talk.bin"}).get_json()
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (slot, "talk.bin", 104)
    assert (tmp_path / "slots" / "talk.bin").stat().st_size == saved["n_written"]
    another = start(web=WebOptions(slot_folder=tmp_path / "slots")).client
    restored = another.post("/slots/5?action=restore", json={"filename": "talk.bin"}).get_json()
    assert (restored["id_slot"], restored["n_restored"], restored["n_read"]) == (5, 104, saved["n_written"])
    assert complete(another, LONG + "x")["timings"]["cache_n"] == 100


def test_with_one_sequence_at_a_time_slot_0_is_what_came_last(start, tmp_path):
    """Scripts written for one slot save and restore number 0, and name no slot in their requests."""
    client = start(options=EngineOptions(parallel=1), web=WebOptions(slot_folder=tmp_path)).client
    assert [complete(client, prompt)["id_slot"] for prompt in (LONG, LONG[::-1] + "x")] == [0, 0]
    assert client.post("/slots/0?action=save", json={"filename": "a"}).get_json()["n_saved"] == 105
    assert len(client.get("/slots").get_json()) == client.get("/props").get_json()["total_slots"] == 1


def test_the_body_of_a_slots_request_has_the_servers_bounds(start, tmp_path):
    """It was read with the default ones, whatever the operator had said."""
    client = start(web=WebOptions(slot_folder=tmp_path, limits=Limits(body_bytes=20))).client
    refused = client.post("/slots/0?action=save", json={"filename": "a name that is too long"})
    assert refused.status_code == 413


def test_an_erased_slot_is_forgotten(keeping):
    client = keeping.client
    slot = complete(client, LONG)["id_slot"]
    assert client.post(f"/slots/{slot}?action=erase").get_json() == {"id_slot": slot, "n_erased": 104}
    assert complete(client, LONG)["timings"]["cache_n"] == 0


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", ".hidden", "", "a\0b", "..", "a" * 129, "x\n", None, 5])
def test_no_name_leads_out_of_the_folder(keeping, name, tmp_path):
    for action in ("save", "restore"):
        reply = keeping.client.post(f"/slots/0?action={action}", json={"filename": name})
        assert reply.status_code == 400 and reply.get_json()["error"]["param"] == "filename"
    assert not (tmp_path / "slots").exists()


def test_a_link_is_not_followed(keeping, tmp_path):
    (tmp_path / "slots").mkdir()
    (tmp_path / "secret").write_bytes(b"llamasrv state\n")
    (tmp_path / "slots" / "link").symlink_to(tmp_path / "secret")
    assert keeping.client.post("/slots/0?action=restore", json={"filename": "link"}).status_code == 400


def test_a_damaged_file_is_refused(keeping, tmp_path):
    client = keeping.client
    slot = complete(client, LONG)["id_slot"]
    client.post(f"/slots/{slot}?action=save", json={"filename": "x"})
    path = tmp_path / "slots" / "x"
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        assert client.post("/slots/0?action=restore", json={"filename": "x"}).status_code == 400
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        assert client.post("/slots/0?action=restore", json={"filename": "x"}).status_code == 400


def test_a_slot_that_has_nothing_is_404(keeping):
    assert keeping.client.post("/slots/9?action=save", json={"filename": "x"}).status_code == 404
    assert keeping.client.post("/slots/9?action=restore", json={"filename": "x"}).status_code == 404
    assert keeping.client.post("/slots/9?action=erase").get_json()["n_erased"] == 0


def test_wrong_slots_and_actions_are_400(keeping):
    assert keeping.client.post("/slots/16?action=erase").status_code == 400
    assert keeping.client.post("/slots/0?action=fly").status_code == 400
    assert keeping.client.post("/slots/0").status_code == 400


@pytest.mark.parametrize("action", ["save", "restore", "erase"])
def test_without_a_folder_slots_stay_where_they_are(client, action):
    reply = client.post(f"/slots/0?action={action}", json={"filename": "x"})
    assert reply.status_code == 501 and reply.get_json()["error"]["type"] == "not_supported_error"


def test_an_answer_may_have_only_so_long(client):
    """The fake writes no line ends: time alone ends nothing."""
    body = {"prompt": "abc", "n_predict": 9, "t_max_predict_ms": 0, "temperature": 0}
    assert client.post("/completion", json=body).get_json()["tokens_predicted"] == 9
    body |= {"prompt": chat("line\n" * 60), "n_predict": 3000, "ignore_eos": True}
    told = client.post("/completion", json=body).get_json()
    assert told["stop_type"] == "limit" and told["has_new_line"] and told["tokens_predicted"] < 3000


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def test_properties_tell_what_the_template_can(client):
    props = client.get("/props").get_json()
    assert props["chat_template_caps"]["supports_system_role"] and not props["chat_template_caps"]["supports_tools"]
    assert props["chat_template_caps"]["supports_reasoning_effort"] is False


def test_properties_have_llama_servers_form(client):
    props = client.get("/props").get_json()
    assert props["build_info"].startswith("b") and props["is_sleeping"] is False
    assert props["modalities"] == {"vision": False, "video": False, "audio": False}
    assert "supports_tools" in props["chat_template_caps"] and props["endpoint_props"] is False


def test_properties_are_changed_only_where_that_is_allowed(start):
    reply = start(web=WebOptions(props=True)).client.post("/props", json={})
    assert (reply.status_code, reply.get_json()) == (200, {"success": True})


def test_what_a_request_leaves_is_saved_under_the_number_that_it_gives(keeping):
    """llama-server's clients compute a prompt with id_slot 1 and save slot 1, whichever lane it was computed in."""
    client = keeping.client
    body = {"prompt": LONG, "n_predict": 5, "temperature": 0, "id_slot": 1}
    assert client.post("/completion", json=body).get_json()["id_slot"] == 1
    saved = client.post("/slots/1?action=save", json={"filename": "one.bin"})
    assert saved.status_code == 200 and saved.get_json()["n_saved"] == len(LONG) + 4
    assert client.post("/slots/1?action=erase", json={}).get_json()["n_erased"] == len(LONG) + 4
    assert client.post("/completion", json=body).get_json()["timings"]["cache_n"] == 0


@pytest.mark.parametrize("path", ["/tools", "/cors-proxy?url=http://127.0.0.1/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_llama_servers_pages_ask_for_is_reported_as_switched_off(client, path, method):
    reply = client.open(path, method=method, json={})
    assert reply.status_code == 403 and "llamasrv" in reply.get_json()["error"]["message"]


def test_two_last_messages_of_the_assistant_are_refused_where_llama_server_does(client):
    messages = [{"role": "user", "content": "x"}, *[{"role": "assistant", "content": "y"}] * 2]
    refused = client.post("/chat/completions", json={"messages": messages})
    assert refused.status_code == 400 and "'messages'" in refused.get_json()["error"]["message"]
    assert client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4}).status_code == 200


def test_a_beginning_in_several_texts_is_gone_on_with_as_llama_server_does(client):
    begun = [{"type": "text", "text": "You"}, {"type": "text", "text": "said"}]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": begun}]
    reply = client.post("/chat/completions", json={"messages": messages, "verbose": True, "max_tokens": 1}).get_json()
    assert reply["__verbose"]["prompt"].endswith("<|im_start|>assistant\nYou\n\nsaid")
