"""POST /tokenize, /detokenize and /apply-template: what the model sees of a text or a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.protocols.common.schema import Flag, Invalid, Loader, String, WireField, WireSchema, wrong_type
from llamasrv.protocols.limits import Limits


class TextOrTokens(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str | int, ...]:
        if type(value) is str:
            return (value,)
        if type(value) is not list:
            raise wrong_type("a string, or an array of strings and token ids", value)
        for i, part in enumerate(value):
            if type(part) is not str:
                _check_token("a string or a token id", part, i)
        return tuple(value)


def _check_token(wanted: str, value: Any, at: int) -> None:
    if type(value) is not int:
        raise wrong_type(wanted, value, at)
    if not 0 <= value < 2**31:
        raise Invalid(f"token id {value} is out of range.", at)


class TokenizeSchema(WireSchema):
    content = TextOrTokens("the text, or an array of texts and token ids", required=True)
    model = String("a name or alias; absent: the model that is served")
    add_special = Flag("with the start token, where the model has one; default false")
    parse_special = Flag("special tokens in the text are parsed; default true")
    with_pieces = Flag("ids with their texts; bytes where a text is not UTF-8")


class TokenIds(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> list[int]:
        if type(value) is not list:
            raise wrong_type("an array of token ids", value)
        for i, token in enumerate(value):
            _check_token("a token id", token, i)
        return value


class DetokenizeSchema(WireSchema):
    tokens = TokenIds("ids of this model", required=True)
    model = String("a name or alias; absent: the model that is served")


class Tokenize(NamedTuple):
    content: tuple[str | int, ...]
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class Detokenize(NamedTuple):
    tokens: list[int]
    model: str | None = None


class Tokenizing:
    """The endpoints, with their limits."""

    def __init__(self, limits: Limits) -> None:
        self._tokenize = Loader(TokenizeSchema, limits).load
        self._detokenize = Loader(DetokenizeSchema, limits).load

    def parse_tokenize(self, body: Mapping[str, Any]) -> Tokenize:
        return Tokenize(**self._tokenize(body))

    def parse_detokenize(self, body: Mapping[str, Any]) -> Detokenize:
        return Detokenize(**self._detokenize(body))


def tokens_body(tokens: Sequence[int], pieces: Sequence[bytes] | None = None) -> bytes:
    """`pieces`: what each of the tokens writes, where that is wanted."""
    if pieces is None:
        return orjson.dumps({"tokens": tokens})
    return orjson.dumps({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in zip(tokens, pieces)]})


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def content_body(data: bytes) -> bytes:
    return orjson.dumps({"content": data.decode("utf-8", "replace")})


def prompt_body(prompt: str) -> bytes:
    return orjson.dumps({"prompt": prompt})


def count_body(count: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": count})
