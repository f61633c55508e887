"""Closed facts: capitals, opposites, colours, days, animals, definitions, and short answers to them on demand."""

from .chat import ChatDocument
from .phrases import OBEYING, asking, framed
from .words import CAPITALS, COLOURS_OF, DAYS, DEFINITIONS, LEGS, MONTHS, NUMBER_WORDS, OPPOSITE_OF, SOUNDS, YOUNG

CAPITAL = """What is the capital of {x}?|What's the capital of {x}?|Tell me the capital of {x}.|Name the capital of {x}.|Which city is the capital of {x}?
The capital of {x}?|What city is the capital of {x}?|Do you know the capital of {x}?|Give me the capital of {x}.|I need the capital of {x}.
Can you tell me the capital of {x}?|Which city is the seat of government of {x}?|Capital of {x}?|What is {x}'s capital?|Please name the capital city of {x}.
What is the capital city of {x}?|I forgot the capital of {x}. What is it?""".replace("\n", "|").split("|")
CAPITAL += asking("the capital of {x}", "the capital city of {x}", "{x}'s capital")
COUNTRY = """{x} is the capital of which country?|Which country has the capital {x}?|Of which country is {x} the capital?|In which country is {x}?
Where is {x}?|What country is {x} in?|Which country is {x} the capital of?|Tell me the country of {x}.|{x} is in which country?""".replace(
    "\n", "|"
).split("|")
OPPOSITE = """What is the opposite of {x}?|What's the opposite of {x}?|Opposite of {x}?|Give me the opposite of {x}.|Tell me the opposite of {x}.|Name the opposite of {x}.
Which word is the opposite of {x}?|What is the contrary of {x}?|The opposite of {x} is what?|Say the opposite of "{x}".|What is the opposite of "{x}"?
What word means the opposite of {x}?|I need the opposite of {x}.|Do you know the opposite of {x}?|Find the opposite of "{x}".|Name the contrary of {x}.|The contrary of {x}?|Tell me the contrary of "{x}".|Which word is the contrary of {x}?""".replace(
    "\n", "|"
).split("|")
OPPOSITE += asking("the opposite of {x}", 'the opposite of "{x}"', "the contrary of {x}", 'the contrary of "{x}"')
COLOUR = """What colour is {x}?|What color is {x}?|What is the colour of {x}?|Tell me the colour of {x}.|Which colour does {x} have?|Name the colour of {x}.
What is the color of {x}?|Which colour is {x}?|{x}: what colour is it?|Do you know the colour of {x}?|In what colour do you paint {x}?""".replace(
    "\n", "|"
).split("|")
COLOUR += asking("the colour of {x}", "the color of {x}")
SOUND = """What does a {x} say?|What sound does a {x} make?|Which sound does a {x} make?|How does a {x} sound?|What noise does a {x} make?|The {x} says what?
Tell me the sound of a {x}.|What does the {x} say?|Make the sound of a {x}.|What is the sound of a {x}?""".replace(
    "\n", "|"
).split("|")
BABY = """What is a baby {x} called?|What is a young {x} called?|How do you call a baby {x}?|What do you call a young {x}?|Name for a baby {x}?|What is the name of a baby {x}?
A young {x} is called what?|Tell me what a baby {x} is called.|What is the young of a {x}?""".replace("\n", "|").split(
    "|"
)
LEG = """How many legs does a {x} have?|How many legs has a {x}?|Number of legs of a {x}?|Tell me how many legs a {x} has.|Count the legs of a {x}.
What is the number of legs of a {x}?|A {x} has how many legs?|Do you know how many legs a {x} has?""".replace(
    "\n", "|"
).split("|")
AFTER = """What {k} comes after {x}?|Which {k} comes after {x}?|What comes after {x}?|What is the {k} after {x}?|What follows {x}?|Name the {k} after {x}.|Which {k} follows {x}?
Tell me the {k} after {x}.|{x} is followed by which {k}?|And after {x} comes which {k}?""".replace("\n", "|").split("|")
AFTER += asking("the {k} after {x}", "the {k} that comes after {x}", "the {k} that follows {x}")
BEFORE = """What {k} comes before {x}?|Which {k} comes before {x}?|What comes before {x}?|What is the {k} before {x}?|Name the {k} before {x}.|Which {k} is before {x}?
Tell me the {k} before {x}.|{x} comes after which {k}?""".replace("\n", "|").split("|")
BEFORE += asking("the {k} before {x}", "the {k} that comes before {x}", "the {k} in front of {x}")
TOMORROW = [
    "Today is {x}. What day is tomorrow?",
    "If today is {x}, what is tomorrow?",
    "It is {x}. Which day is tomorrow?",
    "Today is {x}, so what day is it tomorrow?",
    "What is tomorrow if today is {x}?",
]
YESTERDAY = [
    "Today is {x}. What day was yesterday?",
    "If today is {x}, what was yesterday?",
    "It is {x}. Which day was yesterday?",
    "Today is {x}, so what day was it yesterday?",
    "What was yesterday if today is {x}?",
]
ALL_DAYS = [
    "What are the days of the week?",
    "List the days of the week.",
    "Name the days of the week.",
    "Tell me all days of the week.",
    "Name all weekdays in order.",
    "Give me the seven days of the week.",
]
ALL_MONTHS = [
    "What are the months of the year?",
    "List the months.",
    "Name all months of the year.",
    "Tell me the months in order.",
    "Give me the twelve months.",
    "Which months are there?",
]
DEFINE = """What is a {x}?|Define {x}.|Define the word {x}.|What does {x} mean?|Explain the word {x}.|What does the word {x} mean?|Give me a definition of {x}.|Meaning of {x}?
Tell me what a {x} is.|Describe a {x}.|What is the meaning of {x}?|Explain what a {x} is.|Please define {x}.|What is the meaning of the word {x}?|Tell me the meaning of {x}.|The meaning of {x}?|Meaning of the word {x}?""".replace(
    "\n", "|"
).split("|")
DEFINE += asking("the meaning of {x}", "the definition of {x}", "a definition of {x}", "the meaning of the word {x}")

