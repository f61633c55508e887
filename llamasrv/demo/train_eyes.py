"""Training of the eyes in front of a frozen chat model.

Owns a run folder and the three steps of the course. Words first, without any picture: find the rows that make the chat
model name a colour and a thing, one set for each colour, one for each thing and one common to all; held-out pairs of
colour and thing tell whether it reads pairs that it has not seen. Then the eyes learn to produce these rows from pixels.
Last, they learn from what the chat model answers. A run that is killed resumes from its newest checkpoint.
"""

import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from llamasrv.demo import MODEL
from llamasrv.demo.corpus import LIGHT, Draw, dress
from llamasrv.demo.corpus.drawing import COLOURS, THINGS
from llamasrv.demo.corpus.pictures import PICTURE, pictured
from llamasrv.demo.export import model_of
from llamasrv.demo.export_eyes import eyes_of
from llamasrv.demo.eyes import Eyes, as_input, fitted
from llamasrv.demo.tokenizer import load_tokenizer
from llamasrv.demo.train_optimiser import Muon

COLOUR_NAMES = tuple(COLOURS)
COLOUR_ROWS, THING_ROWS = 4, 7  # of a picture's rows; the others are always the same
NOISE = 0.15
POOL = 24_000
CHECKPOINT_SECONDS = 60


def frozen_chat_model(path=MODEL):
    """The network with the weights of the GGUF file, as servers use them."""
    return model_of(path).requires_grad_(False)


class Words(nn.Module):
    """The rows that a picture should become: some for its colour, some for its thing, and some that are always the
    same."""

    def __init__(self, model, rows):
        super().__init__()
        encode, table = load_tokenizer().encode, model.embedding.detach()
        filler = table[encode("\n")[0]]
        self.always = nn.Parameter(filler + 0.1 * torch.randn(rows - COLOUR_ROWS - THING_ROWS, table.shape[1]))
        self.colours = nn.Parameter(
            _begun(table, [encode(f" a {name}") for name in COLOUR_NAMES], COLOUR_ROWS, filler, at_end=True)
        )
        self.things = nn.Parameter(
            _begun(table, [encode(f" {name}.") for name in THINGS], THING_ROWS, filler, at_end=False)
        )

    def forward(self, colours, things):
        """(batch, rows, width)"""
        always = self.always.expand(len(colours), -1, -1)
        return torch.cat((always, self.colours[colours], self.things[things]), 1)


def _begun(table, texts, count, filler, *, at_end):
    rows = filler + 0.1 * torch.randn(len(texts), count, table.shape[1])
    for row, tokens in zip(rows, texts, strict=True):
        place = slice(count - len(tokens), count) if at_end else slice(0, len(tokens))
        row[place] = table[tokens]
    return rows


class Asked:
    """Documents about pictures as the chat model reads them: tokens, and where the rows of the picture go."""

    def __init__(self, rows):
        self.encode, self.rows = load_tokenizer().encode, rows
        self.gap = [0] * rows

    def __call__(self, item):
        """(tokens, where the picture's rows begin, places whose next token is learned)"""
        tokens, learned, at = [], [], None
        for text, wanted in item.document.parts:
            for number, piece in enumerate(text.split(PICTURE)):
                if number:
                    at = len(tokens)
                    tokens += self.gap
                    learned += [False] * self.rows
                ids = self.encode(piece)
                tokens += ids
                learned += [wanted] * len(ids)
        return tokens, at, [i - 1 for i in range(1, len(tokens)) if learned[i]]


class Reading:
    """What the frozen chat model makes of the rows: the loss of its answers."""

    def __init__(self, model, rows):
        self.model, self.rows = model, rows
        self.table = model.embedding.detach().bfloat16()

    def __call__(self, batch, rows):
        """(mean loss, share of the answers that are right to the last token)"""
        length = max(len(tokens) for tokens, *_ in batch)
        ids = torch.tensor([tokens + [0] * (length - len(tokens)) for tokens, *_ in batch])
        starts = torch.tensor([at for _, at, _ in batch])
        places = starts[:, None] + torch.arange(self.rows)
        x = self.table[ids].scatter(1, places[..., None].expand(-1, -1, self.table.shape[1]), rows.bfloat16())
        flat = [number * length + place for number, (*_, learned) in enumerate(batch) for place in learned]
        targets = torch.tensor([tokens[place + 1] for tokens, _, learned in batch for place in learned])
        owner = torch.tensor([number for number, (*_, learned) in enumerate(batch) for _ in learned])
        logits = self.model.logits(self.model.read(x, torch.tensor(flat))).float()
        losses = F.cross_entropy(logits, targets, reduction="none")
        counts = torch.bincount(owner, minlength=len(batch))
        wrong = torch.bincount(owner, (logits.argmax(-1) != targets).float(), len(batch))
        return (losses / counts[owner] ** 0.5).sum() / len(batch), float((wrong == 0).float().mean())


