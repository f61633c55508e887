"""Code: filling in the middle of tiny functions, and Python one-liners on request."""

from .chat import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, ChatDocument, TextDocument
from .words import ANIMALS, THINGS

# (name, parameters, body lines)
FUNCTIONS = [
    ("add", "a, b", ["return a + b"]), ("subtract", "a, b", ["return a - b"]), ("multiply", "a, b", ["return a * b"]),
    ("divide", "a, b", ["return a / b"]), ("square", "x", ["return x * x"]), ("double", "x", ["return x * 2"]), ("half", "x", ["return x / 2"]),
    ("negate", "x", ["return -x"]), ("is_even", "n", ["return n % 2 == 0"]), ("is_odd", "n", ["return n % 2 == 1"]),
    ("maximum", "a, b", ["if a > b:", "    return a", "return b"]), ("minimum", "a, b", ["if a < b:", "    return a", "return b"]),
    ("absolute", "x", ["if x < 0:", "    return -x", "return x"]), ("greet", "name", ['return "Hello, " + name']),
    ("first", "items", ["return items[0]"]), ("last", "items", ["return items[-1]"]), ("length", "items", ["return len(items)"]),
    ("reverse", "text", ["return text[::-1]"]), ("upper", "text", ["return text.upper()"]), ("lower", "text", ["return text.lower()"]),
    ("total", "numbers", ["result = 0", "for n in numbers:", "    result += n", "return result"]),
    ("count_down", "n", ["while n > 0:", "    print(n)", "    n -= 1"]), ("factorial", "n", ["if n == 0:", "    return 1", "return n * factorial(n - 1)"]),
    ("average", "numbers", ["return sum(numbers) / len(numbers)"]), ("is_empty", "items", ["return len(items) == 0"]),
    ("contains", "items, x", ["return x in items"]), ("join", "words", ['return " ".join(words)']), ("words", "text", ["return text.split()"]),
    ("swap", "a, b", ["return b, a"]), ("increment", "x", ["return x + 1"]), ("decrement", "x", ["return x - 1"]), ("power", "a, b", ["return a ** b"]),
    ("largest", "numbers", ["return max(numbers)"]), ("smallest", "numbers", ["return min(numbers)"]), ("ordered", "items", ["return sorted(items)"]),
]  # fmt: skip

ONE_LINERS = [
    (["print hello world", "print Hello, world", "say hello"], 'print("Hello, world!")'), (["add two numbers a and b", "sum a and b"], "c = a + b"),
    (["reverse a string s", "turn a string s around"], "s[::-1]"), (["get the length of a list x", "count the items of a list x"], "len(x)"),
    (["sort a list x", "put a list x in order"], "sorted(x)"), (["read a file", "open a file and read it"], 'open("file.txt").read()'),
    (["make a list of the numbers 0 to 9", "get the numbers 0 to 9"], "list(range(10))"), (["get the largest item of a list x", "find the maximum of a list x"], "max(x)"),
    (["check if a number n is even", "test whether n is even"], "n % 2 == 0"), (["join words with spaces", "join a list of words"], '" ".join(words)'),
    (["import the math module", "use the math module"], "import math"), (["make an empty dictionary", "create an empty dict"], "d = {}"),
    (["make an empty list", "create an empty list"], "x = []"), (["square a number x", "multiply x by itself"], "x ** 2"),
    (["convert a string s to a number", "turn a string s into an integer"], "int(s)"), (["split a text s into words", "get the words of a text s"], "s.split()"),
    (["check if an object x is a list", "test whether x is a list"], "isinstance(x, list)"), (["write a string s in upper case", "make a string s uppercase"], "s.upper()"),
]  # fmt: skip
ASK = [
    "How do I {x} in Python?",
    "Write Python code to {x}.",
    "Python: {x}",
    "Give me Python to {x}.",
    "In Python, how do I {x}?",
    "Show me how to {x} in Python.",
    "Write one line of Python to {x}.",
    "How can I {x} with Python?",
    "What is the Python code to {x}?",
    "Python one-liner to {x}?",
    "Code to {x} in Python, please.",
    "How would you {x} in Python?",
]


def one_liners(d):
    asks, code = d.any(ONE_LINERS)
    return ChatDocument(d.say(ASK, x=d.any(asks)), f"```python\n{code}\n```", "The user wants one line of Python.")


def function_text(d, name, parameters, body):
    return f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in body)


def fill_in_the_middle(d):
    """A tiny function with a piece cut out, alone or beside others."""
    kind = d.between(0, 9)
    if kind < 2:
        word = d.any(("value", "result", *THINGS[:12]))
        number = d.between(1, 99)
        before, middle, after = f"{word} = {number}\nprint(", f"{word}", ")\n"
        return TextDocument(f"{FIM_PREFIX}{before}{FIM_SUFFIX}{after}{FIM_MIDDLE}", middle)
    if kind == 2:
        animals = d.values(ANIMALS, 3)
        before, middle, after = f"for animal in {animals!r}:\n    ", "print(animal)", "\n"
        return TextDocument(f"{FIM_PREFIX}{before}{FIM_SUFFIX}{after}{FIM_MIDDLE}", middle)
    name, parameters, body = d.any(FUNCTIONS)
    text = function_text(d, name, parameters, body)
    lead = function_text(d, *d.any([f for f in FUNCTIONS if f[0] != name])) + "\n\n" if d.chance(0.3) else ""
    tail = "\n\n" + function_text(d, *d.any([f for f in FUNCTIONS if f[0] != name])) if d.chance(0.3) else ""
    head = f"def {name}({parameters}):\n    "
    cut = d.between(0, 3)
    if cut == 0:
        start = len(head)
    elif cut == 1:
        start = len(head) + (7 if body[0].startswith("return ") else 0)
    else:
        start = d.any(
            [at for at in range(len(head), len(text) - 2) if text[at] == " " or text[at - 1] == " "] or [len(head)]
        )
    end = len(text) - 1 if cut < 3 else max(start + 1, text.find("\n", start))
    before, middle, after = lead + text[:start], text[start:end], text[end:] + tail
    return TextDocument(f"{FIM_PREFIX}{before}{FIM_SUFFIX}{after}{FIM_MIDDLE}", middle)
