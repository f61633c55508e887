"""Tools: choosing one of several, filling its arguments, calling several at once, none when none fits, and answering
from what they return.

Some tools are written by hand with natural requests (`specs`), some are generated with equally natural requests
(`kits`); the others combine verbs and nouns, so that no name can be memorised and everything has to be read from the
schema.
"""

import json

from .chat import ChatDocument
from .facts import animals, capitals, colours, definitions, opposites
from .kits import kit
from .letters import repeating
from .numbers import counting
from .phrases import joined
from .specs import BIG, NUMBERS, SPECS, TIMES, Spec, spoken, typed
from .talk import greeting, self_description
from .words import ADJECTIVES, CITIES, COLOURS, DAYS, FOODS, NAMES, THINGS

VERBS = """get:Get find:Find create:Create delete:Delete update:Update open:Open close:Close start:Start stop:Stop check:Check order:Order rent:Rent
buy:Buy sell:Sell repair:Repair clean:Clean move:Move count:Count print:Print share:Share lock:Lock load:Load save:Save show:Show hide:Hide test:Test
read:Read build:Build measure:Measure inspect:Inspect archive:Archive reset:Reset""".split()
NOUNS = """invoice ticket report account order garden robot camera printer server folder file project customer parcel truck boat ship engine
battery sensor door window oven fridge lamp heater pump valve motor elevator tractor drone rocket satellite museum library hotel room desk
contract recipe playlist album photo video channel course exam lesson student patient vaccine prescription appointment flight booking seat
locker bicycle scooter bus tram bridge tunnel road meter pipeline container warehouse shelf product coupon refund payment invoice budget loan
policy claim license permit certificate survey poll vote message thread comment post page database backup cluster queue job build branch""".split()
NOUNS = sorted(set(NOUNS))
# key: (JSON type, pool, how a request mentions it)
SLOTS = {
    "name": ("string", NAMES, ["called {v}", "with the name {v}", "named {v}", "by the name of {v}"]),
    "id": ("integer", BIG, ["number {v}", "with id {v}", "with the id {v}", "no. {v}"]),
    "city": ("string", CITIES, ["in the city {v}", "for the city {v}", "in {v}", "near {v}"]),
    "color": ("string", COLOURS, ["in color {v}", "with the color {v}", "with color {v}", "in the color {v}"]),
    "day": ("string", DAYS, ["on {v}", "on the day {v}", "next {v}", "by {v}"]),
    "time": ("string", TIMES, ["at {v}", "at the time {v}", "until {v}", "before {v}"]),
    "count": ("integer", NUMBERS, ["{v} times", "with count {v}", "with a count of {v}", "count {v}"]),
    "size": ("string", ("small", "medium", "large"), ["in size {v}", "of size {v}", "with size {v}", "size {v}"]),
    "owner": ("string", NAMES, ["of {v}", "owned by {v}", "that belongs to {v}", "with owner {v}"]),
    "price": ("number", BIG, ["for {v} dollars", "at a price of {v}", "with price {v}", "at {v} dollars"]),
    "food": ("string", FOODS, ["with the food {v}", "with {v} as food", "full of {v}", "containing {v}"]),
    "label": ("string", THINGS, ["with the label {v}", "labelled {v}", "under the label {v}", "marked {v}"]),
    "level": ("integer", NUMBERS, ["at level {v}", "on level {v}", "with level {v}", "level {v}"]),
    "priority": (
        "string",
        ("low", "normal", "high"),
        ["with {v} priority", "at {v} priority", "with priority {v}", "as {v} priority"],
    ),
}
MADE_ASK = [
    "{V} the {n} {s}.",
    "{V} a {n} {s}.",
    "Please {v} the {n} {s}.",
    "Can you {v} the {n} {s}?",
    "I want to {v} the {n} {s}.",
    "{V} my {n} {s}.",
    "Could you {v} a {n} {s}?",
    "I need you to {v} the {n} {s}.",
    "Please {v} a {n} {s}.",
    "{V} {n} {s}.",
    "Would you {v} the {n} {s}?",
    "Go and {v} the {n} {s}.",
]
MADE_ASK += joined(
    (
        "{V} ",
        "Please {v} ",
        "Can you {v} ",
        "Could you {v} ",
        "I want to {v} ",
        "I need to {v} ",
        "Would you {v} ",
        "Go and {v} ",
        "You should {v} ",
        "Now {v} ",
    ),
    ("the {n} {s}.", "a {n} {s}.", "my {n} {s}.", "{n} {s}.", "our {n} {s}."),
)
MADE_DESCRIPTION = [
    "{V} a {n}.",
    "{V} the {n}.",
    "{V} {n}",
    "Tool to {v} a {n}",
    "{V}s the {n}.",
    "Use this to {v} a {n}.",
]
NO_TOOL = "I have no tool for that."
SYSTEM = [
    "You are a helpful assistant.",
    "Use the tools when they help.",
    "You can call functions.",
    "You are a helpful assistant with tools.",
    "Call a tool when one fits.",
    "You are an agent.",
]


