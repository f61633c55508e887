"""POST /api/chat: the request's schema, and where its replies put the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from llamasrv.domain.request import ChatPrompt, GenerateRequest
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.schema import Flag, Loader
from llamasrv.protocols.common.thinking import thinking_variables
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.fields import AnswerSchema, Chosen, model_of
from llamasrv.protocols.ollama.messages import Messages
from llamasrv.protocols.ollama.reply import AnswerOptions, AnswerReply, Said, wire_calls
from llamasrv.protocols.openai.tools import Tools


class ChatSchema(AnswerSchema):
    messages = Messages("text, images if the model takes them, thinking, calls and their results; none: only load")
    tools = Tools("functions")
    truncate = Flag("true if absent: the oldest turns of a long conversation are left out; the reply says how many")


def shape(said: Said) -> dict[str, Any]:
    """The line with the answer in its place."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text}
    if said.thinking:
        message["thinking"] = said.thinking
    if said.calls and (calls := wire_calls(said.calls, cut=True)):
        message["tool_calls"] = calls
    return {"message": message}


class Chat:
    """The endpoint, with its limits."""

    names = prompt_in("messages")
    shape = staticmethod(shape)

    def __init__(self, limits: Limits) -> None:
        loader = Loader(ChatSchema, limits)
        self._load, self.unknown = loader.load, loader.unknown

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, AnswerOptions]:
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
        return answer(data, prompts, owner=owner, timeout=timeout, shorten=data.get("truncate", True))

    def reply(self, options: AnswerOptions, *, model: str, fingerprint: str) -> AnswerReply:
        return AnswerReply(options, self.shape)


def thinking(think: bool | str | None) -> dict[str, Any]:
    return thinking_variables(None, think) if isinstance(think, str) else thinking_variables(think, None)


def answer(
    data: Mapping[str, Any],
    prompts: Any,
    *,
    owner: str,
    timeout: float | None,
    shorten: bool = False,
    insert: bool = False,
    whole_text: bool = False,
) -> tuple[GenerateRequest, AnswerOptions]:
    """What chat and generate make of the fields they share."""
    get = data.get
    chosen: Chosen = get("options", Chosen())
    logprobs, top = get("logprobs", False), get("top_logprobs", 0)
    if top and not logprobs:
        raise InvalidRequest("Invalid 'top_logprobs': only allowed when 'logprobs' is true.", param="top_logprobs")
    model = model_of(data)
    request = GenerateRequest(
        prompts=prompts,
        model=model,
        sampling=chosen.sampling,
        max_tokens=chosen.max_tokens,
        stop=chosen.stop,
        logprobs=top if logprobs else None,
        stream=get("stream", True),
        timeout=timeout,
        owner=owner,
        content=get("format"),
        keep_alive=get("keep_alive"),
        shorten=shorten,
        with_progress=get("stream", True) and get("return_progress", False),
    )
    options = AnswerOptions(model, time.perf_counter(), top if logprobs else None, get("think"), insert, whole_text)
    return request, options
