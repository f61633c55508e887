"""Tools: choosing one of several, filling its arguments, calling several at once, none when none fits, and answering
from what they return.

Half of the tools are written by hand with natural requests; the other half is made of verbs and nouns, so that no name
can be learned by heart and everything has to be read off the schema.
"""

import json

from .chat import Chat
from .facts import animals, capitals, colours, definitions, opposites
from .letters import repeating
from .numbers import counting
from .phrases import joined
from .talk import greeting, self_description
from .words import ADJECTIVES, CITIES, COLOURS, DAYS, FOODS, NAMES, THINGS

TIMES = [f"{h}:{m:02d}" for h in range(6, 23) for m in (0, 15, 30, 45)]
LANGUAGES = "French German Spanish Italian Dutch Polish Swedish Greek Turkish Japanese Chinese Korean Arabic Hindi Russian Czech".split()
CURRENCIES = "USD EUR GBP JPY CHF CAD AUD SEK NOK DKK PLN CZK INR CNY KRW MXN".split()
STOCKS = "AAPL MSFT GOOG AMZN TSLA NVDA META IBM ORCL INTC AMD SAP SONY NFLX UBER ADBE".split()
SONGS = "Yesterday,Imagine,Hey Jude,Let It Be,Hello,Thriller,Bad,Help,Jolene,Roxanne,Angie,Layla,Waterloo,Fernando,Lola,Creep,Zombie,Africa".split(",")
ROOMS = "kitchen bedroom bathroom hall office garage cellar attic library garden".split()
TITLES = "milk shopping homework laundry cleaning cooking packing reading training parking painting gardening banking singing dancing fishing".split()
SUBJECTS = "history science music art sports politics travel food health money nature space weather cars books films games fashion".split()
NUMBERS = [str(n) for n in range(1, 100)]
BIG = [str(n) for n in range(10, 1000)]
MESSAGES = "see you soon,I am late,call me back,happy birthday,good luck,thank you,come home,the train is late,dinner is ready,all is well,where are you,meet me at noon,I am here,wait for me,good night,we won the game".split(",")
WEATHER = "sunny cloudy rainy windy foggy snowy stormy clear".split()


class Spec:
    """A tool: its schema, ways to ask for it, and what it returns.

    `parameters` are (name, JSON type, description, pool or enum values). In `asks`, {name} stands for a value;
    `pairs` ask for two calls that differ in the first parameter, {x} and {y}.
    """

    def __init__(self, name, description, parameters, asks, result=None, answer=None, pairs=()):
        self.name, self.description, self.parameters = name, description, parameters
        self.asks, self.pairs, self.result, self.answer = asks.split("|"), pairs, result, answer
        self.noun = None  # of a made tool
        self.root = name  # what it is called where it was not given another name

    def values(self, d, only=None):
        return {key: typed(kind, d.value(pool)) for key, kind, _, pool in self.parameters if only is None or key in only}

    def ask(self, d):
        """(request, arguments): only what the request mentions becomes an argument."""
        pattern = d.wording(self.asks)
        arguments = self.values(d, {key for key, *_ in self.parameters if f"{{{key}}}" in pattern})
        text = pattern.format(**{k: spoken(v) for k, v in arguments.items()})
        return (d.carelessly(text) if d.chance(0.2) and not text.startswith("{") else text), arguments


def typed(kind, value):
    return {"integer": int, "number": int, "boolean": bool}.get(kind, str)(value)


def spoken(value):
    return str(value)


def weather_result(d, a):
    return {**{k: v for k, v in a.items() if k in ("city", "location")}, "temperature": d.between(-9, 38), "condition": d.any(WEATHER)}


