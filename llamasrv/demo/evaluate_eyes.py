"""How well the demo model sees: its answers about pictures, through llama.cpp, compared with what was drawn.

Owns the table of figures for pictures. *Held out* are pairs of a colour and a thing that training never showed, with
wordings that training never used; *seen* are new pictures of the other pairs.
"""

import ctypes
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

from llamasrv.demo import EYES, MODEL
from llamasrv.demo.corpus import LIGHT, Draw, dress
from llamasrv.demo.corpus.drawing import DIGITS, LETTERS, SHAPES
from llamasrv.demo.corpus.pictures import PICTURE, pictured

FIGURES = Path(__file__).with_name("evaluation_eyes.json")
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- pictures begin -->\n", "<!-- pictures end -->\n"
LONGEST = 24
KINDS = {"shapes": SHAPES, "digits": DIGITS, "letters": LETTERS}
WANTED = 90  # of colours and shapes
_QUIET = llama_cpp.llama_log_callback(lambda level, text, data: None)


@dataclass
class Seen:
    """Percentage of answers that name the colour, that name the thing, and that are right to the letter."""

    colour: float
    thing: float
    whole: float


class Seeing:
    """The chat model with its eyes; answers greedily."""

    def __init__(self, model=MODEL, eyes=EYES, threads=1):
        self.llama = llama_cpp.Llama(
            str(model), n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        mtmd_cpp.mtmd_log_set(_QUIET, None)
        mtmd_cpp.mtmd_helper_log_set(_QUIET, None)
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = params.print_timings = params.warmup = False
        params.n_threads = threads
        self.eyes = mtmd_cpp.mtmd_init_from_file(str(eyes).encode(), self.llama._model.model, params)
        if not self.eyes:
            raise ValueError(f"{eyes}: cannot be loaded beside {model}")

    def answer(self, prompt, image):
        """What the model writes after a prompt in which PICTURE stands for the image."""
        before, after = prompt.split(PICTURE)
        chunks = self._chunks(before.encode(), np.ascontiguousarray(image), after.encode())
        context, end = self.llama._ctx.ctx, llama_cpp.llama_pos()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        code = mtmd_cpp.mtmd_helper_eval_chunks(self.eyes, context, chunks, 0, 0, 512, True, ctypes.byref(end))
        mtmd_cpp.mtmd_input_chunks_free(chunks)
        if code:
            raise RuntimeError(f"the prompt cannot be computed ({code})")
        return self._written(context)

    def _chunks(self, before, image, after):
        texts = [mtmd_cpp.mtmd_input_text(text, len(text), False, True) for text in (before, after)]
        pixels = image.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd_cpp.mtmd_bitmap_init(image.shape[1], image.shape[0], pixels)
        parts = [
            mtmd_cpp.mtmd_input_part(ctypes.pointer(texts[0]), None),
            mtmd_cpp.mtmd_input_part(None, bitmap),
            mtmd_cpp.mtmd_input_part(ctypes.pointer(texts[1]), None),
        ]
        pointers = (ctypes.POINTER(mtmd_cpp.mtmd_input_part) * 3)(*map(ctypes.pointer, parts))
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        code = mtmd_cpp.mtmd_tokenize_from_parts(self.eyes, chunks, pointers, 3, False)
        mtmd_cpp.mtmd_bitmap_free(bitmap)
        if code:
            raise RuntimeError(f"the picture cannot be read ({code})")
        return chunks

    def _written(self, context):
        written, size = [], self.llama.n_vocab()
        while len(written) < LONGEST:
            row = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (size,))
            token = int(row.argmax())
            if llama_cpp.llama_vocab_is_eog(self.llama._model.vocab, token):
                break
            written.append(token)
            batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * 1)(token), 1)
            if llama_cpp.llama_decode(context, batch):
                raise RuntimeError("the answer cannot be computed")
        return self.llama.detokenize(written).decode(errors="replace")


def evaluate_eyes(seeing, *, count, report=print, mistakes=0):
    """{kind: {"held out" or "seen": Seen}} over `count` pictures each."""
    scores = {}
    for kind, things in KINDS.items():
        scores[kind] = {}
        for side in ("held out", "seen"):
            answers = marked(seeing, things, count=count, held_out=side == "held out")
            scores[kind][side] = Seen(
                *(round(100 * float(np.mean(column)), 1) for column in zip(*(a[2:] for a in answers), strict=True))
            )
            for item, text, *right in answers:
                if not all(right) and mistakes > 0:
                    mistakes -= 1
                    report(f"{item.colour} {item.thing}: {text}")
        report(row(kind, scores[kind]))
    return scores


def marked(seeing, things, *, count, held_out):
    """[(item, answer, whether it names the colour, whether the thing, whether it is right to the letter)]"""
    answers, number = [], 0
    while len(answers) < count:
        item = pictured(Draw(f"eyes {number} {held_out}", held_out=held_out), dress, LIGHT)
        number += 1
        if (
            item.thing not in things
            or f"<|im_start|>user\n{PICTURE}" not in item.document.given
            or "I see" not in item.document.expected
        ):
            continue  # asked about otherwise: in a later turn, or of something else
        text = seeing.answer(item.document.given, np.asarray(item.draw()))
        whole = text == item.document.expected.removesuffix("<|im_end|>")
        answers.append((item, text, f" {item.colour} " in text, text.endswith(f" {item.thing}."), whole))
    return answers


def row(kind, sides):
    cells = [f"{value:.0f}" for seen in (sides["held out"], sides["seen"]) for value in asdict(seen).values()]
    return f"| {kind} | {' | '.join(cells)} |"


def table(scores):
    head = "| | held-out: colour | thing | whole answer | seen: colour | thing | whole answer |\n|---|---:|---:|---:|---:|---:|---:|\n"
    return head + "".join(row(kind, sides) + "\n" for kind, sides in scores.items())


def write_eyes_figures(scores, *, count):
    """Keep the figures beside the model, and the table in the README."""
    saved = {kind: {side: asdict(seen) for side, seen in sides.items()} for kind, sides in scores.items()}
    FIGURES.write_text(json.dumps({"count": count, "scores": saved}, indent=1) + "\n")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(before + BEGIN + table(scores) + END + rest.split(END)[1], encoding="utf-8")


def read_eyes_figures():
    saved = json.loads(FIGURES.read_text())["scores"]
    return {kind: {side: Seen(**seen) for side, seen in sides.items()} for kind, sides in saved.items()}
