"""A response that another server began: from the chunks that its readers got back to the reply that wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from llamasrv.domain.events import Reasoning, Text
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message
from llamasrv.protocols.openai.responses.reply import ResponseReply
from llamasrv.protocols.openai.responses.stored import Stored

QUEUED = 2  # number of chunks while a response is in the queue
GOING = 3  # number of chunks once it has left the queue, before any text

_DELTAS = {"response.output_text.delta": Text, "response.reasoning_text.delta": Reasoning}


class PartialAnswer(NamedTuple):
    """What was said: text and reasoning, and how many tokens they are, of which some are reasoning."""

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    reasoning_tokens: int = 0

    def continued(self, asked: GenerateRequest) -> GenerateRequest | None:
        """The request for the rest of the answer. None: it cannot be continued, since its form counts from its
        beginning."""
        if not self.text and not self.reasoning:
            return asked
        (prompt,) = asked.prompts
        if not isinstance(prompt, ChatPrompt) or prompt.continue_final_message or asked.content is not None:
            return None
        said = Message("assistant", self.text or None, reasoning=self.reasoning or None)
        prompt = replace(prompt, messages=(*prompt.messages, said), continue_final_message=True)
        return asked._replace(
            prompts=(prompt,),
            max_tokens=_less(asked.max_tokens, self.tokens),
            thinking_budget=_less(asked.thinking_budget, self.reasoning_tokens),
        )


def _less(most: int | None, tokens: int) -> int | None:
    return None if most is None else max(1, most - tokens)


def resume(reply: ResponseReply, model: str, chunks: Sequence[bytes]) -> PartialAnswer | None:
    """Bring a new reply to where another one was when it had written `chunks`; the next chunk has the next number.
    None: that is not possible, because it had called tools, or would write something else."""
    written = reply.queue(model)
    said: dict[type, list[str]] = {Text: [], Reasoning: []}
    for chunk in chunks[QUEUED:]:
        event = orjson.loads(chunk)
        kind = _DELTAS.get(event["type"])
        if kind is not None:
            said[kind].append(event["delta"])
            written += reply.chunks([kind(0, event["delta"])])
        elif event["type"] == "keepalive":
            written += reply.chunks(())
        elif event["type"] == "response.in_progress":
            written += reply.chunks([Text(0, "")])
    if written != list(chunks):
        return None
    return PartialAnswer("".join(said[Text]), "".join(said[Reasoning]))


def given_up(stored: Stored, num_chunks: int, reason: str) -> Stored:
    """A response that failed after `num_chunks` events, which its readers may have received. Later readers get
    keepalives in their place: no number is used twice."""
    error = {"code": "server_error", "message": reason}
    response = {**stored.response, "status": "failed", "error": error, "output": []}
    return stored._replace(response=response, cuts=[], silences=[*range(GOING, num_chunks)])