def made_tool(d, verbs=VERBS):
    """A tool made of a verb and a noun."""
    verb, spoken_verb = d.any(verbs).split(":")
    noun = d.value(NOUNS) if d.held_out or d.chance(0.6) else d.invented()
    style = d.between(0, 7)
    name = {3: f"{verb}{noun.capitalize()}", 4: f"{verb}-{noun}", 5: f"{noun}_{verb}"}.get(style, f"{verb}_{noun}")
    slots = d.few(tuple(SLOTS), d.between(1, 3))
    keys = {slot: d.any((slot, slot, slot, f"{noun}_{slot}")) for slot in slots}
    description = d.any(MADE_DESCRIPTION).format(V=spoken_verb, v=verb, n=noun)
    parameters = [(keys[slot], SLOTS[slot][0], f"{slot.capitalize()} of the {noun}", SLOTS[slot][1]) for slot in slots]
    spec = Spec(name, description, parameters, "")
    spec.verb, spec.noun, spec.slots = (spoken_verb, verb), noun, {keys[slot]: SLOTS[slot][2] for slot in slots}
    return spec


def ask_made(d, spec):
    asked = [p for p in spec.parameters if d.chance(0.85)] or spec.parameters[:1]
    arguments = {key: typed(kind, d.value(pool)) for key, kind, _, pool in asked}
    order = d.few(tuple(arguments), len(arguments)) if d.chance(0.3) else list(arguments)
    slots = " ".join(d.any(spec.slots[key]).format(v=spoken(arguments[key])) for key in order)
    return d.wording(MADE_ASK).format(V=spec.verb[0], v=spec.verb[1], n=spec.noun, s=slots), arguments


def schema(d, spec):
    """As a client would write it: with more or less description, and parameters required or not."""
    wordy, properties = d.chance(0.6), {}
    for key, kind, about, pool in spec.parameters:
        properties[key] = {"type": kind}
        if wordy:
            properties[key]["description"] = about
        if isinstance(pool, tuple) and kind == "string":
            properties[key]["enum"] = list(pool)
    parameters = {"type": "object", "properties": properties}
    if d.chance(0.75):
        parameters["required"] = list(properties) if d.chance(0.6) else list(properties)[:1]
    if d.chance(0.12):
        parameters["additionalProperties"] = False
    function = {"name": spec.name, "parameters": parameters}
    if d.chance(0.85):
        function = {"name": spec.name, "description": spec.description, "parameters": parameters}
    return {"type": "function", "function": function}


def hand_made(d):
    """In training often another tool, or under another name: a name that never changes is memorised and not read."""
    if not d.held_out and d.chance(0.55):
        return kit(d)
    spec = d.value(tuple(SPECS))
    return spec if d.held_out or spec.name == "calculator" or d.chance(0.4) else renamed(d, spec)


