"""Remembering: what was said turns ago, what the system prompt states, and who it tells the model to be."""

from .chat import ChatDocument, said
from .facts import capitals, colours, opposites
from .numbers import arithmetic
from .phrases import OBEYING, OPENINGS, REMEMBERING, framed, joined, remembering
from .talk import greeting, salutation
from .words import ANIMALS, CITIES, COLOURS, FOODS, HOBBIES, JOBS, NAMES, THINGS

# kind: (pool, ways to say it, ways to ask for it, answer)
ABOUT_ME = {
    "name": (NAMES, ["My name is {v}.", "I am {v}.", "I'm {v}.", "Hello, I am {v}.", "Call me {v}.", "Hi, my name is {v}.", "You can call me {v}.", "They call me {v}."], ["What is my name?", "What's my name?", "Who am I?", "Do you remember my name?", "What am I called?", "Tell me my name.", "Can you say my name?", "Do you know my name?", "How am I called?"], "Your name is {v}."),
    "city": (CITIES, ["I live in {v}.", "My home is {v}.", "I am from {v}.", "I moved to {v}.", "My city is {v}.", "I come from {v}.", "{v} is where I live.", "I have a flat in {v}."], ["Where do I live?", "In which city do I live?", "What is my city?", "Do you remember where I live?", "Where is my home?", "Which city do I live in?", "Tell me where I live.", "What city am I from?"], "You live in {v}."),
    "colour": (COLOURS, ["My favourite colour is {v}.", "I love the colour {v}.", "The colour I like best is {v}.", "My favorite color is {v}.", "I like {v} best of all colours.", "{v} is my favourite colour.", "Of all colours I prefer {v}.", "No colour is nicer than {v}.", "There is no nicer colour than {v}.", "For me {v} is nicer than any other colour."], ["What is my favourite colour?", "Which colour do I like?", "What colour do I love?", "Do you remember my favourite colour?", "What is my favorite color?", "Tell me my favourite colour.", "Which colour is my favourite?", "What colour do I like best?"], "Your favourite colour is {v}."),
    "food": (FOODS, ["My favourite food is {v}.", "I love {v}.", "I like to eat {v}.", "The food I like best is {v}.", "I eat {v} every day.", "Nothing tastes better than {v}.", "I could eat {v} all day.", "{v} is what I like to eat."], ["What is my favourite food?", "What do I like to eat?", "Which food do I love?", "Do you remember my favourite food?", "What food do I like?", "Tell me my favourite food.", "What do I love to eat?", "Which food is my favourite?"], "Your favourite food is {v}."),
    "hobby": (HOBBIES, ["My hobby is {v}.", "I like {v}.", "In my free time I do {v}.", "I enjoy {v}.", "My favourite hobby is {v}.", "At weekends I go {v}.", "{v} is my hobby.", "I spend my evenings with {v}."], ["What is my hobby?", "What do I do in my free time?", "Which hobby do I have?", "Do you remember my hobby?", "What do I enjoy?", "Tell me my hobby.", "What is it that I like to do?", "What hobby did I tell you?"], "Your hobby is {v}."),
    "job": (JOBS, ["I am a {v}.", "I work as a {v}.", "My job is {v}.", "I earn my money as a {v}.", "By profession I am a {v}.", "I have a job as a {v}.", "My work is that of a {v}.", "They hired me as a {v}.", "I earn a living as a {v}.", "I earn my bread as a {v}."], ["What is my job?", "What do I work as?", "What is my profession?", "Do you remember my job?", "What do I do for a living?", "Tell me my job.", "Which job do I have?", "What work do I do?", "Which work do I do?", "What kind of work do I do?", "What work am I doing?", "How do I earn my money?", "What am I by profession?"], "You work as a {v}."),
    "pet": (ANIMALS, ["I have a {v}.", "My pet is a {v}.", "At home I have a {v}.", "I own a {v}.", "I live with a {v}.", "A {v} lives with me.", "I keep a {v}.", "My favourite pet is my {v}."], ["What pet do I have?", "Which pet do I have?", "What is my pet?", "Do you remember my pet?", "Which animal do I have?", "Tell me what pet I have.", "What animal lives with me?", "What kind of pet do I own?"], "Your pet is a {v}."),
    "age": ([str(n) for n in range(6, 99)], ["I am {v} years old.", "My age is {v}.", "I turned {v} this year.", "I'm {v} years old.", "I am {v}.", "I have just become {v}.", "My birthday made me {v}.", "I was {v} on my last birthday."], ["How old am I?", "What is my age?", "Do you remember how old I am?", "Tell me my age.", "Do you know my age?", "Which age am I?", "What age did I tell you?", "Say how old I am."], "You are {v} years old."),
    "number": ([str(n) for n in range(10, 1000)], ["My lucky number is {v}.", "Remember the number {v}.", "The number is {v}.", "The code is {v}.", "Please remember this number: {v}.", "Keep the number {v} in mind.", "The secret number is {v}.", "Note the number {v}."], ["What was the number?", "Which number did I tell you?", "What number should you remember?", "Tell me the number.", "What is the number?", "Do you remember the number?", "Say the number again.", "Can you repeat the number?"], "The number is {v}."),
    "word": (THINGS, ["Remember the word {v}.", "The secret word is {v}.", "The password is {v}.", "Keep the word {v} in mind.", "Please remember this word: {v}.", "The magic word is {v}.", "Note the word {v}.", "My word for you is {v}."], ["What was the word?", "Which word did I tell you?", "What is the secret word?", "Tell me the word.", "What is the word?", "Do you remember the word?", "Say the word again.", "What word should you remember?"], "The word is {v}."),
}  # fmt: skip
NOTED = "I will remember that."
LAST_MESSAGE = [
    "What did I just ask you?",
    "What was my last message?",
    "Repeat my last message.",
    "What did I say last?",
    "Say again what I wrote last.",
]
LAST_MESSAGE += framed(REMEMBERING, "my last message", "my last words", "what I wrote last", "what I said last")
_NOUNS = {
    "name": ("my name",), "city": ("my city", "my home town"), "colour": ("my favourite colour", "my favorite color"), "food": ("my favourite food",),
    "hobby": ("my hobby", "my favourite hobby"), "job": ("my job", "my profession", "my occupation", "my trade"), "pet": ("my pet",), "age": ("my age",),
    "number": ("the number", "my number"), "word": ("the word", "my word"),
}  # fmt: skip
ABOUT_ME = {
    kind: (pool, ways + framed(OPENINGS, *ways), asks + remembering(*_NOUNS[kind]), answer)
    for kind, (pool, ways, asks, answer) in ABOUT_ME.items()
}

