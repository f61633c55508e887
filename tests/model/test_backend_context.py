import dataclasses
import os
import pathlib
import random
import threading
from array import array

import gguf
import numpy as np
import pytest
import tiny_models

from llamasrv.domain.params import SAMPLERS, SamplingParams, samplers_of
from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.backend import library
from llamasrv.engine.backend.context import LlamaBackend, open_model
from llamasrv.engine.base.interface import Adapter, DecodeFailed, LoadFailed, OutOfCells
from llamasrv.engine.engine import EngineOptions
from llamasrv.engine.sampling.candidates import CandidateFinder
from llamasrv.engine.sampling.state import SamplingState
from llamasrv.models.details import describe
from llamasrv.models.gguf import read_header

OPTIONS = EngineOptions(context_cells=512, batch_size=256, ubatch_size=64, threads=1, parallel=4)


@pytest.fixture
def backend(model_path):
    backend = open_model(model_path("llama"), OPTIONS, lambda share: True)
    yield backend
    backend.close()


def compute(backend, lane, tokens, start=0):
    n = len(tokens)
    b = backend.batch
    b.token[:n], b.position[:n], b.lane[:n], b.wants_logits[:n] = tokens, range(start, start + n), lane, 0
    b.wants_logits[n - 1] = 1
    b.num_rows, b.num_outputs = n, 1
    backend.decode()
    return backend.logits(1)[0].copy()


# loading


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "half"])
def test_a_file_that_is_not_a_model_is_refused_by_name(model_path, tmp_path, damage):
    path = tmp_path / "bad.gguf"
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
    elif damage == "half":
        whole = pathlib.Path(model_path("llama")).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadFailed, match="bad.gguf: .+"):
        open_model(str(path), OPTIONS, lambda share: True)


@pytest.fixture
def freed(monkeypatch):
    """Models that were freed."""
    found = []
    free = library.C.llama_model_free
    monkeypatch.setattr(library.C, "llama_model_free", lambda model: (found.append(model), free(model)))
    return found


def test_a_load_that_fails_late_frees_the_weights(model_path, tmp_path, freed):
    """An unreadable adapter left its model in memory, each time it was tried."""
    path = tmp_path / "adapter.gguf"
    path.write_bytes(b"nothing")
    options = dataclasses.replace(OPTIONS, adapters=(Adapter("a", str(path)),))
    with pytest.raises(LoadFailed, match="adapter.gguf"):
        open_model(model_path("llama"), options, lambda share: True)
    assert len(freed) == 1


def test_a_model_is_warmed_up_with_one_step(model_path, monkeypatch):
    """Warming up with six steps of up to 57 rows taught nothing that the first requests do not teach; a model that
    takes seconds per step was ready that much later."""
    steps, decode = [], LlamaBackend.decode
    monkeypatch.setattr(LlamaBackend, "decode", lambda self: (steps.append(self.batch.num_rows), decode(self)))
    backend = open_model(model_path("llama"), OPTIONS, lambda share: True)
    backend.close()
    assert steps == [1]


def test_a_warm_up_that_fails_frees_the_weights(model_path, freed, monkeypatch):
    def fail(backend):
        raise DecodeFailed("no")

    monkeypatch.setattr(LlamaBackend, "decode", fail)
    with pytest.raises(DecodeFailed):
        open_model(model_path("llama"), OPTIONS, lambda share: True)
    assert len(freed) == 1


def test_without_a_warm_up_nothing_is_computed(model_path, monkeypatch):
    """--no-warmup, with which large models are often started, was refused."""
    steps = []
    decode = LlamaBackend.decode
    monkeypatch.setattr(LlamaBackend, "decode", lambda self: (steps.append(self), decode(self)))
    for warmup in (False, True):
        open_model(model_path("llama"), dataclasses.replace(OPTIONS, warmup=warmup), lambda share: True).close()
        assert len(steps) == warmup


