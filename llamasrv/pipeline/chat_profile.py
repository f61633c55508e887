"""A model's chat template and the format its answers have."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message
from llamasrv.engine.base.interface import ModelInfo, Vocabulary
from llamasrv.errors import InvalidRequest
from llamasrv.pipeline.boundaries import message_marks

_log = logging.getLogger("llamasrv")


@dataclass(frozen=True, slots=True)
class ChatProfile:
    """Made once for each template of a loaded model."""

    template: ChatTemplate
    format: ChatFormat
    spoken: Mapping[int, bytes]  # texts of control tokens that are part of the format's marks
    thinks_on_request: bool  # the prompt opens the thinking block only if thinking is requested
    marks: frozenset[int]  # control tokens around messages

    @classmethod
    def of(cls, source: str, info: ModelInfo, vocab: Vocabulary) -> ChatProfile:
        """Find out what the template accepts and shows. Raises TemplateError."""
        template = ChatTemplate(source, info.bos_token, info.eos_token, vocab.specials)
        _ = template.traits
        format = template.format
        if format.unsure:
            _log.warning(
                "the chat template was not fully understood: its turns with %s do not survive a round trip. "
                "Answers of this kind may be misread; see `llamasrv check --chat-template FILE`.",
                ", ".join(format.unsure),
            )
        # They are tokens of their own and never reach the parser as text; text that looks like them is content.
        format = replace(format, role_ends=tuple(mark for mark in format.role_ends if mark not in vocab.controls))
        spoken = {token: text.encode() for text, token in vocab.controls.items() if format.needs(text)}
        return cls(template, format, spoken, _thinks_on_request(template), message_marks(template, vocab))


def _thinks_on_request(template: ChatTemplate) -> bool:
    thought = template.format.reasoning
    if thought is None:
        return False
    opened = []
    for variables in ({}, {"enable_thinking": True, "thinking": True}):
        try:
            prompt = ChatPrompt((Message("user", "Hello"),), template_kwargs=variables)
            opened.append(thought.is_open(template.render(prompt).text))
        except InvalidRequest:
            return False
    return opened == [False, True]
