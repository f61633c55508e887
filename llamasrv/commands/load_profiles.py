"""Load profiles of `llamasrv bench URL`: the shapes of requests that applications send. Made of random words, of which
most tokenizers make about one token each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

WORDS = "time year people way day thing life world school state family group country hand part place week work".split()
PASSAGES = 64  # documents that the questions of one run draw from


@dataclass(frozen=True, slots=True)
class Profile:
    """How long the parts of a conversation are, in words, and of its answers, in tokens."""

    about: str
    shared: int  # beginning that all conversations have: system prompt, tools
    turns: int  # requests of a conversation; each repeats what came before
    message: int  # words of a user's message, or of a tool's result
    answer: int
    passages: int = 0  # documents before the question, each of `passage` words
    passage: int = 0

    def longest(self, tokens_per_word: float = 1.0) -> int:
        """Tokens of the longest prompt with its answer."""
        words = self.shared + self.turns * (self.passages * self.passage + self.message)
        return round(words * tokens_per_word) + self.turns * self.answer


PROFILES = {
    "chat": Profile("conversations of four turns with a short system prompt", 200, 4, 40, 128),
    "agents": Profile("a long system prompt and many turns that bring tool results", 2500, 8, 250, 64),
    "rag": Profile("one question after four passages, drawn from a common stock", 60, 1, 20, 128, 4, 400),
    "batch": Profile("independent requests with short answers", 30, 1, 200, 64),
}


@dataclass(frozen=True, slots=True)
class LoadConversation:
    """A system prompt and the messages of the user, one for each request."""

    system: str
    messages: tuple[str, ...]


def conversations(profile: Profile, requests: int, seed: int) -> Iterator[LoadConversation]:
    """Conversations that make `requests` requests altogether. Another seed shares no prefix with this one."""
    rng = random.Random(seed)
    system = random_text(rng, profile.shared)
    passages = [random_text(rng, profile.passage) for _ in range(PASSAGES)] if profile.passages else []
    for begun in range(0, requests, profile.turns):
        messages = []
        for _ in range(min(profile.turns, requests - begun)):
            chosen = rng.sample(passages, profile.passages) if passages else []
            messages.append("\n\n".join([*chosen, random_text(rng, profile.message)]))
        yield LoadConversation(system, tuple(messages))


def random_text(rng: random.Random, words: int) -> str:
    """Random words."""
    return " ".join(rng.choices(WORDS, k=words))