def test_two_concurrent_failures_report_their_own_reasons(tmp_path, monkeypatch):
    """The library's last error was kept per process: models loading at the same time reported each other's reason."""
    names = ("frobnicator", "defribulator")
    for name in names:
        writer = gguf.GGUFWriter(str(tmp_path / f"{name}.gguf"), name)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    both = threading.Barrier(2, timeout=30)
    load = library.C.llama_model_load_from_file

    def load_and_wait(*arguments):
        model = load(*arguments)
        both.wait()  # until the other one has failed, too
        return model

    monkeypatch.setattr(library.C, "llama_model_load_from_file", load_and_wait)
    reasons = {}

    def fail(name):
        with pytest.raises(LoadFailed) as caught:
            open_model(str(tmp_path / f"{name}.gguf"), OPTIONS, lambda share: True)
        reasons[name] = str(caught.value)

    threads = [threading.Thread(target=fail, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(f"architecture: '{name}'" in reasons[name] for name in names), reasons


def test_a_model_whose_pooling_is_unspecified_generates(tmp_path):
    """llama.cpp's own saver writes -1 as unsigned; that was taken for a pooling, and the model refused to generate."""
    path = tiny_models.llama(tmp_path / "m.gguf", pooling=2**32 - 1)
    assert not read_header(path).only_embeds and "completion" in describe(read_header(path)).capabilities
    backend = open_model(str(path), OPTIONS, lambda share: True)
    assert backend.generates and backend.embeddings is None
    backend.close()


def test_an_unknown_architecture_is_named(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "odd.gguf"), "frobnicator")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadFailed, match="odd.gguf: .*unknown model architecture: 'frobnicator'"):
        open_model(str(tmp_path / "odd.gguf"), OPTIONS, lambda share: True)


def test_loading_reports_progress_and_can_be_aborted(model_path):
    seen = []
    open_model(model_path("llama"), OPTIONS, lambda share: seen.append(share) or True).close()
    assert seen == sorted(seen) and seen[-1] == 1.0 and len(seen) > 2
    with pytest.raises(LoadFailed):
        open_model(model_path("llama"), OPTIONS, lambda share: False)


def test_info_contains_the_files_metadata(backend):
    info = backend.info
    assert (info.name, info.architecture, info.context_train, info.n_embd, info.n_layer) == (
        "tiny-llama",
        "llama",
        2048,
        64,
        2,
    )
    assert info.n_vocab == backend.vocab.size and info.chat_template.startswith("{% for m")
    assert (info.bos_token, info.eos_token) == ("<s>", "<|im_end|>")
    assert info.num_params > 50_000 and info.size_bytes > 4 * info.num_params * 0.9


def test_the_authors_sampling_is_read(tmp_path):
    import tiny_models

    path = tmp_path / "m.gguf"
    add = tiny_models.Builder.ends

    def ends(self, *args):
        self.w.add_float32("general.sampling.temp", 0.3)
        self.w.add_int32("general.sampling.top_k", 7)
        add(self, *args)

    tiny_models.Builder.ends = ends
    try:
        tiny_models.llama(path)
    finally:
        tiny_models.Builder.ends = add
    backend = open_model(str(path), OPTIONS, lambda share: True)
    assert backend.info.sampling_defaults == {"temperature": pytest.approx(0.3), "top_k": 7}
    backend.close()


# vocabulary


@pytest.mark.parametrize("text", ["hello the world", "ünï¢ödé 漢字 🦙", "a\nb\t\r\n", "nul\0byte", "", "x" * 5000])
def test_tokens_and_text_round_trip(backend, text):
    vocab = backend.vocab
    assert b"".join(vocab.pieces[t] for t in vocab.tokenize(text)).decode() == text


def test_a_long_text_becomes_tokens_in_slices_and_none_is_lost(backend):
    """One slice of all tokens would hold the GIL for 50 ms in 4 MB of text."""
    text = "漢字🦙" * 20_000
    tokens = backend.vocab.tokenize(text)
    assert len(tokens) > 4 * 32_768
    assert b"".join(map(backend.vocab.pieces.__getitem__, tokens)).decode() == text


def test_all_pieces_equal_each_tokens_piece(backend):
    pieces = backend.vocab.pieces
    assert pieces.all() == [pieces[t] for t in range(backend.vocab.size)]


@pytest.mark.parametrize("token", [-1, 1 << 20])
def test_an_invalid_token_has_no_piece(backend, token):
    """The library would abort."""
    with pytest.raises(IndexError):
        backend.vocab.pieces[token]


