"""Letters and lists: spelling, reversing, repeating, lists of a category.

A byte-pair token hides its letters, so spelling is drilled on many words, invented ones among them, until every token
has been taken apart often enough.
"""

from .chat import ChatDocument
from .draw import PIECES, split_values
from .phrases import POLITE, framed, joined
from .words import ADJECTIVES, ANIMALS, CATEGORIES, COLOURS, FOODS, NAMES, NUMBER_WORDS, THINGS, WORDS

SPELL = """Spell {q}.|Spell the word {q}.|How do you spell {q}?|Can you spell {q}?|Please spell {q} for me.|Write {q} letter by letter.|What are the letters of {q}?
Spell out {q}.|How is {q} spelled?|Give me the spelling of {q}.|Say the letters of {q}.|Which letters are in {q}?|Take {q} apart letter by letter.
Split {q} into letters.|I want to spell {q}.|Name every letter of {q}.""".replace("\n", "|").split("|")
SPELL += framed(
    POLITE, "spell {q}", "spell the word {q}", "spell out {q}", "write {q} letter by letter", "name the letters of {q}"
)
REVERSE = """Reverse {q}.|Reverse the word {q}.|Spell {q} backwards.|Write {q} backwards.|What is {q} backwards?|Turn {q} around.|Say {q} in reverse.|Read {q} from the end.
What is {q} in reverse?|Spell {q} in reverse order.|Reverse the letters of {q}.|Flip the letters of {q}.""".replace(
    "\n", "|"
).split("|")
FIRST = [
    "What is the first letter of {q}?",
    "Which letter does {q} begin with?",
    "{q} starts with which letter?",
    "Tell me the first letter of {q}.",
    "First letter of {q}?",
    "With which letter does {q} start?",
]
LAST = [
    "What is the last letter of {q}?",
    "Which letter does {q} end with?",
    "{q} ends with which letter?",
    "Tell me the last letter of {q}.",
    "Last letter of {q}?",
    "What letter is at the end of {q}?",
]
HOW_MANY = [
    "How many letters does {q} have?",
    "How many letters are in {q}?",
    "Count the letters of {q}.",
    "How long is the word {q}?",
    "Count the letters in {q}.",
    "What is the number of letters in {q}?",
]

REPEAT = """Repeat after me: {x}|Repeat: {x}|Say: {x}|Say this: {x}|Repeat this: {x}|Please repeat: {x}|Echo: {x}|Say exactly this: {x}|Copy this text: {x}|Echo this: {x}|Echo "{x}"|Write: {x}|Say "{x}"|Repeat "{x}"
Repeat the following: {x}|Just say: {x}|Repeat what I say: {x}|Please say "{x}"|Write exactly: {x}|Type this: {x}|Say {x}|say {x}""".replace(
    "\n", "|"
).split("|")
REPEAT += joined(
    (
        "Repeat",
        "Say",
        "Echo",
        "Write",
        "Copy",
        "Type",
        "Please repeat",
        "Please say",
        "Just repeat",
        "Now say",
        "Can you repeat",
    ),
    (
        ": {x}",
        " this: {x}",
        " after me: {x}",
        " exactly: {x}",
        ' "{x}"',
        " the following: {x}",
        " this text: {x}",
        " exactly this: {x}",
    ),
)
TIMES = """Say {q} {n} times.|Repeat {q} {n} times.|Write {q} {n} times.|Repeat the word {q} {n} times.|Say the word {q} {n} times.|Please write {q} {n} times.|Give me {q} {n} times.
Type {q} {n} times.|I want to read {q} {n} times.|Print {q} {n} times.""".replace("\n", "|").split("|")
TIMES += framed(
    POLITE, *joined(("say ", "repeat ", "write ", "type ", "say the word ", "write the word "), ("{q} {n} times",))
)

