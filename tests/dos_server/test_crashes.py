"""Random lives of a server: appends, claims, syncs late and out of order, kills and power cuts. Three
oracles.

    1 what a watermark told is there after any crash, with the same bytes               (P-1)
    2 what GET gives is a prefix of what was accepted, and no longer than what is durable    (P-2)
    3 a claim's answer reports at least what any older session received; those gain nothing after it (P-4)

One number is a whole run: the failing number is printed by hypothesis and by the assertion.
"""

import errno
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_server.core import vocabulary as v
from tests.dos_server.core_requests import to_claim
from tests.support.core_harness import Harness

NAMES = ("a", "b", "c")


@dataclass
class Run:
    """The history of one run: what was accepted, what was reported, which session writes."""

    seed: int
    server: Harness = field(default_factory=Harness)
    history: dict[str, bytes] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    writer: int = 0
    epoch: int = 0
    heard: int = 0
    poisoned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.claim()

    def claim(self) -> None:
        server = self.server
        session = server.connect()
        self.epoch += 1
        writer_id = self.rng.randbytes(16)
        claim = to_claim(self.epoch, writer_id)
        request = server.send(session, claim)
        while (opened := server.answer(session, request)) is None:
            self.listen()
            server.finish(self.rng.randrange(len(server.pending)))
        assert isinstance(opened, m.DirectoryOpened), (self.seed, opened)
        self.listen()
        self.writer, self.heard = session, len(server.heard[session])
        infos = {info.name: info for info in opened.entries}
        for name, acked in self.acked.items():
            assert name in infos, (self.seed, name, acked)
            assert infos[name].synced >= acked, (self.seed, name, acked, infos[name])
        for name, info in infos.items():
            if not info.corrupt:
                history = self.history.get(name, b"")[: info.synced]
                assert prefix_digest(history) == info.digest, (self.seed, name)
                self.history[name] = history
                self.acked[name] = info.synced  # a reported size is durable too
        for name in self.history.keys() - infos.keys():
            self.history[name] = b""

    def listen(self) -> None:
        """Take in the watermarks of the session that holds the claim."""
        heard = self.server.heard.get(self.writer, [])
        for _, message in heard[self.heard :]:
            if isinstance(message, m.DurabilityAck):
                assert message.synced <= message.received <= len(self.history[message.name]), self.seed
                self.acked[message.name] = max(self.acked.get(message.name, 0), message.synced)
        self.heard = len(heard)

    def append(self) -> None:
        name = self.rng.choice(NAMES)
        content = self.history.get(name, b"")
        payload = self.rng.randbytes(self.rng.choice([1, 10, 500, 3000]))
        request = m.Append(name, len(content), prefix_digest(content), payload)
        number = self.server.send(self.writer, request, ends_batch=self.rng.random() < 0.7)
        if self.server.answer(self.writer, number) is None:
            self.history[name] = content + payload

    def finish_one(self) -> None:
        if self.server.pending:
            self.server.finish(self.rng.randrange(len(self.server.pending)))

    def read(self) -> None:
        name = self.rng.choice(NAMES)
        answer = self.server.ask(self.writer, m.Get(name, 0, 1 << 20))
        if isinstance(answer, m.Data):
            assert self.history[name].startswith(answer.payload), (self.seed, name)
            assert len(answer.payload) <= answer.synced

    def crash(self, *, power: bool) -> None:
        self.listen()
        if power:
            self.server.disk.power_cut(self.rng)
        else:
            self.server.disk.kill()
        self.server.start()
        self.poisoned.clear()
        self.claim()
        self.check_all()

    def check_all(self) -> None:
        for name, acked in self.acked.items():
            data = self.server.ask(self.writer, m.Get(name, 0, 1 << 20))
            assert isinstance(data, m.Data), (self.seed, name, data)
            assert data.payload == self.history[name], (self.seed, name)
            assert len(data.payload) >= acked, (self.seed, name, acked)

    def live(self, steps: int) -> None:
        actions = [self.append] * 10 + [self.finish_one] * 8 + [self.listen] * 3 + [self.read]
        for _ in range(steps):
            if self.rng.random() < 0.03:
                self.crash(power=self.rng.random() < 0.6)
            elif self.rng.random() < 0.03:
                self.claim()
            else:
                self.rng.choice(actions)()
        self.listen()
        self.crash(power=True)


@given(seed=st.integers(0, 2**32))
def test_no_crash_takes_back_what_was_reported(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-4
    Run(seed).live(150)


@given(seed=st.integers(0, 2**32))
def test_failed_syncs_and_full_disks_take_nothing_back_either(seed: int) -> None:
    # EVIDENCE-OF: P-1
    rng = random.Random(seed)
    run = Run(seed)
    for _ in range(6):
        for _ in range(rng.randrange(1, 15)):
            rng.choice([run.append, run.finish_one, run.listen])()
        run.server.disk.fail("sync", errno.EIO, nth=rng.randrange(1, 4))
        for _ in range(rng.randrange(1, 10)):
            append_and_forget(run)
        run.server.settle()
        run.listen()
        run.server.disk.heal()
        (run.server.disk.power_cut(rng) if rng.random() < 0.5 else run.server.disk.kill())
        run.server.start()
        run.claim()
        run.check_all()


@pytest.mark.parametrize("seed", range(40))
def test_power_that_goes_in_the_start_after_a_kill_makes_no_object_look_damaged(seed: int) -> None:
    """The killed server had made a file whose name was not durable. Were its mark written before the name is
    durable, a power cut could leave the mark alone: an object that was synced, and lost."""
    server = Harness()
    session = server.connect()
    server.send(session, to_claim())
    server.settle()
    server.storage.sync = lambda effect: v.DiskFailure.NONE  # killed before the first sync began
    server.send(session, m.Append("o", 0, prefix_digest(b""), b"accepted"))
    server.restart()
    server.disk.fail("sync_folder", errno.EIO, nth=2)  # the start gets as far as this: the directory's names
    assert isinstance(server.ask(server.connect(), m.ChangeDirectory("dir")), m.Error)
    server.lose_power(random.Random(seed))
    opened = server.ask(server.connect(), m.ChangeDirectory("dir"))
    assert not [info for info in opened.entries if info.corrupt]


def append_and_forget(run: Run) -> None:
    """An append that may be refused later: the history is what a claim finds then."""
    name = run.rng.choice(NAMES)
    content = run.history.get(name, b"")
    payload = run.rng.randbytes(50)
    number = run.server.send(run.writer, m.Append(name, len(content), prefix_digest(content), payload))
    if run.server.answer(run.writer, number) is None:
        run.history[name] = content + payload


def test_a_server_that_does_not_sync_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: the oracles see a planted bug."""
    monkeypatch.setattr("dos_server.storage.Storage.sync", lambda self, effect: v.DiskFailure.NONE)
    with pytest.raises(AssertionError):
        live_many(30)


def live_many(runs: int) -> None:
    for seed in range(runs):
        Run(seed).live(60)
