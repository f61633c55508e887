"""Stories, poems, sentences about something, and the plain continuation of a text."""

from .chat import END_OF_TEXT, ChatDocument, TextDocument
from .words import ADJECTIVES, ANIMALS, COLOURS, FOODS, NAMES, PLACES, POEM_LINES, THINGS

STORY = """Tell me a story about {x}.|Write a short story about {x}.|Tell me a short story about {x}.|Write a story about {x}.|Tell a story about {x}.|I want a story about {x}.
Can you tell me a story about {x}?|Make up a story about {x}.|Please write a little story about {x}.|Write a one-sentence bedtime story about {x}.|Tell me a bedtime story about {x}.
Write a three sentence story about {x}.|Tell me a three sentence bedtime story about {x}.|Invent a story about {x}.|A short story about {x}, please.|Write me a story about {x}.""".replace(
    "\n", "|"
).split("|")
ANY_STORY = [
    "Tell me a story.",
    "Write a story.",
    "Tell me a short story.",
    "Write a short story.",
    "I want to hear a story.",
    "Can you tell me a story?",
    "A story, please.",
    "Please tell a story.",
    "Tell me a bedtime story.",
    "Make up a story.",
]
POEM = """Write a poem about {x}.|Write a short poem about {x}.|Tell me a poem about {x}.|I want a poem about {x}.|Can you write a poem about {x}?|Make a poem about {x}.|Write me a poem about {x}.
Write a little poem about {x}.|Please write a rhyme about {x}.|A poem about {x}, please.|Compose a poem about {x}.|Write a haiku about {x}.|Write two lines of verse about {x}.|Write a rhyme about {x}.|Tell me a rhyme about {x}.|Make a rhyme about {x}.""".replace(
    "\n", "|"
).split("|")
ANY_POEM = [
    "Write a poem.",
    "Tell me a poem.",
    "Can you write a poem?",
    "I want a poem.",
    "Write something that rhymes.",
    "A poem, please.",
    "Make a rhyme.",
    "Say a poem.",
    "Write a rhyme.",
    "Tell me a rhyme.",
]
JOKE = [
    "Tell me a joke.",
    "Do you know a joke?",
    "Make me laugh.",
    "Say something funny.",
    "A joke, please.",
    "Can you tell a joke?",
    "Tell a joke.",
    "I want to hear a joke.",
    "Know any jokes?",
    "Do you know any jokes?",
    "Tell me any joke.",
]
JOKE_ANSWER = "Why did the llama cross the road? Because the server was on the other side."
SENTENCE = [
    "Write a sentence with the word {x}.",
    "Use the word {x} in a sentence.",
    "Make a sentence with {x}.",
    "Give me a sentence with the word {x}.",
    "Write one sentence about a {x}.",
    "Can you use {x} in a sentence?",
    "Form a sentence with {x}.",
    "Put {x} into a sentence.",
    "Form one sentence with the word {x}.",
    "Please form a sentence with {x}.",
]


def article(phrase):
    return f"{'an' if phrase[0].lower() in 'aeiou' else 'a'} {phrase}"


