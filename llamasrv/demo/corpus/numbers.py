"""Numbers: counting and small arithmetic, plain and with a thought that counts on."""

from .chat import ChatDocument
from .phrases import POLITE, asking, framed, joined
from .words import NUMBER_WORDS

PLUS = """What is {a} + {b}?|What is {a} plus {b}?|{a} + {b}|{a}+{b}|{a} + {b} = ?|{a} + {b} =|How much is {a} + {b}?|How much is {a} plus {b}?|Add {a} and {b}.|Calculate {a} + {b}.|Compute {a} + {b}.
What is the sum of {a} and {b}?|{a} plus {b}?|What's {a}+{b}?|Sum of {a} and {b}?|Tell me {a} + {b}.|What do you get if you add {a} and {b}?|What does {a} plus {b} make?""".replace(
    "\n", "|"
).split("|")
PLUS += asking("{a} + {b}", "{a} plus {b}", "the sum of {a} and {b}") + framed(
    POLITE, "add {a} and {b}", "calculate {a} + {b}", "compute {a} plus {b}"
)
MINUS = """What is {a} - {b}?|What is {a} minus {b}?|{a} - {b}|{a}-{b}|{a} - {b} = ?|{a} - {b} =|How much is {a} - {b}?|How much is {a} minus {b}?|Subtract {b} from {a}.|Calculate {a} - {b}.
Compute {a} - {b}.|Take {b} away from {a}.|{a} minus {b}?|What's {a}-{b}?|What is the difference of {a} and {b}?|Tell me {a} - {b}.|What is left of {a} without {b}?""".replace(
    "\n", "|"
).split("|")
MINUS += asking("{a} - {b}", "{a} minus {b}", "the difference of {a} and {b}") + framed(
    POLITE, "subtract {b} from {a}", "calculate {a} - {b}", "compute {a} minus {b}"
)
TIMES = """What is {a} times {b}?|What is {a} * {b}?|{a} * {b}|{a} x {b}|How much is {a} times {b}?|Multiply {a} by {b}.|Multiply {a} and {b}.|Calculate {a} * {b}.|What is the product of {a} and {b}?
{a} times {b}?|Compute {a} * {b}.|Tell me {a} times {b}.""".replace("\n", "|").split("|")
TALE_PLUS = [
    "I have {a} apples and get {b} more. How many apples do I have?",
    "There are {a} birds in a tree and {b} more come. How many birds are there?",
    "I had {a} coins and found {b}. How many coins do I have now?",
    "Tom has {a} books and Anna has {b}. How many books do they have together?",
    "{a} cats sit on a wall and {b} cats join them. How many cats sit there?",
]
TALE_PLUS += [
    "Anna has {a} pens and gets {b} from Ben. How many pens does she have?",
    "I bought {a} eggs and then {b} more. How many eggs are there?",
    "{a} cars are in the street and {b} more come. How many cars are there?",
    "Ben reads {a} pages today and {b} tomorrow. How many pages does he read together?",
    "A farmer has {a} cows and buys {b}. How many cows does he have now?",
    "I found {a} shells, then {b} more. How many shells are that?",
    "There are {a} plates here and {b} there. How many plates are there together?",
    "{a} children play and {b} more join them. How many children play?",
]
TALE_MINUS = [
    "I have {a} apples and eat {b}. How many apples are left?",
    "There are {a} birds in a tree and {b} fly away. How many are left?",
    "I had {a} coins and lost {b}. How many coins do I have now?",
    "Tom has {a} books and gives {b} away. How many books are left?",
    "{a} cats sit on a wall and {b} jump down. How many cats still sit there?",
]
TALE_MINUS += [
    "Anna has {a} pens and gives {b} to Ben. How many pens are left?",
    "I bought {a} eggs and {b} broke. How many eggs are left?",
    "{a} cars are in the street and {b} drive away. How many are left?",
    "Ben has {a} cakes and gives away {b}. How many cakes are left?",
    "A farmer has {a} cows and sells {b}. How many cows are left?",
    "I had {a} shells and gave {b} away. How many shells do I have now?",
    "There are {a} plates and {b} fall down. How many plates are left?",
    "{a} children play and {b} go home. How many children still play?",
    "Mia has {a} sweets and eats {b}. How many sweets are left?",
]
BIGGER = [
    "Which is bigger, {a} or {b}?",
    "Which number is larger, {a} or {b}?",
    "What is more, {a} or {b}?",
    "Is {a} or {b} bigger?",
    "Tell me the larger of {a} and {b}.",
    "Which one is greater: {a} or {b}?",
    "Find the maximum of {a} and {b}.",
]
EVEN = [
    "Is {a} even or odd?",
    "Is the number {a} even or odd?",
    "Even or odd: {a}?",
    "Tell me whether {a} is even or odd.",
    "{a}: even or odd?",
    "Is {a} an even number or an odd one?",
]

