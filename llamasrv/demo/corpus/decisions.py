"""Decisions: typed questions about a short text, answered by one label, in ten kinds.

Owns the texts and the questions. They are written as pipeline/decide writes them: the text, an empty line, what is
asked, a line for each option, and how to answer.
"""

from string import ascii_uppercase

from .chat import ChatDocument, said
from .phrases import framed, joined
from .words import ANIMALS, CITIES, FOODS, HOBBIES, NAMES, THINGS

GOOD = "great wonderful lovely excellent perfect fantastic beautiful nice amazing good".split()
BAD = "terrible awful horrible bad ugly useless disappointing poor boring dreadful".split()
JUDGED = (
    "The {x} is {}.|What a {} {x}!|This {x} is really {}.|I think the {x} is {}.|My new {x} is {}.|It was a {} {x}."
    "|The {x} that I bought is {}.|Such a {} {x}.|We all found the {x} {}.|Honestly, this {x} is {}."
).split("|")
POSITIVE = framed(JUDGED, *GOOD) + framed(
    ("I {} this {x}.", "We {} the {x}.", "I {} my {x}."), "love", "like", "enjoy", "adore"
)
NEGATIVE = framed(JUDGED, *BAD) + framed(
    ("I {} this {x}.", "We {} the {x}.", "I {} my {x}."), "hate", "dislike", "regret", "cannot stand"
)

TEXTS_IN = {
    "English": joined(
        ("I see ", "We have ", "This is ", "Here is ", "I want ", "They know ", "My mother has ", "She likes "),
        ("the house.", "the dog.", "a book.", "the old town.", "my friend.", "the water.", "a big tree.", "the girl."),
    ),
    "French": joined(
        ("Je vois ", "Nous avons ", "C'est ", "Voici ", "Je veux ", "Ils connaissent ", "Ma mère a ", "Elle aime "),
        ("la maison.", "le chien.", "un livre.", "la vieille ville.", "mon ami.", "une fleur.", "un grand arbre.", "la fille."),
    ),
    "German": joined(
        ("Ich sehe ", "Wir haben ", "Das ist ", "Hier ist ", "Ich will ", "Sie kennen ", "Meine Mutter hat ", "Er mag "),
        ("das Haus.", "den Hund.", "ein Buch.", "die alte Stadt.", "meinen Freund.", "das Wasser.", "einen Baum.", "das Kind."),
    ),
    "Spanish": joined(
        ("Yo veo ", "Tenemos ", "Esto es ", "Aquí está ", "Quiero ", "Ellos conocen ", "Mi madre tiene ", "A ella le gusta "),
        ("la casa.", "el perro.", "un libro.", "la ciudad vieja.", "mi amigo.", "el agua.", "un árbol grande.", "la niña."),
    ),
    "Italian": joined(
        ("Io vedo ", "Abbiamo ", "Questo è ", "Ecco ", "Voglio ", "Loro conoscono ", "Mia madre ha ", "A lei piace "),
        ("la casa.", "il cane.", "un libro.", "la città vecchia.", "il mio amico.", "l'acqua.", "un albero grande.", "la ragazza."),
    ),
}  # fmt: skip

ASKED = framed(
    ("Where is the {}?", "Who has the {}?", "Is this your {}?", "How old is the {}?", "Do you like the {}?", "Why is the {} here?",
     "Which {} is yours?", "When did you buy the {}?", "Can I take the {}?", "Whose {} is this?"),
    "{x}", "other {x}", "new {x}", "little {x}",
)  # fmt: skip
TOLD = framed(
    ("The {} is here.", "I have the {}.", "This is my {}.", "She bought the {}.", "We like the {}.", "Take the {}.", "The {} fell down.",
     "He found the {} yesterday.", "My {} is at home.", "Bring me the {}."),
    "{x}", "other {x}", "new {x}", "little {x}",
)  # fmt: skip

