"""Many short lives of a server on a disk that loses what was not synced, each ended by a kill or a power cut
between any two of its calls to the disk; the next one starts on what is left.

A kill leaves what the kernel had in memory: the next life sees it, and relies on it, and then the power goes.
So this finds what is taken for durable because it can be read. In memory, one thread, no clock: a number is a
run.
"""

import contextlib
import functools
import random

from dos_protocol import messages as m
from tests.power.disk_state import DiskState
from tests.power.history import History, Look, look
from tests.power.model_disk import DeadError, ModelDisk
from tests.support.core_harness import Harness

NAMES = ("a", "b", "c")


class Life:
    """A server and its one client, the writer of `dir`. Raises DeadError when the server dies."""

    def __init__(self, disk: ModelDisk, history: History, epoch: int) -> None:
        """What is shown has to be as promised, and is from then on what there is."""
        self.server = Harness(disk)
        self.history = history
        wrong = history.violations(self.look())
        assert not wrong, wrong
        self.session = self.server.connect()
        claim = m.ChangeDirectory("dir", claim=True, epoch=epoch, writer_id=b"w" * 16)
        opened = self.server.ask(self.session, claim)
        assert isinstance(opened, m.DirectoryOpened), opened
        history.go_on_from(self.look())
        history.claimed("dir", epoch)

    def look(self) -> Look:
        return look(functools.partial(self.server.ask, self.server.connect()))

    def append(self, name: str, payload: bytes) -> None:
        one = self.history.of("dir", name)
        if one.versions[-1] is None:
            one.replace(b"")
        request = m.Append(name, one.fold.size, one.fold.value, payload)
        one.grow(payload)
        heard = len(self.server.heard[self.session])
        assert self.server.ask(self.session, request) is None
        for _, message in self.server.heard[self.session][heard:]:
            assert isinstance(message, m.Watermark), message
            one.told(message.synced)

    def delete(self, name: str) -> None:
        one = self.history.of("dir", name)
        if one.versions[-1]:
            one.replace(None)
            answer = self.server.ask(self.session, m.Delete(name))
            assert isinstance(answer, m.Deleted), answer
            one.told()


def many_lives(seed: int, count: int) -> None:
    """So many lives one after the other. Raises AssertionError when one of them lost or made up something."""
    rng, history, state = random.Random(seed), History(), DiskState()
    for epoch in range(1, count + 1):
        with contextlib.suppress(DeadError):
            life = Life(ModelDisk(state, dies_after=rng.randrange(60)), history, epoch)
            while True:
                if rng.random() < 0.3:
                    life.delete(rng.choice(NAMES))
                else:
                    life.append(rng.choice(NAMES), rng.randbytes(rng.choice((1, 500, 9_000))))
        if rng.random() < 0.4:
            state = DiskState.of(state.crash(rng.getrandbits(64)))
    Life(ModelDisk(state), history, count + 1)
