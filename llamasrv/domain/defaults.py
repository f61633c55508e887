"""Defaults for conversations: how much a model thinks, and where its reasoning goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llamasrv.domain.request import ChatPrompt, GenerateRequest


@dataclass(frozen=True, slots=True)
class ChatDefaults:
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    split_reasoning: bool = True  # False: keep reasoning in the text, with its marks
    thinking_budget: int | None = None  # max tokens of reasoning; None: unlimited
    thinking_message: str = ""  # inserted before the block is closed because the budget is used up

    def of_prompt(self, prompt: ChatPrompt) -> ChatPrompt:
        if not self.template_kwargs:
            return prompt
        return replace(prompt, template_kwargs={**self.template_kwargs, **prompt.template_kwargs})

    def of(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its open fields filled in."""
        if self == _NOTHING:
            return request
        prompts = tuple(self.of_prompt(p) if isinstance(p, ChatPrompt) else p for p in request.prompts)
        split, budget = request.split_reasoning, request.thinking_budget
        return request._replace(
            prompts=prompts,
            split_reasoning=self.split_reasoning if split is None else split,
            thinking_budget=self.thinking_budget if budget is None else budget,
            thinking_message=request.thinking_message or self.thinking_message,
        )


_NOTHING = ChatDefaults()
"""What a request that says nothing means."""
