"""Training: the loop, its clock and its checkpoints.

Owns a run folder: `last.pt` is the newest full state at the full learning rate, with a running average of the weights
that shows how good they would be; `cooled.pt` holds the weights after a cooldown. A run that is killed resumes from
`last.pt`. The cooldown never touches `last.pt`, so training can go on after an export as if it had not happened.
"""

import fcntl
import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F

from llamasrv.demo.export import model_of
from llamasrv.demo.model import Config, DemoModel, begin_spelling, grow
from llamasrv.demo.tokenizer import vocabulary_and_merges
from llamasrv.demo.train_batches import SKILL_NUMBERS, DocumentBatches, Workers, copying
from llamasrv.demo.train_optimiser import Optimiser

COPY_STEPS = 30
REHEARSAL = 0.15  # of the batches later on are copying, too: without it the network forgets how within minutes
WARM_UP_STEPS = 20
AVERAGE_EVERY, AVERAGE_SHARE = 5, 0.04  # over about the last 125 steps
BATCHES_PER_STEP = 4
CHECKPOINT_SECONDS = 60
REPORT_SECONDS = 20


class TrainingRun:
    """The state of a training run: what a checkpoint holds."""

    def __init__(
        self,
        folder,
        *,
        seed,
        device,
        batch_tokens,
        workers,
        threads,
        shares=None,
        begin=None,
        layers=None,
        keep=1.0,
        dtype=torch.bfloat16,
    ):
        self.dtype = dtype
        self.folder, self.seed, self.device, self.batch_tokens = Path(folder), seed, device, batch_tokens
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.folder / "lock")
        torch.manual_seed(seed)
        self.model = DemoModel() if layers is None else DemoModel(Config(layers=layers))
        if begin is None:
            begin_spelling(self.model, vocabulary_and_merges()[0])
        else:
            self._begin_from(begin)
        self.model.to(device)
        # One batch a thread: beside other busy processes, threads that share each product would wait for the unluckiest.
        torch.set_num_threads(1)
        self.pool = ThreadPoolExecutor(
            threads if device == "cpu" else 1, initializer=torch.set_num_threads, initargs=(1,)
        )
        self.optimiser = Optimiser(self.model, self.pool.map, dtype, keep)
        self.step, self.tokens = 0 if begin is None else COPY_STEPS, 0
        self.seconds = 0.0
        self.average = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.taken = self._load()
        if workers:
            self.batches = Workers(workers, batch_tokens, seed=seed, taken=self.taken, shares=shares)
        else:
            self.batches = DocumentBatches(batch_tokens, seed=seed, taken=self.taken, shares=shares)

    def _begin_from(self, path):
        state = model_of(path).state_dict()
        if len(state) == len(self.model.state_dict()):
            self.model.load_state_dict(state)
        else:
            grow(self.model, state)

    def _load(self):
        path = self.folder / "last.pt"
        if not path.exists():
            return 0
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average = state.get("average") or {n: t.clone() for n, t in state["model"].items()}
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        return state["taken"]

    def save(self, name="last.pt"):
        state = {
            "model": self.model.state_dict(),
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "taken": self.taken,
        }
        write_atomically(state, self.folder / name)

    def next_batch(self):
        rng = random.Random(f"copying {self.seed} {self.step} {self.tokens}")
        if self.step < COPY_STEPS or rng.random() < REHEARSAL:
            return copying(self.batch_tokens, self.model.config.vocabulary, rng)
        batch = self.batches.next()
        self.taken = max(self.taken, batch.taken)
        return batch

    def learn(self, rate):
        """One step. Returns the mean loss, and sums and counts of losses by the number of the skill."""
        batches = [self.next_batch().to(self.device) for _ in range(BATCHES_PER_STEP)]
        total_weight = sum(b.weights.sum() for b in batches)
        loss_sum, kinds = 0.0, len(SKILL_NUMBERS)
        sums, counts = torch.zeros(kinds, device=self.device), torch.zeros(kinds, device=self.device)
        for batch, losses in zip(
            batches, self.pool.map(lambda batch: self._backward(batch, total_weight), batches), strict=True
        ):
            loss_sum += (losses * batch.weights).sum() / total_weight
            self.tokens += batch.tokens.numel()
            sums += torch.bincount(batch.skills, losses, kinds)
            counts += torch.bincount(batch.skills, minlength=kinds)
        self.optimiser.step(rate)
        self.step += 1
        if self.step % AVERAGE_EVERY == 0:
            for name, tensor in self.model.state_dict().items():
                self.average[name].lerp_(tensor, AVERAGE_SHARE)
        return float(loss_sum), (sums.tolist(), counts.tolist())

    def _backward(self, batch, total_weight):
        hidden = self.model(batch.tokens, batch.positions, self.dtype)
        losses = F.cross_entropy(self.model.logits(hidden).float(), batch.targets, reduction="none")
        ((losses * batch.weights).sum() / total_weight).backward()
        return losses.detach()