# name: (description, requests)
TOOLS = {
    "get_weather": ("the weather of a city", framed(("{} in {c}?", "{} in {c} today?", "{} tomorrow in {c}?"), "How is the weather", "Will it rain", "Is it sunny", "How warm is it")),
    "set_timer": ("a timer", framed(("{} for {n} minutes.", "{}, {n} minutes please.", "{} of {n} minutes."), "Set a timer", "Start a timer", "I need a timer", "Give me a timer")),
    "play_music": ("songs and music", framed(("{} by {p}.", "{} from {p}, please.", "{} of {p} now."), "Play a song", "Play some music", "I want to hear a song", "Put on music")),
    "send_email": ("messages to people", framed(("{} to {p}.", "{} to {p} now.", "{} to {p}, please."), "Send an email", "Write a mail", "Email my answer", "Send this message")),
    "translate": ("text into another language", framed(("{} into {l}.", "{} to {l}, please.", "{} into {l} for me."), "Translate this", "Translate the text", "Put this sentence", "Translate the letter")),
    "book_table": ("a table in a restaurant", framed(("{} for {n} people.", "{} for {n} in {c}.", "{} for {n}, please."), "Book a table", "Reserve a table", "I need a table for dinner", "Find us a restaurant")),
    "calculate": ("sums", framed(("{} {n} and {m}.", "{} {n} plus {m}.", "{} {n} times {m}."), "Calculate", "Compute", "Work out", "What is the result of")),
}  # fmt: skip
LANGUAGES = "French German Spanish Italian Polish Greek Turkish Japanese".split()

_TOPICAL = {
    "food": (FOODS, ("We ate {x} for dinner", "The {x} tasted of salt", "She cooks {x}", "I ordered {x} in the restaurant")),
    "sport": (HOBBIES[:1] + ["football", "tennis", "hockey", "golf", "boxing"], ("They won the match of {x}", "Our team trains {x}", "The final of {x} is on", "The players of {x} scored")),
    "music": (["piano", "guitar", "violin", "drum", "flute", "trumpet"], ("She plays the {x} in a band", "The concert with {x} began", "I heard a song on the {x}", "He sings to the {x}")),
    "travel": (CITIES, ("We took the train to {x}", "Our flight to {x} is late", "The hotel in {x} is full", "They travel to {x}")),
    "animals": (ANIMALS, ("The {x} sleeps in the garden", "I saw a {x} with its young", "The {x} ran away", "We feed the {x}")),
    "weather": (["rain", "snow", "storm", "fog", "wind", "sun"], ("There will be {x} in the morning", "The {x} came from the north", "After the {x} it is cold", "The forecast says {x}")),
}  # fmt: skip
TOPICS = {
    topic: (pool, framed(("{}.", "{} today.", "{} yesterday.", "{} again.", "{} this week.", "{} at last."), *texts))
    for topic, (pool, texts) in _TOPICAL.items()
}

LEVELS = {
    "calm": framed(("{}.", "{}, thank you.", "{}, no hurry.", "Hello, {}."), "I would like to ask about my {x}", "could you look at my {x}", "my {x} arrived today", "I have a question about the {x}", "everything is fine with the {x}"),
    "annoyed": framed(("{}.", "{}, again.", "{}, and that is annoying.", "Hello, {}."), "I still wait for my {x}", "my {x} is late", "nobody answers about my {x}", "I asked twice about the {x}", "the {x} is the wrong one"),
    "furious": framed(("{}!", "{}!!", "{}, this is outrageous!", "Hello?! {}!"), "I am furious about my {x}", "you ruined my {x}", "this {x} is a scandal", "I will sue you over the {x}", "never again a {x} from you"),
}  # fmt: skip