CITY = ("city", "string", "Name of the city", CITIES)
LOCATION = ("location", "string", "City and country", CITIES)
SPECS = [
    Spec("get_weather", "Get the current weather of a city.", [CITY], "What is the weather in {city}?|How is the weather in {city}?|What's the weather like in {city}?|Tell me the weather in {city}.|Is it raining in {city}?|Weather in {city}?|Do I need an umbrella in {city}?|Is it warm in {city}?|How warm is it in {city}?|What's the weather like in {city} today?", weather_result, "In {city} it is {condition} at {temperature} degrees.", ("What is the weather in {x} and {y}?", "How is the weather in {x} and in {y}?", "Weather in {x} and {y}?", "Compare the weather of {x} and {y}.", "Tell me the weather for {x} and for {y}.", "Is it warm in {x} and {y}?")),
    Spec("get_current_weather", "Get the current weather in a given location", [LOCATION, ("unit", "string", "Unit of the temperature", ("celsius", "fahrenheit"))], "What is the weather like in {location}?|What's the weather like in {location} in {unit}?|How is the weather in {location}?|Weather in {location} in {unit}, please.|What is the temperature in {location} in {unit}?|Tell me the current weather in {location}.|How warm is it in {location}?|Give me the weather in {location} in {unit}.", weather_result, "In {location} it is {condition} at {temperature} degrees.", ("What's the weather like in {x} and {y}?", "How is the weather in {x} and {y}?", "Get the weather in {x} and in {y}.", "Tell me the current weather in {x} and {y}.")),
    Spec("get_time", "Get the current time in a city.", [CITY], "What time is it in {city}?|Tell me the time in {city}.|What is the time in {city}?|Current time in {city}?|How late is it in {city}?|Which time is it now in {city}?|What's the time in {city}?|Is it late in {city}?", lambda d, a: {"time": d.any(TIMES)}, "It is {time} in {city}.", ("What time is it in {x} and {y}?", "Tell me the time in {x} and in {y}.", "Current time in {x} and {y}?", "What is the time in {x} and what in {y}?")),
    Spec("calculator", "Calculate an arithmetic expression.", [("expression", "string", "The expression to calculate", None)], "What is {expression}?|Calculate {expression}.|How much is {expression}?|Compute {expression}.|{expression}|Work out {expression}.|Tell me {expression}.|Please calculate {expression}.", None, "{expression} = {result}"),
    Spec("translate", "Translate a text into another language.", [("text", "string", "The text to translate", MESSAGES), ("language", "string", "The target language", LANGUAGES)], 'Translate "{text}" into {language}.|How do you say "{text}" in {language}?|What is "{text}" in {language}?|Say "{text}" in {language}.|Please translate "{text}" to {language}.|I need "{text}" in {language}.|Give me "{text}" in {language}.|Put "{text}" into {language}.'),
    Spec("send_email", "Send an email to a person.", [("to", "string", "The recipient", NAMES), ("subject", "string", "Subject line", TITLES)], "Send an email to {to} about {subject}.|Email {to} about {subject}.|Write an email to {to} with the subject {subject}.|Mail {to} about {subject}.|Please send {to} an email about {subject}.|I want to email {to} about {subject}.|Let {to} know about {subject} by email.|Send {to} a mail on {subject}.", lambda d, a: {"status": "sent"}, "I sent an email to {to}."),
    Spec("send_message", "Send a text message to a contact.", [("contact", "string", "Name of the contact", NAMES), ("text", "string", "The message", MESSAGES)], 'Send a message to {contact}: {text}|Text {contact}: {text}|Tell {contact} "{text}".|Message {contact} "{text}".|Write "{text}" to {contact}.|Send {contact} the message "{text}".|Let {contact} know: {text}|Text "{text}" to {contact}.', lambda d, a: {"status": "sent"}, "I sent the message to {contact}."),
    Spec("set_alarm", "Set an alarm.", [("time", "string", "Time of the alarm", TIMES)], "Set an alarm for {time}.|Wake me up at {time}.|Set the alarm to {time}.|I need an alarm at {time}.|Alarm at {time}, please.|Please wake me at {time}.|Make an alarm for {time}.|Ring at {time}.", lambda d, a: {"status": "ok"}, "The alarm is set for {time}.", ("Set alarms for {x} and {y}.", "Wake me at {x} and again at {y}.", "I need alarms at {x} and {y}.", "Set one alarm for {x} and one for {y}.")),
    Spec("set_timer", "Start a timer.", [("minutes", "integer", "Length in minutes", NUMBERS)], "Set a timer for {minutes} minutes.|Start a timer of {minutes} minutes.|Timer for {minutes} minutes.|Count down {minutes} minutes.|Start a {minutes} minute timer.|I need a timer for {minutes} minutes.|Tell me when {minutes} minutes are over.|Run a timer for {minutes} minutes.", lambda d, a: {"status": "started"}, "The timer runs for {minutes} minutes.", ("Set timers for {x} and {y} minutes.", "Start a timer of {x} minutes and one of {y} minutes.", "I need timers for {x} and {y} minutes.", "Set one timer for {x} minutes and another for {y} minutes.")),
    Spec("create_event", "Create an event in the calendar.", [("title", "string", "Title of the event", TITLES), ("day", "string", "Day of the week", DAYS)], "Add {title} to my calendar on {day}.|Create an event {title} on {day}.|Put {title} in the calendar for {day}.|Schedule {title} for {day}.|Plan {title} on {day}.|I want {title} on {day} in my calendar.|New event: {title} on {day}.|Book {title} for {day} in my calendar.", lambda d, a: {"status": "created"}, "I added {title} on {day}."),
    Spec("play_music", "Play a song.", [("song", "string", "Name of the song", SONGS)], "Play {song}.|Play the song {song}.|I want to hear {song}.|Put on {song}.|Please play {song}.|Start the song {song}.|Let me hear {song}.|Can you play {song}?", lambda d, a: {"status": "playing"}, "Now playing {song}.", ("Play {x} and then {y}.", "Play {x} and {y}.", "I want to hear {x} and {y}.", "Put on {x} and after that {y}.")),
    Spec("search_web", "Search the web.", [("query", "string", "What to search for", SUBJECTS)], "Search the web for {query}.|Look up {query} on the web.|Find something about {query} online.|Search for {query}.|Google {query}.|Look for {query} on the internet.|Find web pages about {query}.|Do a web search for {query}.", lambda d, a: {"results": d.between(2, 90)}, "I found {results} results for {query}.", ("Search the web for {x} and {y}.", "Look up {x} and {y} on the web.", "Search for {x} and for {y}.", "Do a web search for {x} and one for {y}.")),
    Spec("get_stock_price", "Get the price of a stock.", [("symbol", "string", "Ticker symbol", STOCKS)], "What is the price of {symbol}?|How much is {symbol} stock?|Stock price of {symbol}?|Get the price of {symbol}.|Tell me the stock price of {symbol}.|What does {symbol} cost?|How is {symbol} doing?|Quote for {symbol}, please.", lambda d, a: {"price": d.between(10, 990)}, "The price of {symbol} is {price}.", ("What are the prices of {x} and {y}?", "Stock prices of {x} and {y}?", "Get the price of {x} and of {y}.", "Compare the stocks {x} and {y}.")),
    Spec("convert_currency", "Convert money from one currency to another.", [("amount", "number", "Amount of money", BIG), ("from_currency", "string", "Currency code", CURRENCIES), ("to_currency", "string", "Currency code", CURRENCIES)], "Convert {amount} {from_currency} to {to_currency}.|How much is {amount} {from_currency} in {to_currency}?|Change {amount} {from_currency} into {to_currency}.|What is {amount} {from_currency} in {to_currency}?|Exchange {amount} {from_currency} for {to_currency}.|I have {amount} {from_currency} and want {to_currency}.|{amount} {from_currency} in {to_currency}?|Turn {amount} {from_currency} into {to_currency}."),
    Spec("turn_on_light", "Turn on the light in a room.", [("room", "string", "The room", ROOMS)], "Turn on the light in the {room}.|Switch on the {room} light.|Light on in the {room}, please.|Make light in the {room}.|Turn the {room} light on.|It is dark in the {room}.|Put the light on in the {room}.|Please light the {room}.", lambda d, a: {"status": "on"}, "The light in the {room} is on.", ("Turn on the light in the {x} and the {y}.", "Switch on the {x} light and the {y} light.", "Light on in the {x} and in the {y}.", "Make light in the {x} and in the {y}.")),
    Spec("set_temperature", "Set the temperature of a room.", [("room", "string", "The room", ROOMS), ("degrees", "integer", "Temperature in degrees", [str(n) for n in range(10, 30)])], "Set the {room} to {degrees} degrees.|Heat the {room} to {degrees} degrees.|Make it {degrees} degrees in the {room}.|I want {degrees} degrees in the {room}.|Set the temperature of the {room} to {degrees}.|Change the {room} temperature to {degrees} degrees.|{degrees} degrees in the {room}, please.|Warm the {room} to {degrees} degrees.", lambda d, a: {"status": "ok"}, "The {room} is set to {degrees} degrees."),
    Spec("book_table", "Book a table in a restaurant.", [("people", "integer", "Number of people", [str(n) for n in range(1, 20)]), ("time", "string", "Time of day", TIMES)], "Book a table for {people} at {time}.|Reserve a table for {people} people at {time}.|I need a table for {people} at {time}.|A table for {people} at {time}, please.|Get us a table for {people} people at {time}.|Can you book a table for {people} at {time}?|We want to eat at {time}, {people} people.|Make a reservation for {people} at {time}.", lambda d, a: {"status": "booked"}, "The table for {people} at {time} is booked."),
    Spec("find_flights", "Find flights between two cities.", [("origin", "string", "City of departure", CITIES), ("destination", "string", "City of arrival", CITIES)], "Find flights from {origin} to {destination}.|I want to fly from {origin} to {destination}.|Show me flights from {origin} to {destination}.|Are there flights from {origin} to {destination}?|Search a flight from {origin} to {destination}.|Flights from {origin} to {destination}, please.|Look for flights from {origin} to {destination}.|How can I fly from {origin} to {destination}?", lambda d, a: {"flights": d.between(2, 40)}, "I found {flights} flights from {origin} to {destination}."),
    Spec("get_population", "Get the population of a city.", [CITY], "What is the population of {city}?|How many people live in {city}?|Population of {city}?|Tell me the population of {city}.|How big is {city}?|How many inhabitants does {city} have?|Get the number of people in {city}.|What number of people lives in {city}?", lambda d, a: {"population": d.between(10, 990) * 1000}, "{city} has {population} inhabitants.", ("What is the population of {x} and {y}?", "How many people live in {x} and in {y}?", "Population of {x} and {y}?", "Compare the population of {x} and {y}.")),
    Spec("add_to_cart", "Put an item into the shopping cart.", [("item", "string", "The item", [*THINGS, *FOODS]), ("quantity", "integer", "How many", NUMBERS)], "Add {quantity} {item} to my cart.|Put {quantity} {item} into the cart.|I want to buy {quantity} {item}.|Cart: {quantity} {item}, please.|Add {item} to the cart, {quantity} of them.|Order {quantity} {item}.|Please put {quantity} {item} in my shopping cart.|I need {quantity} {item} in the cart.", lambda d, a: {"status": "added"}, "I added {quantity} {item} to the cart."),
    Spec("create_note", "Write a note.", [("text", "string", "The text of the note", MESSAGES)], 'Write a note: {text}|Make a note: {text}|Note down "{text}".|Take a note: {text}|Create a note that says "{text}".|Please note: {text}|New note: {text}|Save a note "{text}".', lambda d, a: {"status": "saved"}, "I wrote the note."),
    Spec("remind_me", "Set a reminder.", [("task", "string", "What to remember", TITLES), ("time", "string", "Time of day", TIMES)], "Remind me of {task} at {time}.|Set a reminder for {task} at {time}.|At {time} remind me of {task}.|I must not forget {task} at {time}.|Reminder: {task} at {time}.|Please remind me about {task} at {time}.|Make a reminder for {task} at {time}.|Do not let me forget {task} at {time}.", lambda d, a: {"status": "ok"}, "I will remind you of {task} at {time}."),
    Spec("get_news", "Get the news about a topic.", [("topic", "string", "The topic", SUBJECTS)], "Get the news about {topic}.|What is new in {topic}?|News about {topic}, please.|Show me {topic} news.|Any news on {topic}?|Tell me the {topic} news.|What are the headlines in {topic}?|Read me the news about {topic}.", lambda d, a: {"articles": d.between(2, 60)}, "There are {articles} articles about {topic}.", ("Get the news about {x} and {y}.", "Any news on {x} and {y}?", "Show me {x} news and {y} news.", "What is new in {x} and in {y}?")),
    Spec("call_person", "Make a phone call.", [("name", "string", "Whom to call", NAMES)], "Call {name}.|Phone {name}.|Please call {name} for me.|I want to talk to {name} on the phone.|Ring up {name}.|Make a call to {name}.|Give {name} a call.|Dial {name}.", lambda d, a: {"status": "calling"}, "I am calling {name}.", ("Call {x} and then {y}.", "Phone {x} and {y}.", "Call {x} and {y}.", "Ring up {x} and after that {y}.")),
    Spec("paint_wall", "Paint a wall in a colour.", [("room", "string", "The room", ROOMS), ("color", "string", "The colour", COLOURS)], "Paint the wall of the {room} {color}.|Make the {room} wall {color}.|I want a {color} wall in the {room}.|Paint the {room} {color}.|Give the {room} a {color} wall.|The wall in the {room} should be {color}.|Colour the {room} wall {color}.|Paint it {color} in the {room}.", lambda d, a: {"status": "done"}, "The {room} wall is {color} now."),
    Spec("get_user", "Look up a user by id.", [("user_id", "integer", "Id of the user", BIG)], "Get user {user_id}.|Look up the user {user_id}.|Who is user {user_id}?|Show me user number {user_id}.|Find the user with id {user_id}.|Fetch user {user_id}.|Give me the user with the id {user_id}.|Which user has id {user_id}?", lambda d, a: {"name": d.any(NAMES)}, "User {user_id} is {name}.", ("Get users {x} and {y}.", "Look up the users {x} and {y}.", "Who are users {x} and {y}?", "Fetch user {x} and user {y}.")),
    Spec("roll_dice", "Roll dice.", [("sides", "integer", "Number of sides", NUMBERS)], "Roll a die with {sides} sides.|Roll a {sides} sided die.|Throw a die with {sides} sides.|Dice roll, {sides} sides.|Roll the dice: {sides} sides.|I want to roll a die of {sides} sides.|Please roll a d{sides}.|Throw a {sides} sided die.", lambda d, a: {"value": d.between(1, 6)}, "You rolled a {value}."),
    Spec("lock_door", "Lock or unlock the door of a room.", [("room", "string", "The room", ROOMS), ("locked", "boolean", "Whether to lock it", (True,))], "Lock the door of the {room}.|Lock the {room}.|Close and lock the {room} door.|Please lock the {room} door.|The {room} should be locked.|Make sure the {room} is locked.|I want the {room} door locked.|Lock up the {room}."),
    Spec("get_definition", "Look up a word in the dictionary.", [("word", "string", "The word", THINGS)], "Look up the word {word} in the dictionary.|Dictionary entry for {word}?|Find {word} in the dictionary.|Search the dictionary for {word}.|What does the dictionary say about {word}?|Check the dictionary for {word}.|Get the dictionary entry of {word}.|Look {word} up in a dictionary.", lambda d, a: {"definition": f"{d.any(ADJECTIVES)} {d.any(THINGS)}"}, "The dictionary says: {definition}.", ("Look up {x} and {y} in the dictionary.", "Search the dictionary for {x} and {y}.", "Find {x} and {y} in the dictionary.", "Check the dictionary for {x} and for {y}.")),
]  # fmt: skip

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
    "priority": ("string", ("low", "normal", "high"), ["with {v} priority", "at {v} priority", "with priority {v}", "as {v} priority"]),
}  # fmt: skip
MADE_ASK = ["{V} the {n} {s}.", "{V} a {n} {s}.", "Please {v} the {n} {s}.", "Can you {v} the {n} {s}?", "I want to {v} the {n} {s}.", "{V} my {n} {s}.", "Could you {v} a {n} {s}?", "I need you to {v} the {n} {s}.", "Please {v} a {n} {s}.", "{V} {n} {s}.", "Would you {v} the {n} {s}?", "Go and {v} the {n} {s}."]
MADE_ASK += joined(
    ("{V} ", "Please {v} ", "Can you {v} ", "Could you {v} ", "I want to {v} ", "I need to {v} ", "Would you {v} ", "Go and {v} ", "You should {v} ", "Now {v} "),
    ("the {n} {s}.", "a {n} {s}.", "my {n} {s}.", "{n} {s}.", "our {n} {s}."),
)
MADE_DESCRIPTION = ["{V} a {n}.", "{V} the {n}.", "{V} {n}", "Tool to {v} a {n}", "{V}s the {n}.", "Use this to {v} a {n}."]
NO_TOOL = "I have no tool for that."
SYSTEM = ["You are a helpful assistant.", "Use the tools when they help.", "You can call functions.", "You are a helpful assistant with tools.", "Call a tool when one fits.", "You are an agent."]


