"""How good the model is: greedy answers of the GGUF file, through llama.cpp, against the corpus.

Owns the table of skills and the bounds that the project sets itself. The held-out column uses wordings that training
never saw, and values too wherever they are open-ended.
"""

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import llama_cpp

from llamasrv.demo.corpus import SKILLS, documents

FIGURES = Path(__file__).with_name("evaluation.json")
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- figures begin -->\n", "<!-- figures end -->\n"
SEED = 20_000
LONGEST = 220

# What held-out exact match should reach, in per cent.
WANTED = {
    "greeting": 90, "self-description": 90, "capitals": 90, "opposites": 90, "memory": 90, "persona": 90, "system facts": 90,
    "tool call": 90, "no tool fits": 90, "tool answer": 90, "JSON with keys": 90, "counting": 90, "repeating": 90,
    "arithmetic": 60, "lists": 60, "spelling": 60, "parallel calls": 60,
}  # fmt: skip


@dataclass
class Score:
    """Percentage of answers that were right, and that stopped on their own."""

    held_out: float
    seen: float
    stopped: float


class Reader:
    """Reads the GGUF file and answers greedily."""

    def __init__(self, path, threads=None):
        self.llama = llama_cpp.Llama(str(path), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)

    def tokens(self, prompt, most=LONGEST):
        """(tokens written with their end mark, whether they ended)."""
        llama = self.llama
        written = []
        for token in llama.generate(llama.tokenize(prompt.encode(), add_bos=False, special=True), top_k=1, temp=0.0):
            written.append(token)
            ended = llama_cpp.llama_vocab_is_eog(llama._model.vocab, token)
            if ended or len(written) == most:
                break
        return written, ended

    def answer(self, prompt):
        """(text with its end mark, whether it ended)."""
        written, ended = self.tokens(prompt)
        return self.llama.detokenize(written, special=True).decode(errors="replace"), ended


def evaluate(model, *, count, skills=tuple(SKILLS), threads=None, report=print, mistakes=0):
    """Score every skill on `count` documents of each side. Returns {skill: Score}."""
    reader, scores = Reader(model, threads), {}
    for skill in skills:
        held_out = marked(reader, skill, count=count, held_out=True)
        seen = marked(reader, skill, count=count, held_out=False)
        scores[skill] = Score(
            held_out=_percent(good for *_, good, _ in held_out),
            seen=_percent(good for *_, good, _ in seen),
            stopped=_percent(ended for *_, ended in held_out + seen),
        )
        report(row(skill, scores[skill]))
        for document, text, *_ in [answer for answer in held_out if not answer[2]][:mistakes]:
            report(f"{document.given[-300:]}\n   wanted: {document.expected}\n   wrote:  {text}")
    return scores


def marked(reader, skill, *, count, held_out):
    """[(document, answer, whether it is right, whether it ended)]"""
    answers = []
    for document in islice(documents(SEED, held_out=held_out, skills=(skill,)), count):
        text, ended = reader.answer(document.given)
        answers.append((document, text, ended and document.accepts(text), ended))
    return answers


def _percent(truths):
    truths = list(truths)
    return round(100 * sum(truths) / len(truths), 1)


def row(skill, score):
    wanted = WANTED.get(skill)
    verdict = "" if wanted is None else f"{wanted} {'reached' if score.held_out >= wanted else 'missed'}"
    return f"| {skill} | {score.held_out:.0f} | {score.seen:.0f} | {score.stopped:.0f} | {verdict} |"


def table(scores):
    head = "| skill | held-out | seen | stopped | wanted |\n|---|---:|---:|---:|---|\n"
    return head + "".join(row(skill, score) + "\n" for skill, score in scores.items())


def write_figures(scores, *, count):
    """Keep the figures beside the model, and the table in the README."""
    FIGURES.write_text(
        json.dumps({"count": count, "scores": {k: asdict(v) for k, v in scores.items()}}, indent=1) + "\n"
    )
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(before + BEGIN + table(scores) + END + rest.split(END)[1], encoding="utf-8")


def read_figures():
    saved = json.loads(FIGURES.read_text())
    return {skill: Score(**score) for skill, score in saved["scores"].items()}