# The system prompt states something; ways to state it, ways to ask, answer.
STATED = [
    (["The shop opens at {v}.", "Our shop opens at {v}.", "Opening time of the shop: {v}.", "The shop is open from {v} on.", "The store opens at {v}.", "Opening time: {v}.", "The shop has its opening time at {v}."], ["When does the shop open?", "At what time does the shop open?", "What is the opening time?", "When do you open?", "What time does the shop open?", "From when on is the shop open?"], "The shop opens at {v}.", [f"{h} o'clock" for h in range(5, 13)] + [f"{h}:{m}" for h in range(6, 13) for m in (15, 30, 45)]),
    (["The user's name is {v}.", "You are talking to {v}.", "The user is called {v}.", "The name of the user is {v}.", "You are helping {v}.", "You are helping a user named {v}.", "You are helping someone called {v}."], ["What is my name?", "Who am I?", "Do you know my name?", "What am I called?", "Tell me my name.", "Whom are you talking to?", "To whom are you talking?", "With whom are you talking?", "Whom do you talk to?", "Who is talking to you?", "Whom are you helping?", "Whom do you help?"], "Your name is {v}.", NAMES),
    (["The password is {v}.", "The secret word is {v}.", "Today's password is {v}.", "Password: {v}.", "The word of the day is {v}."], ["What is the password?", "Tell me the password.", "What is the secret word?", "Do you know the password?", "Which password is it?", "Say the password.", "Which is the password?", "What password is it?", "Which password do I need?", "Which word opens it?"], "The password is {v}.", THINGS),
    (["The meeting is on {v}.", "Our meeting takes place on {v}.", "Date of the meeting: {v}.", "We meet on {v}.", "The team meets on {v}.", "Everybody meets on {v}.", "The group meets on {v}."], ["When is the meeting?", "On which day is the meeting?", "What day is the meeting?", "When do we meet?", "Tell me the day of the meeting.", "Which day is our meeting?"], "The meeting is on {v}.", "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    (["The office is in {v}.", "Our office is in {v}.", "The company is located in {v}.", "Location of the office: {v}.", "Our company has its office in {v}.", "Office location: {v}.", "The location of our office is {v}."], ["Where is the office?", "In which city is the office?", "Where is the company?", "What is the location of the office?", "Tell me where the office is.", "Which city is the office in?"], "The office is in {v}.", CITIES),
    (["The soup of the day is {v} soup.", "Today we serve {v} soup.", "Today's soup: {v} soup.", "The kitchen has {v} soup today.", "On the menu today: {v} soup."], ["What is the soup of the day?", "Which soup do you have?", "What soup is there today?", "What do you serve today?", "Tell me the soup of the day.", "What is on the menu?"], "Today there is {v} soup.", [*FOODS, "onion", "tomato", "potato", "carrot", "bean"]),
    (["The ticket costs {v} dollars.", "A ticket is {v} dollars.", "Price of a ticket: {v} dollars.", "One ticket costs {v} dollars.", "Tickets are {v} dollars each."], ["How much is a ticket?", "What does a ticket cost?", "What is the price of a ticket?", "How much does the ticket cost?", "Tell me the price.", "What do I pay for a ticket?"], "A ticket costs {v} dollars.", [str(n) for n in range(2, 100)]),
    (["The manager is {v}.", "Our manager is called {v}.", "The name of the manager is {v}.", "Manager: {v}.", "{v} is the manager."], ["Who is the manager?", "What is the name of the manager?", "Who manages this?", "Tell me who the manager is.", "What is the manager called?", "Who is in charge?"], "The manager is {v}.", NAMES),
]  # fmt: skip

# In the order of STATED: what each of them is called.
_STATED_NOUNS = (
    ("the opening time", "the opening time of the shop"),
    ("my name",),
    ("the password", "the secret word"),
    ("the day of the meeting",),
    ("the location of the office", "the city of the office"),
    ("the soup of the day", "today's soup"),
    ("the price of a ticket",),
    ("the name of the manager",),
)
STATED = [
    (ways + framed(OBEYING, *ways), asks + remembering(*nouns), answer, pool)
    for (ways, asks, answer, pool), nouns in zip(STATED, _STATED_NOUNS, strict=True)
]

YOU_ARE = [
    "You are {n}, a {j}.",
    "Your name is {n}. You are a {j}.",
    "You are a {j} named {n}.",
    "Act as {n}, a {j}.",
    "Play the role of {n}, a {j}.",
    "You are called {n} and work as a {j}.",
    "Be {n}, a {j}.",
    "Pretend to be a {j} called {n}.",
    "From now on you are {n}, a {j}.",
]
YOU_ARE += joined(
    YOU_ARE, (" Stay in this role.", " Answer as {n}.", " Never forget it.", " You help the user.", " Be friendly.")
)
WHO_PERSONA = remembering("your name", "your job", "your profession") + [
    "Who are you?",
    "What is your name?",
    "Introduce yourself.",
    "Who am I talking to?",
    "What are you?",
    "Tell me about yourself.",
    "What is your job?",
    "Please introduce yourself.",
    "What's your name?",
    "Say who you are.",
]
ENDING = [
    'Always end with "{w}"',
    'End every answer with "{w}"',
    'Finish each answer with "{w}"',
    'Close every reply with "{w}"',
    'The last words of each answer are "{w}"',
    'Always say "{w}" at the end.',
    'Put "{w}" at the end of every answer.',
    'After each answer you say "{w}"',
]
STARTING = [
    'Always begin with "{w}"',
    'Begin every answer with "{w}"',
    'Start each answer with "{w}"',
    'Open every reply with "{w}"',
    'The first words of each answer are "{w}"',
    'Always say "{w}" first.',
    'Put "{w}" before every answer.',
    'Before each answer you say "{w}"',
]
TAGS = [
    "Arr!",
    "Yes, sir.",
    "Beep boop.",
    "Meow!",
    "Ho ho ho!",
    "My friend.",
    "Over and out.",
    "Ahoy!",
    "Indeed.",
    "As you wish.",
    "Moo!",
    "Woof!",
    "Well, well.",
    "Cheers!",
    "Yay!",
    "Listen:",
    "Dear user,",
    "Amen.",
    "OK!",
    "Roger.",
    "Hurray!",
    "Good luck!",
    "By the way,",
    "Captain!",
    "Stay safe.",
    "Ta-da!",
    "Peace.",
    "Hmm.",
    "Bingo!",
    "Aye!",
]
HELPFUL = [
    "You are a helpful assistant.",
    "You are a helpful assistant",
    "You are a friendly assistant.",
    "You are a helpful AI assistant.",
    "Be helpful.",
    "You help the user.",
    "You are an assistant.",
    "Be concise.",
    "You are a helpful and honest assistant.",
    "Answer the user's questions.",
]


def told(d, kinds):
    """Statements about the user, one of each kind: (kind, value, sentence)."""
    made = []
    for kind in kinds:
        pool, ways, _, _ = ABOUT_ME[kind]
        value = d.value(pool)
        sentence = d.wording(ways).format(v=value)
        made.append((kind, value, sentence[0].upper() + sentence[1:]))
    return made


def memory(d):
    facts = told(d, d.few(tuple(ABOUT_ME), d.between(1, 4)))
    turns = []
    waiting = list(facts)
    while waiting:
        together = min(len(waiting), d.between(1, 2))
        sentences = " ".join(sentence for _, _, sentence in waiting[:together])
        name = next((value for kind, value, _ in waiting[:together] if kind == "name"), None)
        last_said = sentences
        turns.append(said(sentences, f"Hello, {name}! Nice to meet you. How can I help you?" if name else NOTED))
        waiting = waiting[together:]
    for _ in range(d.any((0, 0, 1, 1, 2))):
        other = d.any((capitals, opposites, colours, arithmetic))(d)
        last_said = other.question
        turns.append(other.exchange())
    kind, value, _ = d.any(facts)
    _, _, asks, answer = ABOUT_ME[kind]
    if len(facts) > 1 and d.chance(0.15):
        (k1, v1, _), (k2, v2, _) = d.few(facts, 2)
        ask = f"{d.wording(ABOUT_ME[k1][2])} {d.wording(ABOUT_ME[k2][2])}"
        return ChatDocument(
            ask,
            f"{ABOUT_ME[k1][3].format(v=v1)} {ABOUT_ME[k2][3].format(v=v2)}",
            "The user told me both before.",
            turns=turns,
            system=helpful(d),
        )
    if len(turns) == 1 and d.chance(0.3):
        return ChatDocument(
            f"{last_said} {d.say(asks)}",
            answer.format(v=value),
            f"The user has just said it: {value}.",
            system=helpful(d),
        )
    if d.chance(0.04):
        return ChatDocument(d.say(LAST_MESSAGE), last_said, "I look at the last message of the user.", turns=turns)
    return ChatDocument(
        d.say(asks), answer.format(v=value), f"The user told me before: {value}.", turns=turns, system=helpful(d)
    )


def not_told(d):
    """Questions about something that was never said."""
    kinds = d.few(tuple(ABOUT_ME), 3)
    missing = kinds.pop()
    turns = [
        said(sentence, NOTED) for kind, _, sentence in told(d, [k for k in kinds if k != "name"])[: d.between(0, 2)]
    ]
    return ChatDocument(
        d.say(ABOUT_ME[missing][2]),
        "You have not told me that yet.",
        "The user has not told me that.",
        turns=turns,
        system=helpful(d),
    )


def helpful(d):
    return d.wording(HELPFUL) if d.chance(0.2) else None


def system_facts(d):
    chosen = d.few(STATED, d.between(1, 4))
    stated = [(d.value(pool), d.wording(ways), asks, answer) for ways, asks, answer, pool in chosen]
    system = " ".join(way.format(v=value) for value, way, _, _ in stated)
    if d.chance(0.4):
        system = f"{d.wording(HELPFUL)} {system}"
    value, _, asks, answer = d.any(stated)
    return ChatDocument(d.say(asks), answer.format(v=value), f"The system prompt says it: {value}.", system=system)


def persona(d):
    name, job = d.value(NAMES), d.value(JOBS)
    system = d.wording(YOU_ARE).format(n=name, j=job)
    kind = d.between(0, 4)
    if kind < 3:
        return ChatDocument(d.say(WHO_PERSONA), f"I am {name}, a {job}.", f"I am {name}, a {job}.", system=system)
    if kind == 3:
        return ChatDocument(
            salutation(d), f"Hello! I am {name}, a {job}. How can I help you?", f"I greet as {name}.", system=system
        )
    inner = d.any((capitals, opposites, colours))(d)
    return ChatDocument(inner.question, inner.answer, inner.thought, system=system)


def manner(d):
    """The system prompt wants something at the start or the end of every answer."""
    inner = d.any((capitals, opposites, colours, greeting))(d)
    word = d.value(TAGS)
    ending = d.chance(0.5)
    rule = d.wording(ENDING if ending else STARTING).format(w=word)
    if d.chance(0.3):
        rule = f"{d.wording(HELPFUL)} {rule}"
    answer = f"{inner.answer} {word}" if ending else f"{word} {inner.answer}"
    return ChatDocument(inner.question, answer, f"I must {'end' if ending else 'begin'} with: {word}", system=rule)
