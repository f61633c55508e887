"""Prompts with images and sounds for the fake projector."""

from __future__ import annotations

import hashlib
from array import array

from engine_driver import GREEDY

from llamasrv.domain.media import MediaInput
from llamasrv.domain.sequence_spec import SequenceSpec


def picture(name, width=100, height=70):
    return MediaInput("image", hashlib.sha256(name.encode()).digest(), b"", width, height)


def sound(name, seconds):
    return MediaInput("audio", hashlib.sha256(name.encode()).digest(), b"", num_samples=16_000 * seconds)


def prompt(engine, *parts, **settings):
    """A chat with one message of text and media."""
    vocab, projector = engine.vocab, engine.model.projector
    tokens, spans = array("i", vocab.tokenize("<|im_start|>user\n")), []
    for part in parts:
        if isinstance(part, str):
            tokens.extend(vocab.tokenize(part, parse_special=False))
        else:
            spans += projector.measure(part).append_to(tokens)
    tokens.extend(vocab.tokenize("<|im_end|>\n<|im_start|>assistant\n"))
    return SequenceSpec(tokens, media=tuple(spans), **{"params": GREEDY, **settings})
