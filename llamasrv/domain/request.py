"""A client's request, frozen and neutral: no protocol name and no JSON key.

A protocol builds a GenerateRequest from its own body; the pipeline executes it. Fields missing from the request are
missing from `sampling`, so that the model's defaults apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Union

from llamasrv.domain.context_edits import ContextEdits
from llamasrv.domain.speech import SpeechRequest


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image or a sound, as `data` or as the client's `url`; not read yet."""

    kind: Literal["image", "audio"] | None  # None: detect from the bytes
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    is_coarse: bool = False  # image whose details matter little
    param: str | None = field(default=None, compare=False)  # the client's name for its place
    result_of: str | None = field(default=None, compare=False)  # id of the call whose result it was part of, if moved


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A document, as `data`, as the client's `url`, or as the id of an uploaded `file`; not read yet. `name` is the
    client's name for it."""

    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    file: str | None = None
    name: str = ""
    is_image: bool = False  # the client says that the file is an image
    param: str | None = field(default=None, compare=False)  # the client's name for its place
    result_of: str | None = field(default=None, compare=False)  # id of the call whose result it was part of, if moved


Part = Union[TextPart, MediaPart, DocumentPart]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call made by the model. `arguments` is the JSON text as written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema; `input_grammar`, in Lark, constrains the text
    that is its only argument."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    input_grammar: str = ""


@dataclass(frozen=True, slots=True)
class ToolSearch:
    """A tool that the server runs itself: it finds tools among `deferred`, which the model has not been shown.
    `kind`: words (ranked by BM25), regex, or paths (names of tools or the first part of them)."""

    name: str
    kind: Literal["words", "regex", "paths"]
    deferred: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How the tools of a prompt may be used.

    `mode` is none, auto or required; `names` restricts the callable tools, empty means all; without `parallel` at most
    one call is made. With none the tools are left out of the prompt, unless `shown`: then its prefix stays what it was.
    """

    mode: str = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True
    shown: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """The required format of an answer: `kind` is json, regex, choice, lark, gbnf or tags.

    `value` is a JSON schema (None: any object), a pattern, a tuple of texts, the grammar's source, or a tree of layouts
    (dicts with a `type`). `name` is the client's name for it.
    """

    kind: str
    value: Any = None
    name: str = field(default="response_format", compare=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is system, developer, user, assistant or tool; `content` may be None. From this turn on
    `added_tools` can be called, and `removed_tools` no longer."""

    role: str
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    added_tools: tuple[Tool, ...] = ()
    removed_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered with the model's own template. `tools` are those of its head; `offered` are those that
    can be called at its end."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    before: tuple[int, ...] = ()  # tokens before the template's output: an earlier conversation
    thinks_by_default: bool = False  # enable_thinking is on unless the request or the operator sets it

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools of the head and those that messages added, without those that they removed."""
        if not any(message.added_tools or message.removed_tools for message in self.messages):
            return self.tools
        offered = {tool.name: tool for tool in self.tools}
        for message in self.messages:
            offered.update({tool.name: tool for tool in message.added_tools})
            for name in message.removed_tools:
                offered.pop(name, None)
        return tuple(offered.values())


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text without a template; special tokens in it are parsed. With `suffix` it is fill-in-the-middle."""

    text: str
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Ids of this model's vocabulary."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """A sequence of raw texts, token ids, images and sounds."""

    parts: tuple[Union[str, int, MediaPart], ...]


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """The text before and after a gap to fill in; `typed` is the text already in the gap. `extra`: other texts, each
    with its file name. Text far from the gap is dropped if there is no room."""

    before: str
    after: str
    typed: str = ""
    extra: tuple[tuple[str, str], ...] = ()


Prompt = Union[ChatPrompt, TextPrompt, TokenPrompt, MixedPrompt, InfillPrompt]


