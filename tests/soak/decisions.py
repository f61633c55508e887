"""CPU seconds of 400 questions over 4,000 tokens, against the library alone on the very same rows, in turns.

    SOAK_MODEL=MODEL.gguf pytest -s tests/soak/decisions.py

The library computes the input once and each question as a copy of its sequence, as many in a batch as there are rows.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from functools import partial

import llama_cpp as C
import pytest
import tiny_models
from decisions import asked, choice
from engine_by_hand import HandEngine
from serving import wait_until

from llamasrv.domain.decide import DecisionSettings
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.engine import EngineOptions
from llamasrv.models.model import Model, ModelSettings
from llamasrv.models.registry import Registry
from llamasrv.pipeline import Pipeline

QUESTIONS, TOKENS = 400, 4000
WORDS = "the red dog ate my blue letter and paid twice for order 12 in Paris yesterday so I want money back".split()
TURNS = 3
THREADS, BATCH, LANES, CELLS = 1, 512, 64, 16384


class Server:
    def __init__(self, path: str) -> None:
        options = EngineOptions(context_cells=CELLS, threads=THREADS, parallel=8, batch_size=BATCH, ubatch_size=BATCH)
        self.engine = HandEngine(partial(open_model, path, options), options, name="model")
        self.engine.start()
        wait_until(lambda: self.engine.status.state != "loading", 120)
        model = Model("model", ModelSettings(decisions=DecisionSettings(0.0)), engine=self.engine)
        self.pipeline = Pipeline(Registry([model]))

    def decide(self, text: str) -> tuple[float, int, list[list[int]]]:
        """(CPU seconds, prompt tokens that were computed, all rows)"""
        questions = [choice(f"Question {n}: which of these is it?", "a", "b", "c") for n in range(QUESTIONS)]
        self.engine.arrived.clear()
        before, began = self.engine.metrics.prompt_tokens, time.process_time()
        self.pipeline.submit_decide(asked(text, *questions)).result()
        seconds = time.process_time() - began
        computed = self.engine.metrics.prompt_tokens - before
        return seconds, computed, [list(seq.spec.tokens) for seq in self.engine.arrived]


class Library:
    def __init__(self, path: str) -> None:
        self.model = C.llama_model_load_from_file(path.encode(), C.llama_model_default_params())
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = CELLS, BATCH, BATCH, LANES
        params.n_threads = params.n_threads_batch = THREADS
        params.kv_unified = True
        self.context = C.llama_init_from_model(self.model, params)
        self.memory = C.llama_get_memory(self.context)
        self.batch = C.llama_batch_init(BATCH, 0, 1)

    def decide(self, prompts: list[list[int]]) -> float:
        C.llama_memory_clear(self.memory, False)
        shared = shared_by(prompts)
        began = time.process_time()
        for at in range(0, shared, BATCH):
            self._decode([(t, at + i, 0, False) for i, t in enumerate(prompts[0][at : min(at + BATCH, shared)])])
        rows: list[tuple[int, int, int, bool]] = []
        lane = 0
        for prompt in prompts:
            own = prompt[shared:]
            if len(rows) + len(own) > BATCH or lane == LANES - 1:
                self._decode(rows)
                for used in range(1, lane + 1):
                    C.llama_memory_seq_rm(self.memory, used, -1, -1)
                rows, lane = [], 0
            lane += 1
            C.llama_memory_seq_cp(self.memory, 0, lane, -1, -1)
            rows += [(t, shared + i, lane, i == len(own) - 1) for i, t in enumerate(own)]
        self._decode(rows)
        return time.process_time() - began

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, lane, is_read) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, is_read
            batch.seq_id[i][0] = lane
        assert C.llama_decode(self.context, batch) == 0
        C.llama_synchronize(self.context)


@pytest.mark.timeout(0)
def test_questions_take_what_their_rows_take(tmp_path):
    """The input is computed once, and all takes at most 1.3 times what the library takes."""
    path = os.environ.get("SOAK_MODEL") or str(tiny_models.llama(tmp_path / "model.gguf", context=8192))
    server, library = Server(path), Library(path)
    dice, ratios = random.Random(1), []
    for turn in range(TURNS):
        text = f"Input {turn}. "
        while len(server.pipeline.peek(None).vocab.tokenize(text)) < TOKENS:
            text += " ".join(dice.choices(WORDS, k=50)) + " "
        ours, computed, prompts = server.decide(text)
        alone = library.decide(prompts)
        shared = shared_by(prompts)
        least = shared + sum(len(prompt) - shared for prompt in prompts)
        ratios.append(ours / alone)
        print(
            f"{len(prompts)} rows read, input {shared} tokens; computed {computed} of at least {least}; "
            f"server {ours:.2f} s, library {alone:.2f} s, ratio {ours / alone:.2f}",
            flush=True,
        )
        assert computed <= least + 8 * len(prompts)
    server.engine.stop(10)
    assert statistics.median(ratios) <= 1.3


def shared_by(prompts: list[list[int]]) -> int:
    """The tokens at the beginning of all."""
    return next(i for i in range(len(prompts[0])) if len({prompt[i] for prompt in prompts}) > 1)