def made_tool(d, verbs=VERBS):
    """A tool of a verb and a noun."""
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
    """As a client would write it: with more or less description, required or not."""
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
    """In training often under other names: what is always called the same is remembered and not read."""
    spec = d.value(tuple(SPECS))
    return spec if d.held_out or spec.name == "calculator" or d.chance(0.4) else renamed(d, spec)


def renamed(d, spec):
    """The same tool; it and its parameters are called otherwise."""
    rest = spec.name.split("_", 1)[-1]
    verb = d.invented() if d.chance(0.3) else d.any(VERBS).split(":")[0]
    camel = "".join(part.capitalize() for part in rest.split("_"))
    name = d.any((f"{verb}_{rest}", f"{verb}_{rest}", f"{rest}_{verb}", f"{verb}{camel}", f"{verb}-{rest}"))
    word = d.invented()
    keys = {key: d.any((key, key, f"{word}_{key}", f"{key}_{word}", f"the_{key}", f"{key}_value")) for key, *_ in spec.parameters}
    if len(keys) == 1 and d.chance(0.3):
        keys = dict.fromkeys(keys, word)

    def speak(text):
        for old, new in keys.items():
            text = text.replace(f"{{{old}}}", f"{{{new}}}")
        return text

    result = spec.result and (lambda d, a: spec.result(d, {old: a[new] for old, new in keys.items() if new in a}))
    parameters = [(keys[key], *others) for key, *others in spec.parameters]
    other = Spec(name, spec.description, parameters, "|".join(map(speak, spec.asks)), result, spec.answer and speak(spec.answer), spec.pairs)
    other.root = spec.root
    return other


