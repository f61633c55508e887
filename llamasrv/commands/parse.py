"""`llamasrv parse`: shows the message that a client would get for given model output. Loads no model."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llamasrv.chat.emitter import Event
from llamasrv.chat.parser import Parser
from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.template import ChatTemplate, Rendered
from llamasrv.commands import learned_format
from llamasrv.domain.events import Reasoning, Text, ToolCallArguments, ToolCallStart
from llamasrv.domain.request import ChatPrompt, Message, Tool
from llamasrv.errors import ConfigError, InvalidRequest
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.openai.chat import ChatCompletions

_OF_THE_PROMPT = ("messages", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt")


def run(template_file: Path, request_file: Path | None, stream: bool, explain: bool = False) -> int:
    """Read model output from standard input; print the message, or its deltas one per line. With `explain`, print what
    was learned from the template to standard error before."""
    body = _read_request(request_file)
    try:
        template = ChatTemplate(_read(template_file))
        prompt = _prompt(body)
        rendered = template.render(prompt)
    except TemplateError as error:
        raise ConfigError(f"{template_file}: {error}") from None
    except InvalidRequest as error:
        raise ConfigError(f"{request_file or template_file}: {error.message}") from None
    if explain:
        print(json.dumps(learned_format.describe(template), ensure_ascii=False, indent=2), file=sys.stderr)
    calls = template.format.calls
    if calls is not None and (calls.bare or calls.named_only) and not body.get("tools"):
        print("Only the names of tools tell calls of this format from text: give them by --request.", file=sys.stderr)
    parser = _parser(template, rendered, prompt, body)
    if sys.stdin is None:
        raise ConfigError("standard input is closed: it has the model's output")
    output = sys.stdin.read()
    if not stream:
        events = parser.feed(output) + parser.finish()
        print(json.dumps(_message(_held(rendered, prompt, body), events), ensure_ascii=False))
        return 0
    for char in output:
        _print_deltas(parser.feed(char))
    _print_deltas(parser.finish())
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None


def _read_request(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        body = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: invalid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"{path}: expected a chat request: a JSON object")
    return body


def _prompt(body: Mapping[str, Any]) -> ChatPrompt:
    if "messages" not in body:
        # Without a request any name counts as a known tool.
        return ChatPrompt((Message("user", ""),), tools=(Tool("any"),))
    known = {name: body[name] for name in _OF_THE_PROMPT if body.get(name) is not None}
    if isinstance(body.get("enable_thinking"), bool):
        known["chat_template_kwargs"] = {
            "enable_thinking": body["enable_thinking"],
            **known.get("chat_template_kwargs", {}),
        }
    if body.get("continue_final_message"):
        named = body["continue_final_message"] in ("content", "reasoning_content")
        known["continue_final_message"] = body["continue_final_message"] if named else True
        known.pop("add_generation_prompt", None)
    prompt = ChatCompletions(Limits()).parse_prompt(known)[1]
    return dataclasses.replace(prompt, tools=tuple(_tools(body)))


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for tool in body.get("tools") or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("expected a tool: {'type': 'function', 'function': {'name': …}}", param="tools")
        parameters = function.get("parameters")
        yield Tool(
            function["name"], function.get("description") or "", parameters if isinstance(parameters, dict) else {}
        )


def _parser(template: ChatTemplate, rendered: Rendered, prompt: ChatPrompt, body: Mapping[str, Any]) -> Parser:
    form = body.get("response_format")
    wants_json = isinstance(form, dict) and form.get("type") in ("json_object", "json_schema")
    return Parser(
        template.format,
        prompt=rendered.text,
        continues=rendered.continues,
        tools=() if body.get("tool_choice") == "none" else prompt.tools,
        reasoning=body.get("reasoning_format") != "none",
        json_content=wants_json or bool(body.get("json_schema")),
    )


def _held(rendered: Rendered, prompt: ChatPrompt, body: Mapping[str, Any]) -> dict[str, str]:
    """The parts of the message to continue."""
    last = prompt.messages[-1]
    split = body.get("reasoning_format") != "none"
    return {
        "content": last.content if rendered.continues == "content" and isinstance(last.content, str) else "",
        "reasoning_content": last.reasoning or "" if rendered.continues and split else "",
    }


def _message(held: Mapping[str, str], events: list[Event]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", **held, "tool_calls": []}
    calls = message["tool_calls"]
    for event in events:
        if isinstance(event, Text):
            message["content"] += event.text
        elif isinstance(event, Reasoning):
            message["reasoning_content"] += event.text
        elif isinstance(event, ToolCallStart):
            calls.append({"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}})
        else:
            calls[-1]["function"]["arguments"] += event.fragment
    return message


def _print_deltas(events: list[Event]) -> None:
    for event in events:
        print(json.dumps(_delta(event), ensure_ascii=False), flush=True)


def _delta(event: Event) -> dict[str, Any]:
    if isinstance(event, Text):
        return {"content": event.text}
    if isinstance(event, Reasoning):
        return {"reasoning_content": event.text}
    if isinstance(event, ToolCallArguments):
        return {"tool_calls": [{"index": event.call, "function": {"arguments": event.fragment}}]}
    function = {"name": event.name, "arguments": ""}
    return {"tool_calls": [{"index": event.call, "id": event.id, "type": "function", "function": function}]}
