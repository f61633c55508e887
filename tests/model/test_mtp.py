"""Drafts of a model's own MTP layer: one that agrees with the model, and one that does not.

Contexts stay below 512 cells with one thread: there a row is computed alike alone and beside others.
"""

from __future__ import annotations

import dataclasses

import architectures
import pytest
import tiny_models
from options import settings_with
from test_draft_model import PARAMS, SETTINGS, cheap_drafts, specs, texts
from test_engine_on_models import prompts

from llamasrv.commands.check import draft_sources
from llamasrv.engine.backend.context import open_model
from llamasrv.engine.base.interface import LoadFailed, Timeline
from llamasrv.engine.engine import EngineOptions
from llamasrv.errors import ConfigError
from llamasrv.models import gguf
from llamasrv.startup import companions

ARCHITECTURES = companions.MTP_ARCHITECTURES


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory):
    """`with_mtp("qwen35", "agrees")`: the file of a model with such a layer."""
    made = {}

    def make(arch, kind):
        if (arch, kind) not in made:
            made[arch, kind] = architectures.make(arch, tmp_path_factory.mktemp("mtp") / f"{arch}.gguf", mtp=kind)
        return str(made[arch, kind])

    return make


@pytest.fixture
def drafting(real, with_mtp):
    """`drafting("qwen35", "agrees")`: an engine that drafts with the layer, and one that does not."""

    def make(arch, kind, **options):
        path = with_mtp(arch, kind)
        engines = [real(path, spec=spec, mtp=spec == "mtp", **SETTINGS | options) for spec in ("mtp", "off")]
        cheap_drafts(engines[0])
        return engines

    return make


@pytest.fixture
def drafting_twice(real, with_mtp):
    """Two engines that do."""

    def make(arch, kind):
        engines = [real(with_mtp(arch, kind), spec="mtp", mtp=True, **SETTINGS) for _ in range(2)]
        for engine in engines:
            cheap_drafts(engine)
        return engines

    return make


def share(engine):
    metrics = engine.engine.metrics
    return metrics.accepted_tokens.get("mtp", 0) / metrics.drafted_tokens["mtp"]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["agrees", "differs"])
def test_one_by_one_drafts_do_not_change_the_text(drafting, arch, kind):
    engine, reference = drafting(arch, kind)
    assert [texts(engine, [one]) for one in specs(engine, 4)] == [
        texts(reference, [one]) for one in specs(reference, 4)
    ]
    assert engine.engine.metrics.drafted_tokens["mtp"] > 40
    assert share(engine) > 0.3 if kind == "agrees" else share(engine) < 0.3


@pytest.mark.parametrize("arch", ["qwen35", "deepseek2"])
def test_a_layer_that_agrees_is_always_accepted(drafting, arch):
    """Also after a rejected draft, a prompt in chunks, and a reused prefix."""
    engine, reference = drafting(arch, "agrees", idle_cells=512)
    settings = {"params": PARAMS[0], "max_tokens": 30}
    for prompt in ([5] * 3, *prompts(2, seed=4, longest=300)):
        assert texts(engine, [engine.sequence(prompt, **settings)]) == texts(
            reference, [reference.sequence(prompt, **settings)]
        )
    again = [*prompts(2, seed=4, longest=300)[1], 7, 8, 9]
    (result,) = engine.run([engine.sequence(again, **settings)])
    assert result.end.num_reused > 8
    assert share(engine) > 0.7


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rows_given_in_pieces_equal_rows_given_at_once(drafting_twice, arch):
    """Each token with the hidden state before it: after rejected drafts, prompts in chunks and beside others in the
    batch, the layer's output equals that for the whole text as one prompt."""
    engine, reference = drafting_twice(arch, "differs")
    asked = [[(7 * i + n) % 300 + 5 for i in range(150)] for n in range(3)]
    streams = [engine.engine.submit([engine.sequence(p, params=PARAMS[0], max_tokens=90)]) for p in asked]
    while engine.engine.metrics.drafted_tokens.get("mtp", 0) < 60:
        engine.engine.turn()
    for seq in list(engine.core.running):
        told = engine.backend.draft_model.propose([Timeline(seq.lane, seq.tokens)], 2)
        whole = reference.sequence(seq.tokens, max_tokens=2, params=PARAMS[0], cache_prompt=False)
        stream = reference.engine.submit([whole])
        while not reference.core.running or reference.core.running[0].owed != 1:
            reference.engine.turn()
        (other,) = reference.core.running
        timeline = Timeline(other.lane, seq.tokens)
        reference.backend.draft_model.cut(other.lane, len(seq.tokens) - 1)
        at_once = reference.backend.draft_model.propose([timeline], 2)
        reference.engine.cancel(stream)
        reference.engine.turn()
        assert at_once[0].tokens == told[0].tokens
        assert at_once[0].gaps == pytest.approx(told[0].gaps, abs=1e-3)
    for stream in streams:
        engine.engine.cancel(stream)
    engine.engine.turn()
    assert all(stream.open_choices == 0 for stream in streams)