def test_special_tokens_are_parsed_only_on_request(backend):
    vocab = backend.vocab
    assert len(vocab.tokenize("<|im_start|>")) == 1
    assert len(vocab.tokenize("<|im_start|>", parse_special=False)) > 1
    assert vocab.is_control(vocab.tokenize("<|im_start|>")[0]) and vocab.pieces[3] == b""
    assert vocab.eog >= {4}


# memory


def test_logits_are_rows_in_batch_order(backend):
    alone = [compute(backend, lane, [5 + lane, 6, 7]) for lane in range(2)]
    for lane in range(2):
        backend.clear(lane)
    b = backend.batch
    b.token[:6], b.position[:6], b.lane[:6] = [6, 6, 7, 5, 6, 7], [0, 1, 2, 0, 1, 2], [1, 1, 1, 0, 0, 0]
    b.wants_logits[:6] = [0, 0, 1, 0, 0, 1]
    b.num_rows, b.num_outputs = 6, 2
    backend.decode()
    rows = backend.logits(2)
    assert np.allclose(rows[0], alone[1], atol=0.01) and np.allclose(rows[1], alone[0], atol=0.01)


def test_a_copied_prefix_continues_as_if_computed(backend):
    rng = random.Random(1)
    tokens = [rng.randrange(5, 300) for _ in range(40)]
    expected = compute(backend, 0, tokens)
    backend.copy(0, 1, 30)
    assert backend.length(1) == 30
    assert np.allclose(compute(backend, 1, tokens[30:], 30), expected, atol=0.15)


def test_a_saved_state_is_restored_exactly(backend):
    tokens = list(range(10, 50))
    compute(backend, 0, tokens)
    saved = backend.save(0)
    expected = compute(backend, 0, [99], 40)
    backend.clear(0)
    assert backend.restore(0, saved)
    assert np.array_equal(compute(backend, 0, [99], 40), expected)


def test_a_lane_is_cut_back(backend):
    tokens = list(range(10, 50))
    expected = compute(backend, 0, tokens)
    compute(backend, 0, [100, 101, 102], 40)
    assert backend.cut(0, 39)
    assert np.allclose(compute(backend, 0, [49], 39), expected, atol=0.15)


def test_rows_of_a_batch_keep_their_window(model_path):
    """Cells for the last ubatch of a batch were taken from the window of the first; log-probabilities were off by 3."""
    exact = dict(cache_type_k="f32", cache_type_v="f32", flash_attn="off")
    options = dataclasses.replace(OPTIONS, context_cells=1024, parallel=1, **exact)
    backend = open_model(model_path("swa"), options, lambda share: True)
    tokens = np.random.default_rng(0).integers(265, 360, 272).tolist()
    whole = dataclasses.replace(options, batch_size=512, ubatch_size=512)
    alone = open_model(model_path("swa"), whole, lambda share: True)
    # Where the window's cells are not in the order of its positions: the first ones have 16 to 31, the next 0 to 15.
    compute(backend, 1, tokens[:16])
    compute(backend, 0, tokens[:16])
    backend.clear(1)
    compute(backend, 0, tokens[16:32], 16)
    rows = backend.batch.capacity
    for start in range(32, 272, rows):
        last = compute(backend, 0, tokens[start : min(start + rows, 272)], start)
    assert np.abs(last - compute(alone, 0, tokens)).max() < 1e-3
    backend.close(), alone.close()


def test_out_of_cells_is_raised_and_changes_nothing(backend):
    for start in (0, 256):
        compute(backend, 0, [7] * 256, start)
    with pytest.raises(OutOfCells):
        compute(backend, 1, [7, 8])
    assert backend.length(0) == 512 and backend.length(1) == 0
    backend.clear(0)
    compute(backend, 1, [7, 8])


@pytest.mark.parametrize("rows, lane", [(257, 0), (1, 99), (1, -1), (0, 0)])
def test_calls_that_would_abort_raise_before(backend, rows, lane):
    b = backend.batch
    b.lane[: min(rows, b.capacity)] = lane
    b.num_rows, b.num_outputs = rows, 0
    with pytest.raises(AssertionError):
        backend.decode()


# samplers