def any_tool(d, verbs=VERBS):
    return hand_made(d) if d.chance(0.4) else made_tool(d, verbs)


def theme(spec):
    """What a tool is about. Two tools of one theme could both be meant by one request."""
    return spec.noun or {"get_current_weather": "get_weather"}.get(spec.root, spec.root)


def shelf(d, most):
    """Up to `most` tools, no two of one theme. Where all do the same, it is the rest of their names that tells."""
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
    """(request, two arguments) for one tool that is asked for two things."""
    key, kind, _, pool = spec.parameters[0]
    x, y = d.values(pool, 2)
    return d.wording(spec.pairs).format(x=x, y=y), [{key: typed(kind, v)} for v in (x, y)]


def calling(d, specs):
    spec = d.any(specs)
    ask, arguments = asked(d, spec)
    return Chat(ask, thought=f"The tool {spec.name} fits. I call it.", calls=[(spec.name, arguments)])


def calling_several(d, specs):
    """Two calls, of one tool or of two."""
    doubles = [spec for spec in specs if spec.pairs]
    if doubles and (len(specs) == 1 or d.chance(0.5)):
        spec = d.any(doubles)
        ask, both = twice(d, spec)
        return Chat(ask, thought=f"I call {spec.name} twice.", calls=[(spec.name, arguments) for arguments in both])
    first, second = d.few(specs, 2) if len(specs) > 1 else specs * 2
    (ask1, a1), (ask2, a2) = asked(d, first), asked(d, second)
    joint = d.any((" ", " ", " Also: ", " And then: "))
    return Chat(
        f"{ask1}{joint}{ask2}", thought=f"I call {first.name} and {second.name}.", calls=[(first.name, a1), (second.name, a2)]
    )


