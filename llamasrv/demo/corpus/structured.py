"""JSON on request: records with given keys, extraction from a sentence, arrays, and answers wrapped in an object."""

import json

from .chat import ChatDocument
from .facts import short_fact
from .phrases import OBEYING, framed
from .phrases import joined as combined
from .words import ANIMALS, CATEGORIES, CITIES, COLOURS, DAYS, FOODS, HOBBIES, JOBS, NAMES, NUMBER_WORDS, THINGS

# key: (values, how a sentence about NAME says it, JSON type, the value when nothing is said)
FIELDS = {
    "age": ([str(n) for n in range(5, 99)], ["is {v} years old", "is {v}", "is aged {v}"], "integer", 30),
    "city": (CITIES, ["lives in {v}", "comes from {v}", "has a home in {v}"], "string", "Paris"),
    "job": (JOBS, ["works as a {v}", "is a {v}", "has a job as a {v}"], "string", "teacher"),
    "hobby": (HOBBIES, ["likes {v}", "enjoys {v}", "spends weekends with {v}"], "string", "chess"),
    "pet": (ANIMALS, ["has a {v}", "owns a {v}", "lives with a {v}"], "string", "cat"),
    "food": (FOODS, ["eats {v}", "loves to eat {v}", "likes to eat {v}"], "string", "bread"),
    "color": (COLOURS, ["loves the color {v}", "wears {v}", "prefers the color {v}"], "string", "blue"),
    "day": (DAYS, ["is free on {v}", "comes on {v}", "works on {v}"], "string", "Monday"),
    "count": (
        [str(n) for n in range(2, 60)],
        ["owns {v} books", "has {v} coins", "collected {v} stamps"],
        "integer",
        3,
    ),
}
KEY_NAMES = {
    "color": ["color", "colour", "favorite_color"],
    "city": ["city", "town", "location"],
    "job": ["job", "profession", "occupation"],
    "food": ["food", "favorite_food", "meal"],
    "age": ["age", "years"],
    "hobby": ["hobby", "interest"],
    "pet": ["pet", "animal"],
    "day": ["day", "weekday"],
    "count": ["count", "number", "amount"],
}

