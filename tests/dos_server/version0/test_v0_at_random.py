"""Random lives of version 0: streams, second-by-second status, syncs late, ends of every kind, power cuts.

The oracles: what a status told as synced is there after any crash; what is read is what was sent, in order;
the numbers of a status never lie. One number is a whole run.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_server.core import vocabulary as v
from tests.support.core_harness import Harness


class RandomRun:
    """One client and its file. `sent`: what the file is to hold; `reported`: synced, says a status."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.server = Harness()
        self.sent = b""
        self.reported = 0
        self.session = 0
        self.begin()

    def begin(self) -> None:
        """As a client does: `l` until the file is free, then `a` at its size."""
        server = self.server
        session = server.connect0("dir")
        while True:
            line = server.ask0(session, "l")
            assert line is not None, self.seed
            size, appending = self._listed(line)
            if not appending:
                break
        assert self.reported <= size <= len(self.sent), (self.seed, self.reported, size, len(self.sent))
        assert size == 0 or server.ask0(session, "gf\t0\t0") == self.sent[:size], self.seed
        self.sent = self.sent[:size]
        assert server.ask0(session, f"af\t{size}") == b"ok", self.seed
        self.session = session

    def _listed(self, listing: bytes) -> tuple[int, bool]:
        if not listing:
            return 0, False
        name, size, appending = listing.split(b"\t")
        assert name == b"f"
        return int(size), appending == b"yes\n"

    def listen(self) -> None:
        for reply in self.server.replies(self.session):
            written, synced = map(int, reply.split(b"\t"))
            assert self.reported <= synced <= written <= len(self.sent), (self.seed, reply)
            self.reported = synced

    def write(self) -> None:
        data = self.rng.randbytes(self.rng.choice([1, 100, 5000]))
        self.sent += data
        self.server.tick(self.rng.choice([0.01, 0.3, 1.5]))
        self.server.stream(self.session, data)

    def sync_one(self) -> None:
        if self.server.pending:
            self.server.finish(self.rng.randrange(len(self.server.pending)))

    def pause(self) -> None:
        self.server.tick(1.1)

    def ask_for_sync(self) -> None:
        """`s` of another session, answered when all that was sent is synced."""
        other = self.server.connect0("dir")
        size, again = map(int, (self.server.ask0(other, "sf") or b"").split(b"\t"))
        assert size == again == len(self.sent), self.seed
        self.listen()
        self.reported = size
        self.server.end(other)

    def end(self) -> None:
        how = self.rng.choice(["shut down", "reset", "kill", "power", "power"])
        if how == "shut down":
            self.server.half_close(self.session)
            self.server.settle()
            self.listen()
            assert self.reported == len(self.sent), (self.seed, "the last status tells everything")
        self.listen()
        self.server.end(self.session)
        if how == "reset":
            self.server.settle()
        elif how == "kill":
            self.server.restart()
        elif how == "power":
            self.server.lose_power(self.rng)
        self.begin()

    def run(self, steps: int) -> None:
        actions = [self.write] * 8 + [self.sync_one] * 6 + [self.listen, self.pause, self.ask_for_sync]
        for _ in range(steps):
            self.end() if self.rng.random() < 0.06 else self.rng.choice(actions)()
        self.listen()
        self.end()


@given(seed=st.integers(0, 2**32))
def test_no_crash_takes_back_what_a_status_told(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2
    RandomRun(seed).run(60)


def test_a_server_that_does_not_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: the oracles see a planted bug."""
    monkeypatch.setattr("dos_server.storage.Storage.sync", lambda self, effect: v.DiskFailure.NONE)
    with pytest.raises(AssertionError):
        run_many(30)


def run_many(count: int) -> None:
    for seed in range(count):
        RandomRun(seed).run(60)
