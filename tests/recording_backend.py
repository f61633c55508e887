"""The fake model for tests: it records what it was asked, and fails on demand."""

from __future__ import annotations

from llamasrv.engine.backend.fake import FakeBackend, FakeChain, FakeEmbeddings


class RecordingChain(FakeChain):
    def __init__(self, params):
        super().__init__(params)
        self.accepted = []

    def accept(self, token):
        self.accepted.append(token)


class RecordingBackend(FakeBackend):
    """`calls` tells what it was asked, `chains` are those it made. The next decodes raise what is in `fail_next`; `spoil`
    may damage the logits of the next one."""

    def __init__(self, *, pooling=None, **settings):
        self.calls, self.chains, self.fail_next, self.spoil = [], [], [], None
        super().__init__(**settings)
        if pooling is not None:
            self.embeddings = RecordingEmbeddings(pooling, context=self.context)

    def reset(self):
        self.calls.append(("reset",))
        super().reset()

    def decode(self):
        self.calls.append(("decode", self.batch.num_rows))
        if self.fail_next:
            raise self.fail_next.pop(0)
        super().decode()
        if self.spoil is not None:
            self.spoil(self.logits(self.batch.num_outputs))
            self.spoil = None

    def use(self, adapters):
        self.calls.append(("use", adapters))
        super().use(adapters)

    def chain(self, params):
        self.chains.append(RecordingChain(params))
        return self.chains[-1]


class RecordingEmbeddings(FakeEmbeddings):
    """`groups` are the lengths of what was computed together, [] for a fresh context."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.groups, self.fail_next = [], []

    def embed(self, inputs):
        self.groups.append([len(tokens) for tokens in inputs])
        if self.fail_next:
            raise self.fail_next.pop(0)
        return super().embed(inputs)

    def reset(self):
        self.groups.append([])
        super().reset()