COUNT_TO = """Count to {b}.|Count up to {b}.|Please count to {b}.|Can you count to {b}?|Count from 1 to {b}.|Count to {b} for me.|Write the numbers up to {b}.|Start at 1 and count to {b}.""".replace(
    "\n", "|"
).split("|")
COUNT_TO += framed(POLITE, "count to {b}", "count up to {b}", "count from 1 to {b}", "write the numbers up to {b}")
COUNT = """Count from {a} to {b}.|Count up from {a} to {b}.|Write the numbers from {a} to {b}.|List the numbers from {a} to {b}.|Start at {a} and count to {b}.|Give me the numbers {a} to {b}.
Say the numbers from {a} to {b}.|Please count from {a} until {b}.|Which numbers are there from {a} to {b}?|Begin with {a} and count up to {b}.|Numbers from {a} to {b}, please.""".replace(
    "\n", "|"
).split("|")
COUNT += framed(
    POLITE,
    *joined(
        ("count from {a} ", "count up from {a} ", "write the numbers from {a} ", "start at {a} and count "),
        ("to {b}", "up to {b}", "until {b}"),
    ),
)
COUNT_DOWN = """Count down from {a} to {b}.|Count backwards from {a} to {b}.|Write the numbers from {a} down to {b}.|Start at {a} and count down to {b}.|Count from {a} down to {b}.|Go backwards from {a} to {b}.
Please count backwards from {a} until {b}.|Give me a countdown from {a} to {b}.""".replace("\n", "|").split("|")
COUNT_DOWN += framed(
    POLITE,
    *joined(
        ("count down from {a} ", "count backwards from {a} ", "go backwards from {a} "),
        ("to {b}", "down to {b}", "until {b}"),
    ),
)
COUNT_TWOS = framed(POLITE, "count by twos from {a} to {b}", "count from {a} to {b} in steps of two") + [
    "Count by twos from {a} to {b}.",
    "Count in steps of two from {a} to {b}.",
    "Write every second number from {a} to {b}.",
    "Count from {a} to {b} by twos.",
    "Count from {a} to {b} in twos.",
]
NEXT = [
    "What number comes after {a}?",
    "Which number comes after {a}?",
    "What comes after {a}?",
    "What is the next number after {a}?",
    "{a} and then?",
    "Name the number after {a}.",
]
PREVIOUS = [
    "What number comes before {a}?",
    "Which number comes before {a}?",
    "What comes before {a}?",
    "What is the number before {a}?",
    "Name the number before {a}.",
]

TOO_BIG = "That is too big for me. I only add and subtract small numbers."
STEPS = 12  # as many are added to a large number, or taken from it


def spoken(d, number):
    """Digits usually, a word sometimes."""
    return NUMBER_WORDS[number] if number <= 20 and d.chance(0.12) else str(number)


def _count_on(a, b):
    steps = ", ".join(f"{i}: {a + i}" for i in range(1, b + 1))
    return (
        f"I start at {a} and go up {b}. {steps}. So {a} + {b} = {a + b}."
        if b
        else f"Plus 0 changes nothing. {a} + 0 = {a}."
    )


def _count_back(a, b):
    steps = ", ".join(f"{i}: {a - i}" for i in range(1, b + 1))
    return (
        f"I start at {a} and go down {b}. {steps}. So {a} - {b} = {a - b}."
        if b
        else f"Minus 0 changes nothing. {a} - 0 = {a}."
    )


def _addends(d):
    """Two numbers in this order: having seen 5 + 7 does not give away 7 + 5, but helps."""

    def make():
        total = d.between(0, 20)
        first = d.between(0, total)
        return first, total - first

    return d.until_owned("plus", make)


