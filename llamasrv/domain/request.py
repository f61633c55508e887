"""A client's request, frozen and neutral: no protocol name and no JSON key.

A protocol builds a GenerateRequest from its own body; the pipeline carries it out. Fields that a client did not
give stay out of `sampling`, so that the model's own defaults hold for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Union


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """An image or a sound, as `data` or as the `url` that the client gave; not yet read."""

    kind: Literal["image", "audio"] | None  # None: what its bytes say
    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    is_coarse: bool = False  # of an image, few details matter
    param: str | None = field(default=None, compare=False)  # what the client calls its place
    result_of: str | None = field(default=None, compare=False)  # id of the call in whose result it stood, if it moved


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A document, as `data`, as the `url` that the client gave, or as the id of an uploaded `file`; not yet read.
    `name` is the client's name for it."""

    data: bytes | None = field(default=None, repr=False)
    url: str | None = None
    file: str | None = None
    name: str = ""
    param: str | None = field(default=None, compare=False)  # what the client calls its place
    result_of: str | None = field(default=None, compare=False)  # id of the call in whose result it stood, if it moved


Part = Union[TextPart, MediaPart, DocumentPart]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments` is the JSON text as written."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema; `input_grammar`, in Lark, binds the text that
    is its only argument."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    input_grammar: str = ""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How the tools of a prompt may be used.

    `mode` is none, auto or required; `names` are the only ones that may be called, empty for all of them; without
    `parallel` at most one call is made.
    """

    mode: str = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Content:
    """The form that an answer must have: `kind` is json, regex, choice, lark, gbnf or tags.

    `value` is a JSON schema (None: any object), a pattern, a tuple of texts, the grammar's source, or a tree of layouts
    (dicts with a `type`). `name` is what the client calls it.
    """

    kind: str
    value: Any = None
    name: str = field(default="response_format", compare=False)


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
    before: tuple[int, ...] = ()  # tokens in front of what the template writes: an earlier talk
    thinks_by_default: bool = False  # enable_thinking is on where neither the request nor the operator says


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text: no template, special tokens in it are parsed. With `suffix` it is fill-in-the-middle."""

    text: str
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Ids of this model's vocabulary."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """Raw texts, ids of this model's vocabulary, images and sounds, one after the other."""

    parts: tuple[Union[str, int, MediaPart], ...]


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """What is before and after a gap in a text that is to be filled in; `typed` is what the gap contains already.
    `extra`: further texts, each with its file's name. What is far from the gap is left out if there is no room."""

    before: str
    after: str
    typed: str = ""
    extra: tuple[tuple[str, str], ...] = ()


Prompt = Union[ChatPrompt, TextPrompt, TokenPrompt, MixedPrompt, InfillPrompt]


class Pin(NamedTuple):
    """The beginning of a chat prompt, to be kept for a while."""

    num_after: int  # messages that do not belong to it; 0: the whole prompt
    seconds: float


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
    sampled_probs: bool = False  # log-probabilities are what the samplers left, not the model's own
    echo: bool = False
    cache_prompt: bool = True
    pins: tuple[Pin, ...] = ()
    keep: int | None = None  # first tokens to keep where the context shifts; -1: the prompt; None: as the operator says
    discard: int = 0  # tokens to forget then; 0: half of the others
    slot: int | None = None  # the number under which llama-server's clients save what it leaves
    cache_salt: str = ""  # prefixes are shared only with requests that bring the same one
    stream: bool = False
    timeout: float | None = None  # seconds from arrival
    owner: str = ""  # whose fair share it counts against (an API key's name)
    priority: int = 0  # larger goes first
    deferrable: bool = False  # computed for only while there is nobody else
    tool_choice: ToolChoice = ToolChoice()
    content: Content | None = None  # the form of the answer
    thinking_budget: int | None = None  # most tokens of reasoning, then its block is closed; None: no bound
    thinking_message: str = ""  # written before it is closed
    thinking_control: bool = False  # its thinking may be ended while it runs
    split_reasoning: bool | None = None  # False: reasoning stays in the text, its marks included; None: not said
    keep_alive: float | None = None  # seconds that the model stays loaded after it; negative: for ever; None: as set
    adapters: tuple[tuple[str, float], ...] | None = None  # LoRA adapters and their scales; None: the model's default
    time_limit: float | None = None  # seconds after its first text that the answer may go on; then to the line's end
    with_tokens: bool = False  # texts come with the ids of their tokens
    with_progress: bool = False  # events tell how much of the prompt is computed
    with_pace: bool = False  # events tell how fast it goes
    prediction: str | None = None  # what the answer is expected to be for the most part
    in_windows: bool = False  # the sound of its only prompt is cut, and each window is a prompt of its own
    previous: str | None = None  # id of the reply whose request this one's prompt is compared with; None: what is alike
    shorten: bool = False  # the oldest turns of a conversation that is too long are left out


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """One vector per prompt, or one per token if the model does no pooling."""

    prompts: tuple[Prompt, ...]
    model: str | None = None
    dimensions: int | None = None  # cut to this many, then normalised
    # llama.cpp's numbers: -1 none, 0 largest absolute value, 1 sum, 2 Euclidean, p the p-norm. None: Euclidean for one
    # vector, none for one of each token.
    normalise: int | None = None
    truncate: bool = False  # a prompt that is too long is cut rather than refused
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