LIST = """List {n} {c}.|Name {n} {c}.|Give me {n} {c}.|Tell me {n} {c}.|Write a list of {n} {c}.|I need {n} {c}.|Can you name {n} {c}?|Can you list {n} {c}?|What are {n} {c}?
Give me a list of {n} {c}.|Make a list of {n} {c}.|Say {n} {c}.|Please list {n} {c}.|Which {n} {c} do you know?|Enumerate {n} {c}.|Write down {n} {c}.|Think of {n} {c}.""".replace(
    "\n", "|"
).split("|")
LIST += framed(POLITE, "list {n} {c}", "name {n} {c}", "give me {n} {c}", "write a list of {n} {c}", "tell me {n} {c}")
SOME = """List some {c}.|Name some {c}.|Give me some {c}.|Tell me some {c}.|Which {c} do you know?|Write a list of {c}.|Give me examples of {c}.|Make a list of {c}.""".replace(
    "\n", "|"
).split("|")
ONE_OF = """Name one of the {c}.|Give me one example of {c}.|Tell me just one of the {c} you know.|Name a single example of {c}.|One example of {c}, please.""".replace(
    "\n", "|"
).split("|")
MEMBER = """Is {x} one of the {c}?|Do {x} and other {c} belong together?|Does {x} belong to the {c}?|Is {x} on a list of {c}?|Would you find {x} among {c}?|Is {x} among the {c}?|Do you count {x} among the {c}?""".replace(
    "\n", "|"
).split("|")
REVERSE_LIST = """Reverse this list: {x}|Reverse the order: {x}|Write these words in reverse order: {x}|Turn this list around: {x}|Backwards, please: {x}|Say these words from last to first: {x}
Put this list in reverse order: {x}|Read this list from the end: {x}""".replace("\n", "|").split("|")
PICK = """Which word is number {n} in this list: {x}?|What is word number {n} of: {x}?|Take word {n} of this list: {x}|Give me item {n}: {x}|Which is item {n} in: {x}?|Pick number {n} from: {x}""".replace(
    "\n", "|"
).split("|")

# Every token of letters has to be taken apart now and then: nothing else tells what it is made of. Held out are words of
# several such pieces alone.
NEW_WORDS = sorted(set(split_values(WORDS)[1]) - set(PIECES))


def quoted(d, word):
    return d.any((f'"{word}"', f'"{word}"', f"'{word}'", word))


def drill_word(d):
    """A word to take apart: real or invented, or a piece of words."""
    if d.held_out:
        return d.any(NEW_WORDS)
    kind = d.between(0, 9)
    if kind < 4:
        return d.value(WORDS)
    if kind < 8:
        return d.any(PIECES)
    return d.value(NAMES) if kind == 8 else d.invented()


def spelling(d):
    word = drill_word(d)
    kind = d.between(0, 9)
    letters = "-".join(word)
    if kind == 0:
        return ChatDocument(
            d.say(FIRST, q=quoted(d, word)),
            f'The first letter of "{word}" is {word[0]}.',
            f"{letters}. The first is {word[0]}.",
        )
    if kind == 1:
        return ChatDocument(
            d.say(LAST, q=quoted(d, word)),
            f'The last letter of "{word}" is {word[-1]}.',
            f"{letters}. The last is {word[-1]}.",
        )
    if kind == 2:
        counted = ", ".join(f"{letter} {i}" for i, letter in enumerate(word, 1))
        return ChatDocument(
            d.say(HOW_MANY, q=quoted(d, word)),
            f'{counted}: "{word}" has {len(word)} letters.',
            "I count the letters one by one.",
        )
    return ChatDocument(d.say(SPELL, q=quoted(d, word)), letters, f'The user wants the letters of "{word}".')


def reversing(d):
    if d.chance(0.3):
        words = (
            d.values(d.any((WORDS, THINGS, FOODS, COLOURS)), d.between(2, 6))
            if not d.held_out
            else d.values(WORDS, d.between(2, 6))
        )
        joint = d.any((", ", " "))
        return ChatDocument(
            d.say(REVERSE_LIST, x=joint.join(words)),
            joint.join(words[::-1]),
            f"The last word is {words[-1]}. I go back from there.",
        )
    word = drill_word(d)
    back = "-".join(word[::-1])
    return ChatDocument(d.say(REVERSE, q=quoted(d, word)), back, f"Forwards: {'-'.join(word)}. Now backwards.")


