"""The README's figures are those of the evaluation, and they are of this model."""

import pytest

from llamasrv.demo.corpus import SKILLS
from llamasrv.demo.evaluate import BEGIN, END, README, marked, read_figures, table

SCORES = read_figures()


def test_the_readme_has_the_table_of_the_evaluation():
    assert README.read_text().split(BEGIN)[1].split(END)[0] == table(SCORES)


def test_every_skill_is_in_it():
    assert list(SCORES) == list(SKILLS)


@pytest.mark.parametrize("skill", [name for name, score in SCORES.items() if score.held_out >= 97])
def test_what_is_good_stays_good(skill, reader):
    """A few documents of each skill that the evaluation found reliable."""
    answers = marked(reader, skill, count=6, held_out=True)
    assert sum(good for _, _, good, _ in answers) >= 5