def sampling(params, prompt, backend):
    """The sampling of a sequence with this prompt."""
    tokens = array("i", prompt)
    return SamplingState(SequenceSpec(tokens[:], params=params), tokens, None, backend)


def full_chain_choice(backend, params, row):
    """The chain's choice when it sees the whole vocabulary."""
    chain = backend.chain(params)
    token = chain.choose(np.arange(len(row)), row.copy())
    chain.close()
    return token


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"temperature": 1.5, "min_p": 0.0, "top_p": 1.0},
        {"top_k": 1000, "min_p": 0.0},
        {"typical_p": 0.7},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"dynatemp_range": 0.5},
        {"top_n_sigma": 1.0},
        {"min_keep": 60, "top_p": 0.01},
        {"samplers": ("temperature", "top_k", "min_p")},
        {"samplers": ("min_p", "top_k", "temperature")},
        {"mirostat": 1},
        {"mirostat": 2},
        {"top_k": 0},
        {"samplers": ("adaptive_p", "top_k", "temperature"), "adaptive_target": 0.2},
    ],
)
def test_preselected_candidates_do_not_change_the_choice(backend, change):
    """The choice among candidates is the choice among all tokens, for the same seed."""
    n = 32_000
    find = CandidateFinder(n)
    for seed in range(30):
        params = SamplingParams(seed=seed, **change)
        row = np.random.default_rng(seed).standard_normal(n).astype(np.float32) * 3
        sampler = sampling(params, [1, 2, 3], backend)
        assert sampler.choose(row.copy(), find).token == full_chain_choice(backend, params, row)
        sampler.close()


@pytest.mark.parametrize("order", [("top_k", "top_p", "infill"), ("infill",)])
def test_infill_is_used_only_if_a_request_lists_it(backend, order):
    """Editors send "infill" with each request to /infill, and got a 400 for an unknown sampler."""
    n, end = backend.vocab.size, backend.vocab.eos
    find = CandidateFinder(n)
    params = SamplingParams(seed=1, samplers=order)
    sampler = sampling(params, [1, 2, 3], backend)
    row = np.full(n, -20, np.float32)
    row[300:320] = 1.0
    assert sampler.choose(row.copy(), find).token == end  # nothing is likely enough to go on
    row[330] = 9.0
    assert sampler.choose(row.copy(), find).token == 330
    sampler.close()
    sampler = sampling(params._replace(ignore_eos=True), [1, 2, 3], backend)
    row[330] = -20
    assert sampler.choose(row.copy(), find).token in range(300, 320)  # where it may not end, it goes on
    sampler.close()


def test_every_sampler_can_be_built(backend):
    on = {"top_n_sigma": 1.0, "typical_p": 0.9, "xtc_probability": 0.5, "dry_multiplier": 0.8, "repeat_penalty": 1.1}
    params = SamplingParams(seed=1, samplers=tuple(SAMPLERS), **on)
    assert [kind.name for kind in samplers_of(params)] == list(SAMPLERS)
    chain = backend.chain(params)
    assert 0 <= chain.choose(np.arange(300), np.zeros(300, np.float32)) < backend.vocab.size
    chain.close()


def test_adaptive_p_aims_at_a_probability(backend):
    """It was refused as an unknown sampler."""
    row = np.log(0.8 ** np.arange(20, dtype=np.float32))
    find, share = CandidateFinder(20), np.exp(row) / np.exp(row).sum()
    found = []
    for target in (0.02, 0.19):
        params = SamplingParams(
            seed=1, temperature=1, samplers=("temperature", "adaptive_p"), adaptive_target=target, adaptive_decay=0.5
        )
        sampler = sampling(params, [1, 2, 3], backend)
        found.append(np.mean([share[sampler.choose(row.copy(), find).token] for _ in range(200)]))
        sampler.close()
    assert found[0] + 0.05 < found[1], found