UNITS = {
    "minutes in an hour": "60", "seconds in a minute": "60", "hours in a day": "24", "days in a week": "7", "months in a year": "12",
    "days in a year": "365", "weeks in a year": "52", "fingers on a hand": "5", "wheels on a car": "4", "wheels on a bicycle": "2",
    "sides on a triangle": "3", "sides on a square": "4", "letters in the alphabet": "26", "eyes on a face": "2", "years in a century": "100",
    "metres in a kilometre": "1000", "grams in a kilogram": "1000", "things in a dozen": "12", "colours in a rainbow": "7",
}  # fmt: skip
UNIT = asking("the number of {x}") + [
    "How many {x}?",
    "How many {x} are there?",
    "Tell me how many {x}.",
    "What is the number of {x}?",
    "Do you know how many {x}?",
    "Count the {x}.",
]


def capitals(d):
    country = d.any(tuple(CAPITALS))
    city = CAPITALS[country]
    if d.chance(0.15):
        return ChatDocument(
            d.say(COUNTRY, x=city), f"{city} is the capital of {country}.", f"{city} is the capital of {country}."
        )
    if d.chance(0.1):
        other = d.any([c for c in CAPITALS if c != country])
        ask = d.say(
            [
                "What are the capitals of {x} and {y}?",
                "Name the capitals of {x} and {y}.",
                "Capitals of {x} and {y}?",
                "Tell me the capitals of {x} and {y}.",
            ],
            x=country,
            y=other,
        )
        return ChatDocument(
            ask,
            f"The capital of {country} is {city}, and the capital of {other} is {CAPITALS[other]}.",
            f"{country}: {city}. {other}: {CAPITALS[other]}.",
        )
    return ChatDocument(
        d.say(CAPITAL, x=country),
        f"The capital of {country} is {city}.",
        f"The user asks for the capital of {country}. It is {city}.",
    )


def opposites(d):
    word, other = d.any(tuple(OPPOSITE_OF.items()))
    return ChatDocument(
        d.say(OPPOSITE, x=word),
        f"The opposite of {word} is {other}.",
        f"The user wants the opposite of {word}. It is {other}.",
    )


def colours(d):
    thing = d.any(tuple(COLOURS_OF))
    colour = COLOURS_OF[thing]
    return ChatDocument(
        d.say(COLOUR, x=thing), f"{thing[0].upper()}{thing[1:]} is {colour}.", f"The colour of {thing} is {colour}."
    )


def days(d):
    if d.chance(0.15):
        asks, names = d.any(((ALL_DAYS, DAYS), (ALL_MONTHS, MONTHS)))
        return ChatDocument(d.say(asks), ", ".join(names) + ".", "The user wants them all in order.")
    kind, names = d.any((("day", DAYS), ("day", DAYS), ("month", MONTHS)))
    step, word, asks, about_today = d.any(((1, "after", AFTER, TOMORROW), (-1, "before", BEFORE, YESTERDAY)))
    if kind == "day" and d.chance(0.3):
        asks = about_today
    at = d.between(0, len(names) - 1)
    other = names[(at + step) % len(names)]
    return ChatDocument(d.say(asks, k=kind, x=names[at]), f"{other}.", f"The {kind} {word} {names[at]} is {other}.")


