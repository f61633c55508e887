"""Tools written by hand, with natural requests: their schemas, ways to ask for them, and what they return."""

from .words import ADJECTIVES, CITIES, COLOURS, DAYS, FOODS, NAMES, THINGS

TIMES = [f"{h}:{m:02d}" for h in range(6, 23) for m in (0, 15, 30, 45)]
LANGUAGES = "French German Spanish Italian Dutch Polish Swedish Greek Turkish Japanese Chinese Korean Arabic Hindi Russian Czech".split()
CURRENCIES = "USD EUR GBP JPY CHF CAD AUD SEK NOK DKK PLN CZK INR CNY KRW MXN".split()
STOCKS = "AAPL MSFT GOOG AMZN TSLA NVDA META IBM ORCL INTC AMD SAP SONY NFLX UBER ADBE".split()
SONGS = "Yesterday,Imagine,Hey Jude,Let It Be,Hello,Thriller,Bad,Help,Jolene,Roxanne,Angie,Layla,Waterloo,Fernando,Lola,Creep,Zombie,Africa".split(
    ","
)
ROOMS = "kitchen bedroom bathroom hall office garage cellar attic library garden".split()
TITLES = "milk shopping homework laundry cleaning cooking packing reading training parking painting gardening banking singing dancing fishing".split()
SUBJECTS = "history science music art sports politics travel food health money nature space weather cars books films games fashion".split()
NUMBERS = [str(n) for n in range(1, 100)]
BIG = [str(n) for n in range(10, 1000)]
MESSAGES = "see you soon,I am late,call me back,happy birthday,good luck,thank you,come home,the train is late,dinner is ready,all is well,where are you,meet me at noon,I am here,wait for me,good night,we won the game".split(
    ","
)
WEATHER = "sunny cloudy rainy windy foggy snowy stormy clear".split()


class Spec:
    """A tool: its schema, ways to ask for it, and what it returns.

    `parameters` are (name, JSON type, description, pool or enum values). In `asks`, {name} stands for a value;
    `pairs` ask for two calls that differ in the first parameter, {x} and {y}.
    """

    def __init__(self, name, description, parameters, asks, result=None, answer=None, pairs=(), root=None):
        self.name, self.description, self.parameters = name, description, parameters
        self.asks, self.pairs, self.result, self.answer = asks.split("|"), pairs, result, answer
        self.noun = None  # of a made tool
        self.root = root or name  # what it is about, whatever it is called

    def values(self, d, only=None):
        return {
            key: typed(kind, d.value(pool)) for key, kind, _, pool in self.parameters if only is None or key in only
        }

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
    return {
        **{k: v for k, v in a.items() if k in ("city", "location")},
        "temperature": d.between(-9, 38),
        "condition": d.any(WEATHER),
    }


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