@pytest.mark.parametrize("cut", [
    {"top_k": 5}, {"top_k": 0}, {"top_k": 0, "top_p": 1.0, "min_p": 0.05}, {"top_k": 0, "top_p": 1.0, "min_p": 1e-9},
    {"top_k": 0, "samplers": ("min_p", "penalties", "top_p"), "min_p": 0.2}, {"top_k": 1024}, {"temperature": 0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "penalties",
    [
        {},
        {"repeat_penalty": 1.5, "presence_penalty": -3.0, "frequency_penalty": 0.5, "repeat_last_n": -1},
        {"dry_multiplier": 5.0},
        {"presence_penalty": 40.0},
    ],
    ids=str,
)
def test_choices_among_candidates_equal_choices_among_all(backend, cut, penalties):
    n = 32_000
    find = CandidateFinder(n)
    for seed in range(6):
        params = SamplingParams(**{"seed": seed, **cut, **penalties})
        row = np.random.default_rng(seed).standard_normal(n).astype(np.float32) * 3
        prompt = np.random.default_rng(seed + 99).integers(0, 300, 50).tolist()
        row[prompt[:20]] += 9
        chain = backend.chain(params)
        for token in prompt:
            chain.accept(token)
        expected = chain.choose(np.arange(n), row.copy())
        chain.close()
        sampler = sampling(params, prompt, backend)
        assert sampler.choose(row.copy(), find).token == expected
        sampler.close()


def test_dry_keeps_a_sequence_from_repeating_itself(backend):
    chain = backend.chain(SamplingParams(seed=1, temperature=0.0, dry_multiplier=5.0, dry_sequence_breakers=()))
    for token in [50, 51, 52, 53, 60, 50, 51, 52]:
        chain.accept(token)
    assert chain.choose(np.array([53, 54]), np.array([5.0, 4.0], np.float32)) == 54
    chain.close()


def test_dry_samplers_search_the_vocabulary_once(backend, monkeypatch):
    """Each of 16 choices searched the whole vocabulary for each breaker, which took minutes for a large one."""
    made = []
    C = library.C
    init = C.llama_sampler_init_dry
    monkeypatch.setattr(C, "llama_sampler_init_dry", lambda *args: (made.append(args), init(*args))[1])
    params = SamplingParams(seed=1, temperature=0.0, dry_multiplier=5.0, dry_sequence_breakers=("e", "th", ":"))
    chains = [backend.chain(params) for _ in range(5)]
    for number, chain in enumerate(chains):
        for token in [50, 51, 52, 53, 60, 50, 51, 52][: 4 * number]:
            chain.accept(token)
    chosen = [chain.choose(np.array([53, 54]), np.array([5.0, 4.0], np.float32)) for chain in chains]
    assert chosen == [53, 53, 54, 54, 54] and len(made) == 1, "each has its own past"
    for _ in range(2):
        for base in range(2, 12):
            backend.chain(params._replace(dry_base=float(base))).close()
    assert len(made) == 21, "the oldest leave"
    for chain in chains:
        chain.close()


def test_a_chain_grows_and_can_be_closed_twice(backend):
    chain = backend.chain(SamplingParams(seed=1))
    assert 0 <= chain.choose(np.arange(5000), np.zeros(5000, np.float32)) < 5000
    chain.close()
    chain.close()


def test_an_abort_does_not_start_a_debugger():
    assert os.environ["GGML_NO_BACKTRACE"] == "1"


def test_quantised_caches_and_flash_attention_are_options(model_path):
    options = EngineOptions(
        context_cells=256, parallel=1, threads=1, flash_attn="on", cache_type_k="q8_0", cache_type_v="q8_0"
    )
    with pytest.raises(LoadFailed, match="cannot create a context"):
        LlamaBackend(model_path("llama"), options, lambda share: True)  # heads of 16 do not hold blocks of 32
    options = EngineOptions(
        context_cells=256, parallel=1, threads=1, flash_attn="on", cache_type_k="f32", cache_type_v="f32"
    )
    LlamaBackend(model_path("llama"), options, lambda share: True).close()


@pytest.mark.parametrize("options", [{}, {"yields_threads": True}, {"yields_threads": True, "deterministic": True}])
def test_threads_are_left_out_only_where_their_number_was_not_chosen(model_path, options):
    backend = open_model(
        str(model_path("llama")), dataclasses.replace(OPTIONS, threads=2, **options), lambda share: True
    )
    try:
        compute(backend, 0, [5, 6, 7])
        assert backend._threads == ((1, 1) if options == {"yields_threads": True} else (2, 2))  # the model is tiny
    finally:
        backend.close()
