"""The demo model's eyes: what they learn from, and that they see what the evaluation says."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from llamasrv.demo import EYES
from llamasrv.demo.corpus import LIGHT, Draw, dress
from llamasrv.demo.corpus.draw import is_held_out
from llamasrv.demo.corpus.drawing import COLOURS, THINGS, draw_picture
from llamasrv.demo.corpus.pictures import PICTURE, pictured
from llamasrv.demo.evaluate_eyes import BEGIN, END, KINDS, README, WANTED, Seeing, marked, read_eyes_figures, table

SCORES = read_eyes_figures()


@pytest.fixture(scope="module")
def seeing(model_file):
    if not EYES.exists():
        pytest.skip("this build carries no projector")
    return Seeing()


def items(count, *, held_out):
    return [pictured(Draw(f"test {i}", held_out=held_out), dress, LIGHT) for i in range(count)]


def test_held_out_pairs_are_never_trained():
    for held_out in (False, True):
        assert all(
            is_held_out("picture", (item.colour, item.thing)) is held_out for item in items(300, held_out=held_out)
        )


def test_a_document_has_one_picture_and_the_same_every_time():
    for first, second in zip(items(50, held_out=False), items(50, held_out=False), strict=True):
        assert first.document == second.document and first.document.given.count(PICTURE) == 1
        assert (np.asarray(first.draw()) == np.asarray(second.draw())).all()


@pytest.mark.parametrize("colour", COLOURS)
def test_everything_can_be_drawn(colour):
    for thing in THINGS:
        picture = np.asarray(draw_picture(Draw(f"{colour} {thing}"), colour, thing))
        ground = picture[0, 0]
        assert picture.ndim == 3 and 0.005 < (picture != ground).any(-1).mean()


def test_the_readme_has_the_table_of_the_evaluation():
    assert README.read_text().split(BEGIN)[1].split(END)[0] == table(SCORES)


def test_colours_and_shapes_that_it_never_saw_together_are_recognised():
    held_out = SCORES["shapes"]["held out"]
    assert held_out.colour >= WANTED and held_out.thing >= WANTED


def test_what_is_good_stays_good(seeing):
    answers = marked(seeing, KINDS["shapes"], count=20, held_out=True)
    assert sum(colour and thing for *_, colour, thing, _ in answers) >= 15


def test_a_newcomers_drawing(seeing):
    """As a paint program makes it: hard edges, not square, larger than what it looks at."""
    image = Image.new("RGB", (400, 300), "white")
    ImageDraw.Draw(image).ellipse((100, 50, 300, 250), fill=(255, 0, 0))
    prompt = f"<|im_start|>user\n{PICTURE}What is this?<|im_end|>\n<|im_start|>assistant\n"
    assert seeing.answer(prompt, np.asarray(image)) == "I see a red circle."