def drill(d):
    """Several words taken apart in one go: many letters for few tokens of prompt."""
    words = [drill_word(d) for _ in range(d.between(3, 8))]
    if d.chance(0.05):
        return ChatDocument(
            f"Reverse each word: {', '.join(words)}", "\n".join(f"{w}: {'-'.join(w[::-1])}" for w in words)
        )
    return ChatDocument(f"Spell each word: {', '.join(words)}", "\n".join(f"{w}: {'-'.join(w)}" for w in words))


def sentence(d):
    kind = d.between(0, 3)
    if kind == 0:
        return " ".join(d.values(WORDS, d.between(1, 5)))
    if kind == 1:
        return f"The {d.any(ADJECTIVES)} {d.value(ANIMALS)} likes {d.value(FOODS)}."
    if kind == 2:
        return f"{d.value(NAMES)} has a {d.value(COLOURS)} {d.value(THINGS)}."
    return d.any(
        (
            "This is a test",
            "this is a test.",
            "Hello World",
            "I like llamas",
            "one two three",
            "Testing, testing",
            "OK",
            "It works!",
            "ping",
            "pong",
        )
    )


def repeating(d):
    if d.chance(0.3 if d.held_out else 0.45):
        word, count = d.value(WORDS), d.between(2, 8)
        number = str(count) if d.chance(0.5) else NUMBER_WORDS[count]
        return ChatDocument(
            d.say(TIMES, q=quoted(d, word), n=number), " ".join([word] * count), f"I write {word} {count} times."
        )
    text = sentence(d)
    return ChatDocument(
        d.wording(REPEAT).format(x=text), text, "The user wants me to repeat a text. I repeat it exactly."
    )


def lists(d):
    name = d.any(tuple(CATEGORIES))
    members = CATEGORIES[name]
    kind = d.between(0, 9)
    if kind == 0:
        return ChatDocument(d.say(SOME, c=name), ", ".join(members[:5]) + ".", f"I name five {name}.")
    if kind == 1:
        if d.chance(0.6):
            return ChatDocument(
                d.say(ONE_OF, c=name), f"{members[0][0].upper()}{members[0][1:]}.", f"I name one of the {name}."
            )
        word, right = (
            (d.any(members), True)
            if d.chance(0.5)
            else (d.any(CATEGORIES[d.any([c for c in CATEGORIES if c != name])]), False)
        )
        right = word in members
        article = word if word[0].isupper() else f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
        return ChatDocument(
            d.say(MEMBER, x=article, c=name),
            f"Yes, {word} is one of the {name}." if right else f"No, {word} is not one of the {name}.",
            f"I think of the {name}: {', '.join(members[:4])}.",
        )
    if kind == 2:
        picked = d.values(WORDS, d.between(3, 6))
        at = d.between(1, len(picked))
        return ChatDocument(
            d.say(PICK, n=at, x=", ".join(picked)),
            f"{picked[at - 1]}",
            f"I count: {', '.join(f'{i} {w}' for i, w in enumerate(picked[:at], 1))}.",
        )
    count = d.between(2, 8)
    number = str(count) if d.chance(0.4) else NUMBER_WORDS[count]
    ask = d.say(LIST, n=number, c=name)
    if d.chance(0.1):
        ask = f"{ask} {d.any(('Use bullet points.', 'As a bulleted list.', 'With bullets.'))}"
        answer = "\n".join(f"- {m}" for m in members[:count])
    else:
        # The numbers say when to stop.
        answer = "\n".join(f"{i}. {m}" for i, m in enumerate(members[:count], 1))
    return ChatDocument(
        ask,
        answer,
        f"The user wants {count} {name}: " + ", ".join(f"{i} {m}" for i, m in enumerate(members[:count], 1)) + ".",
    )
