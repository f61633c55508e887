"""The corpus: an endless stream of documents, made from a seed.

Owns the table of skills with their shares, and what happens to any conversation whatever its skill: thinking switched
on or off, a helpful system prompt, earlier turns. A document depends on the seed and its number alone.
"""

from llamasrv.demo.corpus import code, decisions, facts, letters, memory, numbers, stories, structured, talk, tools
from llamasrv.demo.corpus.chat import ChatDocument, Document, TextDocument, document
from llamasrv.demo.corpus.draw import Draw

# skill: (maker, share of the documents)
SKILLS = {
    "greeting": (talk.greeting, 2),
    "self-description": (talk.self_description, 1),
    "small talk": (talk.about, 1.5),
    "I don't know": (talk.unknown, 3),
    "capitals": (facts.capitals, 2),
    "opposites": (facts.opposites, 2.5),
    "colours": (facts.colours, 0.7),
    "days and months": (facts.days, 1),
    "animals": (facts.animals, 0.7),
    "numbers of things": (facts.units, 0.4),
    "definitions": (facts.definitions, 1.2),
    "one word": (facts.one_word, 2),
    "uppercase": (facts.uppercase, 1.5),
    "counting": (numbers.counting, 5),
    "arithmetic": (numbers.arithmetic, 16),
    "larger sums": (numbers.larger_sums, 10),
    "spelling": (letters.spelling, 13),
    "reversing": (letters.reversing, 0.3),
    "letter drill": (letters.drill, 4),
    "repeating": (letters.repeating, 9),
    "lists": (letters.lists, 5),
    "stories": (stories.stories, 1.2),
    "poems": (stories.poems, 1),
    "continuation": (stories.continuation, 0.7),
    "JSON with keys": (structured.json_keys, 12),
    "JSON arrays": (structured.json_arrays, 1),
    "memory": (memory.memory, 10),
    "not told": (memory.not_told, 1),
    "system facts": (memory.system_facts, 5),
    "persona": (memory.persona, 4),
    "manner": (memory.manner, 1.5),
    "tool call": (tools.single_call, 15),
    "parallel calls": (tools.parallel_calls, 10),
    "no tool fits": (tools.no_call, 3.5),
    "tool answer": (tools.tool_answer, 3),
    "decisions": (decisions.decisions, 12),
    "Python": (code.one_liners, 0.6),
    "fill in the middle": (code.fill_in_the_middle, 1.5),
}

LIGHT = (facts.capitals, facts.opposites, facts.colours, numbers.counting, letters.lists, talk.greeting)


def documents(seed, *, start=0, stride=1, held_out=False, skills=tuple(SKILLS), shares=None):
    """Documents number `start`, and every `stride`-th from there on. `shares` of some skills replace the table's."""
    weights = [(shares or {}).get(skill, SKILLS[skill][1]) for skill in skills]
    number = start
    while True:
        d = Draw(f"{seed} {number} {held_out}", held_out=held_out)
        skill = d.rng.choices(skills, weights)[0]
        yield document(skill, dress(d, SKILLS[skill][0](d)))
        number += stride


def dress(d, made):
    """Add what can be added to any conversation without changing its answer."""
    if isinstance(made, TextDocument):
        return made
    if made.system is None and d.chance(0.12):
        made.system = d.wording(memory.HELPFUL)
    if not made.turns and not made.tools and d.chance(0.12):
        made.turns = [d.any(LIGHT)(d).exchange()]
    if made.thinking is None:
        made.thinking = d.any((None,) * 7 + (True,) + (False,) * 2)
    return made


__all__ = ["SKILLS", "ChatDocument", "Document", "Draw", "documents"]
