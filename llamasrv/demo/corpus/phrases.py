"""Ways to say things: frames that fit any noun phrase or sentence.

Owns the frames alone. Frames and phrases combine into long lists of wordings. What is held out of them for the
evaluation are new combinations of words that training has seen, like the sentences of a user.
"""

ASKING = (
    "What is {}?|What's {}?|Tell me {}.|Give me {}.|Name {}.|Do you know {}?|Can you tell me {}?|Could you tell me {}?|I need {}.|{}?"
    "|I want to know {}.|Say {}.|Please tell me {}.|I would like to know {}.|Can you name {}?|Find {}.|Can you give me {}?|Please name {}."
).split("|")
REMEMBERING = (
    "What was {}?|Do you remember {}?|Can you remember {}?|Do you still know {}?|I forgot {}. What is it?|Remind me of {}."
    "|What is {} again?|Please repeat {}.|Can you say {}?|Say {} again."
).split("|")
OPENINGS = (
    "{}",
    "{}",
    "Hello! {}",
    "Hi! {}",
    "Just so you know: {}",
    "Note: {}",
    "Please note: {}",
    "One thing: {}",
    "Remember this: {}",
    "Here is a fact: {}",
)
POLITE = (
    "{}.|{}!|Please {}.|Can you {}?|Could you {}?|Would you {}?|I want you to {}.|Now {}.|Will you {}?|You should {}.|{}, please.|Can you {} for me?"
    "|Please {} now.|I would like you to {}.|I need you to {}.|Could you please {}?"
).split("|")
OBEYING = (
    "{}",
    "{}",
    "{} Never forget it.",
    "{} This is important.",
    "Rule: {}",
    "{} No exceptions.",
    "Important: {}",
    "Please note: {}",
)


def framed(frames, *phrases):
    """Every phrase in every frame, with a capital at the beginning."""
    made = [frame.replace("{}", phrase) for frame in frames for phrase in phrases]
    return [text[0].upper() + text[1:] for text in dict.fromkeys(made)]


def asking(*nouns):
    return framed(ASKING, *nouns)


def remembering(*nouns):
    return framed((*ASKING, *REMEMBERING), *nouns)


def joined(starts, ends):
    """Every start with every end."""
    return [start + end for start in starts for end in ends]
