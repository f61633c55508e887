"""What a client asked, frozen and neutral: no protocol name and no JSON key.

A protocol builds a GenerateRequest from its own body; the pipeline carries it out. Fields that a client did not
give stay out of `sampling`, so that the model's own defaults hold for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


Part = Union[TextPart]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments` is the JSON text as written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is system, developer, user, assistant or tool; `content` None means there is none."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, to be rendered by the model's own template."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text: no template, special tokens in it are parsed. With `suffix` it is fill-in-the-middle."""

    text: str
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Ids of this model's vocabulary."""

    tokens: tuple[int, ...]


Prompt = Union[ChatPrompt, TextPrompt, TokenPrompt]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`prompts` x `n` choices; choice `p * n + k` is the k-th of prompt p."""

    prompts: tuple[Prompt, ...]
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # names of SamplingParams, only those that were given
    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # None: off; k: with the k likeliest alternatives of each token
    echo: bool = False
    cache_prompt: bool = True
    stream: bool = False
    timeout: float | None = None  # seconds from arrival
    owner: str = ""  # whose fair share it counts against (an API key's name)
    priority: int = 0  # larger goes first