def renamed(d, spec):
    """The same tool with other names for itself and its parameters."""
    rest = spec.name.split("_", 1)[-1]
    verb = d.invented() if d.chance(0.3) else d.any(VERBS).split(":")[0]
    camel = "".join(part.capitalize() for part in rest.split("_"))
    name = d.any((f"{verb}_{rest}", f"{verb}_{rest}", f"{rest}_{verb}", f"{verb}{camel}", f"{verb}-{rest}"))
    word = d.invented()
    keys = {
        key: d.any((key, key, f"{word}_{key}", f"{key}_{word}", f"the_{key}", f"{key}_value"))
        for key, *_ in spec.parameters
    }
    if len(keys) == 1 and d.chance(0.3):
        keys = dict.fromkeys(keys, word)

    def speak(text):
        for old, new in keys.items():
            text = text.replace(f"{{{old}}}", f"{{{new}}}")
        return text

    result = spec.result and (lambda d, a: spec.result(d, {old: a[new] for old, new in keys.items() if new in a}))
    parameters = [(keys[key], *others) for key, *others in spec.parameters]
    return Spec(
        name,
        spec.description,
        parameters,
        "|".join(map(speak, spec.asks)),
        result,
        spec.answer and speak(spec.answer),
        spec.pairs,
        spec.root,
    )


def any_tool(d, verbs=VERBS):
    return hand_made(d) if d.chance(0.4 if d.held_out else 0.55) else made_tool(d, verbs)


def theme(spec):
    """What a tool is about. One request could mean either of two tools with the same theme."""
    return spec.noun or {"get_current_weather": "get_weather"}.get(spec.root, spec.root)


def shelf(d, most):
    """Up to `most` tools, no two with the same theme. If all of them do the same, the rest of their names tells them
    apart."""
    chosen = {}
    verbs = VERBS if d.held_out or d.chance(0.6) else (d.any(VERBS),)
    for _ in range(d.between(1, most)):
        spec = any_tool(d, verbs)
        chosen.setdefault(theme(spec), spec)
    return list(chosen.values())


def asked(d, spec):
    """(request, arguments) for any kind of tool."""
    if spec.name == "calculator":
        made = f"{d.between(2, 999)} {d.any('+-*/')} {d.between(2, 999)}"
        return d.wording(spec.asks).format(expression=made), {"expression": made}
    return ask_made(d, spec) if spec.noun else spec.ask(d)


def twice(d, spec):
    """(request, two arguments) for one tool that is called for two things."""
    key, kind, _, pool = spec.parameters[0]
    x, y = d.values(pool, 2)
    return d.wording(spec.pairs).format(x=x, y=y), [{key: typed(kind, v)} for v in (x, y)]


def calling(d, specs):
    spec = d.any(specs)
    ask, arguments = asked(d, spec)
    return ChatDocument(ask, thought=f"The tool {spec.name} fits. I call it.", calls=[(spec.name, arguments)])


def calling_several(d, specs):
    """Two calls, of one tool or of two."""
    doubles = [spec for spec in specs if spec.pairs]
    if doubles and (len(specs) == 1 or d.chance(0.5)):
        spec = d.any(doubles)
        ask, both = twice(d, spec)
        return ChatDocument(
            ask, thought=f"I call {spec.name} twice.", calls=[(spec.name, arguments) for arguments in both]
        )
    first, second = d.few(specs, 2) if len(specs) > 1 else specs * 2
    (ask1, a1), (ask2, a2) = asked(d, first), asked(d, second)
    joint = d.any((" ", " ", " Also: ", " And then: "))
    return ChatDocument(
        f"{ask1}{joint}{ask2}",
        thought=f"I call {first.name} and {second.name}.",
        calls=[(first.name, a1), (second.name, a2)],
    )


