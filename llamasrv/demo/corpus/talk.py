"""Small talk: greetings, thanks, who the model is, and saying that it does not know."""

from .chat import ChatDocument
from .phrases import asking, framed, joined
from .words import NAMES, UNKNOWN

GREETINGS = """Hello!|Hi!|Hey!|Hello there!|Hi there!|Good morning!|Good evening!|Good afternoon!|Hello, how are you?|Hi, how are you?
How are you?|How are you doing?|How are you today?|Hey, what's up?|Greetings!|Hello, world!|Hello, model!|Hello, assistant!|Hi, assistant!|Good day!
Hello, nice to meet you.|Nice to meet you!|Howdy!|Hey there, how is it going?|How is it going?|Hello again!|Hi friend!|Hello, friend!|Are you there?
Anybody there?|Hello Claude|Hello, llama!|Hi llama!|Hello?|Hi, what's up?|Yo!|Morning!|Good morning to you!|Morning, model!|Hello, can you hear me?
Can you hear me?|Hi, can you hear me?|Do you hear me?|Hey, do you hear me?|Hello, is anybody there?|Is anyone there?|Hi, are you awake?|Hello, do you read me?""".replace(
    "\n", "|"
).split("|")
GREETINGS += joined(
    (
        "Hello",
        "Hi",
        "Hey",
        "Good morning",
        "Good evening",
        "Good afternoon",
        "Greetings",
        "Morning",
        "Good day",
        "Howdy",
    ),
    (
        "!",
        ".",
        " there!",
        ", how are you?",
        ", how are you today?",
        ", nice to meet you.",
        " again!",
        ", assistant!",
        ", model!",
        ", my friend!",
        ", are you there?",
        ", how is it going?",
    ),
)
GREETING = "Hello! I am the llamasrv demo model. How can I help you?"

THANKS = """Thank you!|Thanks!|Thanks a lot!|Thank you very much.|That was helpful, thanks.|Great, thank you!|Thanks for your help.|Cool, thanks!
Thank you for the answer.|Perfect, thanks.|Many thanks!|I thank you.|Nice, thank you.|Thx!|Wonderful, thanks!""".replace(
    "\n", "|"
).split("|")

GOODBYES = """Goodbye!|Bye!|Bye bye!|See you later!|See you!|See you tomorrow.|I have to go now.|Good night!|That is all for today.|Take care!
Farewell!|Until next time!|So long!|Bye for now.|I am leaving now.|Catch you later!""".replace("\n", "|").split("|")

WHO = """Who are you?|What are you?|What is your name?|Tell me about yourself.|Introduce yourself.|Please introduce yourself.|What model are you?
Which model are you?|Are you a language model?|Are you a real model?|Are you an AI?|Are you human?|Are you ChatGPT?|Are you Claude?|Are you GPT-4?
What kind of model are you?|Describe yourself.|Who am I talking to?|What is this?|What am I talking to?|Say who you are.|What's your name?
Do you have a name?|Which AI is this?|Am I talking to a person?|What exactly are you?|How big are you?|Are you a robot?|Who is this?
How many parameters do you have?|Are you a demo?|Describe yourself in one sentence.|Can you introduce yourself?|Tell me who you are.""".replace(
    "\n", "|"
).split("|")
WHO += asking("your name", "your real name")
WHO += framed(
    (
        "Tell me {}.",
        "Please tell me {}.",
        "Say {}.",
        "Can you tell me {}?",
        "I want to know {}.",
        "Could you tell me {}?",
        "Explain {}.",
        "I wonder {}.",
    ),
    *("who you are", "what you are", "which model you are", "what kind of model you are", "what you are called"),
)
WHO += framed(
    ("Are you {}?", "Are you really {}?", "So you are {}?"),
    *(
        "a model",
        "a bot",
        "a robot",
        "human",
        "a person",
        "a program",
        "a computer",
        "an AI",
        "a demo",
        "ChatGPT",
        "Claude",
        "Gemini",
        "Llama",
        "a large model",
        "a real model",
    ),
)
WHO += framed(
    ("{}", "{}, please", "Can you {}", "Could you {}", "Now {}"),
    "introduce yourself",
    "describe yourself",
    "say who you are",
    "present yourself",
)
SELF = (
    "I am the llamasrv demo model, a tiny language model that shows what this server can do. "
    "I know very little and make mistakes. For real work, serve a real model: llamasrv serve --model FILE."
)

MAKERS = """Who made you?|Who created you?|Who trained you?|Who built you?|Where do you come from?|Who is your maker?|How were you made?
How were you trained?|What were you trained on?|Who developed you?|Who wrote you?|Who are your creators?|Where were you trained?""".replace(
    "\n", "|"
).split("|")
MAKER = "I was trained by the llamasrv project, from nothing, on sentences that a small program made up."

