"""Templates that nobody has seen: those of the collection with other marks, quotes, separators and indentation. A few by
default; MUTATED_TEMPLATES=2000 tries so many."""

from __future__ import annotations

import os
import random
import re

import pytest
from vectors import COLLECTION

from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.round_trip import round_trip, unsure
from llamasrv.chat.template import ChatTemplate

COUNT = int(os.environ.get("MUTATED_TEMPLATES", "16"))
FILES = sorted(COLLECTION.glob("*.jinja")) if COLLECTION.is_dir() else []
STEP = 1 if COUNT > 200 else 23  # a few are taken from all of the collection, and in all ways
MARK = re.compile(r"<[|/]?[\w:]{3,30}[|]?>")


def other_marks(source: str, chance: random.Random) -> str:
    marks = sorted(set(MARK.findall(source)))
    for mark in chance.sample(marks, min(3, len(marks))):
        word = re.findall(r"\w+", mark)[0]
        source = re.sub(rf"(?<=[<|/]){word}(?=[|>])", f"q{chance.randrange(100)}{word[::-1]}", source)
    return source


def other_quotes(source: str, chance: random.Random) -> str:
    return source.replace(*chance.choice([('\\"', "`"), ('"name"', '"tool"'), ('{\\"', "{'")]))


def other_separators(source: str, chance: random.Random) -> str:
    return source.replace("', '", chance.choice(["','", "' '", "'\\n'", "'; '"]))


def other_indentation(source: str, chance: random.Random) -> str:
    return source.replace("\\n", chance.choice(["\\n\\n", "\\n  ", "", " "]))


WAYS = (other_marks, other_quotes, other_separators, other_indentation)


@pytest.mark.skipif(not FILES, reason="the collection is not there")
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_mutated_template_is_learned_or_unsure_and_leaks_no_word_of_the_trial(seed):
    number = seed * STEP
    change = WAYS[number // len(FILES) % 4 if STEP == 1 else seed % 4]
    source = FILES[number % len(FILES)].read_text(encoding="utf-8")
    try:
        template = ChatTemplate(change(source, random.Random(seed)), "<s>", "</s>", special_tokens=())
        template.traits  # noqa: B018 learned here
    except TemplateError:
        return  # it was no template any more, and is refused
    assert template.candidates and not any("zq" in str(format) for format in template.candidates)
    assert template.format.unsure == unsure(round_trip(template))
