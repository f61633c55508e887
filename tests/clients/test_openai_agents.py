"""openai-agents pointed at a real server: its chat model and its Responses model, tools, several turns, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from clients.conftest import wait_until_ready
from conftest import ServerProcess

from llamasrv.config import paths

pytest.importorskip("agents")
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI, OpenAI
from openai.types import Reasoning
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

City = Literal["Oslo", "Paris"]
"""The fake model never ends a text of its own: where it may choose, it has to be one of these."""


class Answer(BaseModel):
    city: City


def asking(server, kind, name):
    """`ask(input, ...)`: the result of a run over one of the two models, and its events where it is streamed."""

    async def go(options, given, streamed, run, session):
        # A client is bound to the loop in which it was made.
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            made = OpenAIChatCompletionsModel if kind == "chat" else OpenAIResponsesModel
            model, settings = made(model=name, openai_client=client), ModelSettings(temperature=0)
            others = [Agent(model=model, model_settings=settings, **o) for o in options.pop("others", [])]
            own = {"name": "Helper", "instructions": "Be brief.", "handoffs": others, **options}
            own["model_settings"] = settings.resolve(own.pop("settings", None))
            agent, config = Agent(model=model, **own), RunConfig(tracing_disabled=True)
            if session is not None:
                run = run | {"session": OpenAIConversationsSession(conversation_id=session, openai_client=client)}
            if not streamed:
                return await Runner.run(agent, given, run_config=config, **run), []
            result = Runner.run_streamed(agent, given, run_config=config, **run)
            return result, [event async for event in result.stream_events()]

    def ask(given, *, streamed=False, run=None, session=None, **options):
        return asyncio.run(go(options, given, streamed, run or {}, session))

    ask.kind = kind
    return ask


@pytest.fixture(params=["chat", "responses"])
def ask(request, server):
    return asking(server, request.param, "fake")


both = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
responses = pytest.mark.parametrize("ask", ["responses"], indirect=True)


def weather():
    """A tool, and the cities that it was asked for."""
    asked = []

    @function_tool
    def get_weather(city: City) -> str:
        """Tells the weather of a city."""
        asked.append(city)
        return f"fine in {city}"

    return get_weather, asked


def texts_of(events):
    data = [event.data for event in events if event.type == "raw_response_event"]
    return "".join(part.delta for part in data if isinstance(part, ResponseTextDeltaEvent))


@both
def test_it_answers(ask, streamed):
    result, events = ask("Hello", streamed=streamed)
    assert result.final_output == "You said: Hello"
    assert not streamed or texts_of(events) == "You said: Hello"
    usage = result.context_wrapper.usage
    assert usage.requests == 1
    # The chat model asks for the usage of a stream only where it is told to.
    assert (ask.kind == "chat" and streamed) or usage.output_tokens == len("You said: Hello") + 1


@both
def test_a_stream_tells_its_usage_where_it_is_asked_for(ask, streamed):
    result, _ = ask("Hello", streamed=streamed, settings=ModelSettings(include_usage=True))
    assert result.context_wrapper.usage.output_tokens == len("You said: Hello") + 1
    assert result.context_wrapper.usage.input_tokens > 0


@both
def test_a_tool_is_called_and_the_talk_goes_on(ask, streamed):
    """Two turns of one run: the call that must come, then what the model says of its result."""
    tool, asked = weather()
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    result, events = ask("Weather?", streamed=streamed, tools=[tool], settings=settings)
    assert len(asked) == 1 and asked[0] in ("Oslo", "Paris")
    assert [type(item).__name__ for item in result.new_items] == [
        "ToolCallItem",
        "ToolCallOutputItem",
        "MessageOutputItem",
    ]
    assert json.loads(result.new_items[0].raw_item.arguments) == {"city": asked[0]}
    assert result.new_items[1].output == f"fine in {asked[0]}" and result.final_output.startswith("You said: ")
    if streamed:
        names = [event.name for event in events if event.type == "run_item_stream_event"]
        assert names == ["tool_called", "tool_output", "message_output_created"]


@both
def test_a_tool_by_its_name(ask, streamed):
    tool, asked = weather()

    @function_tool
    def other() -> str:
        """Does nothing."""
        return "no"

    settings = ModelSettings(tool_choice="get_weather", parallel_tool_calls=False)
    result, _ = ask(
        "Weather?", streamed=streamed, tools=[other, tool], settings=settings, tool_use_behavior="stop_on_first_tool"
    )
    assert result.final_output == f"fine in {asked[0]}" and len(asked) == 1


@both
def test_a_second_run_goes_on_from_the_first(ask, streamed):
    tool, _ = weather()
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    first, _ = ask("Weather?", streamed=streamed, tools=[tool], settings=settings)
    turns = [*first.to_input_list(), {"role": "user", "content": "And tomorrow?"}]
    second, _ = ask(turns, streamed=streamed, tools=[tool])
    assert second.final_output == "You said: And tomorrow?"


@both
def test_an_answer_fits_its_type(ask, streamed):
    result, _ = ask("Where?", streamed=streamed, output_type=Answer)
    assert type(result.final_output) is Answer


@both
def test_a_talk_is_handed_to_another_agent(ask, streamed):
    result, _ = ask(
        "Hello",
        streamed=streamed,
        settings=ModelSettings(tool_choice="required", parallel_tool_calls=False),
        others=[{"name": "Other", "instructions": "Be kind."}],
    )
    assert result.last_agent.name == "Other" and result.final_output.startswith("You said: ")


@responses
@both
def test_stored_responses_are_gone_on_with(ask, streamed):
    first, _ = ask("Hello", streamed=streamed)
    second, _ = ask("And?", streamed=streamed, run={"previous_response_id": first.last_response_id})
    assert second.final_output == "You said: And?" and second.last_response_id != first.last_response_id
    assert second.context_wrapper.usage.input_tokens > 0


@responses
@both
def test_a_conversation_is_kept_by_the_server(ask, streamed, server):
    """`conversation_id` of a conversation that was made here: the second turn knows of the first."""
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        made = client.conversations.create()
        tool, _ = weather()
        settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
        run = {"conversation_id": made.id}
        ask("Weather?", streamed=streamed, tools=[tool], settings=settings, run=run)
        result, _ = ask("And?", streamed=streamed, tools=[tool], run=run)
        assert result.final_output == "You said: And?"
        kinds = [item.type for item in client.conversations.items.list(made.id, order="asc")]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message", "message"]


@responses  # the chat model refuses what this session reads back: it takes the ids from it
@both
def test_a_session_is_kept_by_the_server(ask, streamed, server):
    """The session that puts every item into a conversation itself, and reads them back before each run."""

    async def go():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            return await OpenAIConversationsSession(conversation_id=id, openai_client=client).get_items()

    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        id = client.conversations.create().id
    tool, _ = weather()
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    ask("Weather?", streamed=streamed, tools=[tool], settings=settings, session=id)
    result, _ = ask("And?", streamed=streamed, tools=[tool], session=id)
    assert result.final_output == "You said: And?"
    items = asyncio.run(go())
    assert [item.get("type", "message") for item in items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
        "message",
    ]


def test_runs_go_side_by_side(server):
    async def go():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            agent = Agent(
                name="Helper",
                model=OpenAIResponsesModel(model="fake", openai_client=client),
                model_settings=ModelSettings(temperature=0),
            )
            config = RunConfig(tracing_disabled=True)
            return await asyncio.gather(*(Runner.run(agent, f"n{i}", run_config=config) for i in range(8)))

    assert [result.final_output for result in asyncio.run(go())] == [f"You said: n{i}" for i in range(8)]


# ---------------------------------------------------------------- a model that thinks and decides by itself


@pytest.fixture(scope="module")
def demo():
    model = paths.demo_model()
    if not model.is_file():
        pytest.skip("the demonstration model is not there")
    server = ServerProcess(["--port", "0", "--model", str(model), "--alias", "demo"])
    yield wait_until_ready(server)
    server.end()


@pytest.fixture(params=["chat", "responses"])
def ask_demo(request, demo):
    return asking(demo, request.param, "demo")


THINK = ModelSettings(max_tokens=400, reasoning=Reasoning(effort="high"))


@both
def test_thoughts_go_back_with_the_calls_that_they_led_to(ask_demo, streamed):
    """The items of a run with thoughts and a call are taken as the input of the next one."""
    tool, asked = weather()
    settings = THINK.resolve(ModelSettings(tool_choice="required", parallel_tool_calls=False))
    first, _ = ask_demo("What is the weather in Paris?", streamed=streamed, tools=[tool], settings=settings)
    assert asked and set(asked) <= {"Oslo", "Paris"}
    kinds = [type(item).__name__ for item in first.new_items]
    assert kinds[-1] == "MessageOutputItem" and "ReasoningItem" in kinds
    thoughts = [item for item in first.to_input_list() if item.get("type") == "reasoning"]
    assert thoughts
    turns = [*first.to_input_list(), {"role": "user", "content": "And in Oslo?"}]
    second, _ = ask_demo(turns, streamed=streamed, tools=[tool], settings=THINK)
    assert second.new_items


@both
def test_a_tool_is_called_where_the_model_wants_to(ask_demo, streamed):
    tool, asked = weather()
    settings = ModelSettings(max_tokens=400, reasoning=Reasoning(effort="none"))
    result, _ = ask_demo("What is the weather in Paris?", streamed=streamed, tools=[tool], settings=settings)
    assert asked == ["Paris"] and result.final_output