class Course:
    """A run: its folder, its clock and its checkpoints."""

    def __init__(self, folder, seed, begin=None):
        self.folder, self.seed = Path(folder), seed
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(seed)
        self.chat = frozen_chat_model()
        self.eyes = Eyes()
        if begin is not None:
            state = self.eyes.state_dict()
            self.eyes.load_state_dict(eyes_of(begin, {name: tensor.shape for name, tensor in state.items()}))
        rows = self.eyes.config.rows
        self.words, self.asked, self.reading = Words(self.chat, rows), Asked(rows), Reading(self.chat, rows)
        self.pool, self.drawn = [], 0

    def items(self, count, *, start, held_out=False):
        return [
            pictured(Draw(f"{self.seed} {start + i} {held_out}", held_out=held_out), dress, LIGHT) for i in range(count)
        ]

    def numbers(self, items):
        return torch.tensor([COLOUR_NAMES.index(i.colour) for i in items]), torch.tensor(
            [THINGS.index(i.thing) for i in items]
        )

    # words
    def learn_words(self, *, steps, batch=24, rate=0.02):
        """Learn the rows for every colour and thing, from answers alone."""
        optimiser = torch.optim.Adam(self.words.parameters(), lr=rate, betas=(0.9, 0.98))
        state = self._load("words.pt")
        if state:
            self.words.load_state_dict(state["words"])
            optimiser.load_state_dict(state["optimiser"])
        begun = state["step"] if state else 0
        clock = _Saver(
            lambda step: self._save(
                "words.pt", {"words": self.words.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
            )
        )
        for step in range(begun, steps):
            _rate(optimiser, rate * min(1, 2 * (1 - step / steps) + 0.02))
            items = self.items(batch, start=step * batch)
            rows = self.words(*self.numbers(items))
            # What eyes will give is near these rows, and has to be read as well.
            rows = rows + NOISE * rows.detach().std() * torch.randn_like(rows)
            loss, right = self.reading([self.asked(i) for i in items], rows)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if step % 25 == 0 or step == steps - 1:
                print(
                    f"words {step}/{steps} loss {float(loss.detach()):.4f} right {right:.2f} held out {self.judge_words():.3f}",
                    flush=True,
                )
            clock(step + 1)
        clock.now(steps)

    @torch.no_grad()
    def judge_words(self, count=64):
        items = self.items(count, start=10_000_000, held_out=True)
        return self.reading([self.asked(i) for i in items], self.words(*self.numbers(items)))[1]

    # pixels
    def pictures(self, count, fresh):
        """`count` pictures, `fresh` of them never seen before: bytes, and the items."""
        new = self.items(fresh, start=self.drawn)
        self.drawn += fresh
        size = self.eyes.config.size
        made = [(fitted(item.draw(), size), COLOUR_NAMES.index(item.colour), THINGS.index(item.thing)) for item in new]
        rng = random.Random(self.drawn)
        old = [self.pool[rng.randrange(len(self.pool))] for _ in range(count - fresh)] if self.pool else []
        for picture in made:
            if len(self.pool) < POOL:
                self.pool.append(picture)
            else:
                self.pool[rng.randrange(POOL)] = picture
        pixels, colours, things = zip(*made, *old, strict=True)
        return as_input(np.stack(pixels)), torch.tensor(colours), torch.tensor(things)

    def learn_pixels(self, *, steps, batch=192, fresh=64, muon_rate=0.012, adam_rate=2e-3):
        """Train the eyes to give the rows of the words."""
        optimisers = Optimisers(self.eyes, muon_rate, adam_rate)
        state = self._load("pixels.pt")
        if state:
            self.eyes.load_state_dict(state["eyes"])
            optimisers.load_state_dict(state["optimisers"])
            self.drawn = state["drawn"]
        begun = state["step"] if state else 0
        clock = _Saver(
            lambda step: self._save(
                "pixels.pt",
                {
                    "eyes": self.eyes.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "drawn": self.drawn,
                    "step": step,
                },
            )
        )
        target = Target(self.words)
        shown, then = [], time.monotonic()
        for step in range(begun, steps):
            pixels, colours, things = self.pictures(batch, fresh)
            with torch.autocast("cpu", torch.bfloat16):
                rows = self.eyes(pixels)
            loss, right = target(rows.float(), colours, things)
            loss.backward()
            optimisers.step(min(1, (step + 1) / 50, 1.6 * (1 - step / steps) + 0.01))
            shown.append((float(loss.detach()), right))
            if step % 50 == 49:
                losses, rights = zip(*shown, strict=True)
                print(
                    f"pixels {step + 1}/{steps} loss {np.mean(losses):.4f} right {np.mean(rights):.3f} held out {self.judge_pixels(target):.3f} "
                    f"{50 * batch / (time.monotonic() - then):.0f} pictures/s",
                    flush=True,
                )
                shown, then = [], time.monotonic()
            clock(step + 1)
        clock.now(steps)

    @torch.no_grad()
    def judge_pixels(self, target, count=256):
        if not hasattr(self, "kept"):
            items = self.items(count, start=20_000_000, held_out=True)
            self.kept = (
                as_input(np.stack([fitted(i.draw(), self.eyes.config.size) for i in items])),
                *self.numbers(items),
            )
        pixels, colours, things = self.kept
        return target(self.eyes(pixels), colours, things)[1]

    # answers
    def learn_answers(self, *, steps, batch=24, rate=3e-4):
        """Train the eyes on what the chat model says."""
        optimiser = torch.optim.Adam(self.eyes.parameters(), lr=rate, betas=(0.9, 0.98))
        state = self._load("answers.pt")
        if state:
            self.eyes.load_state_dict(state["eyes"])
            optimiser.load_state_dict(state["optimiser"])
        begun = state["step"] if state else 0
        clock = _Saver(
            lambda step: self._save(
                "answers.pt", {"eyes": self.eyes.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
            )
        )
        shown = []
        for step in range(begun, steps):
            _rate(optimiser, rate * min(1, (step + 1) / 20, 1.6 * (1 - step / steps) + 0.01))
            items = self.items(batch, start=30_000_000 + step * batch)
            loss, right = self._answers(items)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            shown.append((float(loss.detach()), right))
            if step % 25 == 24:
                with torch.no_grad():
                    held_out = self._answers(self.items(96, start=40_000_000, held_out=True))[1]
                print(
                    f"answers {step + 1}/{steps} loss {np.mean([s[0] for s in shown]):.4f} right {np.mean([s[1] for s in shown]):.3f} held out {held_out:.3f}",
                    flush=True,
                )
                shown = []
            clock(step + 1)
        clock.now(steps)

    def _answers(self, items):
        pixels = as_input(np.stack([fitted(item.draw(), self.eyes.config.size) for item in items]))
        with torch.autocast("cpu", torch.bfloat16):
            rows = self.eyes(pixels)
        return self.reading([self.asked(i) for i in items], rows)

    def _load(self, name):
        path = self.folder / name
        return torch.load(path, weights_only=True) if path.exists() else None

    def _save(self, name, state):
        path = self.folder / name
        torch.save(state, path.with_suffix(".partial"))
        os.replace(path.with_suffix(".partial"), path)


class Target:
    """How close rows are to their words, compared with all other words."""

    def __init__(self, words):
        self.words = words.requires_grad_(False)
        self.scale = float(words(torch.tensor([0]), torch.tensor([0])).square().mean())

    def __call__(self, rows, colours, things):
        loss = (rows - self.words(colours, things)).square().mean() / self.scale
        colour = self._distances(rows[:, -COLOUR_ROWS - THING_ROWS : -THING_ROWS], self.words.colours)
        thing = self._distances(rows[:, -THING_ROWS:], self.words.things)
        right = (colour.argmax(-1) == colours) & (thing.argmax(-1) == things)
        return 4 * loss + F.cross_entropy(colour, colours) + F.cross_entropy(thing, things), float(right.float().mean())

    def _distances(self, rows, table):
        """The closer, the larger: (batch, number of words)."""
        a, b = rows.flatten(1), table.flatten(1)
        spread = (b - b.mean(0)).square().sum(1).mean()
        return -8 * (a.square().sum(1, keepdim=True) - 2 * a @ b.T + b.square().sum(1)) / spread


class Optimisers:
    """Muon for the matrices of the blocks, Adam for everything else."""

    def __init__(self, eyes, muon_rate, adam_rate):
        named = dict(eyes.named_parameters())
        matrices = [p for name, p in named.items() if p.dim() == 2 and name.startswith("blocks")]
        rest = [p for name, p in named.items() if not (p.dim() == 2 and name.startswith("blocks"))]
        self.muon, self.muon_rate, self.adam_rate = Muon(matrices), muon_rate, adam_rate
        self.adam = torch.optim.AdamW(rest, lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, scale):
        _rate(self.adam, self.adam_rate * scale)
        self.adam.step()
        self.adam.zero_grad()
        self.muon.step(self.muon_rate * scale)
        self.muon.zero_grad()

    def state_dict(self):
        return {"adam": self.adam.state_dict(), "muon": self.muon.momentum}

    def load_state_dict(self, state):
        self.adam.load_state_dict(state["adam"])
        for ours, saved in zip(self.muon.momentum, state["muon"], strict=True):
            ours.copy_(saved)


class _Saver:
    """Calls `save` now and then."""

    def __init__(self, save):
        self.save, self.last = save, time.monotonic()

    def __call__(self, step):
        if time.monotonic() - self.last > CHECKPOINT_SECONDS:
            self.now(step)

    def now(self, step):
        self.save(step)
        self.last = time.monotonic()


def _rate(optimiser, rate):
    for group in optimiser.param_groups:
        group["lr"] = rate


def train_eyes(folder, *, seed=1, threads=1, words=500, pixels=2000, answers=600, begin=None):
    """The whole course, or what of it is left; numbers are steps. `begin`: a GGUF file whose eyes need only learn from
    the answers of a chat model that has changed a little."""
    torch.set_num_threads(threads)
    course = Course(folder, seed, begin)
    if begin is not None:
        course.learn_answers(steps=answers)
        return
    course.learn_words(steps=words)
    course.learn_pixels(steps=pixels)
    course.learn_answers(steps=answers)
