"""POST /tokenize, /detokenize, /apply-template, GET /tokenizer_info: what the model sees of a text or a conversation.

The first two speak vLLM's dialect beside llama.cpp's: evaluation harnesses tokenize with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import loader_of
from llamasrv.protocols.common.schema import Array, Flag, Invalid, String, WireField, WireSchema, expect, wrong_type
from llamasrv.protocols.limits import Limits

MOST_PIECES = 131_072  # max tokens listed with their pieces; each takes about a hundred bytes of the reply


class TextOrTokens(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str | int, ...]:
        if type(value) is str:
            return (value,)
        expect(list, value, what="a string, or an array of strings and token ids")
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
    content = TextOrTokens("the text, or an array of texts and token ids")
    prompt = String("the text, as vLLM's clients send it; the reply has `count` and `max_model_len` too")
    model = String("a name or alias; absent: the model that is served")
    add_special = Flag("with the start token, where the model has one; default false")
    add_special_tokens = Flag("vLLM's name of `add_special`; default true with `prompt`, false with `content`")
    parse_special = Flag("special tokens in the text are parsed; default true")
    messages = Array("a chat, with the fields of `/v1/chat/completions`: the tokens of its prompt, in vLLM's shape")
    with_pieces = Flag("ids with their texts, of at most 131072 tokens; bytes where a text is not UTF-8")


class TokenIds(Array):
    expected = "an array of token ids"

    def _deserialize(self, value: list[int], attr: str | None, data: Any, **kwargs: Any) -> list[int]:
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
    with_count: bool = False  # the reply has vLLM's shape


class Detokenize(NamedTuple):
    tokens: list[int]
    model: str | None = None


class Tokenizing:
    """The endpoints, with their limits."""

    def __init__(self, limits: Limits) -> None:
        self.tokenize = loader_of(TokenizeSchema, limits)
        self.detokenize = loader_of(DetokenizeSchema, limits)

    def parse_tokenize(self, body: Mapping[str, Any]) -> Tokenize:
        data = self.tokenize.load(body)
        if data.pop("messages", None) is not None:
            other = "content" if "content" in data else "prompt"
            raise InvalidRequest(f"Invalid 'messages': '{other}' was given, too; send one of them.", param="messages")
        prompt, special = data.pop("prompt", None), data.pop("add_special_tokens", None)
        if prompt is not None:
            if "content" in data:
                raise InvalidRequest("Invalid 'prompt': 'content' was given, too; send one of them.", param="prompt")
            data |= {"content": (prompt,), "with_count": True}
            data.setdefault("add_special", True)
        elif "content" not in data:
            missing = "Missing required parameter: 'content' (or 'prompt', or 'messages')."
            raise InvalidRequest(missing, param="content", code="missing_required_parameter")
        if special is not None:
            data["add_special"] = special
        return Tokenize(**data)

    def parse_pieces(self, body: Mapping[str, Any]) -> bool:
        """`with_pieces` of a body with a chat."""
        return bool(self.tokenize.load(body).get("with_pieces"))

    def parse_detokenize(self, body: Mapping[str, Any]) -> Detokenize:
        return Detokenize(**self.detokenize.load(body))


def check_pieces(num_tokens: int) -> None:
    """Raises InvalidRequest."""
    if num_tokens > MOST_PIECES:
        raise InvalidRequest(
            f"Invalid 'with_pieces': these are {num_tokens} tokens, and at most {MOST_PIECES} are listed with their "
            "pieces. Send a shorter text, or leave 'with_pieces' out.",
            param="with_pieces",
        )


def tokens_body(
    tokens: Sequence[int], pieces: Sequence[bytes] | None = None, *, max_model_len: int | None = None
) -> bytes:
    """`pieces`: what each token writes, where that is wanted. `max_model_len`: the context, for vLLM's shape."""
    counted = {} if max_model_len is None else {"count": len(tokens), "max_model_len": max_model_len}
    if pieces is None:
        return orjson.dumps({**counted, "tokens": tokens})
    ids = [{"id": token, "piece": _piece(piece)} for token, piece in zip(tokens, pieces)]
    return orjson.dumps({**counted, "tokens": ids})


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def content_body(data: bytes) -> bytes:
    """The text under llama.cpp's name and under vLLM's."""
    text = data.decode("utf-8", "replace")
    return orjson.dumps({"content": text, "prompt": text})


def tokenizer_body(*, bos_token: str, eos_token: str, chat_template: str | None) -> bytes:
    """vLLM's description of a tokenizer, limited to what a GGUF has; null for tokens the model lacks."""
    return orjson.dumps(
        {
            "tokenizer_class": "GGUF",
            "bos_token": bos_token or None,
            "eos_token": eos_token or None,
            "chat_template": chat_template,
        }
    )


def prompt_body(prompt: str) -> bytes:
    return orjson.dumps({"prompt": prompt})


def count_body(count: int) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": count})