@pytest.mark.parametrize("arch", ["qwen35", "deepseek2"])
def test_side_by_side_with_preemptions_and_cancels(drafting, arch):
    engine, reference = drafting(arch, "agrees")
    mine = specs(engine, 4, logprobs=5)
    other = engine.engine.submit([engine.sequence([9] * 12, params=PARAMS[0], max_tokens=200)])

    def at_turn(turn):
        if turn == 15:
            engine.engine.cancel(other)
        elif turn % 7 == 6:
            engine.preempt(mine[turn % 4])

    both = engine.run(mine, at_turn=at_turn)
    alone = [reference.run([one])[0] for one in specs(reference, 4, logprobs=5)]
    assert max(a.distance_to(b) for a, b in zip(alone, both)) < 0.02
    assert [len(result.tokens) for result in both] == [60] * 4 and engine.engine.metrics.accepted_tokens["mtp"] > 20


@pytest.mark.parametrize("arch", ["qwen35", "glm4moe"])
def test_a_layer_without_cells_loses_only_its_drafts(drafting, arch):
    """A newcomer's prompt found no cells in the layer's context: that dropped all lanes, and the next draft looked one
    of them up. Every request of every client failed."""
    engine, _ = drafting(arch, "agrees")
    model, refused = engine.backend.draft_model, []

    def without_cells(timeline, most):
        refused.append(timeline.lane)
        model.drop(list(model._lanes))  # as after a failed decode
        return False

    model.advance = without_cells
    asked = [
        engine.sequence([(5 * i + n) % 300 + 5 for i in range(60)], params=PARAMS[0], max_tokens=60) for n in range(4)
    ]
    streams, turns = [], 0
    while engine.engine.num_open or len(streams) < 4:
        if len(streams) < 4 and turns % 8 == 0:
            streams.append(engine.engine.submit([asked[len(streams)]]))
        assert engine.engine.host.turn(wait=False)
        turns += 1
    ends = [stream.take()[-1] for stream in streams]
    assert refused
    assert [end.reason.value for end in ends] == ["length"] * 4, [end.error for end in ends]
    assert engine.engine.metrics.restarts == 0 and engine.engine.metrics.drafted_tokens["mtp"] > 0


def test_choices_of_one_request_share_a_prompt(drafting):
    engine, reference = drafting("deepseek2", "agrees")
    prompt = prompts(1, seed=8, longest=60)[0]
    runs = []
    for one in (engine, reference):
        asked = [one.sequence(prompt, params=PARAMS[1]._replace(seed=i), max_tokens=20, logprobs=5) for i in range(3)]
        runs.append(one.run(asked))
    assert max(a.distance_to(b) for a, b in zip(*runs)) < 0.02
    assert engine.engine.metrics.accepted_tokens["mtp"] > 0


def test_if_it_does_not_pay_no_hidden_states_are_returned(drafting):
    engine, _ = drafting("qwen35", "agrees")
    engine.core.scheduler.cost.rows.predict = lambda n: 0.001 * n
    engine.core.drafter.model_source.calls.learn(1, 0.01)
    texts(engine, [engine.sequence([7, 8, 9], params=PARAMS[0], max_tokens=60)])
    assert not engine.engine.metrics.drafted_tokens and not engine.backend.draft_model.follows


def test_it_is_followed_again_once_it_pays(drafting):
    engine, reference = drafting("qwen35", "agrees")
    engine.backend.draft_model.follow(False)
    settings = {"params": PARAMS[0], "max_tokens": 40}
    assert texts(engine, [engine.sequence([7, 8, 9], **settings)]) == texts(
        reference, [reference.sequence([7, 8, 9], **settings)]
    )
    assert share(engine) > 0.7


