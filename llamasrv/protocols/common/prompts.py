"""Raw prompts as OpenAI writes them: a string, strings, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.request import MediaPart, MixedPrompt, Prompt, TextPrompt, TokenPrompt
from llamasrv.protocols.common.media import audio_part, from_base64, image_part
from llamasrv.protocols.common.schema import Invalid, Refusal, WireField, check_length, expect, wrong_type
from llamasrv.protocols.limits import Limits


class Prompts(WireField):
    """`most` names the limit on their number. Texts may be empty if `empty` says so."""

    def __init__(self, note: str = "", *, most: str = "prompts", empty: bool = True, **place: Any) -> None:
        super().__init__(note, **place)
        self.most, self.empty = most, empty

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Prompt, ...]:
        if type(value) is str:
            return (self._text(value),)
        expect(list, value, what="a string, an array of strings, of token ids, or of arrays of token ids")
        if not value:
            raise Invalid("empty array.", code="empty_array")
        if type(value[0]) is int:
            return (TokenPrompt(token_ids(value)),)
        most = getattr(self.limits, self.most)
        check_length(value, most, self.most)
        if type(value[0]) is list:
            for i, tokens in enumerate(value):
                expect(list, tokens, i, what="an array of token ids")
            return tuple(TokenPrompt(token_ids(tokens, i)) for i, tokens in enumerate(value))
        for i, text in enumerate(value):
            expect(str, text, i)
        return tuple(self._text(text, i) for i, text in enumerate(value))

    def _text(self, text: str, *path: int) -> TextPrompt:
        if not text and not self.empty:
            raise Invalid("must not be an empty string.", *path)
        return TextPrompt(text)


class Inputs(Prompts):
    """Inputs for embedding: prompts as above, and llama-server's mixtures: texts among token ids, texts beside arrays
    of ids, objects with a `prompt_string` or with the `content` of a message. Images and sounds may be in the last
    two."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Prompt, ...]:
        if type(value) is dict or _is_mixed(value):
            return (self._one(value),)
        kinds = {type(item) for item in value} if type(value) is list else set()
        if kinds != {str, list} and dict not in kinds and not (kinds == {list} and any(map(_is_mixed, value))):
            return super()._deserialize(value, attr, data, **kwargs)
        most = getattr(self.limits, self.most)
        check_length(value, most, self.most)
        return tuple(self._one(item, i) for i, item in enumerate(value))

    def _one(self, value: Any, *path: int) -> Prompt:
        if type(value) is str:
            return self._text(value, *path)
        if type(value) is list:
            return MixedPrompt(tuple(self._part(item, *path, i) for i, item in enumerate(value)))
        expect(dict, value, *path, what="a string, an array of token ids, or an object")
        if "prompt_string" in value:
            prompt = prompt_of(value, self.limits, self.name or "input", *path)
            return prompt if isinstance(prompt, MixedPrompt) else self._text(prompt.text, *path)
        if "content" not in value:
            raise wrong_type("a string, an array of token ids, or an object with a 'prompt_string'", value, *path)
        parts = _content(value["content"], self.name or "input", *path)
        if any(isinstance(part, MediaPart) for part in parts):
            return MixedPrompt(parts)
        return self._text("".join(map(str, parts)), *path)

    def _part(self, item: Any, *path: int) -> str | int:
        if type(item) is str:
            return item
        return token_ids([item], *path[:-1])[0]


def _is_mixed(value: Any) -> bool:
    """Whether these are token ids with texts among them, an id first: a number among texts is a mistake."""
    return type(value) is list and value[:1] != [] and type(value[0]) is int and str in map(type, value)


def prompt_of(value: dict[str, Any], limits: Limits, field: str, *path: int | str) -> TextPrompt | MixedPrompt:
    """llama-server's object: a `prompt_string`, and `multimodal_data` in base64, one entry for each marker in it.
    Their bytes show what they are."""
    text, data = expect(str, value.get("prompt_string"), *path, "prompt_string"), value.get("multimodal_data")
    if data is None or data == []:
        return TextPrompt(text)
    expect(list, data, *path, "multimodal_data", what="an array of strings in base64")
    texts = text.split(limits.media_marker)
    if len(texts) - 1 != len(data):
        said = f"'prompt_string' has {len(texts) - 1} markers '{limits.media_marker}', but got {len(data)} items."
        raise Invalid(said, *path, "multimodal_data")
    if len(data) > limits.media:
        said = f"array too long. Expected at most {limits.media}, but got {len(data)}."
        raise Invalid(said, *path, "multimodal_data")
    parts: list[str | int | MediaPart] = [texts[0]]
    for i, (one, after) in enumerate(zip(data, texts[1:])):
        parts += [from_base64(one, None, field, *path, "multimodal_data", i), after]
    return MixedPrompt(tuple(part for part in parts if part != ""))


def _content(parts: Any, field: str, *path: int | str) -> tuple[str | MediaPart, ...]:
    """A message's texts, images and sounds, as OpenAI writes them; adjacent texts are joined."""
    expect(list, parts, *path, "content", what="an array of content parts")
    out: list[str | MediaPart] = []
    for i, part in enumerate(parts):
        kind, at = part.get("type") if type(part) is dict else None, (*path, "content", i)
        if kind == "image_url":
            out.append(image_part(part.get(kind), field, *at, kind))
        elif kind == "input_audio":
            out.append(audio_part(part.get(kind), field, *at, kind))
        elif kind != "text":
            said = f"expected a part of type 'text', 'image_url' or 'input_audio', but got '{str(kind)[:40]}'."
            raise Refusal(said, *at)
        elif type(part.get("text")) is not str:
            raise wrong_type("a string", part.get("text"), *at, "text")
        elif out and isinstance(out[-1], str):
            out[-1] += part["text"]
        else:
            out.append(part["text"])
    return tuple(part for part in out if part != "")


def token_ids(tokens: list[Any], *path: int) -> tuple[int, ...]:
    if not tokens:
        raise Invalid("empty array.", *path, code="empty_array")
    if {int} != set(map(type, tokens)):
        at = next(i for i, token in enumerate(tokens) if type(token) is not int)
        raise wrong_type("a token id", tokens[at], *path, at)
    if min(tokens) < 0 or max(tokens) >= 2**31:
        at = next(i for i, token in enumerate(tokens) if not 0 <= token < 2**31)
        raise Invalid(f"token id {tokens[at]} is out of range.", *path, at)
    return tuple(tokens)
