"""POST /api/generate: one prompt, through the model's template, raw, or with a gap to fill in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, Prompt, TextPart, TextPrompt
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import SchemaEndpoint
from llamasrv.protocols.common.names import prompt_in
from llamasrv.protocols.common.sampling import INT_MAX
from llamasrv.protocols.common.schema import Array, Flag, Ignored, Invalid, Refused, String, expect
from llamasrv.protocols.ollama.chat import answer, thinking
from llamasrv.protocols.ollama.fields import AnswerSchema, Images
from llamasrv.protocols.ollama.reply import OllamaReply, OllamaReplyOptions, Said


class Context(Array):
    """Tokens of an earlier exchange, as its last reply gave them."""

    expected = "an array of token ids"

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[int, ...]:
        for i, token in enumerate(value):
            expect(int, token, i)
            if not 0 <= token <= INT_MAX:
                raise Invalid(f"token id {token} is out of range.", i)
        return tuple(value)


class GenerateSchema(AnswerSchema):
    prompt = String("empty: only load")
    suffix = String("the text after the gap, by the model's own tokens for filling in; refused where it has none")
    system = String()
    raw = Flag("no template: the prompt as it is, special tokens included")
    images = Images("if the model takes them")
    context = Context("goes before the prompt; the last reply has the next one")
    template = Refused("the template is the model's own", harmless=("",))
    truncate = Ignored("a prompt that is too long is refused")


def shape(said: Said) -> dict[str, Any]:
    """The line with the answer in its place."""
    body: dict[str, Any] = {"response": said.text}
    if said.thinking:
        body["thinking"] = said.thinking
    return body


class Generate(SchemaEndpoint):
    """The endpoint, with its limits."""

    schema = GenerateSchema
    names = prompt_in("prompt")
    shape = staticmethod(shape)

    def parse(
        self, body: Mapping[str, Any], *, owner: str = "", timeout: float | None = None
    ) -> tuple[GenerateRequest, OllamaReplyOptions]:
        """A request without a prompt only loads the model."""
        data = self._load(body)
        get = data.get
        raw, suffix = get("raw", False), get("suffix")
        if raw and (get("system") or get("context")):
            raise InvalidRequest("raw mode does not support template, system, or context", param="raw")
        prompts: tuple[Prompt, ...] = ()
        if get("prompt"):
            if suffix or raw:
                prompts = (TextPrompt(data["prompt"], suffix or None),)
            else:
                prompts = (_chat(data),)
        return answer(
            data, prompts, owner=owner, timeout=timeout, insert=bool(suffix), whole_text=not raw and not suffix
        )

    def reply(self, options: OllamaReplyOptions) -> OllamaReply:
        return OllamaReply(options, self.shape)


def _chat(data: Mapping[str, Any]) -> ChatPrompt:
    get = data.get
    images = get("images", ())
    content = (TextPart(data["prompt"]), *images) if images else data["prompt"]
    messages: tuple[Message, ...] = (Message("user", content),)
    if get("system"):
        messages = (Message("system", data["system"]), *messages)
    return ChatPrompt(messages, template_kwargs=thinking(get("think")), before=get("context", ()))