ASK_RECORD = """Write a JSON object with the keys {k}. {s}|Give me a JSON object with the keys {k}: {s}|{s} Write this as JSON with the keys {k}.|{s} Answer with a JSON object with the keys {k}.
Make JSON with the keys {k} from this: {s}|Return JSON with {k}. {s}|Extract {k} as JSON: {s}|Extract {k} from this text and answer in JSON: {s}|As JSON with the keys {k}: {s}
Turn this into a JSON object with keys {k}: {s}|{s} Give me that as JSON ({k}).|Respond with JSON only, keys {k}. {s}|Read this and fill a JSON object with the fields {k}: {s}
JSON please, with the fields {k}: {s}|Convert to JSON with keys {k}: {s}|Parse this into JSON with the fields {k}. {s}|Put {k} into a JSON object: {s}""".replace(
    "\n", "|"
).split("|")
_VERBS = (
    "Write ",
    "Give me ",
    "Return ",
    "Make ",
    "Create ",
    "Answer with ",
    "Reply with ",
    "Produce ",
    "I need ",
    "Output ",
)
_OBJECTS = (
    "a JSON object with the keys {k}",
    "JSON with the keys {k}",
    "JSON with the fields {k}",
    "an object with the keys {k}",
)
ASK_RECORD += combined(_VERBS, combined(_OBJECTS, (": {s}", ". {s}")))
ASK_RECORD += combined(("{s} ",), combined(_VERBS, [f"{o}." for o in _OBJECTS]))
SYSTEM_RECORD = [
    "Extract {k} from the text. Answer in JSON.",
    "Answer with a JSON object with the keys {k}.",
    "Extract the information as JSON with the keys {k}.",
    "You extract {k} and reply with JSON only.",
    "Reply in JSON with the fields {k}.",
    "For every text return JSON with {k}.",
    "Your output is a JSON object with the keys {k}.",
    "Turn each message into JSON with the keys {k}.",
]
SYSTEM_RECORD += combined(_VERBS, [f"{o}." for o in _OBJECTS])
INVENT = [
    "Make up a person as JSON with the keys {k}.",
    "Invent a person. Answer in JSON with the keys {k}.",
    "Give me an example person as a JSON object with {k}.",
    "Write an example JSON object with the keys {k}.",
    "Generate a JSON object for a person with the keys {k}.",
    "Give me sample JSON with the fields {k}.",
    "Create a JSON object with the keys {k}.",
    "Show me JSON with the keys {k}.",
    "Show me a sample JSON object with {k}.",
    "Write sample JSON with the keys {k}.",
]
PAIRS = combined(
    ("Write ", "Turn ", "Convert ", "Put ", "Change "),
    ("this into JSON: {p}", "this into a JSON object: {p}", "the following into JSON: {p}", "this text into JSON: {p}"),
) + [
    "Write this as JSON: {p}",
    "Turn this into JSON: {p}",
    "Convert to JSON: {p}",
    "Make a JSON object of: {p}",
    "JSON for: {p}",
    "Give me this as a JSON object: {p}",
    "As a JSON object, please: {p}",
    "Put this into JSON: {p}",
]
ARRAY = combined(
    _VERBS, ("a JSON array of {n} {c}.", "a JSON list of {n} {c}.", "{n} {c} as JSON.", "{n} {c} as a JSON array.")
) + [
    "Give me a JSON array of {n} {c}.",
    "List {n} {c} as a JSON array.",
    "Write {n} {c} as JSON.",
    "Answer with a JSON array: {n} {c}.",
    "Return {n} {c} as a JSON list.",
    "{n} {c} as JSON, please.",
    "Make a JSON array with {n} {c}.",
    "I need {n} {c} in a JSON array.",
]
WRAP = [
    'Answer in JSON with the key "{k}".',
    'Reply with a JSON object with the key "{k}".',
    'Answer only with JSON: {{"{k}": ...}}',
    'Respond in JSON. Use the key "{k}".',
    'Give every answer as JSON under the key "{k}".',
    'Return a JSON object whose only key is "{k}".',
    'Your answer is JSON with one key, "{k}".',
    "Use JSON with the key {k} for your answer.",
    'Answer with a JSON object whose key is "{k}".',
    'Write an object whose only key is "{k}".',
]
WRAP += framed(OBEYING, *combined(_VERBS[5:8], ('JSON with the key "{k}".', 'a JSON object with the key "{k}".')))
EVENT = [
    "{a} and {b} are going to {e} on {v}.",
    "{a} and {b} meet at {e} on {v}.",
    "On {v}, {a} and {b} will visit {e}.",
    "{a} goes to {e} with {b} on {v}.",
    "{e} is on {v}, and {a} and {b} will come.",
    "{a} and {b} plan to see {e} on {v}.",
    "{v}: {e} with {a} and {b}.",
    "Do not forget {e} on {v} with {a} and {b}.",
]
EVENT += [
    "{e} is on {v}. {a} and {b} will come.",
    "There is {e} on {v}, and {a} and {b} will be there.",
    "On {v} there is {e}. {a} and {b} will come.",
    "{e} takes place on {v}, and {a} and {b} take part.",
    "{e} will be on {v}, with {a} and {b}.",
    "We have {e} on {v}, and {a} and {b} come along.",
    "{a} and {b} will come to {e} on {v}.",
    "{v} is the day of {e}, and {a} and {b} are invited.",
    "{e} starts on {v}, and {a} comes with {b}.",
    "{e}, {v}, {a} and {b}.",
]
EVENTS = "a science fair,a concert,a football match,a dance class,a book club,a film night,a garden party,a museum,a cooking class,a chess club,a team lunch,a birthday party,a wedding,a market,a play,a boat trip,an art show,a picnic,a lecture,a parade".split(
    ","
)
SCHEMA = [
    "Answer with JSON that fits this schema: {j}",
    "Reply with JSON matching this JSON schema: {j}",
    "Use this JSON schema for your answer: {j}",
    "Your answer must fit this schema: {j}",
    "Output JSON only. Schema: {j}",
    "Respond in this format: {j}",
    "The JSON schema of your answer: {j}",
    "Follow this schema: {j}",
    "Schema: {j}",
    "JSON schema: {j}",
    "Output JSON that fits this schema: {j}",
    "Your output follows this schema: {j}",
]
SCHEMA += combined(
    ("Write", "Answer with", "Reply with", "Return", "Output"),
    (" JSON that fits this schema: {j}", " JSON that follows this schema: {j}", " JSON for this schema: {j}"),
)
EXTRACT = [
    "Extract the data: {s}",
    "Extract the information. {s}",
    "{s}",
    "{s}",
    "Read this: {s}",
    "Text: {s}",
    "Extract: {s}",
    "Here is the text: {s}",
    "What does this say? {s}",
    "Get the facts from this: {s}",
]


def joined(d, keys):
    marked = [f'"{k}"' for k in keys] if d.chance(0.35) else keys
    if len(marked) == 1:
        return marked[0]
    if d.chance(0.3):
        return ", ".join(marked)
    return ", ".join(marked[:-1]) + " and " + marked[-1]


