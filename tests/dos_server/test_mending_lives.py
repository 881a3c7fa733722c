"""Random runs of a server whose objects are damaged and repaired while a writer appends, claims and crashes.

The others of the store are played by the history: what was acknowledged is on them. Two oracles, after
every step: a copy that looks sound has at least what any watermark told; and it is a prefix of the history.

What fails is the object, never its mark: a copy whose end rots, whose mark can then not be written, and is
lost with the power at last, is more than one server can know. It is quarantined, and the store compares.
"""

import errno
import random

from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from tests.dos_server.test_mending import HELLO, World


class Life:
    """One run, all from one number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.world = World(b"")
        self.history = b""
        self.told = 0
        self.heard = 0
        self.repairs = 0
        self.repairer: int | None = None
        self.repair: tuple[m.ObjectInfo, bytes, int] | None = None

    def listen(self) -> None:
        heard = self.world.heard[self.world.writer]
        for _, message in heard[self.heard :]:
            if isinstance(message, m.DurabilityAck):
                self.told = max(self.told, message.synced)
        self.heard = len(heard)

    def append(self) -> None:
        data = self.rng.randbytes(self.rng.choice([1, 300, 3_000]))
        request = m.Append("o", len(self.history), prefix_digest(self.history), data)
        number = self.world.send(self.world.writer, request)
        if self.world.answer(self.world.writer, number) is None:
            self.history += data

    def finish(self) -> None:
        if self.world.pending:
            self.world.finish(self.rng.randrange(len(self.world.pending)))

    def begin_mend(self) -> None:
        if self.repairer is None or self.rng.random() < 0.3:
            self.repairer = self.world.connect(HELLO)
            self.world.send(self.repairer, m.ChangeDirectory("dir"))
        self.world.settle()
        info = self.info()
        size = self.rng.choice([len(self.history), self.rng.randrange(len(self.history) + 1)])
        self.repair = (info or m.ObjectInfo("o"), self.history[:size], 0)

    def bring(self) -> None:
        """A piece of the new copy; the answer may come much later, or never."""
        if self.repair is None or self.repairer is None:
            return
        old, data, offset = self.repair
        part = data[offset : offset + self.rng.choice([500, 5_000, 50_000])]
        request = m.RepairChunk(
            "o", offset, len(data), prefix_digest(data), old.synced, old.digest, overwrite=False, payload=part
        )
        answer = self.world.answer(self.repairer, self.world.send(self.repairer, request))
        if isinstance(answer, m.Error):
            self.repair = None
        elif offset + len(part) == len(data):
            self.repair, self.repairs = None, self.repairs + 1
        else:
            self.repair = (old, data, offset + len(part))

    def info(self) -> m.ObjectInfo | None:
        entries = self.world.ask(self.world.connect(HELLO), m.ChangeDirectory("dir")).entries
        return entries[0] if entries else None

    def damage(self) -> None:
        self.world.settle()
        self.listen()
        if "o" not in self.world.folder or not self.world.file().seen:
            return
        if self.rng.random() < 0.3:
            self.world.disk.fail_at("sync", "d/dir/o", errno.EIO)
        elif self.rng.random() < 0.5:
            self.world.cut_off(self.rng.randrange(len(self.world.file().seen)))
            self.claim()
        else:
            position = self.rng.randrange(len(self.world.file().seen))
            for data in (self.world.file().seen, self.world.file().stable):
                if position < len(data):
                    data[position] ^= 1
            self.world.ask(self.world.reader(), m.Get("o", 0, 1 << 20))

    def crash(self) -> None:
        self.listen()
        if self.rng.random() < 0.5:
            self.world.storage.stop()
        self.world.disk.kill() if self.rng.random() < 0.5 else self.world.disk.power_cut(self.rng)
        self.world.start()
        self.claim()

    def claim(self) -> None:
        """The writer returns and continues from what it finds undamaged."""
        self.world.disk.heal()
        self.listen()
        self.repairer = self.repair = None
        self.world.settle()
        entries = self.world.claim().entries
        self.heard = 0
        self.check()
        if entries and not entries[0].corrupt:
            self.history = self.history[: max(entries[0].synced, self.told)]
        elif not entries:
            assert self.told == 0, self.seed

    def check(self) -> None:
        self.world.settle()
        self.listen()
        info = self.info()
        if info is None:
            assert self.told == 0, self.seed
        elif not info.corrupt:
            assert info.synced >= self.told, (self.seed, info.synced, self.told)
            assert info.digest == prefix_digest(self.history[: info.synced]), self.seed

    def live(self, steps: int) -> None:
        actions = [self.append] * 6 + [self.finish] * 6 + [self.listen] * 2 + [self.begin_mend] * 2
        actions += [self.bring] * 8 + [self.damage, self.claim, self.check]
        for _ in range(steps):
            self.rng.choice(actions)()
            if self.rng.random() < 0.02:
                self.crash()
        self.check()


@given(seed=st.integers(0, 2**32))
def test_no_life_makes_a_copy_look_sound_that_lost_what_was_reported(seed: int) -> None:
    # EVIDENCE-OF: P-1, P-2, P-5
    Life(seed).live(120)


def test_these_lives_are_lived() -> None:
    lives = [Life(seed) for seed in range(20)]
    for life in lives:
        life.live(120)
    assert sum(life.repairs for life in lives) > 20
    assert sum(life.told for life in lives) > 20_000
