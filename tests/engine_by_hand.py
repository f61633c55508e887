"""An engine whose thread's side tests may look at, and whose turns they may take."""

from __future__ import annotations

from llamasrv.engine.base.channels import Stream
from llamasrv.engine.engine import Engine, answer


class HandEngine(Engine):
    """Either `start` it, or `open` it and take its turns. Here alone the handle is looked behind."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.arrived = []  # all sequences that were submitted

    def _hand_in(self, sequences):
        self.arrived += sequences
        super()._hand_in(sequences)

    @property
    def host(self):
        return self._host

    @property
    def core(self):
        return self._host.core

    @property
    def backend(self):
        return self.core.backend

    @property
    def memory(self):
        return self.core.memory

    @property
    def doorbell(self):
        return self._doorbell

    def show(self, status):
        """As if the thread said so."""
        self._publisher.set_status(status)

    @property
    def has_mail(self):
        return not self._mailbox.is_empty

    @property
    def pool(self):
        return self._host.shared.pool

    def open(self):
        self.host.open()
        return self

    def preempt(self, seq):
        """Take its lane from a sequence, if it has one."""
        if seq.lane is not None:
            self.core.preempt(seq)

    def turn(self, **settings):
        return self.core.turn(**settings)

    def ask_by_hand(self, act):
        """Like `ask`, on this thread."""
        stream = Stream(self.doorbell)
        answer(self.core, act, stream)
        (result,) = stream.take()
        if isinstance(result, BaseException):
            raise result
        return result

    def take_mail(self, seconds=0):
        """Follow what is in the mailbox, without a step; who waits for an answer is woken as at a step's end."""
        for command in self._mailbox.take(seconds):
            command.act(self.core)
        self.doorbell.ring()
