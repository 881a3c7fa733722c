"""Random runs of a server whose objects are damaged and repaired while a writer appends, claims and crashes.

The other members of the store are played by the history: what was acknowledged is on them. Two oracles, after
every step: a copy that looks sound has at least what any WATERMARK reported; and it is a prefix of the
history.

What fails is the object, never its mark: a copy whose end rots, whose mark can then not be written, and is
lost with the power at last, is more than one server can know. It is quarantined, and the store compares.
"""

import errno
import random

from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from tests.dos_server.store_member import HELLO, StoreMember


class RandomRun:
    """One run, all from one number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.member = StoreMember(b"")
        self.history = b""
        self.acked = 0
        self.messages_seen = 0
        self.repairs = 0
        self.repairer: int | None = None
        self.repair: tuple[m.ObjectInfo, bytes, int] | None = None

    def listen(self) -> None:
        heard = self.member.heard[self.member.writer]
        for _, message in heard[self.messages_seen :]:
            if isinstance(message, m.DurabilityAck):
                self.acked = max(self.acked, message.synced)
        self.messages_seen = len(heard)

    def append(self) -> None:
        data = self.rng.randbytes(self.rng.choice([1, 300, 3_000]))
        request = m.Append("o", len(self.history), prefix_digest(self.history), data)
        number = self.member.send(self.member.writer, request)
        if self.member.answer(self.member.writer, number) is None:
            self.history += data

    def finish(self) -> None:
        if self.member.pending:
            self.member.finish(self.rng.randrange(len(self.member.pending)))

    def begin_repair(self) -> None:
        if self.repairer is None or self.rng.random() < 0.3:
            self.repairer = self.member.connect(HELLO)
            self.member.send(self.repairer, m.ChangeDirectory("dir"))
        self.member.settle()
        info = self.info()
        size = self.rng.choice([len(self.history), self.rng.randrange(len(self.history) + 1)])
        self.repair = (info or m.ObjectInfo("o"), self.history[:size], 0)

    def send_chunk(self) -> None:
        """A piece of the new copy; the answer may come much later, or never."""
        if self.repair is None or self.repairer is None:
            return
        old, data, offset = self.repair
        part = data[offset : offset + self.rng.choice([500, 5_000, 50_000])]
        request = m.RepairChunk(
            "o", offset, len(data), prefix_digest(data), old.synced, old.digest, overwrite=False, payload=part
        )
        answer = self.member.answer(self.repairer, self.member.send(self.repairer, request))
        if isinstance(answer, m.Error):
            self.repair = None
        elif offset + len(part) == len(data):
            self.repair, self.repairs = None, self.repairs + 1
        else:
            self.repair = (old, data, offset + len(part))

    def info(self) -> m.ObjectInfo | None:
        entries = self.member.ask(self.member.connect(HELLO), m.ChangeDirectory("dir")).entries
        return entries[0] if entries else None

    def damage(self) -> None:
        self.member.settle()
        self.listen()
        if "o" not in self.member.folder or not self.member.file().seen:
            return
        if self.rng.random() < 0.3:
            self.member.disk.fail_at("sync", "d/dir/o", errno.EIO)
        elif self.rng.random() < 0.5:
            self.member.lose_tail(self.rng.randrange(len(self.member.file().seen)))
            self.claim()
        else:
            position = self.rng.randrange(len(self.member.file().seen))
            for data in (self.member.file().seen, self.member.file().stable):
                if position < len(data):
                    data[position] ^= 1
            self.member.ask(self.member.reader(), m.Get("o", 0, 1 << 20))

    def crash(self) -> None:
        self.listen()
        if self.rng.random() < 0.5:
            self.member.storage.stop()
        self.member.disk.kill() if self.rng.random() < 0.5 else self.member.disk.power_cut(self.rng)
        self.member.start()
        self.claim()

    def claim(self) -> None:
        """The writer returns and continues from what it finds undamaged."""
        self.member.disk.heal()
        self.listen()
        self.repairer = self.repair = None
        self.member.settle()
        entries = self.member.claim().entries
        self.messages_seen = 0
        self.check()
        if entries and not entries[0].corrupt:
            self.history = self.history[: max(entries[0].synced, self.acked)]
        elif not entries:
            assert self.acked == 0, self.seed

    def check(self) -> None:
        self.member.settle()
        self.listen()
        info = self.info()
        if info is None:
            assert self.acked == 0, self.seed
        elif not info.corrupt:
            assert info.synced >= self.acked, (self.seed, info.synced, self.acked)
            assert info.digest == prefix_digest(self.history[: info.synced]), self.seed

    def run(self, steps: int) -> None:
        actions = [self.append] * 6 + [self.finish] * 6 + [self.listen] * 2 + [self.begin_repair] * 2
        actions += [self.send_chunk] * 8 + [self.damage, self.claim, self.check]
        for _ in range(steps):
            self.rng.choice(actions)()
            if self.rng.random() < 0.02:
                self.crash()
        self.check()


@given(seed=st.integers(0, 2**32))
def test_no_copy_looks_sound_that_lost_what_was_acknowledged(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-5
    RandomRun(seed).run(120)


def test_the_runs_repair_copies_and_acknowledge_appends() -> None:
    runs = [RandomRun(seed) for seed in range(20)]
    for run in runs:
        run.run(120)
    assert sum(run.repairs for run in runs) > 20
    assert sum(run.acked for run in runs) > 20_000