def person(d):
    """(record, sentence about it, types): the keys in the order in which they will be asked for."""
    name = d.value(NAMES)
    kinds = d.few(tuple(FIELDS), d.between(1, 3))
    record, types, said = {"name": name}, {"name": "string"}, []
    for kind in kinds:
        pool, ways, json_type, _ = FIELDS[kind]
        value = d.value(pool)
        key = d.any(KEY_NAMES[kind])
        record[key] = int(value) if json_type == "integer" else value
        types[key] = json_type
        said.append(d.any(ways).format(v=value))
    if d.chance(0.5):
        sentence = f"{name} " + (", ".join(said[:-1]) + " and " + said[-1] if len(said) > 1 else said[0]) + "."
    else:
        sentence = " ".join(f"{name if i == 0 else 'This person'} {part}." for i, part in enumerate(said))
    if d.chance(0.3):
        order = d.few(tuple(record), len(record))
        record = {key: record[key] for key in order}
    return record, sentence, types


def event(d):
    (a, b), e, v = d.values(NAMES, 2), d.value(EVENTS), d.any(DAYS)
    bare = e.split(" ", 1)[1]
    record = {
        d.any(("name", "event", "title")): bare,
        d.any(("date", "day")): v,
        d.any(("participants", "people")): [a, b],
    }
    return record, d.wording(EVENT).format(a=a, b=b, e=e, v=v)


def schema_of(d, types):
    properties = {key: {"type": kind} for key, kind in types.items()}
    schema = {"type": "object", "properties": properties}
    if d.chance(0.7):
        schema["required"] = list(types)
    if d.chance(0.3):
        schema["additionalProperties"] = False
    return json.dumps(schema)


def json_keys(d):
    """A JSON object with the keys that the request names."""
    kind = d.between(0, 19)
    if kind < 3:
        record, sentence = event(d)
    else:
        record, sentence, types = person(d)
    answer, keys = json.dumps(record, ensure_ascii=False), joined(d, list(record))
    thought = f"The keys are {', '.join(record)}. I copy the values."
    if kind < 9:
        return ChatDocument(d.say(ASK_RECORD, k=keys, s=sentence), answer, thought)
    if kind < 12:
        return ChatDocument(
            d.wording(EXTRACT).format(s=sentence), answer, thought, system=d.wording(SYSTEM_RECORD).format(k=keys)
        )
    if kind < 14:
        schema = d.wording(SCHEMA).format(j=schema_of(d, {key: types[key] for key in record}))
        ask = d.wording(EXTRACT).format(s=sentence)
        return (
            ChatDocument(ask, answer, thought, system=schema)
            if d.chance(0.6)
            else ChatDocument(f"{ask}\n{schema}", answer, thought)
        )
    if kind < 16:
        kinds = d.few(tuple(FIELDS), d.between(1, 3))
        record = {"name": "Anna", **{k: FIELDS[k][3] for k in kinds}}
        return ChatDocument(
            d.say(INVENT, k=joined(d, list(record))), json.dumps(record), f"The keys are {', '.join(record)}."
        )
    if kind < 18:
        mark, gap = d.any(((": ", ", "), ("=", ", "), (": ", "; "), (" = ", "; "), (" is ", ", ")))
        return ChatDocument(
            d.say(PAIRS, p=gap.join(f"{k}{mark}{v}" for k, v in record.items() if isinstance(v, (str, int)))),
            json.dumps({k: v for k, v in record.items() if isinstance(v, (str, int))}),
            thought,
        )
    ask, word = short_fact(d)
    key = d.any(("answer", "result", "reply", "response", "output", "value", "text"))
    rule = d.wording(WRAP).format(k=key)
    made = json.dumps({key: word})
    return (
        ChatDocument(ask, made, f"The key is {key}.", system=rule)
        if d.chance(0.6)
        else ChatDocument(f"{ask} {rule}", made, f"The key is {key}.")
    )


def json_arrays(d):
    name = d.any(tuple(CATEGORIES))
    count = d.between(2, 6)
    number = str(count) if d.chance(0.4) else NUMBER_WORDS[count]
    if d.chance(0.3):
        things = d.values(THINGS, count)
        return ChatDocument(
            d.say(PAIRS, p=", ".join(things)).replace("object", "array"),
            json.dumps(things),
            "I copy the words into an array.",
        )
    return ChatDocument(
        d.say(ARRAY, n=number, c=name), json.dumps(CATEGORIES[name][:count]), f"The user wants {count} {name} as JSON."
    )