def animals(d):
    kind = d.between(0, 2)
    if kind == 0:
        animal = d.any(tuple(SOUNDS))
        return ChatDocument(
            d.say(SOUND, x=animal), f"A {animal} says {SOUNDS[animal]}.", f"A {animal} says {SOUNDS[animal]}."
        )
    if kind == 1:
        animal = d.any(tuple(YOUNG))
        return ChatDocument(
            d.say(BABY, x=animal),
            f"A baby {animal} is called a {YOUNG[animal]}.",
            f"A baby {animal} is a {YOUNG[animal]}.",
        )
    animal = d.any(tuple(LEGS))
    return ChatDocument(
        d.say(LEG, x=animal),
        f"A {animal} has {LEGS[animal]} legs.",
        f"A {animal} has {NUMBER_WORDS[int(LEGS[animal])]} legs.",
    )


def units(d):
    thing = d.any(tuple(UNITS))
    return ChatDocument(
        d.say(UNIT, x=thing), f"There are {UNITS[thing]} {thing}.", f"There are {UNITS[thing]} {thing}."
    )


def definitions(d):
    word = d.any(tuple(DEFINITIONS))
    meaning = DEFINITIONS[word]
    return ChatDocument(
        d.say(DEFINE, x=word), f"{word[0].upper()}{word[1:]}: {meaning}.", f"The user asks what {word} means."
    )


ONE_WORD = """Answer with one word.|Answer in one word.|Reply with a single word.|Use one word only.|One word answers only.|Respond with just one word.|Always answer with one word.
You answer with a single word.|Give one-word answers.|Be brief: one word.|Only one word, please.|Your answers have one word.|Say one word and nothing else.
Keep every answer to one word.|Reply in one word, without explanation.|Just one word.|Everything you say is one word.|Everything in one word, please.""".replace(
    "\n", "|"
).split("|")
ONE_WORD += framed(
    OBEYING, "Answer with one word.", "Use one word only.", "Reply with a single word.", "Your answer has one word."
)
UPPERCASE = """Answer in uppercase.|Write in capital letters.|Use capital letters only.|ANSWER IN UPPERCASE.|Always write in upper case.|Reply in all caps.|SHOUT all your answers.
Everything you write is in capital letters.|You only write in uppercase.|Respond in all capitals.|Use only big letters.|Answer all questions in capitals.
WRITE EVERYTHING IN CAPITAL LETTERS.|Please answer in upper case letters.|Write everything in upper case.|Everything in capitals, please.|Everything you say is in uppercase.""".replace(
    "\n", "|"
).split("|")
UPPERCASE += framed(
    OBEYING,
    "Answer in uppercase.",
    "Write in capital letters.",
    "Use upper case.",
    "Your answer is in capital letters.",
)


def short_fact(d):
    """(question, the one word that answers it)."""
    kind = d.between(0, 5)
    if kind in (0, 1):
        country = d.any([c for c in CAPITALS if " " not in CAPITALS[c]])
        return d.say(CAPITAL, x=country), CAPITALS[country]
    if kind == 2:
        word, other = d.any(tuple(OPPOSITE_OF.items()))
        return d.say(OPPOSITE, x=word), other[0].upper() + other[1:]
    if kind == 3:
        thing = d.any(tuple(COLOURS_OF))
        return d.say(COLOUR, x=thing), COLOURS_OF[thing].capitalize()
    if kind == 4:
        at = d.between(0, 6)
        return d.say(AFTER, k="day", x=DAYS[at]), DAYS[(at + 1) % 7]
    animal = d.any(tuple(YOUNG))
    return d.say(BABY, x=animal), YOUNG[animal].capitalize()


def one_word(d):
    ask, word = short_fact(d)
    rule = d.wording(ONE_WORD)
    thought = f"I must answer with one word: {word}."
    if d.chance(0.6):
        return ChatDocument(ask, word, thought, system=rule)
    return ChatDocument(f"{ask} {rule}" if d.chance(0.7) else f"{rule} {ask}", word, thought)


def uppercase(d):
    ask, word = short_fact(d)
    rule = d.wording(UPPERCASE)
    thought = f"I must write in capital letters: {word.upper()}."
    if d.chance(0.7):
        return ChatDocument(ask, word.upper() + ".", thought, system=rule)
    return ChatDocument(f"{ask} {rule}", word.upper() + ".", thought)