def test_a_fresh_context_drafts_again(drafting):
    engine, _ = drafting("qwen35", "agrees")
    settings = {"params": PARAMS[0], "max_tokens": 20}
    before = texts(engine, [engine.sequence([7, 8, 9], **settings)])
    engine.core.reset()
    cheap_drafts(engine)
    assert texts(engine, [engine.sequence([7, 8, 9], **settings)]) == before and share(engine) > 0.7


def test_a_file_without_the_layer_is_refused_if_mtp_is_requested(tmp_path, with_mtp):
    header = gguf.read_header(tiny_models.llama(tmp_path / "tiny.gguf"))
    with pytest.raises(ConfigError, match=r"engine\.spec = 'mtp': .*tiny\.gguf has no MTP layer"):
        companions.with_drafts(settings_with(engine_spec="mtp"), header)
    assert not companions.with_drafts(settings_with(), header).engine.mtp
    found = gguf.read_header(with_mtp("qwen35", "agrees"))
    assert companions.with_drafts(settings_with(), found).engine.mtp
    assert not companions.with_drafts(settings_with(engine_spec="ngram"), found).engine.mtp
    assert not companions.with_drafts(settings_with(engine_deterministic=True), found).engine.mtp


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tensors": ()}, r"converted without its MTP layer: blk\.2\.nextn\.eh_proj\.weight is missing"),
        ({"nextn_predict_layers": 2}, "2 MTP layers, but llamasrv supports only one"),
        ({"architecture": "mimo2"}, "the MTP layer of 'mimo2' is untested"),
        ({"architecture": "glm4moe", "rope.dimension_sections": [8, 12, 12, 0]}, "positions of several dimensions"),
    ],
)
def test_layers_that_would_abort_are_never_loaded(with_mtp, change, reason):
    header = gguf.read_header(with_mtp("qwen35", "agrees"))
    arch = change.get("architecture", "qwen35")
    metadata = {key.replace("qwen35.", f"{arch}."): value for key, value in header.metadata.items()}
    metadata |= {f"{arch}.{key}": value for key, value in change.items() if key not in ("tensors", "architecture")}
    metadata["general.architecture"] = arch
    changed = dataclasses.replace(header, metadata=metadata, tensors=change.get("tensors", header.tensors))
    with pytest.raises(ConfigError, match=reason):
        companions.with_drafts(settings_with(engine_spec="mtp"), changed)
    assert not companions.with_drafts(settings_with(), changed).engine.mtp
    assert "not from MTP: " in draft_sources(settings_with(), changed)


def test_check_names_it(with_mtp):
    header = gguf.read_header(with_mtp("qwen35", "agrees"))
    assert (
        draft_sources(settings_with(), header) == "from prompts, answers and predictions, its MTP layer, where they pay"
    )


def test_a_library_without_the_functions_says_so(with_mtp, monkeypatch):
    monkeypatch.setattr(companions, "library_has_module", lambda name: False)
    header = gguf.read_header(with_mtp("qwen35", "agrees"))
    with pytest.raises(ConfigError, match="lacks llama_cpp_ext"):
        companions.with_drafts(settings_with(engine_spec="mtp"), header)


def test_the_engine_refuses_a_missing_layer(model_path, with_mtp):
    """The library says why where the file has none, and aborts where it has one that was not loaded: both are one flag."""
    with pytest.raises(LoadFailed, match="MTP layer"):
        open_model(model_path("llama"), EngineOptions(spec="mtp", mtp=True, **SETTINGS), lambda share: True)
    with pytest.raises(LoadFailed, match="its MTP layer was not loaded"):
        open_model(with_mtp("qwen35", "agrees"), EngineOptions(spec="mtp", **SETTINGS), lambda share: True)


def test_a_memory_without_rollback_is_refused(with_mtp):
    options = EngineOptions(spec="mtp", mtp=True, draft_rollback=0, **SETTINGS)
    with pytest.raises(LoadFailed, match="cannot take drafts back"):
        open_model(with_mtp("qwen35", "agrees"), options, lambda share: True)


def test_a_shifted_timeline_starts_again(drafting):
    engine, reference = drafting("deepseek2", "agrees", context_shift=True, sequence_tokens=64)
    settings = {"params": PARAMS[0], "max_tokens": 150}
    assert texts(engine, [engine.sequence([7, 8, 9], **settings)]) == texts(
        reference, [reference.sequence([7, 8, 9], **settings)]
    )
    assert share(engine) > 0.9
