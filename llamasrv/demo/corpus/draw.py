"""Random choices that know what is held out.

Owns the split: about one wording in nine and one value in sixteen are held out for the evaluation. A hash of the text
decides, not chance, so the split never changes. A `Draw` gives out one side only.
"""

import json
import random
from functools import lru_cache
from pathlib import Path
from zlib import crc32

WORDINGS_PER_HELD_OUT = 9
VALUES_PER_HELD_OUT = 16
INVENTED = 0.45

_ONSETS = "b c d f g h j k l m n p r s t v w y z br cl dr fl gr kr pl pr qu sh sl st th tr ch".split()
_VOWELS = "a e i o u a e i o u ai ea ee ie oo ou".split()
_CODAS = ["", "", *"b d g k l m n p r s t x ck ll nd ng nt rd rn st y".split()]

_TOKENS = json.loads(Path(__file__).parent.parent.joinpath("tokenizer.json").read_text(encoding="utf-8"))["model"][
    "vocab"
]
_TEXTS = {token.removeprefix("Ġ") for token in _TOKENS}  # without the space that byte-level BPE writes so
PIECES = sorted(text for text in _TEXTS if text.isascii() and text.isalpha() and len(text) > 1)  # of several letters
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ARTICLES = ("a", "an", "the")


class Draw:
    """A seeded source of choices for one document."""

    def __init__(self, seed, *, held_out=False):
        self.rng = random.Random(seed)
        self.held_out = held_out
        self._letter = self.rng.choice(
            _LETTERS
        )  # with which many unheard words of this document begin, to be told apart
        self.chance = lambda p: self.rng.random() < p
        self.any = self.rng.choice
        self.between = self.rng.randint

    def wording(self, patterns):
        """One of several wordings, from this side of the split."""
        return self.any(split_wordings(patterns)[self.held_out])

    def value(self, pool):
        """One of an open class (names, cities, words), from this side of the split. In training it is sometimes an
        invented word, so that the model learns to copy and not to recite a list."""
        return self._or_unheard(self.any(split_values(pool)[self.held_out]), pool)

    def _or_unheard(self, chosen, pool):
        words = str(chosen).split(" ")
        inventable = not self.held_out and len(pool) >= VALUES_PER_HELD_OUT and all(word.isalpha() for word in words)
        if not inventable or not self.chance(INVENTED):
            return chosen
        # Syllables begin with few tokens; any token may begin a value.
        make = self.invented if self.chance(0.4) else self.pieced
        unheard = " ".join(word if word in _ARTICLES else make(word) for word in words)
        return chosen if unheard in split_values(pool)[True] else unheard

    def invented(self, like=""):
        """A word made of syllables, with capitals where `like` has them. Some words are held out here, too."""
        return self._unheard(like, lambda: self._syllables() + self.any(_CODAS))

    def pieced(self, like=""):
        """A word of up to four arbitrary tokens."""
        return self._unheard(
            like, lambda: self.any(PIECES) if self.chance(0.3) else self._pieces(self.any((2, 2, 3, 4)))
        )

    def _pieces(self, count):
        first = self.any(PIECES) if self.chance(0.5) else self._letter if self.chance(0.6) else self.any(_LETTERS)
        return first + "".join(self.any(PIECES) if self.chance(0.8) else self.any(_LETTERS) for _ in range(count - 1))

    def _unheard(self, like, make):
        word = self.until_owned("invented", lambda: make().lower())
        if len(like) > 1 and like.isupper():
            return word[:4].upper()
        return word.capitalize() if like[:1].isupper() else word

    def _syllables(self):
        return "".join(self.any(_ONSETS) + self.any(_VOWELS) for _ in range(self.between(1, 3)))

    def values(self, pool, count):
        """Different values. If fewer are held out than wanted, others fill up."""
        own, other = split_values(pool)[self.held_out], split_values(pool)[not self.held_out]
        chosen = self.rng.sample(own, min(count, len(own)))
        chosen += self.rng.sample(other, count - len(chosen))
        self.rng.shuffle(chosen)
        unheard = [self._or_unheard(value, pool) for value in chosen]
        return unheard if len(set(unheard)) == count else chosen

    def few(self, pool, count):
        """Different values of a closed class, in which nothing is held out."""
        return self.rng.sample(pool, count)

    def owns(self, *key):
        """Whether a combination, such as the two numbers of a sum, is on this side of the split."""
        return is_held_out(*key) == self.held_out

    def until_owned(self, name, make):
        """Draw combinations until one is on this side of the split."""
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
    return _hash(key) < 1 / VALUES_PER_HELD_OUT


def split_wordings(patterns):
    """(for training, held out); a list shorter than four gives the same to both."""
    return _split(tuple(patterns), 1 / WORDINGS_PER_HELD_OUT, 4)


def split_values(pool):
    """(for training, held out); a pool shorter than sixteen gives the same to both."""
    return _split(tuple(pool), 1 / VALUES_PER_HELD_OUT, VALUES_PER_HELD_OUT)


@lru_cache(4096)  # lists with invented words in them never come again
def _split(items, share, least):
    if len(items) < least:
        return items, items
    # By each item's own hash: a list can grow without anything moving from training to the other side.
    held_out = [item for item in items if _hash(item) < share] or [min(items, key=_hash)]
    return tuple(item for item in items if item not in held_out), tuple(held_out)


def _hash(key):
    """Between 0 and 1, always the same for the same text."""
    return crc32((key.name if hasattr(key, "name") else repr(key)).encode()) / 2**32