def train(
    folder,
    *,
    hours,
    cooldown_minutes,
    seed,
    threads,
    device,
    batch_tokens,
    pause_file,
    rate,
    workers,
    shares=None,
    begin=None,
    layers=None,
    keep=1.0,
    float32=False,
):
    run = TrainingRun(
        folder,
        seed=seed,
        device=device,
        batch_tokens=batch_tokens,
        workers=workers,
        threads=threads,
        shares=shares,
        begin=begin,
        layers=layers,
        keep=keep,
        dtype=torch.float32 if float32 else torch.bfloat16,
    )
    clock = Clock(hours * 3600, cooldown_minutes * 60, pause_file)
    progress = TrainingProgress(run, clock)
    saved = time.monotonic()
    cooling, first = False, run.step
    while clock.left() > 0:
        clock.tick()
        if not cooling and clock.cooling():
            run.save()
            cooling = True
        warm = min(1.0, (run.step - first + 1) / WARM_UP_STEPS)
        loss, by_skill = run.learn(rate * warm * clock.rate())
        run.seconds += clock.tick()
        progress.note(loss, by_skill)
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            run.save("cooled.pt" if cooling else "last.pt")
            saved = time.monotonic()
    run.save("cooled.pt" if cooling else "last.pt")


class Clock:
    """Working time: time spent paused does not count."""

    def __init__(self, seconds, cooldown, pause_file):
        self.seconds, self.cooldown, self.pause_file = seconds, cooldown, pause_file
        self.spent = 0.0
        self.last = time.monotonic()

    def tick(self):
        """Wait while the pause file exists; count and return the working seconds since the last tick."""
        now = time.monotonic()
        worked = now - self.last
        self.spent += worked
        while self.pause_file and os.path.exists(self.pause_file):
            time.sleep(1)
        self.last = time.monotonic()
        return worked

    def left(self):
        return self.seconds - self.spent

    def cooling(self):
        return self.cooldown > 0 and self.left() < self.cooldown

    def rate(self):
        return max(0.01, min(1.0, self.left() / self.cooldown)) if self.cooldown else 1.0


class TrainingProgress:
    """A bar on a terminal, a line now and then in a log, and the losses per skill in the run folder."""

    def __init__(self, run, clock):
        self.run, self.clock = run, clock
        self.loss, self.skills = None, {}
        self.shown, self.tokens_then, self.spent_then = time.monotonic(), run.tokens, 0.0

    def note(self, loss, by_skill):
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        for skill, total, count in zip(SKILL_NUMBERS, *by_skill, strict=True):
            if not count:
                continue
            mean = total / count
            self.skills[skill] = 0.9 * self.skills.get(skill, mean) + 0.1 * mean
        terminal = sys.stderr.isatty()
        if time.monotonic() - self.shown < (0.5 if terminal else REPORT_SECONDS):
            return
        run, clock = self.run, self.clock
        speed = (run.tokens - self.tokens_then) / max(1e-9, clock.spent - self.spent_then)
        done = min(1.0, clock.spent / clock.seconds)
        bar = "#" * round(24 * done) + "." * (24 - round(24 * done))
        minutes, seconds = divmod(max(0, int(clock.left())), 60)
        line = (
            f"[{bar}] step {run.step}  loss {self.loss:.4f}  {run.tokens / 1e6:.2f} M tokens  "
            f"{speed:,.0f} tokens/s  {minutes}:{seconds:02d} left{'  cooling' if clock.cooling() else ''}"
        )
        print(line, end="\r" if terminal else "\n", file=sys.stderr, flush=True)
        self.shown, self.tokens_then, self.spent_then = time.monotonic(), run.tokens, clock.spent
        losses = dict(sorted(self.skills.items(), key=lambda item: -item[1]))
        (run.folder / "losses.json").write_text(json.dumps(losses, indent=1))


def lock(path):
    """Held until the process ends: two trainings of one run would overwrite each other's checkpoints."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SystemExit(f"another process trains in {path.parent}") from None
    return file


def write_atomically(state, path):
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, path)
