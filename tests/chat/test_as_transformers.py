"""Prompts are what transformers makes of the same conversation; our own environment is compared with jinja2's, set up as
transformers sets it up."""

from __future__ import annotations

import datetime
import json
from functools import lru_cache
from typing import Any

import jinja2.sandbox
from vectors import template_of

from llamasrv.chat.template import ChatTemplate
from llamasrv.chat.traits import NO_CONTENT
from llamasrv.domain.request import ChatPrompt, Message, Tool, ToolCall
from llamasrv.errors import InvalidRequest

WEATHER = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string", "description": "Where <to> look"},
        "days": {"type": "integer", "description": "Ahead"},
    },
}
TOOLS = (Tool("get_weather", "The weather's forecast", WEATHER), Tool("get_time", "The time", WEATHER))
IDS = ("call00001", "call00002")


def call(number: int, days: int) -> ToolCall:
    return ToolCall(IDS[number], TOOLS[number].name, json.dumps({"city": "Köln <b>", "days": days}, ensure_ascii=False))


ASKED = Message("user", "How's the weather?")
CALLED = Message("assistant", None, tool_calls=(call(0, 3),))
RESULT = Message("tool", '{"sky": "grey"}', tool_call_id=IDS[0], name="get_weather")
TALKS: dict[str, tuple[tuple[Message, ...], tuple[Tool, ...]]] = {
    "plain": ((Message("user", "Say 'hi' & <b>bye</b>"),), ()),
    "turns": (
        (Message("system", "Be brief."), ASKED, Message("assistant", "Grey."), Message("user", "And now?")),
        (),
    ),
    "tools": ((ASKED,), TOOLS),
    "called": ((ASKED, CALLED, RESULT), TOOLS),
    "results": (
        (
            ASKED,
            Message("assistant", None, tool_calls=(call(0, 3), call(1, 1))),
            RESULT,
            Message("tool", "noon", tool_call_id=IDS[1], name="get_time"),
            Message("assistant", "Grey, at noon."),
            Message("user", "Thanks"),
        ),
        TOOLS,
    ),
    "thought": ((ASKED, Message("assistant", "Grey.", reasoning="Clouds."), Message("user", "Sure?")), ()),
    "off": ((ASKED,), ()),
}


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message):
    raise jinja2.TemplateError(message)


def by_transformers(source: str, messages: list[Any], tools: list[Any] | None, variables: dict[str, Any]) -> str | None:
    """What transformers writes; None where it cannot."""
    given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True, **variables}
    try:
        return compiled(source).render(**given, bos_token="<s>", eos_token="</s>")
    except Exception:
        return None


@lru_cache(maxsize=64)
def compiled(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source)


def written_id(id: str, template: ChatTemplate) -> str:
    """An id as this template's model writes it."""
    place = IDS.index(id)
    return f"functions.{TOOLS[place].name}:{place}" if template.traits.names_in_ids else id


def plain(message: Message, template: ChatTemplate) -> dict[str, Any]:
    """A message as a user of transformers hands it to this template."""
    traits = template.traits
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found = {"role": message.role, **NO_CONTENT[traits.no_content]}
        found["tool_calls"] = [
            {
                "id": written_id(made.id, template),
                "type": "function",
                "function": {
                    "name": made.name,
                    "arguments": json.loads(made.arguments) if traits.arguments == "object" else made.arguments,
                },
            }
            for made in message.tool_calls
        ]
    if message.role == "tool":
        found |= {"tool_call_id": written_id(message.tool_call_id, template), "name": message.name}
        if traits.result_is_list:
            found["content"] = [message.content]
    if message.reasoning and traits.reasoning == "block":
        found["content"] = [
            {"type": "thinking", "thinking": message.reasoning},
            {"type": "text", "text": message.content},
        ]
    elif message.reasoning and traits.reasoning:
        found[traits.reasoning] = message.reasoning
    if traits.parts and isinstance(found.get("content"), str):
        found["content"] = [{"type": "text", "text": found["content"]}]
    return found


def compared(template: ChatTemplate, talk: str) -> tuple[str, str] | None:
    """Ours and theirs; None where theirs has no answer, or the template does not show such turns."""
    messages, tools = TALKS[talk]
    traits = template.traits
    if tools and not (traits.tools and traits.tools_variable == "tools"):
        return None
    if any(m.tool_calls for m in messages) and not (traits.calls and traits.results):
        return None
    if any(len(m.tool_calls) > 1 for m in messages) and not traits.parallel_calls:
        return None
    if talk == "off" and "enable_thinking" not in template.variables:
        return None  # ours closes the thought that the template opens
    variables: dict[str, Any] = {"enable_thinking": False} if talk == "off" else {}
    given = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in tools
    ]
    dates = {"date_string": datetime.date.today().strftime("%d %b %Y")} if "date_string" in template.variables else {}
    head = [{"role": "system", "content": ""}] if tools and traits.tools_need_system else []
    theirs = by_transformers(
        template.source,
        [*head, *(plain(message, template) for message in messages)],
        given or None,
        {**variables, **dates},
    )
    if theirs is None:
        return None
    try:
        return template.render(ChatPrompt(messages, tools=tools, template_kwargs=variables)).text, theirs
    except InvalidRequest as error:
        return str(error), theirs


OTHERWISE = {"meetkai-functionary-medium-v3.1": "texts beside one that it calls safe would be escaped for HTML"}


def test_every_talk_is_rendered_as_transformers_renders_it(template_file):
    template = template_of(template_file.read_text(encoding="utf-8"))[0]
    pairs = {talk: pair for talk in TALKS if (pair := compared(template, talk)) is not None}
    different = [talk for talk, (ours, theirs) in pairs.items() if ours != theirs]
    assert different == (["tools", "called", "results"] if template_file.stem in OTHERWISE else [])


KEPT = (
    Message("system", "Sysword one."),
    Message("user", "Userword two?"),
    Message("assistant", "Saidword three.", reasoning="Thought.", tool_calls=(call(0, 4711), call(1, 815))),
    Message("tool", "Resultword four.", tool_call_id=IDS[0], name="get_weather"),
    Message("tool", "Resultword five.", tool_call_id=IDS[1], name="get_time"),
    Message("assistant", "Answerword six."),
    Message("user", "Lastword seven?"),
)


THOUGHTS = {"openai-gpt-oss-120b": "what is said before a call is a thought, and thoughts go once there is an answer"}


def test_every_word_call_and_result_of_a_conversation_is_in_the_prompt(template_file):
    """The words before a call, too: some templates show either them or the call."""
    template = template_of(template_file.read_text(encoding="utf-8"))[0]
    text = template.render(ChatPrompt(KEPT, tools=TOOLS)).text
    told = template.render(ChatPrompt(KEPT[:2], tools=TOOLS)).text
    lost = ["Saidword three."] if template_file.stem in THOUGHTS else []
    assert [word for word in (*(str(message.content) for message in KEPT), "4711", "815") if word not in text] == lost
    assert [tool.name for tool in TOOLS if text.count(tool.name) <= told.count(tool.name)] == []