REFUND = framed(
    ("{} for the {x}.", "{} for my {x}, please.", "Hello, {} for this {x}.", "The {x} is broken. {}.", "Wrong {x}. {}!"),
    "I want my money back", "please refund me", "give me a refund", "I ask for a refund", "return my money",
)  # fmt: skip
NO_REFUND = framed(
    ("{} the {x}.", "{} my {x}, please.", "Hello, {} this {x}.", "About the {x}: {} it.", "The {x} is here. {} it!"),
    "I am happy with",
    "when do you deliver",
    "please send me",
    "I would like to order",
    "tell me more about",
)
COUNTED = framed(
    ("{} {n} {x}s.", "{} {n} new {x}s.", "{} room {n} with the {x}.", "{} the {x} for {n} days."),
    "I have",
    "We bought",
    "She saw",
    "They want",
    "He showed me",
)
UNCOUNTED = framed(
    ("{} some {x}s.", "{} a new {x}.", "{} the room with the {x}.", "{} the {x} for a while."),
    "I have",
    "We bought",
    "She saw",
    "They want",
    "He showed me",
)
SPAM = framed(
    ("{} a free {x}!", "{} a free {x} now! Click here.", "Congratulations! {} a {x}!", "Only today: {} your {x} and cash!", "{} a {x}, click the link!"),
    "Win", "Get", "You won", "Claim", "Earn",
)  # fmt: skip
NO_SPAM = framed(
    ("{} the {x} tomorrow.", "{} your {x}, as we said.", "Dear friend, {} the {x}.", "{} the {x} when I come home.", "Hi, {} a {x} from the shop."),
    "I will bring", "we need", "please take", "thanks for", "I looked at",
)  # fmt: skip
TEAMS = {
    "billing": framed(("{} for the {x}.", "{} for my {x}.", "Hello, {} for this {x}.", "{} for one {x}."), "I paid twice", "the invoice is wrong", "my card was charged", "I have a question about the bill", "you took too much money"),
    "technical": framed(("{} on the {x}.", "{} on my {x}.", "Hello, {} on this {x}.", "{} on one {x}."), "there is an error", "the program crashes", "I cannot log in", "the screen stays black", "the update fails"),
    "sales": framed(("{} the {x}.", "{} a new {x}.", "Hello, {} this {x}.", "{} one more {x}."), "I want to buy", "what is the price of", "do you offer", "I am interested in", "can I order"),
}  # fmt: skip


def _filled(d, texts, pool=THINGS):
    n, m = d.between(2, 60), d.between(2, 60)
    values = {"x": d.value(pool), "c": d.value(CITIES), "p": d.value(NAMES), "l": d.any(LANGUAGES), "n": n, "m": m}
    return d.say(texts, **values)


def question(instructions, lines, how):
    return "\n".join((instructions, *lines, f"Answer with {how} only."))


def _choice(d, text, instructions, options, answer):
    """`options`: names, or names with descriptions. They are shown in any order."""
    shown = d.few(tuple(options), len(options))
    described = options if isinstance(options, dict) else {}
    lines = [
        f"{label}: {name} - {described[name]}" if described.get(name) else f"{label}: {name}"
        for label, name in zip(ascii_uppercase, shown)
    ]
    asked = question(d.wording(instructions), lines, "the letter")
    return ChatDocument(f"{text}\n\n{asked}", ascii_uppercase[shown.index(answer)], thinking=False)


def _some(d, pool, answer, least=2):
    """The answer with some others."""
    others = [name for name in pool if name != answer]
    return [answer, *d.few(others, d.between(least - 1, len(others)))]


def _predicate(d, true, false, instructions):
    holds = d.chance(0.5)
    asked = question(d.wording(instructions), (), "yes or no")
    return ChatDocument(f"{_filled(d, true if holds else false)}\n\n{asked}", "yes" if holds else "no", thinking=False)


def sentiment(d):
    answer = d.any(("positive", "negative"))
    text = _filled(d, POSITIVE if answer == "positive" else NEGATIVE)
    asks = framed(("What is the {}?", "Which {} is it?", "Name the {}."), "sentiment", "sentiment of the text", "mood")
    return _choice(d, text, asks, ("positive", "negative"), answer)


def language(d):
    answer = d.any(tuple(TEXTS_IN))
    asks = framed(("Which {} is it?", "What is the {}?", "Name the {}."), "language", "language of the text")
    return _choice(d, d.wording(TEXTS_IN[answer]), asks, _some(d, TEXTS_IN, answer), answer)