class Pin(NamedTuple):
    """A prefix of a chat prompt, to keep in the cache for a while."""

    num_after: int  # messages after the prefix; 0: pin the whole prompt
    seconds: float


class GenerateRequest(NamedTuple):
    """`prompts` x `n` choices; choice `p * n + k` is the k-th of prompt p."""

    prompts: tuple[Prompt, ...]
    model: str | None = None
    sampling: Mapping[str, Any] = MappingProxyType({})  # names of SamplingParams, only those given
    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[str, ...] = ()
    logprobs: int | None = None  # None: off; k: with the k most likely alternatives per token
    sampled_probs: bool = False  # log-probabilities after the samplers, instead of the model's own
    echo: bool = False
    cache_prompt: bool = True
    pins: tuple[Pin, ...] = ()
    keep: int | None = None  # tokens to keep in a context shift; -1: the prompt; None: the operator's
    discard: int = 0  # tokens to drop in a context shift; 0: half of the rest
    slot: int | None = None  # the slot number that llama-server's clients save the state under
    session: str = ""  # the client's name for the conversation: its prefix is kept while the client runs a tool
    cache_salt: str = ""  # prefixes are shared only among requests with the same salt
    stream: bool = False
    timeout: float | None = None  # seconds from arrival
    owner: str = ""  # API key's name, for fair sharing
    client: str = ""  # network address, for shares where there are no keys
    priority: int = 0  # larger goes first
    deferrable: bool = False  # computed only while the server is otherwise idle
    tool_choice: ToolChoice = ToolChoice()
    searches: tuple[ToolSearch, ...] = ()  # tools that the server runs: they find deferred ones
    content: Content | None = None  # required format of the answer
    thinking_budget: int | None = None  # max tokens of reasoning, then its block is closed; None: unlimited
    thinking_message: str = ""  # inserted before the block is closed
    thinking_control: bool = False  # the client may end the thinking while it runs
    split_reasoning: bool | None = None  # False: keep reasoning in the text, with its marks; None: unset
    keep_alive: float | None = None  # idle seconds before the model is unloaded; negative: forever; None: unchanged
    adapters: tuple[tuple[str, float], ...] | None = None  # LoRA adapters and scales; None: the model's default
    time_limit: float | None = None  # seconds of output after the first text; then it ends with the line
    with_tokens: bool = False  # texts include their token ids
    with_progress: bool = False  # emit PromptProgress events
    with_pace: bool = False  # emit Pace events
    prediction: str | None = None  # text that the answer probably resembles
    in_windows: bool = False  # cut the sound of the only prompt; each window becomes a prompt
    previous: str | None = None  # id of the reply to compare this prompt with; None: the most similar one
    shorten: bool = False  # drop the oldest turns of a conversation that is too long
    edits: ContextEdits | None = None  # what is left out of a long conversation
    speech: SpeechRequest | None = None  # also speak the answer's text, in this way


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """One vector per prompt, or one per token if the model has no pooling."""

    prompts: tuple[Prompt, ...]
    model: str | None = None
    dimensions: int | None = None  # truncate to this many, then renormalise
    # llama.cpp's numbers: -1 none, 0 largest absolute value, 1 sum, 2 Euclidean, p the p-norm. None: Euclidean, or none
    # for per-token vectors.
    normalise: int | None = None
    truncate: bool = False  # truncate prompts that are too long instead of refusing them
    timeout: float | None = None
    owner: str = ""
    keep_alive: float | None = None


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """How well the second text of each pair answers the first."""

    pairs: tuple[tuple[str, str], ...]
    model: str | None = None
    truncate: bool = False
    timeout: float | None = None
    owner: str = ""
    keep_alive: float | None = None


@dataclass(frozen=True, slots=True)
class ClassifyRequest:
    """Which class each text belongs to."""

    texts: tuple[str, ...]
    model: str | None = None
    truncate: bool = False
    timeout: float | None = None
    owner: str = ""
    keep_alive: float | None = None
