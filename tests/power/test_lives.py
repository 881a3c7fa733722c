"""Many short lives of a server on a disk that loses what was not synced, each ended by a kill or a power cut
between any two of its calls to the disk; the next one starts on what is left.

A kill leaves what the kernel had in memory: the next life sees it, and relies on it, and then the power goes.
So this finds what is taken for durable because it can be read.
"""

import contextlib
import functools
import random

from hypothesis import given
from hypothesis import strategies as st

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


@given(seed=st.integers(0, 2**32))
def test_no_sequence_of_kills_and_power_cuts_takes_back_what_was_told(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    rng, history, state = random.Random(seed), History(), DiskState()
    for epoch in range(1, 9):
        with contextlib.suppress(DeadError):
            life = Life(ModelDisk(state, dies_after=rng.randrange(60)), history, epoch)
            while True:
                if rng.random() < 0.3:
                    life.delete(rng.choice(NAMES))
                else:
                    life.append(rng.choice(NAMES), rng.randbytes(rng.choice((1, 500, 9_000))))
        if rng.random() < 0.4:
            state = DiskState.of(state.crash(rng.getrandbits(64)))
    Life(ModelDisk(state), history, epoch + 1)


def test_what_a_killed_server_left_in_memory_is_not_taken_for_durable() -> None:
    """Killed after each of its calls to the disk; the next life adds to what it finds; then all that was not
    synced goes. (A mark that said *removed* came back, and took away an object that had the name anew; and an
    identity could be read and was not durable.)"""
    # EVIDENCE-OF: P-1
    ended = False
    for count in range(1_000):
        history, state = History(), DiskState()
        with contextlib.suppress(DeadError):
            life = Life(ModelDisk(state, dies_after=count), history, 1)
            for name in NAMES:
                life.append(name, b"first")
                life.delete(name)
            ended = True
        life = Life(ModelDisk(state), history, 2)
        for name in NAMES:
            life.append(name, b"second")
        Life(ModelDisk(DiskState.of(state.bare())), history, 3)
        if ended:
            return
    raise AssertionError("the first life never came to its end")
