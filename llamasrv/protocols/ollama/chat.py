"""POST /api/chat: the request's schema, and where its replies put the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from llamasrv.domain.request import ChatPrompt, GenerateRequest
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import logprobs_of
from llamasrv.protocols.common.schema import Flag
from llamasrv.protocols.common.thinking import thinking_variables
from llamasrv.protocols.ollama.fields import AnswerSchema, model_of
from llamasrv.protocols.ollama.messages import OllamaMessages
from llamasrv.protocols.ollama.reply import OllamaReply, OllamaReplyOptions, Said, wire_calls
from llamasrv.protocols.openai.tools import ChatTools


class OllamaChatSchema(AnswerSchema):
    messages = OllamaMessages(
        "text, images if the model takes them, thinking, calls and their results; none: only load"
    )
    tools = ChatTools("functions")
    truncate = Flag(
        "true if absent: the oldest turns of a long conversation are left out; the reply says how many",
        to="shorten",
        load_default=True,
    )


def shape(said: Said) -> dict[str, Any]:
    """The line with the answer in its place."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.thinking:
        message["thinking"] = said.thinking
    if said.calls and (calls := wire_calls(said.calls, cut=True)):
        message["tool_calls"] = calls
    return {"message": message}


class OllamaChat(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = OllamaChatSchema
    names = prompt_in("messages")
    shape = staticmethod(shape)

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, OllamaReplyOptions]:
        """A request without messages only loads the model."""
        data = self._load(body)
        messages = data.get("messages", ())
        prompts: tuple[ChatPrompt, ...] = ()
        if messages:
            goes_on = messages[-1].role == "assistant" and not messages[-1].tool_calls
            prompts = (
                ChatPrompt(
                    messages,
                    tools=data.get("tools", ()),
                    template_kwargs=thinking(data.get("think")),
                    add_generation_prompt=not goes_on,
                    continue_final_message=goes_on,
                ),
            )
        return answer(data, prompts, owner=owner, timeout=timeout)

    def reply(self, options: OllamaReplyOptions) -> OllamaReply:
        return OllamaReply(options, self.shape)


def thinking(think: bool | str | None) -> dict[str, Any]:
    return thinking_variables(None, think) if isinstance(think, str) else thinking_variables(think, None)


def answer(
    data: Loaded,
    prompts: Any,
    *,
    owner: str,
    timeout: float | None,
    insert: bool = False,
    whole_text: bool = False,
) -> tuple[GenerateRequest, OllamaReplyOptions]:
    """The request's parts and the reply's options from the fields that chat and generate share."""
    logprobs = logprobs_of(data)
    model = model_of(data)
    request = build(GenerateRequest, data, prompts=prompts, logprobs=logprobs, timeout=timeout, owner=owner)
    options = OllamaReplyOptions(model, time.perf_counter(), logprobs, data.get("think"), insert, whole_text)
    return request, options
