"""What goes where: the arithmetic by hand, and plans against a library that only counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llamasrv.engine.base.interface import LoadFailed
from llamasrv.engine.base.tensor_names import EXPERTS, of_layer
from llamasrv.engine.base.use import HOST, DeviceUse, MeasuredUse
from llamasrv.engine.engine import EngineOptions
from llamasrv.models import fit
from llamasrv.models.fit import Layer, LayerPlan, spread
from llamasrv.models.gguf import Header, Tensor

F32 = 0
MIB = 2**20


def model(layers=10, dense=10, experts=0, output=20):
    """A header whose tensors have these sizes, in MiB."""
    tensors = [
        Tensor("token_embd.weight", (5 * MIB // 4,), F32, 0),
        Tensor("output.weight", (output * MIB // 4,), F32, 0),
    ]
    for n in range(layers):
        tensors.append(Tensor(f"blk.{n}.attn_q.weight", (dense * MIB // 4,), F32, 0))
        if experts:
            tensors.append(Tensor(f"blk.{n}.ffn_up_exps.weight", (experts * MIB // 4,), F32, 0))
    metadata = {"general.architecture": "x", "x.block_count": layers}
    return Header(Path("m.gguf"), 3, 0, metadata, tuple(tensors), (Path("m.gguf"),))


class Library:
    """Lays a model out as llama.cpp does, by the options, and counts: the last layers go to devices, by shares."""

    def __init__(self, header, totals, *, cell=0.001, work=2, free=None):
        self.layers, self.output = fit.layers_of(header)
        self.totals = {name: int(size * MIB) for name, size in totals.items()}
        self.free = {name: int(size * MIB) for name, size in (free or totals).items()}
        self.cell, self.work = cell * MIB, work * MIB
        self.asked = []

    def __call__(self, options):
        self.asked.append(options)
        if options.devices == ("none",):
            names = []
        else:
            names = list(self.totals)
        uses = {name: DeviceUse() for name in (HOST, *names)}
        on = len(self.layers) + 1 if options.gpu_layers is None else options.gpu_layers
        first = len(self.layers) + 1 - (on if names else 0)
        shares = options.tensor_split or tuple(self.free[name] for name in names)
        for n, layer in enumerate([*self.layers, Layer(self.output)]):
            place = HOST if n < first else self._device(names, shares, (n - first) / on)
            cache = 0 if n == len(self.layers) else int(self.cell * options.context_cells)
            moved = f"{of_layer(n, EXPERTS)}=CPU" in options.override_tensor
            uses[place] += DeviceUse(layer.dense + (0 if moved else layer.experts), cache)
            uses[HOST] += DeviceUse(layer.experts if moved else 0)
        for name in names:
            if uses[name].total:
                uses[name] += DeviceUse(0, 0, int(self.work))
        devices = {name: (self.free[name], self.totals[name]) for name in names}
        return MeasuredUse(uses, devices, options.context_cells)

    @staticmethod
    def _device(names, shares, at):
        total, reached = sum(shares), 0.0
        for name, share in zip(names, shares):
            reached += share / total
            if at < reached - 1e-9:
                return name
        return names[-1]


def fitted(header, totals, *, wanted=65536, held=None, library=None, **options):
    library = library or Library(header, totals)
    found = fit.fit(header, EngineOptions(**{"fit_target": (0,), **options}), wanted, library, held)
    return found, library


# Arithmetic


def test_the_first_layers_experts_stay_on_the_cpu_before_any_layer_does():
    layers = [Layer(10, 90)] * 4
    assert spread(layers, 0, 20, [1000]) == LayerPlan((5,), 0, 0)
    assert spread(layers, 0, 20, [400]) == LayerPlan((5,), 0, 1)
    assert spread(layers, 0, 20, [60]) == LayerPlan((5,), 0, 4)
    assert spread(layers, 0, 20, [45]) == LayerPlan((3,), 2, 4)
    assert spread(layers, 0, 20, [10]) == LayerPlan((0,), 4, 0)


def test_layers_fill_one_device_after_the_other():
    layers = [Layer(10)] * 6
    assert spread(layers, 5, 20, [45, 100]) == LayerPlan((3, 4), 0, 0)
    assert spread(layers, 5, 20, [0, 100]) == LayerPlan((0, 6), 1, 0)
    assert spread(layers, 5, 20, [10, 10]) == LayerPlan((0, 0), 6, 0)


def test_the_sizes_of_layers_are_those_of_the_file():
    layers, output = fit.layers_of(model(layers=2, dense=3, experts=7, output=11))
    assert layers == [Layer(3 * MIB, 7 * MIB)] * 2 and output == 11 * MIB
    header = model(layers=1)
    tied = replace(header, tensors=tuple(t for t in header.tensors if t.name != "output.weight"))
    assert fit.layers_of(tied)[1] == 5 * MIB


# Plans


def test_what_fits_is_left_as_it_is():
    found, library = fitted(model(), {"GPU0": 1000})
    assert len(library.asked) == 1 and found.options.context_cells == 65536
    assert found.options.gpu_layers is None and found.options.tensor_split == ()


def test_the_context_becomes_smaller_before_a_layer_leaves():
    header = model()
    found, _ = fitted(header, {"GPU0": 300})
    assert sum(1 for _ in found.measured.devices) == 1 and not found.excess
    assert found.options.gpu_layers == 11 and 4096 < found.options.context_cells < 65536
    larger = replace(found.options, context_cells=found.options.context_cells + 512)
    assert fit.FittedPlan(larger, Library(header, {"GPU0": 300})(larger), found.capacity).excess


def test_a_context_that_was_asked_for_stays():
    found, _ = fitted(model(), {"GPU0": 140}, context_cells=8192)
    assert found.options.context_cells == 8192 and 0 < found.options.gpu_layers < 11 and not found.excess


def test_the_context_is_not_made_smaller_than_the_operator_says():
    found, _ = fitted(model(), {"GPU0": 140}, fit_context=8192)
    assert found.options.context_cells == 8192 and found.options.gpu_layers < 11


def test_experts_stay_on_the_cpu_before_layers_do():
    found, _ = fitted(model(experts=90), {"GPU0": 400}, context_cells=4096)
    stay = len(found.options.override_tensor)
    assert found.options.gpu_layers == 11 and 0 < stay < 10 and not found.excess
    assert found.options.override_tensor[0] == rf"blk\.0{EXPERTS}=CPU"


def test_as_many_layers_as_fit_and_not_one_fewer():
    header = model()
    found, _ = fitted(header, {"GPU0": 100}, context_cells=4096)
    one_more = replace(found.options, gpu_layers=found.options.gpu_layers + 1)
    assert not found.excess
    assert fit.FittedPlan(one_more, Library(header, {"GPU0": 100})(one_more), found.capacity).excess


def test_two_devices_are_filled_by_what_they_have():
    found, _ = fitted(model(), {"GPU0": 72, "GPU1": 110}, context_cells=4096)
    assert not found.excess and found.options.tensor_split == (4.0, 7.0)
    assert found.options.gpu_layers == 11


def test_a_device_without_room_is_left_out():
    found, _ = fitted(model(), {"GPU0": 180, "GPU1": 18}, context_cells=4096)
    assert found.options.tensor_split == (11.0, 0.0) and not found.excess


def test_where_no_layer_fits_the_cpu_computes_all():
    found, _ = fitted(model(), {"GPU0": 5})
    assert found.options.devices == ("none",) and found.devices == {}


def test_more_is_placed_where_less_needs_less_work():
    """The library needs less work space for fewer layers: a plan made for all of them left room unused."""

    class Growing(Library):
        def __call__(self, options):
            self.work = (options.gpu_layers if options.gpu_layers is not None else 11) * 3 * MIB
            return super().__call__(options)

    header = model()
    library = Growing(header, {"GPU0": 100})
    found, _ = fitted(header, {}, library=library, context_cells=4096)
    one_more = replace(found.options, gpu_layers=found.options.gpu_layers + 1)
    assert not found.excess and fit.FittedPlan(one_more, library(one_more), found.capacity).excess


@pytest.mark.parametrize("placed", [{"gpu_layers": 11}, {"tensor_split": (1.0,)}, {"override_tensor": ("a=CPU",)}])
def test_what_the_operator_has_placed_stays_or_is_refused(placed):
    found, _ = fitted(model(), {"GPU0": 300}, **placed)
    assert all(getattr(found.options, name) == value for name, value in placed.items())
    assert not found.excess and found.options.context_cells < 65536
    with pytest.raises(LoadFailed, match=r"m\.gguf: it needs .* on GPU0, where 50 MiB is usable"):
        fitted(model(), {"GPU0": 50}, **placed)


def test_nothing_is_chosen_where_that_is_off():
    found, library = fitted(model(), {"GPU0": 5}, fit="off")
    assert len(library.asked) == 1 and found.excess


# What may be used


def test_some_of_a_device_stays_free():
    library = Library(model(), {"GPU0": 4096, "GPU1": 40960})
    found, _ = fitted(model(), {}, library=library, fit_target=())
    assert found.capacity == {"GPU0": (4096 - 256) * MIB, "GPU1": (40960 - 1024) * MIB}


def test_the_last_target_holds_for_further_devices():
    library = Library(model(), {"GPU0": 1000, "GPU1": 1000, "GPU2": 1000})
    found, _ = fitted(model(), {}, library=library, fit_target=(100 * MIB, 300 * MIB))
    assert [size // MIB for size in found.capacity.values()] == [900, 700, 700]


def test_what_other_programs_hold_is_not_used_and_what_models_hold_is():
    library = Library(model(), {"GPU0": 1000}, free={"GPU0": 200})
    found, _ = fitted(model(), {}, library=library, held={"GPU0": 300 * MIB})
    assert found.capacity == {"GPU0": 500 * MIB}
    library = Library(model(), {"GPU0": 1000}, free={"GPU0": 900})
    found, _ = fitted(model(), {}, library=library, held={"GPU0": 300 * MIB})
    assert found.capacity == {"GPU0": 1000 * MIB}  # never more than there is