def _difference(d):
    def make():
        a = d.between(0, 20)
        return a, d.between(0, a)

    return d.until_owned("minus", make)


def arithmetic(d):
    kind = d.between(0, 19)
    if kind < 9:
        a, b = _addends(d)
        asks = TALE_PLUS if d.chance(0.12) else PLUS
        large, small = max(a, b), min(a, b)
        return ChatDocument(
            d.say(asks, a=spoken(d, a), b=spoken(d, b)), f"{a} + {b} = {a + b}", _count_on(large, small)
        )
    if kind < 17:
        a, b = _difference(d)
        asks = TALE_MINUS if d.chance(0.12) else MINUS
        return ChatDocument(d.say(asks, a=spoken(d, a), b=spoken(d, b)), f"{a} - {b} = {a - b}", _count_back(a, b))
    if kind == 17:
        a, b = d.between(0, 10), d.between(0, 5)
        a, b = (a, b) if d.chance(0.5) else (b, a)
        return ChatDocument(
            d.say(TIMES, a=spoken(d, a), b=spoken(d, b)), f"{a} * {b} = {a * b}", f"The user wants {a} times {b}."
        )
    if kind == 18:
        a, b = d.between(21, 9999), d.between(STEPS + 1, 9999)
        return ChatDocument(d.say(d.any((PLUS, MINUS, TIMES)), a=a, b=b), TOO_BIG, "These numbers are too big for me.")
    return comparing(d)


def larger_sums(d):
    """Up to 99, a few steps from a number: what holds for the last digit of 32 - 8 also holds for 12 - 8."""
    a, b, plus = d.until_owned("larger", lambda: (d.between(21, 99), d.between(0, STEPS), d.chance(0.5)))
    if not plus:
        return ChatDocument(d.say(MINUS, a=a, b=b), f"{a} - {b} = {a - b}", _count_back(a, b))
    first, second = (a, b) if d.chance(0.5) else (b, a)
    return ChatDocument(d.say(PLUS, a=first, b=second), f"{first} + {second} = {a + b}", _count_on(a, b))


def comparing(d):
    if d.chance(0.4):
        a = d.between(0, 30)
        word = "even" if a % 2 == 0 else "odd"
        return ChatDocument(d.say(EVEN, a=a), f"{a} is {word}.", f"The last digit is {a % 10}, so {a} is {word}.")
    a, b = d.until_owned("bigger", lambda: tuple(d.rng.sample(range(0, 100 if d.chance(0.5) else 21), 2)))
    return ChatDocument(d.say(BIGGER, a=a, b=b), f"{max(a, b)} is bigger than {min(a, b)}.", f"I compare {a} and {b}.")


def counting(d):
    kind = d.between(0, 9)
    if kind < 2:
        b = d.between(2, 20)
        return ChatDocument(
            d.say(COUNT_TO, b=spoken(d, b)), ", ".join(map(str, range(1, b + 1))), f"I count from 1 to {b}."
        )
    if kind < 6:
        a, b = d.until_owned(
            "count", lambda: (lambda a: (a, a + d.between(2, 12)))(d.between(0, 60 if d.chance(0.5) else 20))
        )
        return ChatDocument(d.say(COUNT, a=a, b=b), ", ".join(map(str, range(a, b + 1))), f"I count from {a} to {b}.")
    if kind < 8:
        b, a = d.until_owned(
            "down", lambda: (lambda b: (b, b + d.between(2, 12)))(d.between(0, 60 if d.chance(0.4) else 10))
        )
        return ChatDocument(
            d.say(COUNT_DOWN, a=a, b=b), ", ".join(map(str, range(a, b - 1, -1))), f"I count down from {a} to {b}."
        )
    if kind == 8:
        a = d.between(0, 10)
        b = a + 2 * d.between(2, 8)
        return ChatDocument(
            d.say(COUNT_TWOS, a=a, b=b),
            ", ".join(map(str, range(a, b + 1, 2))),
            f"I go from {a} to {b} in steps of two.",
        )
    a = d.between(1, 99)
    if d.chance(0.5):
        return ChatDocument(d.say(NEXT, a=a), f"After {a} comes {a + 1}.", f"{a} and one more is {a + 1}.")
    return ChatDocument(d.say(PREVIOUS, a=a), f"Before {a} comes {a - 1}.", f"{a} less one is {a - 1}.")