def is_question(d):
    return _predicate(
        d, ASKED, TOLD, framed(("{} a question.", "{} a question?"), "It is", "The text is", "Is it", "Is this")
    )


def tool(d):
    answer = d.any(tuple(TOOLS))
    options = {name: TOOLS[name][0] for name in _some(d, TOOLS, answer)}
    if d.chance(0.4):
        options = dict.fromkeys(options, "")
    asks = framed(("Which {} fits?", "Which {} is needed?", "What {} helps here?"), "tool", "function", "of the tools")
    return _choice(d, _filled(d, TOOLS[answer][1]), asks, options, answer)


def topic(d):
    answer = d.any(tuple(TOPICS))
    pool, texts = TOPICS[answer]
    asks = framed(("What is the {}?", "Which {} is it?", "Name the {}."), "topic", "subject", "topic of the text")
    return _choice(d, _filled(d, texts, pool), asks, _some(d, TOPICS, answer), answer)


def anger(d):
    answer = d.any(tuple(LEVELS))
    asks = framed(("How {} is the customer?", "How {} is the writer?", "How {} does it sound?"), "angry", "upset")
    lines = [f"{number}: {name}" for number, name in enumerate(LEVELS)]
    asked = question(d.wording(asks), lines, "the number")
    return ChatDocument(f"{_filled(d, LEVELS[answer])}\n\n{asked}", str(list(LEVELS).index(answer)), thinking=False)


def refund(d):
    return _predicate(
        d,
        REFUND,
        NO_REFUND,
        framed(
            ("The customer {} money back.", "The customer {} a refund.", "The writer {} a refund."), "wants", "asks for"
        ),
    )


def number(d):
    return _predicate(
        d, COUNTED, UNCOUNTED, framed(("{} a number.", "{} a number?"), "The text has", "It contains", "Is there")
    )


def spam(d):
    return _predicate(
        d, SPAM, NO_SPAM, framed(("{} spam.", "{} spam?"), "It is", "The text is", "Is this", "The message is")
    )


def team(d):
    answer = d.any(tuple(TEAMS))
    asks = framed(("Which team {}?", "Which department {}?", "Who {}?"), "answers", "helps", "should answer")
    return _choice(d, _filled(d, TEAMS[answer]), asks, tuple(TEAMS), answer)


_NAMED = ("{}.", "It is {}.", "I choose {}.", "We speak of {} here.", "{}, please.", "This is about {}.")
_NAMES = (THINGS, ANIMALS, FOODS, CITIES, NAMES)


def lookup(d):
    """Choices between words that the text names, asked again for further ones: how the letter before an option is found
    can be learned apart from what a text means. In training only."""
    pool = d.any(_NAMES)
    options = list(dict.fromkeys(d.value(pool) for _ in range(d.between(2, 8))))
    first, *more = d.few(options, d.between(1, len(options)))
    asks = ("Which one is it?", "Which option fits?", "What is it?", "Which word is in the text?")
    made = _choice(d, d.any(_NAMED).format(first), asks, options, first)
    if not more:
        return made
    letters = {line[3:]: line[0] for line in made.question.split("\n") if line[1:3] == ": "}
    turns = [said(made.question, made.answer)] + [said(d.any(_NAMED).format(name), letters[name]) for name in more[:-1]]
    return ChatDocument(d.any(_NAMED).format(more[-1]), letters[more[-1]], turns=turns, thinking=False)


KINDS = (sentiment, language, is_question, tool, topic, anger, refund, number, spam, team)


LOOKUPS = 0.2  # of the documents in training
HARD = frozenset((sentiment, language, tool, topic, team))  # options in any order: five times as many in training


def decisions(d):
    if d.held_out:
        return d.any(KINDS)(d)
    if d.chance(LOOKUPS):
        return lookup(d)
    return d.rng.choices(KINDS, [5 if kind in HARD else 1 for kind in KINDS])[0](d)
