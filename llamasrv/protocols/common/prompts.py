"""Raw prompts as OpenAI writes them: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.request import Prompt, TextPrompt, TokenPrompt
from llamasrv.protocols.common.schema import Invalid, WireField, wrong_type


class Prompts(WireField):
    """`most` names the limit on their number. Texts may be empty where `empty` says so."""

    def __init__(self, note: str = "", *, most: str = "prompts", empty: bool = True, required: bool = False) -> None:
        super().__init__(note, required=required)
        self.most, self.empty = most, empty

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Prompt, ...]:
        if type(value) is str:
            return (self._text(value),)
        if type(value) is not list:
            raise wrong_type("a string, an array of strings, of token ids, or of arrays of token ids", value)
        if not value:
            raise Invalid("empty array.", code="empty_array")
        if type(value[0]) is int:
            return (TokenPrompt(token_ids(value)),)
        most = getattr(self.limits, self.most)
        if len(value) > most:
            raise Invalid(f"array too long. Expected at most {most} {self.most}, but got {len(value)}.")
        if type(value[0]) is list:
            for i, tokens in enumerate(value):
                if type(tokens) is not list:
                    raise wrong_type("an array of token ids", tokens, i)
            return tuple(TokenPrompt(token_ids(tokens, i)) for i, tokens in enumerate(value))
        for i, text in enumerate(value):
            if type(text) is not str:
                raise wrong_type("a string", text, i)
        return tuple(self._text(text, i) for i, text in enumerate(value))

    def _text(self, text: str, *path: int) -> TextPrompt:
        if not text and not self.empty:
            raise Invalid("must not be an empty string.", *path)
        return TextPrompt(text)


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
