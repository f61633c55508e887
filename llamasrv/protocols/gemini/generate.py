"""generateContent, streamGenerateContent and countTokens under /v1beta: the request's schema.

JSON in, GenerateRequest out. The model is named by the path, and whether the answer is streamed by the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, Pin, ToolChoice
from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.common.loader import Loaded, SchemaEndpoint, build, inside, loader_of
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.schema import Ignored, String, WireSchema
from llamasrv.protocols.common.thinking import thinking_variables
from llamasrv.protocols.gemini.cached import CachedContent
from llamasrv.protocols.gemini.config import GenerationConfig, ThinkingConfig, content_of, spoken_answer
from llamasrv.protocols.gemini.contents import Contents, SystemInstruction
from llamasrv.protocols.gemini.reply import GeminiReply, GeminiReplyOptions
from llamasrv.protocols.gemini.tools import GeminiTools, ToolConfig, check_names
from llamasrv.protocols.gemini.wire import camel
from llamasrv.protocols.limits import Limits

SPEECH_NAMES = {
    "speech": "generationConfig.responseModalities",
    "speech.voice": "generationConfig.speechConfig.voiceConfig.prebuiltVoiceConfig.voiceName",
    "speech.language": "generationConfig.speechConfig.languageCode",
    "speech.instructions": "systemInstruction",
    "stop": "generationConfig.stopSequences",
    "thinking_budget": "generationConfig.thinkingConfig",
    "logprobs": "generationConfig.responseLogprobs",
    "sampling.presence_penalty": "generationConfig.presencePenalty",
    "sampling.frequency_penalty": "generationConfig.frequencyPenalty",
}
PARTS_IGNORED = tuple(
    f"parts.{name}"
    for name in (
        "audioMetadata", "audioTranscription", "documentMetadata", "mediaProcessing", "mediaResolution", "partMetadata",
        "speechMetadata", "spreadsheetMetadata", "videoMetadata", "functionCall.partialArgs",
        "functionCall.willContinue", "functionResponse.scheduling", "functionResponse.willContinue",
    )
)  # fmt: skip


class GenerateContentSchema(WireSchema):
    generates = True

    contents = Contents(
        "text, function calls and their results, thoughts; images and sounds where the model takes them",
        ignores=PARTS_IGNORED,
        required=True,
    )
    systemInstruction = SystemInstruction("a content of texts, or a text")
    tools = GeminiTools(
        "`functionDeclarations`; tools that Google's servers run are refused",
        ignores=tuple(f"functionDeclarations.{name}" for name in ("behavior", "response", "responseJsonSchema")),
    )
    toolConfig = ToolConfig(
        "`functionCallingConfig`: AUTO, VALIDATED, ANY or NONE, `allowedFunctionNames`",
        ignores=(
            "retrievalConfig",
            "includeServerSideToolInvocations",
            "functionCallingConfig.streamFunctionCallArguments",
        ),
        to="tool_choice",
    )
    generationConfig = GenerationConfig("see the next table")
    cachedContent = String("the name of a cached content: what it keeps goes before, and stays cached for its time")
    safetySettings = Ignored("nothing is moderated")
    model = String("the path names it, too")
    labels = Ignored()
    serviceTier = Ignored()
    store = Ignored("nothing is stored")


class CountTokensSchema(GenerateContentSchema):
    """Counts parts of conversations, too: results without their calls, calls without their results."""

    contents = Contents("any part of a conversation", ignores=PARTS_IGNORED, required=True, pairs=False)


class PathOptions(NamedTuple):
    """What the path asks for, and the cached content that the body names; `seconds`: its lifetime."""

    model: str
    stream: bool = False
    cached: CachedContent | None = None
    seconds: float = 0.0


class GenerateContent(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = GenerateContentSchema
    names: Mapping[str, str] = {**prompt_in("contents"), **SPEECH_NAMES}

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._load_counted = loader_of(CountTokensSchema, limits).load

    def parse(
        self, body: Mapping[str, Any], asked: PathOptions, *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, GeminiReplyOptions]:
        data = self._load(_with_cached(camel(dict(body)), asked.cached))
        _check_answered(data["contents"])
        return self._request(data, asked, owner, timeout)

    def cached_name(self, body: Mapping[str, Any]) -> str | None:
        """The name of the cached content that a body uses."""
        name = _counted(body).get("cachedContent")
        return name if type(name) is str and name else None

    def warming(self, content: CachedContent, *, now: float, owner: str, timeout: float | None) -> GenerateRequest:
        """A request that computes the prompt of a cached content and keeps it, without an answer."""
        request = self.parse_count(content.body, PathOptions(content.model))
        pins = (Pin(0, content.expires - now),)
        return request._replace(max_tokens=0, pins=pins, owner=owner, timeout=timeout)

    def _request(
        self, data: Loaded, asked: PathOptions, owner: str, timeout: float | None
    ) -> tuple[GenerateRequest, GeminiReplyOptions]:
        config = data.get("generationConfig", {})
        get = config.get
        thinking: ThinkingConfig = get("thinkingConfig", ThinkingConfig())
        tools, choice = data.get("tools", ()), data.get("toolConfig", ToolChoice())
        with inside("toolConfig"):
            check_names(choice, tools)
        with inside("generationConfig"):
            content = content_of(config)
        logprobs = get("logprobs", 0) if get("responseLogprobs") else None
        request = build(
            GenerateRequest,
            data,
            prompts=(_prompt(data, thinking),),
            model=asked.model,
            logprobs=logprobs,
            stream=asked.stream,
            timeout=timeout,
            owner=owner,
            content=content,
            pins=_pins(data, asked),
            speech=spoken_answer(config, owner=owner, timeout=timeout),
        )
        if request.speech is not None and request.n > 1:
            raise Unsupported(
                "Invalid 'generationConfig.candidateCount': only one answer can be spoken.",
                param="generationConfig.candidateCount",
            )
        is_only_sound = request.speech is not None and "TEXT" not in config["responseModalities"]
        return request, GeminiReplyOptions(thinking.shown, logprobs, is_only_sound)

    def unheard(self, body: Mapping[str, Any]) -> list[str]:
        return super().unheard(_counted(body))

    def parse_count(self, body: Mapping[str, Any], asked: PathOptions) -> GenerateRequest:
        """The request where only the prompt matters: plain, or inside `generateContentRequest`."""
        data = self._load_counted(_with_cached(_counted(body), asked.cached))
        return self._request(data, asked, "", None)[0]

    def reply(self, options: GeminiReplyOptions) -> GeminiReply:
        return GeminiReply(options)


def _counted(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request in a body to count, in one style."""
    given = camel(dict(body))
    wrapped = given.get("generateContentRequest")
    return camel(dict(wrapped)) if type(wrapped) is dict else given