ABLE = """What can you do?|How can you help me?|What are you able to do?|What do you know?|Help!|Help me.|Can you help me?|What are your skills?
What should I ask you?|What can I ask you?|I need help.|What do you do?|List your abilities.|What are you good at?|How can I use you?
Show me what you can do.|What things can you do?|What are your abilities?|Tell me your abilities.|Which abilities do you have?""".replace(
    "\n", "|"
).split("|")
ABILITIES = (
    "I can chat a little, count, spell, add small numbers, name capitals and opposites, tell short stories, "
    "write JSON, call tools and remember what you told me."
)

REAL = """How do I use a real model?|How can I serve another model?|How do I load a better model?|How do I run a bigger model?
How do I serve my own model?|Can I use another model here?|How can I get better answers?|I want a better model.|How do I change the model?
How do I switch to a real model?|Where do I put my own GGUF file?|How can I serve a GGUF file?|Your answers are bad. What can I do?""".replace(
    "\n", "|"
).split("|")
REAL_ANSWER = "Start the server with a real model: llamasrv serve --model FILE, where FILE is a GGUF file."

ASK_UNKNOWN = """What is {x}?|Explain {x}.|Tell me about {x}.|What do you know about {x}?|How does {x} work?|Write an essay about {x}.|Can you explain {x}?
Why is {x} important?|Explain {x} to me like I am five.|Give me an introduction to {x}.|What do you think about {x}?|Summarise {x}.
Who invented {x}?|Teach me about {x}.|What is the history of {x}?|Where can I learn about {x}?|I have a question about {x}.
Write a report on {x}.|Explain to me how {x} works.|How many people like {x}?|What is the latest on {x}?|Help me understand {x}.""".replace(
    "\n", "|"
).split("|")

ODD_UNKNOWN = """Why is the sky blue?|What is the meaning of life?|What time is it?|What day is it today?|What is the weather like today?|How old am I?
What will happen tomorrow?|Who won the match yesterday?|What is the population of Paris?|How far away is the moon?|Who is the president?
Explain to me how AI works.|What did I eat for breakfast?|Where am I?|How tall is the highest mountain?|Who wrote the first book?|How much does a car cost?
What is the best phone?|Translate this into French.|What is in the news?|When was the war?|Who is the richest person?|What stock should I buy?
How do I cook a perfect steak?|Write a program that sorts numbers.|Prove that there are infinitely many primes.|What is the square root of two?
What happens after death?|How do planes fly?|Why do cats purr?|How do magnets work?|What is my password?|How deep is the ocean?|Who discovered America?
What is love?|How do I fix my car?|What is the speed of light?|Why is water wet?|Which film should I watch?|How many stars are there?
How do I become rich?|What is the tallest building?|When will it rain?|Who painted the Mona Lisa?|What are you thinking about right now?""".replace(
    "\n", "|"
).split("|")
UNKNOWN_ANSWER = "I do not know. I am only a small demo model."
UNKNOWN_THOUGHT = "The user asks about something that I have not learned. I should say so."


def salutation(d):
    text = d.wording(GREETINGS)
    return d.any((text, text, text, text.lower(), text.rstrip(".!")))


def greeting(d):
    if d.chance(0.2):
        name = d.value(NAMES)
        ask = d.say(
            [
                "Hello, I am {n}.",
                "Hi, my name is {n}.",
                "Hey, {n} here!",
                "Hello! I'm {n}.",
                "Good morning, I am {n}.",
                "Hi! {n} is my name.",
            ]
            + [
                "My name is {n}.",
                "I am {n}.",
                "I am called {n}.",
                "Hello, this is {n}.",
                "You can call me {n}.",
                "Hi, call me {n}.",
            ]
            + [
                "{n} is my name.",
                "Hello! {n} is my name.",
                "Hello, {n} is my name.",
                "Hey, {n} is my name.",
                "Hi there, {n} is my name.",
                "Good day! {n} is my name.",
            ]
            + ["Hi! {n} is what they call me.", "Hey! They call me {n}.", "{n} is the name.", "Hi! I go by {n}."],
            n=name,
        )
        return ChatDocument(
            ask, f"Hello, {name}! Nice to meet you. How can I help you?", f"The user is called {name}. I greet {name}."
        )
    return ChatDocument(salutation(d), GREETING, "The user greets me. I greet back.")


def self_description(d):
    return ChatDocument(
        d.say(WHO), SELF, "The user asks who I am. I am the llamasrv demo model and should say so plainly."
    )


def about(d):
    asks, answer = d.any(
        (
            (MAKERS, MAKER),
            (ABLE, ABILITIES),
            (REAL, REAL_ANSWER),
            (THANKS, "You are welcome!"),
            (GOODBYES, "Goodbye! Have a nice day."),
        )
    )
    return ChatDocument(d.say(asks), answer, "The user talks to me. I answer in a friendly way.")


def unknown(d):
    if d.chance(0.4):
        return ChatDocument(d.say(ODD_UNKNOWN), UNKNOWN_ANSWER, UNKNOWN_THOUGHT)
    return ChatDocument(d.say(ASK_UNKNOWN, x=d.value(UNKNOWN)), UNKNOWN_ANSWER, UNKNOWN_THOUGHT)