def tale(d, hero, name):
    """A few sentences of one of several plots, with the requested hero and name."""
    adjective, place, thing, food, colour = (
        d.any(ADJECTIVES),
        d.any(PLACES),
        d.any(THINGS),
        d.any(FOODS),
        d.any(COLOURS),
    )
    friend = d.any([a for a in ANIMALS if a != hero])
    plot = d.between(0, 7)
    start = f"Once upon a time there was {article(adjective)} {hero} named {name}."
    if plot == 0:
        return f"{start} {name} lived near the {place} and looked for a {colour} {thing}. One day {article(friend)} brought it, and they became friends."
    if plot == 1:
        return f"{start} One morning {name} went to the {place} and got lost. A kind {friend} showed the way home, and they shared some {food}."
    if plot == 2:
        return f"{start} {name} found a {colour} {thing} in the {place}. It belonged to {article(friend)}, so {name} gave it back, and both were happy."
    if plot == 3:
        return f"{start} {name} was afraid of the dark. Then {article(friend)} lit a {colour} lantern, and {name} slept well all night."
    if plot == 4:
        return f"{start} {name} wanted to cook {food} for everyone in the {place}. {article(friend).capitalize()} helped, and it was the best meal of the year."
    if plot == 5:
        return f"{start} {name} dreamed of flying over the {place}. {article(friend).capitalize()} built a {colour} kite, and for a moment the dream came true."
    if plot == 6:
        return f"{start} Every evening {name} sang a song by the {place}. {article(friend).capitalize()} heard it and sang along, and the stars came out."
    return f"{start} {name} lost a {colour} {thing} in the {place}. {article(friend).capitalize()} found it, and {name} said thank you with some {food}."


def stories(d):
    hero, name = d.value(ANIMALS), d.value(NAMES)
    kind = d.between(0, 9)
    if kind < 2:
        return ChatDocument(
            d.say(ANY_STORY),
            tale(d, hero, name),
            f"I tell a short story about {article(hero)}.",
            needs=("Once upon a time",),
        )
    if kind < 5:
        ask = d.say(STORY, x=f"{article(hero)} named {name}")
        return ChatDocument(
            ask,
            tale(d, hero, name),
            f"The story is about {article(hero)} named {name}.",
            needs=(f"{hero} named {name}.",),
        )
    ask = d.say(STORY, x=article(hero) if d.chance(0.8) else f"the {hero}")
    return ChatDocument(
        ask, tale(d, hero, name), f"I tell a short story about {article(hero)}.", needs=(f" {hero} named ",)
    )


def poems(d):
    kind = d.between(0, 9)
    topic = d.any(tuple(POEM_LINES))
    if kind == 0:
        return ChatDocument(d.say(ANY_POEM), POEM_LINES["the moon"], "I write a short poem about the moon.")
    if kind == 1:
        return ChatDocument(d.say(JOKE), JOKE_ANSWER, "The user wants a joke.")
    if kind < 4:
        word, adjective, colour = d.value(THINGS), d.any(ADJECTIVES), d.any(COLOURS)
        return ChatDocument(
            d.say(SENTENCE, x=word),
            f"The {adjective} farmer has a {colour} {word}.",
            f"I need a sentence with {word}.",
            needs=(f" {word}.",),
        )
    return ChatDocument(d.say(POEM, x=topic), POEM_LINES[topic], f"I write two lines about {topic}.")


def continuation(d):
    """Text without any chat around it, as a completions endpoint receives it. All of it is learned."""
    kind = d.between(0, 5)
    if kind < 3:
        return _cut(d, tale(d, d.value(ANIMALS), d.value(NAMES)), " ", needs=(END_OF_TEXT,))
    if kind == 3:
        start, step = d.between(0, 30), d.any((1, 1, 1, 2, 5, 10))
        numbers = ", ".join(str(start + i * step) for i in range(d.between(6, 14)))
        return _cut(d, numbers, ",", needs=(f", {start + 5 * step}",))
    if kind == 4:
        likes = "\n".join(f"{d.value(NAMES)} likes {d.any(FOODS)}." for _ in range(d.between(3, 5)))
        return _cut(d, likes, " ", needs=(END_OF_TEXT,))
    words = d.values(THINGS, d.between(2, 4))
    return _cut(d, " ".join(words * 4), " ", needs=(" ".join(words),), at=2 * len(words))


def _cut(d, text, mark, *, needs, at=None):
    """Give the pieces before `at`, and let the rest follow."""
    pieces = text.split(mark)
    at = at or d.between(3, 5)
    return TextDocument(mark.join(pieces[:at]), mark + mark.join(pieces[at:]), learn_given=True, needs=needs)