def _with_cached(given: dict[str, Any], cached: CachedContent | None) -> dict[str, Any]:
    if cached is not None:
        return cached.before(given)
    if given.get("cachedContent"):
        raise InvalidRequest("Invalid 'cachedContent': it cannot be used here.", param="cachedContent")
    return given


def _pins(data: Loaded, asked: PathOptions) -> tuple[Pin, ...]:
    """Keep the cached content's prefix for its lifetime, even if this request had to compute it again."""
    if asked.cached is None:
        return ()
    num_after = len(data["contents"]) - asked.cached.num_messages
    return (Pin(max(0, num_after), asked.seconds),)


def _check_answered(messages: tuple[Message, ...]) -> None:
    if messages and messages[-1].tool_calls:
        raise InvalidRequest(
            "Invalid 'contents': the last content has function calls, which must be followed by their "
            "'functionResponse' parts.",
            param="contents",
        )


def _prompt(data: dict[str, Any], thinking: ThinkingConfig) -> ChatPrompt:
    messages: tuple[Message, ...] = data["contents"]
    if data.get("systemInstruction") is not None:
        messages = (Message("system", data["systemInstruction"]), *messages)
    if not messages:
        raise InvalidRequest("Invalid 'contents': there is no content to answer.", param="contents")
    last = messages[-1]
    goes_on = last.role == "assistant" and not last.tool_calls
    return ChatPrompt(
        messages,
        tools=data.get("tools", ()),
        template_kwargs=thinking_variables(thinking.on, thinking.effort),
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
    )


def count_body(num_tokens: int) -> bytes:
    details = [{"modality": "TEXT", "tokenCount": num_tokens}]
    return orjson.dumps({"totalTokens": num_tokens, "promptTokensDetails": details})
