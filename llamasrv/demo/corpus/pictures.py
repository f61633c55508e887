"""Pictures and what is asked about them.

Owns the questions and their answers. A picture stands in a user's turn as `PICTURE`, before or after the words, and a
later turn may ask about it, or about something else.
"""

from dataclasses import dataclass

from .chat import ChatDocument, document, said
from .drawing import COLOURS, DIGITS, SHAPES, THINGS, draw_picture
from .phrases import POLITE, framed

PICTURE = "\ufffc"

_PICTURE = ("this picture", "the picture", "this image", "the image", "this drawing", "this")
WHAT = [
    "What is {p}?",
    "What do you see in {p}?",
    "What is in {p}?",
    "What does {p} show?",
    "What can you see in {p}?",
    "What do we have in {p}?",
    "Look at {p}.",
]
WHAT = [
    text.replace("{p}", picture)
    for text in WHAT
    for picture in _PICTURE
    if not (picture == "this" and " in {p}" in text)
]
WHAT += [
    "What do you see?",
    "What is it?",
    "What's this?",
    "What's in it?",
    "Tell me what you see.",
    "What is on it?",
    "Caption this.",
    "What can you see?",
    "What is here?",
    "What is shown here?",
]
WHAT += framed(
    POLITE,
    "describe this picture",
    "describe the image",
    "tell me what is in the picture",
    "say what you see",
    "describe it",
    "describe what you see",
    "look at this",
)
COLOUR = ["What colour is it?", "What color is it?", "Which colour is it?", "Which color is this?", "What is its colour?", "What is the color of the {n}?", "What colour is the {n}?", "What color is the {n}?", "Which colour do you see?",
          "What colour does it have?", "What colour is that?", "Which colour has the {n}?", "Name the colour.", "Tell me the colour.", "Tell me the color of the {n}.", "Is it red, or which colour is it?", "The colour?", "What color?"]  # fmt: skip
SHAPE = [
    "What shape is it?",
    "Which shape is this?",
    "What shape do you see?",
    "What shape is that?",
    "Name the shape.",
    "Tell me the shape.",
    "What is its shape?",
    "Which shape is in the picture?",
    "What shape does it have?",
    "The shape?",
    "What kind of shape is this?",
    "Which shape is shown?",
]
DIGIT = [
    "Which digit is it?",
    "What digit is this?",
    "Which number is this?",
    "What number do you see?",
    "What number is it?",
    "Read the number.",
    "Which digit do you see?",
    "Tell me the number.",
    "What number is in the picture?",
    "Which number is shown?",
]
LETTER = [
    "Which letter is it?",
    "What letter is this?",
    "Which letter do you see?",
    "What letter do you see?",
    "Read the letter.",
    "Tell me the letter.",
    "What letter is in the picture?",
    "Which letter is shown?",
    "What letter is that?",
    "Name the letter.",
]


_ABOUT = {"shape": SHAPE, "digit": DIGIT, "letter": LETTER}


@dataclass(frozen=True)
class Pictured:
    """A document with one picture of a thing: `draw()` makes it, the same every time."""

    document: object
    colour: str
    thing: str
    draw: object


def pictured(d, dress, others):
    """A document about a picture. `dress` adds what any conversation may have; `others` make turns about other things."""
    colour, thing = d.until_owned("picture", lambda: (d.any(tuple(COLOURS)), _thing(d)))
    made = _conversation(d, colour, thing, others)
    turns, made.turns = made.turns, []
    made = dress(d, made)
    made.turns += turns
    made.thinking = None if made.thinking else made.thinking
    return Pictured(document("pictures", made), colour, thing, lambda: draw_picture(d, colour, thing))


def _thing(d):
    return d.any(SHAPES) if d.chance(0.5) else d.any(THINGS)


def _conversation(d, colour, thing, others):
    answer, kind = f"I see {_an(colour)} {thing}.", d.between(0, 9)
    if kind < 7:
        return ChatDocument(_with_picture(d, "" if d.chance(0.12) else _question(d, thing)), answer)
    later = ChatDocument(_question(d, thing), answer) if kind < 8 else d.any(others)(d)
    later.turns = [said(_with_picture(d, _question(d, thing)), answer)]
    return later


def _question(d, thing):
    """Whatever is asked, the answer says everything that is known."""
    kind = "shape" if thing in SHAPES else "digit" if thing in DIGITS else "letter"
    patterns = d.any((WHAT, WHAT, WHAT, COLOUR, _ABOUT[kind]))
    return d.say([text.replace("{n}", kind) for text in patterns])


def _with_picture(d, words):
    return PICTURE + words if d.chance(0.5) else words + PICTURE


def _an(word):
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