def calling_none(d, specs):
    """The question needs no tool, or no tool fits."""
    if d.chance(0.5):
        made = d.any(
            (greeting, self_description, capitals, opposites, colours, definitions, animals, repeating, counting)
        )(d)
        return ChatDocument(made.question, made.answer, made.thought)
    themes = {theme(spec) for spec in specs}
    while theme(wanted := any_tool(d)) in themes:
        pass
    return ChatDocument(asked(d, wanted)[0], NO_TOOL, "None of the tools fits.")


def answering(d, specs):
    """Saying what came back: with the tool's own sentence, or just the result."""
    spec = d.any(specs)
    if spec.pairs and spec.answer and len(spec.parameters) == 1 and not d.held_out and d.chance(0.3):
        ask, both = twice(d, spec)
        results = [spec.result(d, arguments) for arguments in both]
        answer = " ".join(spec.answer.format(**{**a, **r}) for a, r in zip(both, results, strict=True))
        calls = [(spec.name, arguments) for arguments in both]
        return ChatDocument(ask, answer, "I read the results.", calls=calls, results=[json.dumps(r) for r in results])
    ask, arguments = asked(d, spec)
    if spec.name == "calculator":
        value = d.between(2, 9999)
        result, answer = d.any((str(value), {"result": value})), f"{arguments['expression']} = {value}"
    elif spec.result and d.chance(0.75) and all(key in arguments for key, *_ in spec.parameters):
        result = spec.result(d, arguments)
        answer = (
            plain_answer(result)
            if d.held_out or spec.answer is None
            else spec.answer.format(**{**{k: spoken(v) for k, v in arguments.items()}, **result})
        )
    else:
        result, answer = plain_result(d)
    text = result if isinstance(result, str) else json.dumps(result)
    return ChatDocument(ask, answer, "I read the result.", calls=[(spec.name, arguments)], results=[text])


def plain_result(d):
    """A result for a tool without a sentence of its own: (result, answer)."""
    kind = d.between(0, 3)
    if kind == 0:
        problem = d.any(
            ("not found", "permission denied", "timeout", "no connection", "invalid argument", "out of stock")
        )
        return {"error": problem}, f"The tool reported an error: {problem}."
    if kind == 1:
        text = d.any(
            (
                f"{d.value(NAMES)} has it",
                f"the {d.any(ADJECTIVES)} {d.value(THINGS)}",
                f"{d.between(2, 99)} found",
                f"it is in {d.value(CITIES)}",
            )
        )
        return text, f"The result is: {text}."
    pools = {"status": ("string", ("done", "ok", "open", "closed", "ready", "waiting"))}
    pools |= {key: SLOTS[key][:2] for key in ("id", "name", "city", "price", "color", "count", "owner", "day")}
    result = {key: typed(pools[key][0], d.any(pools[key][1])) for key in d.few(tuple(pools), d.between(1, 3))}
    return result, plain_answer(result)


def plain_answer(result):
    return "The result is: " + ", ".join(f"{key} {spoken(value)}" for key, value in result.items()) + "."


def session(d, specs, last):
    """A conversation over one shelf of tools that ends with `last`. The earlier exchanges make the schemas worth
    reading."""
    made = last(d, specs)
    made.tools = [schema(d, spec) for spec in specs]
    for _ in range(d.any((0, 0, 1, 1, 2, 3))):
        made.turns.append(d.any((answering, answering, calling_none))(d, specs).exchange())
    if d.chance(0.25):
        made.system = d.wording(SYSTEM)
    return made


def single_call(d):
    return session(d, shelf(d, 3), calling)


def parallel_calls(d):
    while True:
        specs = shelf(d, 3)
        if len(specs) > 1 or specs[0].pairs:
            return session(d, specs, calling_several)


def no_call(d):
    return session(d, shelf(d, 3), calling_none)


def tool_answer(d):
    return session(d, shelf(d, 2), answering)
