"""Requests that nobody should send: grammars of HTTP, JSON and parameters, broken at random but repeatably."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

PATHS = (
    "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template", "/v1/embeddings",
    "/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/embed", "/completion", "/infill",
    "/v1/responses", "/v1/rerank", "/api/show", "/v1/models/none", "/nope", "/health", "/",
)  # fmt: skip
FIELDS = (
    "prompt", "messages", "model", "stream", "n", "max_tokens", "temperature", "top_p", "stop", "seed", "logit_bias",
    "logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "input", "content", "tokens", "options",
    "format", "grammar", "json_schema", "system", "query", "documents", "echo", "best_of", "suffix", "chat_template_kwargs",
    "previous_response_id", "think", "keep_alive", "role",
)  # fmt: skip
NUMBERS = (
    "0",
    "-1",
    "1",
    "2147483648",
    "-9223372036854775809",
    "1e308",
    "1e999",
    "NaN",
    "1" * 400,
    "0.5",
    "-0",
    "true",
)
TEXTS = (
    "",
    "x",
    "user",
    "assistant",
    "auto",
    "none",
    "\x00",
    "<|im_end|>",
    "{{7*7}}",
    "\u2028",
    "😀",
    "a" * 3000,
    "json",
)
METHODS = ("POST", "POST", "POST", "POST", "GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW", "post", "")
HEADERS = (
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Content-Length: 1", "Content-Length: -1", "Content-Length: x",
    "Content-Encoding: gzip", "Content-Type: text/html", "Content-Type: application/json; charset=utf-16", "Expect: x",
    "Connection: keep-alive, upgrade", "Upgrade: h2c", "X: \x00", "X : y", ": y", "X", " X: y", "Host: a, b", "Host:",
    "Authorization: Bearer \xff", "Authorization: Basic eDp5", "X-Request-Id: a\tb", "Range: bytes=0-", "Origin: null",
    "Forwarded: for=\"_gazonk\"", "Content-Length: 99999999999999999999", "Cookie: " + "x" * 2000, "Accept: \u00e9",
)  # fmt: skip


def value(dice: random.Random, depth: int = 0) -> str:
    """Some JSON, or nearly."""
    kind = dice.random()
    if kind < 0.3:
        return dice.choice(NUMBERS)
    if kind < 0.6:
        return json.dumps(dice.choice(TEXTS))
    if kind < 0.7 or depth > 4:
        return dice.choice(("null", "true", "false", "[]", "{}", '"', "}", "[" * dice.choice((3, 99, 2000))))
    inner = [value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind < 0.85:
        return "[" + ",".join(inner) + "]"
    return "{" + ",".join(f"{json.dumps(dice.choice(FIELDS + TEXTS))}:{text}" for text in inner) + "}"


def body(dice: random.Random) -> bytes:
    fields = {name: value(dice) for name in dice.sample(FIELDS, dice.randrange(5))}
    # Nothing of what happens to be right may go on for long.
    fields |= {"max_tokens": "2", "num_predict": "2", "n_predict": "2", "options": '{"num_predict":2}'}
    fields |= {"max_output_tokens": "16", "max_completion_tokens": "2"}
    if dice.random() < 0.6:
        fields.setdefault("prompt", '"x"')
        fields.setdefault("messages", '[{"role":"user","content":"x"}]')
        fields.setdefault("input", '"x"')
    data = ("{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}").encode("utf-8", "surrogatepass")
    return broken(dice, data) if dice.random() < 0.2 else data


def broken(dice: random.Random, data: bytes) -> bytes:
    """A few bytes changed, lost, doubled or cut off."""
    out = bytearray(data)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(out) + 1) if out else 0
        kind = dice.randrange(4)
        if kind == 0 and out:
            out[at % len(out)] = dice.randrange(256)
        elif kind == 1:
            del out[at : at + dice.randrange(1, 9)]
        elif kind == 2:
            out[at:at] = out[max(0, at - 9) : at]
        else:
            out[at:at] = bytes(dice.choices(range(256), k=dice.randrange(1, 5)))
    return bytes(out)


def strange_requests(number: int, *, seed: int) -> Iterator[bytes]:
    """So many, always the same for a seed. Each asks for the connection to be closed."""
    dice = random.Random(seed)
    for _ in range(number):
        content = body(dice)
        path = dice.choice(PATHS) + dice.choice(("", "", "", "", "?x=%ff", "/", "%00", "/../x", "?" + "a" * 500))
        lines = [f"{dice.choice(METHODS)} {path} HTTP/{dice.choice(('1.1', '1.1', '1.1', '1.0', '2.0', '9', ''))}"]
        lines += ["Host: localhost", "Connection: close"]
        lines += dice.choices(HEADERS, k=dice.choice((0, 0, 0, 1, 2)))
        if dice.random() < 0.9:
            lines.append(f"Content-Length: {len(content) + dice.choice((0, 0, 0, 0, 0, 0, -1, 1, 5))}")
        sent = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + content
        if dice.random() < 0.1:
            sent = broken(dice, sent)
        yield sent
