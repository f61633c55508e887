"""The reasoning of a chat that is under way is ended from outside."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from llamasrv.domain.defaults import ChatDefaults
from llamasrv.domain.key import Key
from llamasrv.engine.base.options import EngineOptions
from llamasrv.web.service import WebOptions

THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
    "{# <think> </think> #}"
)
PATH = "/v1/chat/completions"
CHAT = {
    "messages": [{"role": "user", "content": "a very long way to think about it, and then some more of it"}],
    "temperature": 0,
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
    "reasoning_control": True,
}
ANN = {"Authorization": "Bearer ann-secret"}
BOB = {"Authorization": "Bearer bob-secret"}

STEP_BY_STEP = EngineOptions(parallel=8, spec="off")  # a token a step: drafts would think ahead


class Held:
    """A chat whose computing stops after some steps until it is let go on."""

    def __init__(self, running, *, path=PATH, headers=None, **body):
        decode, self._go, steps = running.backend.decode, threading.Event(), iter(range(12))

        def held():
            if next(steps, None) is None:
                assert self._go.wait(10)
            decode()

        running.backend.decode = held
        self._pieces = running.client.post(path, json={**CHAT, **body}, headers=headers, buffered=False).iter_encoded()
        self._read = next(self._pieces)
        self.id = json.loads(self._read.decode().split("\n\n")[0].removeprefix("data: "))["id"]

    def finish(self):
        """What was thought and what was said, once it may go on."""
        self._go.set()
        read = self._read + b"".join(self._pieces)
        events = [json.loads(e[6:]) for e in read.decode().split("\n\n") if e and e != "data: [DONE]"]
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        return tuple("".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning_content", "content"))


def control(running, id, path=PATH, headers=None, **body):
    body = {"id": id, "action": "reasoning_end", **body}
    return running.client.post(path + "/control", json=body, headers=headers)


@pytest.fixture
def thinking(start):
    return start(model={"chat_template": THINKS}, options=STEP_BY_STEP)


@pytest.mark.parametrize("path", [PATH, "/chat/completions"])
def test_its_reasoning_ends_and_it_answers(thinking, path):
    held = Held(thinking, path=path)
    reply = control(thinking, held.id, path)
    assert (reply.status_code, reply.get_json()) == (200, {"success": True})
    thought, said = held.finish()
    assert 0 < len(thought) < 30 and said


def test_without_that_it_goes_on_thinking(thinking):
    thought, said = Held(thinking).finish()
    assert len(thought) > 300 and not said


def test_a_bound_of_its_own_holds_as_well(thinking):
    held = Held(thinking, thinking_budget_tokens=200)
    assert control(thinking, held.id).get_json() == {"success": True}
    assert len(held.finish()[0]) < 30


def test_the_operators_message_is_said_before_reasoning_ends(start):
    """--reasoning-budget-message was refused."""
    defaults = ChatDefaults(thinking_budget=20, thinking_message=" Time is up.<|im_end|>")
    running = start(model={"chat_template": THINKS, "chat_defaults": defaults}, options=STEP_BY_STEP)
    body = {**CHAT, "stream": False, "max_tokens": 200}
    message = running.client.post(PATH, json=body).get_json()["choices"][0]["message"]
    assert message["reasoning_content"].endswith(" Time is up.<|im_end|>") and message["content"]
    assert len(message["reasoning_content"]) < 60


def test_all_choices_end_their_reasoning(thinking):
    held = Held(thinking, n=2, stream_options={"include_usage": True})
    assert control(thinking, held.id).get_json() == {"success": True}
    assert len(held.finish()[0]) < 60


def test_a_chat_that_did_not_ask_for_it_goes_on(thinking):
    held = Held(thinking, reasoning_control=False)
    answer = control(thinking, held.id).get_json()
    assert answer["success"] is False and "not enabled" in answer["message"]
    assert len(held.finish()[0]) > 300


def test_an_answer_that_has_no_reasoning_is_as_it_would_be(start):
    running = start()
    held = Held(running, ignore_eos=False)
    assert control(running, held.id).get_json() == {"success": True}
    assert held.finish() == ("", "You said: " + CHAT["messages"][0]["content"])


def test_a_chat_that_has_ended_is_not_found(thinking):
    held = Held(thinking)
    held.finish()
    for id in (held.id, "chatcmpl-unknown"):
        assert control(thinking, id).get_json() == {"success": False, "message": "no active completion for this id"}


def test_another_keys_chat_is_not_found(start):
    keys = (replace(Key.of("ann", "ann-secret"), concurrency=1), Key.of("bob", "bob-secret"))
    running = start(model={"chat_template": THINKS}, web=WebOptions(keys=keys), options=STEP_BY_STEP)
    held = Held(running, headers=ANN)
    assert control(running, held.id, headers=BOB).get_json()["message"] == "no active completion for this id"
    assert control(running, held.id).status_code == 401
    # Also where its key may have no second request at once.
    assert control(running, held.id, headers=ANN).get_json() == {"success": True}
    assert len(held.finish()[0]) < 30


@pytest.mark.parametrize(
    "body, param",
    [
        ({"id": ""}, "id"),
        ({"id": 3}, "id"),
        ({"id": None}, "id"),
        ({"action": "stop"}, "action"),
        ({"action": ["reasoning_end"]}, "action"),
    ],
)
def test_what_makes_no_sense_is_refused(client, body, param):
    reply = client.post(PATH + "/control", json={"id": "chatcmpl-1", "action": "reasoning_end", **body})
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == param


@pytest.mark.parametrize("missing", ["id", "action"])
def test_both_fields_are_needed(client, missing):
    body = {"id": "chatcmpl-1", "action": "reasoning_end"}
    del body[missing]
    reply = client.post(PATH + "/control", json=body)
    assert reply.status_code == 400 and reply.get_json()["error"]["param"] == missing
