"""Models on the fake backend that are loaded and unloaded by a real loader."""

from __future__ import annotations

import threading

from recording_backend import RecordingBackend
from serving import wait_until

from llamasrv.engine.engine import EngineOptions
from llamasrv.models.loader import ModelLoader
from llamasrv.models.model import LoadPlan, Model, ModelSettings
from llamasrv.models.registry import Registry


class Farm:
    """`add` models, each of a size; `gate` holds back what is being loaded while it is closed."""

    def __init__(self, *, limit=0, clock=None, **options):
        self.now = 0.0  # where no `clock` is given
        self.gate = threading.Event()
        self.gate.set()
        self.share = 0.5  # of a model, before the gate
        self.broken = {}  # name -> the exception that loading it raises
        self.opened = []
        self.loader = ModelLoader(memory_limit=limit, clock=clock or (lambda: self.now), **{"poll": 0.001, **options})
        self.models = {}

    def add(self, *names, size=10, devices=None, **more):
        for name in names:
            opening = lambda progress, name=name: self._open(name, progress)  # noqa: E731
            load_plan = LoadPlan(opening, EngineOptions(parallel=4), size, 512, devices or {})
            self.models[name] = Model(name, ModelSettings(**{"keep_alive": 60.0, **more}), load_plan=load_plan)
        return self

    def _open(self, name, progress):
        progress(self.share)
        assert self.gate.wait(10)
        if name in self.broken:
            raise self.broken[name]
        self.opened.append(name)
        return RecordingBackend(num_lanes=8, num_cells=2048, context=512)

    def __getitem__(self, name):
        return self.models[name]

    def load(self, *names):
        for name in names:
            self.loader.load(self[name])
            assert self.loader.wait(self[name], 10), self[name].state

    def registry(self, **aliases):
        return Registry(list(self.models.values()), loader=self.loader, aliases=aliases)

    @property
    def loaded(self):
        return {name for name, model in self.models.items() if model.state == "loaded"}

    def close(self):
        self.gate.set()
        assert self.loader.stop(10)
        wait_until(lambda: not any(engine.alive for engine in self.loader.engines))