def calling_none(d, specs):
    """The question needs no tool, or none of them fits."""
    if d.chance(0.5):
        made = d.any((greeting, self_description, capitals, opposites, colours, definitions, animals, repeating, counting))(d)
        return Chat(made.question, made.answer, made.thought)
    themes = {theme(spec) for spec in specs}
    while theme(wanted := any_tool(d)) in themes:
        pass
    return Chat(asked(d, wanted)[0], NO_TOOL, "None of the tools fits.")


def answering(d, specs):
    """Saying what came back: with a tool's own sentence, or as it is where nobody has ever heard of the tool."""
    spec = d.any(specs)
    if spec.pairs and len(spec.parameters) == 1 and not d.held_out and d.chance(0.3):
        ask, both = twice(d, spec)
        results = [spec.result(d, arguments) for arguments in both]
        answer = " ".join(spec.answer.format(**{**a, **r}) for a, r in zip(both, results, strict=True))
        calls = [(spec.name, arguments) for arguments in both]
        return Chat(ask, answer, "I read the results.", calls=calls, results=[json.dumps(r) for r in results])
    ask, arguments = asked(d, spec)
    if spec.name == "calculator":
        value = d.between(2, 9999)
        result, answer = d.any((str(value), {"result": value})), f"{arguments['expression']} = {value}"
    elif spec.result and d.chance(0.75) and all(key in arguments for key, *_ in spec.parameters):
        result = spec.result(d, arguments)
        answer = plain_answer(result) if d.held_out else spec.answer.format(**{**{k: spoken(v) for k, v in arguments.items()}, **result})
    else:
        result, answer = plain_result(d)
    text = result if isinstance(result, str) else json.dumps(result)
    return Chat(ask, answer, "I read the result.", calls=[(spec.name, arguments)], results=[text])


def plain_result(d):
    """What a tool returns that has no sentence of its own: (result, answer)."""
    kind = d.between(0, 3)
    if kind == 0:
        problem = d.any(("not found", "permission denied", "timeout", "no connection", "invalid argument", "out of stock"))
        return {"error": problem}, f"The tool reported an error: {problem}."
    if kind == 1:
        text = d.any(
            (f"{d.value(NAMES)} has it", f"the {d.any(ADJECTIVES)} {d.value(THINGS)}", f"{d.between(2, 99)} found", f"it is in {d.value(CITIES)}")
        )
        return text, f"The result is: {text}."
    pools = {"status": ("string", ("done", "ok", "open", "closed", "ready", "waiting"))}
    pools |= {key: SLOTS[key][:2] for key in ("id", "name", "city", "price", "color", "count", "owner", "day")}
    result = {key: typed(pools[key][0], d.any(pools[key][1])) for key in d.few(tuple(pools), d.between(1, 3))}
    return result, plain_answer(result)


def plain_answer(result):
    return "The result is: " + ", ".join(f"{key} {spoken(value)}" for key, value in result.items()) + "."


def session(d, specs, last):
    """A conversation over one shelf of tools that ends with `last`. Earlier exchanges make the schemas worth reading."""
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
