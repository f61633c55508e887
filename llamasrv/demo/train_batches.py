"""Batches for training: random strings to copy first, then documents of the corpus.

Owns shapes: a batch is whole documents of about one length, one a row, so that nothing is computed for padding or
across documents. Owns the processes that make batches for a GPU, which outruns one of them. Knows nothing of optimisers.
"""

import random
from dataclasses import dataclass

import torch
import torch.multiprocessing

from llamasrv.demo.corpus import SKILLS, documents
from llamasrv.demo.tokenizer import load_tokenizer

LENGTHS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024)
POOL = 96
COPY_WEIGHT = 0.2  # of a token: a batch of copying then counts about as much as one of documents
SKILL_NUMBERS = {skill: number for number, skill in enumerate((*SKILLS, "copying"))}


@dataclass
class TrainingBatch:
    """`tokens` (rows, length); `positions` are flat places whose next token is learned: `targets`, with `weights`."""

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    skills: torch.Tensor  # the number of each target's skill
    taken: int = 0  # how far in the corpus its maker was

    def to(self, device):
        tensors = (self.tokens, self.positions, self.targets, self.weights, self.skills)
        return TrainingBatch(*(tensor.to(device) for tensor in tensors), self.taken)


def copying(batch_tokens, vocabulary, rng):
    """Chunks of random tokens, then the same chunks in another order: how a chunk continues can only be learned by
    looking back for its beginning.

    In half of the batches a mark that all chunks share follows their first token, so that the token before the mark
    has to be looked for.
    """
    length, marked = rng.choice((48, 64, 96, 128, 192)), rng.random() < 0.5
    rows = max(1, batch_tokens // length)
    tokens, positions, targets = torch.zeros(rows, length, dtype=torch.long), [], []
    for row in range(rows):
        text, places = _chunks(rng.sample(range(vocabulary), length), length, marked, rng)
        tokens[row] = torch.tensor(text)
        positions += [row * length + place - 1 for place in places]
        targets += [text[place] for place in places]
    skills = torch.full((len(targets),), SKILL_NUMBERS["copying"])
    return TrainingBatch(
        tokens, torch.tensor(positions), torch.tensor(targets), torch.full((len(targets),), COPY_WEIGHT), skills
    )


def _chunks(fresh, length, marked, rng):
    """(text, its learned places): chunks, then as many of them in another order as there is room for."""
    mark, chunks, size = fresh.pop(), [], 0
    while size < length // 2 - 8:
        chunk = [fresh.pop() for _ in range(rng.choice((2, 2, 2, 3, 5)))]
        if marked:
            chunk.insert(1, mark)
        chunks.append(chunk)
        size += len(chunk)
    text, places = [token for chunk in chunks for token in chunk], []
    while len(text) < length:
        for chunk in rng.sample(chunks, len(chunks)):
            places += range(len(text) + 1, len(text) + len(chunk))
            text += chunk
    return text[:length], [place for place in places if place < length]


class DocumentBatches:
    """An endless stream of batches. `taken` counts documents, so that a resumed run goes on behind them."""

    def __init__(self, batch_tokens, *, seed, taken=0, worker=0, workers=1, shares=None):
        self.documents = documents(seed, start=taken + worker, stride=workers, shares=shares)
        self.encode, self.batch_tokens = load_tokenizer().encode_document, batch_tokens
        self.taken, self.stride = taken, workers
        self.rng = random.Random(f"{seed} {taken} {worker}")
        self.buckets = {length: [] for length in LENGTHS}
        self.pool = []

    def next(self):
        # Short documents fill their buckets in bursts; drawing from a pool keeps a step's mixture even.
        while len(self.pool) < POOL:
            self._fill()
        batch = self.pool.pop(self.rng.randrange(len(self.pool)))
        batch.taken = self.taken
        return batch

    def _fill(self):
        document = next(self.documents)
        self.taken += self.stride
        tokens, learned = self.encode(document)
        length = next((n for n in LENGTHS if n >= len(tokens) - 1), None)
        if length is None:
            return
        bucket = self.buckets[length]
        bucket.append((tokens, learned, document.skill))
        if len(bucket) >= max(1, self.batch_tokens // length):
            self.pool.append(_collate(bucket, length))
            self.buckets[length] = []


class Workers:
    """The same stream, made by several processes at once. Each makes every n-th document."""

    def __init__(self, count, batch_tokens, *, seed, taken, shares=None):
        context = torch.multiprocessing.get_context("spawn")
        self.queue = context.Queue(4 * count)
        for worker in range(count):
            options = {"seed": seed, "taken": taken, "worker": worker, "workers": count, "shares": shares}
            context.Process(target=_work, args=(self.queue, batch_tokens, options), daemon=True).start()

    def next(self):
        return self.queue.get()


def _work(queue, batch_tokens, options):
    torch.set_num_threads(1)
    batches = DocumentBatches(batch_tokens, **options)
    while True:
        queue.put(batches.next())


def _collate(rows, length):
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    positions, targets, weights, skills = [], [], [], []
    for row, (ids, learned, skill) in enumerate(rows):
        kept = min(len(ids), length)
        tokens[row, :kept] = torch.tensor(ids[:kept])
        places = [i - 1 for i in range(1, len(ids)) if learned[i]]
        positions += [row * length + i for i in places]
        targets += [ids[i + 1] for i in places]
        # A document counts by the root of its whole length, however few of its tokens are learned: a call of a tool that
        # was found in a long prompt is worth more than a greeting, and a story must not drown fifty one-word answers.
        weights += [len(ids) ** 0.5 / len(places)] * len(places)
        skills += [SKILL_NUMBERS[skill]] * len(places)
    return TrainingBatch(tokens, *(torch.tensor(column) for column in (positions, targets, weights, skills)))
