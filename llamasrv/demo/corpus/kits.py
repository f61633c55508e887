"""Generated tools with requests as natural as those of the hand-written ones: they look something up, write something
down, or compute.

A request uses words of the schema, as with real tools. The few hand-written tools would be memorised, and then their
schemas would not be read. Used in training only: the evaluation asks for hand-written tools.
"""

from .phrases import framed
from .specs import BIG, CURRENCIES, MESSAGES, STOCKS, TIMES, TITLES, Spec
from .words import CITIES, DAYS, FOODS, HOBBIES, NAMES, THINGS

ATTRIBUTES = """height age owner size speed weight rating status address score temperature distance length depth population language currency
director author salary level balance result value rank limit width duration capacity frequency altitude humidity pressure deadline budget
density location origin version forecast traffic latitude mayor area dialect winner coach captain anthem wavelength color mass discount tax
fee revenue profit dividend volume margin growth trend""".split()
# What is looked up: (what it is, its values, the word between it and the attribute).
KINDS = [
    *((kind, CITIES, "in") for kind in ("city", "location", "place", "town", "region")),
    *((kind, NAMES, "of") for kind in ("person", "name", "employee", "player", "user", "customer")),
    *((kind, STOCKS, "of") for kind in ("symbol", "ticker", "company", "share", "code")),
    *((kind, THINGS, "of") for kind in ("product", "item", "device", "material")),
    ("food", FOODS, "of"),
    ("dish", FOODS, "of"),
    ("sport", HOBBIES, "of"),
    ("unit", CURRENCIES, "of"),
    ("order", BIG, "of"),
]
LOOK_UP_NAMES = (
    "get_{a}",
    "get_{a}",
    "get_{k}_{a}",
    "get_{k}_{a}",
    "find_{a}",
    "fetch_{k}_{a}",
    "{k}_{a}",
    "{a}_of_{k}",
    "lookup_{a}",
    "check_{a}",
)
LOOK_UP_ABOUT = (
    "Get the {a} of a {k}.",
    "Get the current {a} of a {k}",
    "Look up the {a} of a {k}.",
    "Returns the {a} for a {k}.",
    "The {a} of a {k}",
    "Find out the {a} of a {k}.",
    "Tells the {a}.",
)
LOOK_UP = framed(
    (
        "{}?",
        "What is {}?",
        "Tell me {}.",
        "Get {}.",
        "I need {}.",
        "Show me {}.",
        "Look up {}.",
        "Do you know {}?",
        "Find {}.",
        "Give me {}, please.",
        "What about {}?",
        "Check {}.",
    ),
    *("the {a} {p} {v}", "the {a} now {p} {v}", "the current {a} {p} {v}"),
)
LOOK_UP += [
    "{A} {p} {v}?",
    "What {a} is it {p} {v}?",
    "What {a} is it now {p} {v}?",
    "Which {a} has {v}?",
    "Which {a} is that now {p} {v}?",
    "How is the {a} {p} {v}?",
    "{v}: which {a}?",
    "{A} for {v}, please.",
    "Current {a} {p} {v}?",
    "{A} of the {k} {v}?",
    "{K} {a} of {v}?",
]
LOOK_UP_TWO = [
    "What is the {a} {p} {x} and {y}?",
    "{A} {p} {x} and {y}?",
    "Get the {a} {p} {x} and {p} {y}.",
    "Compare the {a} {p} {x} and {y}.",
    "Tell me the {a} {p} {x} and {y}.",
    "Current {a} {p} {x} and {y}?",
    "{A}s {p} {x} and {y}?",
    "What are the {a}s {p} {x} and {y}?",
    "{K} {a}s of {x} and {y}?",
    "Compare the {a} of the {k}s {x} and {y}.",
    "Which {a} has {x} and which has {y}?",
    "I want the {a} of {x} and that of {y}.",
]

ENTRIES = "task note reminder entry meeting ticket post lesson trip payment match chore exercise delivery visit call session appointment workshop reservation errand".split()
BOOKS = "list diary planner schedule agenda board journal book plan notebook log timetable logbook roster table chart".split()
TEXTS = [
    ("title", TITLES),
    ("name", TITLES),
    ("text", MESSAGES),
    ("subject", HOBBIES),
    ("label", THINGS),
    ("content", FOODS),
    ("summary", TITLES),
    ("what", HOBBIES),
]
DETAILS = [
    ("day", DAYS, "on"),
    ("date", DAYS, "on"),
    ("time", TIMES, "at"),
    ("person", NAMES, "with"),
    ("owner", NAMES, "for"),
    ("place", CITIES, "in"),
]
WRITE_NAMES = (
    "create_{e}",
    "create_{e}",
    "add_{e}",
    "add_to_{b}",
    "new_{e}",
    "write_{b}",
    "{b}_add",
    "make_{e}",
    "insert_{e}",
    "plan_{e}",
    "add_{b}_{e}",
)
WRITE_ABOUT = (
    "Create a {e} in the {b}.",
    "Add a {e} to the {b}.",
    "Put a {e} into the {b}",
    "Writes a new {e} to the {b}.",
    "New {e} for the {b}",
    "Make a {e} in the {b}.",
)
WRITE = [
    "Add {t} to my {b} {p} {v}.",
    "Create a {e} {t} {p} {v}.",
    "Put {t} in the {b} {p} {v}.",
    "New {e}: {t} {p} {v}.",
    "I want {t} {p} {v} in my {b}.",
    "I want {t} in my {b} {p} {v}.",
    "New {e} {p} {v}: {t}.",
    "Write {t} into the {b} {p} {v}.",
    "{E}: {t} {p} {v}.",
    "Make a {e} for {t} {p} {v}.",
    "Add a {e} called {t} {p} {v}.",
    "My {b} needs {t} {p} {v}.",
    "In my {b}: {t} {p} {v}.",
    "{t} {p} {v} should be in my {b}.",
    "Another {e}: {t} {p} {v}.",
    "Please note the {e} {t} {p} {v}.",
    "The {b} lacks {t} {p} {v}.",
]
ASKS = 3  # ways to ask for one tool; more would never be used

