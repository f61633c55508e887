"""google-genai pointed at a real server: chats, streams, functions that it calls itself, forms, counts, errors."""

from __future__ import annotations

from typing import Literal

import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

from llamasrv.config import paths

pytest.importorskip("google.genai")
from google import genai
from google.genai import errors, types
from pydantic import BaseModel


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    age: int


@pytest.fixture(scope="module")
def client():
    model = paths.demo_model()
    if model is None or not model.is_file():
        pytest.skip("the demonstration model is not there")
    server = ServerProcess(["--port", "0", "--model", str(model), "--alias", "demo"])
    wait_until_ready(server)
    yield genai.Client(api_key="none", http_options=types.HttpOptions(base_url=server.url))
    server.end()


def test_it_answers_and_goes_on(client):
    chat = client.chats.create(model="demo", config={"temperature": 0, "max_output_tokens": 40})
    first = chat.send_message("Hello")
    assert first.text and first.candidates[0].finish_reason in ("STOP", "MAX_TOKENS")
    assert (
        first.usage_metadata.prompt_token_count
        == client.models.count_tokens(model="demo", contents="Hello").total_tokens
    )
    assert chat.send_message("And now?").usage_metadata.prompt_token_count > first.usage_metadata.prompt_token_count


def test_it_streams_what_it_would_answer(client):
    config = {"temperature": 0, "max_output_tokens": 40}
    chunks = list(client.models.generate_content_stream(model="demo", contents="Hello", config=config))
    whole = client.models.generate_content(model="demo", contents="Hello", config=config)
    assert "".join(chunk.text or "" for chunk in chunks) == whole.text
    assert chunks[-1].candidates[0].finish_reason == whole.candidates[0].finish_reason
    assert chunks[-1].usage_metadata.candidates_token_count == whole.usage_metadata.candidates_token_count


@pytest.mark.parametrize("streamed", [False, True])
def test_functions_are_called_and_their_results_read(client, streamed):
    """Streamed, the client keeps every chunk as a turn, and the empty one stands between a call and its result."""
    asked = []

    def clock(city: str) -> str:
        """Tells the time in a city."""
        asked.append(city)
        return "12:00"

    chat = client.chats.create(model="demo", config=types.GenerateContentConfig(tools=[clock], temperature=0))
    question = "What time is it in Bern?"
    if streamed:
        answer = "".join(chunk.text or "" for chunk in chat.send_message_stream(question))
    else:
        answer = chat.send_message(question).text
    assert asked == ["Bern"] and "12:00" in answer


def test_an_answer_has_the_form_of_a_class(client):
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=Person)
    found = client.models.generate_content(model="demo", contents="Ann is 30 years old.", config=config)
    assert isinstance(found.parsed, Person)


def test_models_are_listed(client):
    assert [model.name for model in client.models.list()] == ["models/demo"]
    assert client.models.get(model="demo").input_token_limit == 2048


def test_errors_are_its_own(client):
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model="demo", contents="x", config={"temperature": 9})
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    assert "generationConfig.temperature" in caught.value.message


def test_what_is_cached_is_used_by_its_name(client):
    words = "The cat sat on the mat. " * 12
    config = {"contents": [words], "system_instruction": "Be brief.", "ttl": "300s", "display_name": "a cat"}
    made = client.caches.create(model="demo", config=config)
    assert made.display_name == "a cat" and made.usage_metadata.total_token_count > 30
    config = {"cached_content": made.name, "max_output_tokens": 5}
    usage = client.models.generate_content(model="demo", contents="Who sat?", config=config).usage_metadata
    assert usage.cached_content_token_count > 30 and usage.prompt_token_count > made.usage_metadata.total_token_count
    changed = client.caches.update(name=made.name, config={"ttl": "600s"})
    assert changed.expire_time > made.expire_time and client.caches.get(name=made.name).name == made.name
    assert [one.name for one in client.caches.list()] == [made.name]
    client.caches.delete(name=made.name)
    with pytest.raises(errors.ClientError):
        client.caches.get(name=made.name)


CLOCK = {"type": "function", "name": "clock", "description": "Tells the time", "parameters": {"type": "object"}}
BRIEFLY = {"temperature": 0, "max_output_tokens": 40}


def test_an_interaction_goes_on_from_what_is_stored(client):
    first = client.interactions.create(model="demo", input="Hello", generation_config=BRIEFLY)
    assert first.status in ("completed", "incomplete") and first.output_text and first.steps[0].type == "model_output"
    second = client.interactions.create(
        model="demo", input="And again?", previous_interaction_id=first.id, generation_config=BRIEFLY
    )
    assert second.usage.total_cached_tokens >= 0.97 * (first.usage.total_input_tokens - 1)
    shown = client.interactions.get(second.id, include_input=True)
    assert [step.type for step in shown.steps] == ["user_input", "model_output"]
    client.interactions.delete(second.id)
    with pytest.raises(Exception, match="Interaction with id"):
        client.interactions.get(second.id)


def test_an_interaction_streams_a_call_and_takes_its_result(client):
    config = {**BRIEFLY, "tool_choice": "any"}
    made = list(
        client.interactions.create(model="demo", input="Time?", tools=[CLOCK], generation_config=config, stream=True)
    )
    assert made[0].event_type == "interaction.created" and made[-1].event_type == "interaction.completed"
    last = made[-1].interaction
    assert last.status == "requires_action"
    call = next(step for step in client.interactions.get(last.id).steps if step.type == "function_call")
    result = {"type": "function_result", "call_id": call.id, "name": call.name, "result": "noon"}
    done = client.interactions.create(
        model="demo", input=[result], tools=[CLOCK], previous_interaction_id=last.id, generation_config=BRIEFLY
    )
    assert done.status in ("completed", "incomplete", "requires_action") and done.previous_interaction_id == last.id
    again = list(client.interactions.get(last.id, stream=True, last_event_id=made[1].event_id))
    assert [one.event_type for one in again] == [one.event_type for one in made[2:]]
