"""Running the cases of what a model wrote: a prompt, a parser, and the message that comes out."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.parser import Parser
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.events import Reasoning, Text, ToolCallArguments, ToolCallStart
from llamasrv.domain.request import ChatPrompt, Message, Tool

SHARED = Path(__file__).resolve().parents[3] / "shared"
COLLECTION = SHARED / "chat-templates"  # templates of many models, beside the checkout where there are any


@lru_cache(maxsize=128)
def template_of(source: str) -> tuple[ChatTemplate, ChatFormat]:
    template = ChatTemplate(source, "<s>", "</s>", special_tokens=())
    return template, template.format


def tools_of(request: dict[str, Any]) -> tuple[Tool, ...]:
    functions = [tool["function"] for tool in request.get("tools") or ()]
    return tuple(Tool(f["name"], f.get("description", ""), f.get("parameters") or {}) for f in functions)


def prompt_of(request: dict[str, Any]) -> ChatPrompt:
    messages = tuple(
        Message(m["role"], m.get("content"), reasoning=m.get("reasoning_content")) for m in request["messages"]
    )
    return ChatPrompt(
        messages,
        tools=tools_of(request),
        template_kwargs={
            "enable_thinking": request.get("enable_thinking", True),
            **request.get("chat_template_kwargs", {}),
        },
        add_generation_prompt=request.get("add_generation_prompt", True),
        continue_final_message=bool(request.get("continue_final_message")),
    )


class Case:
    """One template and request, rendered once; `parse` runs an output in any pieces."""

    def __init__(self, source: str, request: dict[str, Any]) -> None:
        self.template, self.format = template_of(source)
        self.request = request
        self.prompt = prompt_of(request)
        self.rendered = self.template.render(self.prompt)

    def parser(self) -> Parser:
        counter = iter(range(1000))
        return Parser(
            self.format,
            prompt=self.rendered.text,
            continues=self.rendered.continues,
            tools=() if self.request.get("tool_choice") == "none" else self.prompt.tools,
            reasoning=self.request.get("reasoning_format", "auto") != "none",
            json_content=bool(self.request.get("json_schema")),
            new_id=lambda: f"id{next(counter)}",
        )

    def parse(self, *pieces: str) -> dict[str, Any]:
        """The message for an output that arrives in these pieces."""
        parser = self.parser()
        events: list[Any] = []
        for piece in pieces:
            events += parser.feed(piece)
        message = message_of(events + parser.finish())
        message["complete"] = parser.complete_calls
        last = self.prompt.messages[-1]
        if self.rendered.continues is not None:  # the message includes what it already held
            if self.request.get("reasoning_format", "auto") != "none":
                message["reasoning_content"] = (last.reasoning or "") + message["reasoning_content"]
            if self.rendered.continues == "content":
                message["content"] = str(last.content or "") + message["content"]
        return message


def message_of(events: list[Any]) -> dict[str, Any]:
    """Events put together as a client does it; complains about what would confuse one."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in events:
        if isinstance(event, Text):
            message["content"] += event.text
        elif isinstance(event, Reasoning):
            message["reasoning_content"] += event.text
        elif isinstance(event, ToolCallStart):
            assert event.call == len(message["tool_calls"]), "calls must start in order"
            message["tool_calls"].append({"id": event.id, "name": event.name, "arguments": ""})
        elif isinstance(event, ToolCallArguments):
            assert event.call == len(message["tool_calls"]) - 1, "arguments belong to the last call"
            message["tool_calls"][-1]["arguments"] += event.fragment
        else:
            raise AssertionError(event)
    return message


def run(source: str, request: dict[str, Any], pieces: list[str]) -> dict[str, Any]:
    return Case(source, request).parse(*pieces)


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without outer white space; arguments as JSON, where they are that."""

    def arguments(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return "".join(text.split())

    return {
        "content": (message.get("content") or "").strip(),
        "reasoning_content": (message.get("reasoning_content") or "").strip(),
        "tool_calls": [(c["name"], arguments(c["arguments"])) for c in message.get("tool_calls") or ()],
    }