# name: (how it is called, ways to ask for it)
OPERATIONS = {
    "add": (("add", "sum", "plus", "addition"), ["What is {x} + {y}?", "Add {x} and {y}.", "What is {x} plus {y}?", "How much is {x} + {y}?", "{x} + {y}", "What is the sum of {x} and {y}?"]),
    "subtract": (("subtract", "minus", "difference", "subtraction"), ["What is {x} - {y}?", "Subtract {y} from {x}.", "What is {x} minus {y}?", "How much is {x} - {y}?", "{x} - {y}", "What is the difference of {x} and {y}?"]),
    "multiply": (("multiply", "times", "product", "multiplication"), ["What is {x} * {y}?", "Multiply {x} by {y}.", "What is {x} times {y}?", "How much is {x} * {y}?", "{x} * {y}", "What is the product of {x} and {y}?", "What is {x} multiplied by {y}?"]),
    "divide": (("divide", "quotient", "division", "div"), ["What is {x} / {y}?", "Divide {x} by {y}.", "What is {x} divided by {y}?", "How much is {x} / {y}?", "{x} / {y}", "How often does {y} go into {x}?"]),
}  # fmt: skip
OPERANDS = (
    ("a", "b"),
    ("a", "b"),
    ("x", "y"),
    ("first", "second"),
    ("num1", "num2"),
    ("left", "right"),
    ("first_int", "second_int"),
)


def kit(d):
    return d.any((looking_up, looking_up, looking_up, writing_down, writing_down, computing))(d)


def computing(d):
    operation = d.any(tuple(OPERATIONS))
    called, asks = OPERATIONS[operation]
    first, second = d.any(OPERANDS)
    kind = d.any(("integer", "integer", "number"))
    words = {"x": f"{{{first}}}", "y": f"{{{second}}}"}
    return Spec(
        d.any((*called, f"{operation}_numbers", f"{operation}_two_numbers")),
        d.any(
            (
                f"{operation.capitalize()} two numbers.",
                f"{operation.capitalize()} {first} and {second}.",
                f"Returns the result of: {operation}",
            )
        ),
        [(first, kind, "first number", BIG), (second, kind, "second number", BIG)],
        "|".join(d.wording(asks).format(**words) for _ in range(ASKS)),
        lambda d, a: {"result": d.between(2, 9999)},
        "The result is: {result}.",
        root=operation,
    )


def looking_up(d):
    attribute = _noun(d, ATTRIBUTES)
    kind, pool, between = d.any(KINDS)
    key = d.any((kind, kind, kind, f"{kind}_name", "query", "id", d.invented()))
    words = {"a": attribute, "A": attribute.capitalize(), "k": kind, "K": kind.capitalize(), "p": between}
    described = d.any((f"Name of the {kind}", f"The {kind}", f"A {kind}", kind.capitalize()))
    return Spec(
        _styled(d, d.any(LOOK_UP_NAMES).format(**words)),
        d.any(LOOK_UP_ABOUT).format(**words),
        [(key, "string", described, pool)],
        "|".join(d.wording(LOOK_UP).format(**words, v=f"{{{key}}}") for _ in range(ASKS)),
        lambda d, a: {attribute: d.between(2, 999)},
        pairs=[d.wording(LOOK_UP_TWO).format(**words, x="{x}", y="{y}") for _ in range(ASKS)],
        root=attribute,
    )


def writing_down(d):
    entry, book = _noun(d, ENTRIES), _noun(d, BOOKS)
    (text, texts), (detail, details, between) = d.any(TEXTS), d.any(DETAILS)
    words = {"e": entry, "E": entry.capitalize(), "b": book, "p": between, "t": f"{{{text}}}", "v": f"{{{detail}}}"}
    return Spec(
        _styled(d, d.any(WRITE_NAMES).format(**words)),
        d.any(WRITE_ABOUT).format(**words),
        [
            (text, "string", f"{text.capitalize()} of the {entry}", texts),
            (detail, "string", f"{detail.capitalize()} of the {entry}", details),
        ],
        "|".join(d.wording(WRITE).format(**words) for _ in range(ASKS)),
        lambda d, a: {"status": d.any(("created", "added", "ok"))},
        root=entry,
    )


def _noun(d, known):
    return d.invented() if d.chance(0.25) else d.any(known)


def _styled(d, name):
    """In the style of programmers' names: mostly with underscores."""
    style = d.between(0, 9)
    if style == 0:
        first, *rest = name.split("_")
        return first + "".join(part.capitalize() for part in rest)
    return name.replace("_", "-") if style == 1 else name
