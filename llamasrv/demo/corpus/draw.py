"""Random choices that know what is held out.

Owns the split: a wording (one in eight of its list) or a value (one in sixteen) belongs for ever either to training or
to the evaluation, by a hash of what it says and not by chance. A `Draw` gives out one side only.
"""

import random
from zlib import crc32

WORDINGS_PER_HELD_OUT = 8
VALUES_PER_HELD_OUT = 16


class Draw:
    """A seeded source of choices for one document."""

    def __init__(self, seed, *, held_out=False):
        self.rng = random.Random(seed)
        self.held_out = held_out
        self.chance = lambda p: self.rng.random() < p
        self.any = self.rng.choice
        self.between = self.rng.randint

    def wording(self, patterns):
        """One of several ways to say it, from this side of the split."""
        return self.any(split_wordings(patterns)[self.held_out])

    def value(self, pool):
        """One of an open class (names, cities, words), from this side of the split."""
        return self.any(split_values(pool)[self.held_out])

    def values(self, pool, count):
        return self.rng.sample(split_values(pool)[self.held_out], count)

    def few(self, pool, count):
        """Different ones of a closed class, where nothing is held out."""
        return self.rng.sample(pool, count)

    def owns(self, *key):
        """Whether a combination, such as the two numbers of a sum, is on this side."""
        return is_held_out(*key) == self.held_out

    def until_owned(self, name, make):
        """Draw combinations until one is on this side."""
        while True:
            combination = make()
            if self.owns(name, combination):
                return combination

    def say(self, patterns, **values):
        """A user's sentence: a wording with its values, now and then typed carelessly."""
        text = self.wording(patterns).format(**values)
        return self.carelessly(text) if self.chance(0.3) else text

    def carelessly(self, text):
        kind = self.between(0, 5)
        if kind == 0 and text[0].isupper() and not text.startswith("I "):
            return text[0].lower() + text[1:]
        if kind == 1 and text[-1] in ".?!":
            return text[:-1]
        if kind == 2 and len(text) > 1 and text[1].islower():
            return self.any(("Please ", "please ", "Hi! ", "Hey, ", "OK, ", "Now ")) + text[0].lower() + text[1:]
        if kind == 3 and text[-1] == ".":
            return text[:-1] + self.any((" please.", ", please.", "!", " now.", " for me."))
        if kind == 4 and text[-1] == "?":
            return self.any(("Tell me: ", "Question: ", "Quick question: ", "Hello! ")) + text
        if kind == 5 and text[0].isupper() and text[-1] in ".?!" and not text.startswith("I "):
            return text[0].lower() + text[1:-1]
        return text


def is_held_out(*key):
    return crc32(repr(key).encode()) % VALUES_PER_HELD_OUT == 0


def split_wordings(patterns):
    """(for training, held out); a list shorter than four gives the same to both."""
    return _split(tuple(patterns), WORDINGS_PER_HELD_OUT, 4)


def split_values(pool):
    """(for training, held out); a pool smaller than sixteen gives the same to both."""
    return _split(tuple(pool), VALUES_PER_HELD_OUT, VALUES_PER_HELD_OUT)


_SPLITS = {}


def _split(items, per, least):
    # The lowest hashes are held out, so that every list has its share whatever its size.
    if items not in _SPLITS:
        if len(items) < least:
            _SPLITS[items] = (items, items)
        else:
            ordered = sorted(items, key=lambda item: crc32(repr(item).encode()))
            count = max(1, len(items) // per)
            _SPLITS[items] = (tuple(ordered[count:]), tuple(ordered[:count]))
    return _SPLITS[items]
