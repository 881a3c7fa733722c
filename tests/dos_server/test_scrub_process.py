"""The scrub of a real server at full speed, beside a writer that appends, removes and begins anew."""

import random
import re
import time
from itertools import count
from pathlib import Path

import pytest

from dos_protocol import messages as m
from dos_protocol.digests import PrefixDigest
from dos_server.core.files.findings import Severity
from dos_server.offline.fsck import Check
from tests.support.servers import ServerProcess
from tests.support.wire import Wire

pytestmark = pytest.mark.process

NAMES = ("a", "b", "c")

ROUNDS = 8
PATIENCE_S = 60.0


class Writer:
    """Appends at random, pipelined a little; what it wrote is in `folds`."""

    def __init__(self, wire: Wire, seed: int) -> None:
        self.wire = wire
        self.rng = random.Random(seed)
        self.folds = {name: PrefixDigest() for name in NAMES}

    def append(self) -> None:
        name, some = self.rng.choice(NAMES), self.rng.randrange(1, 6)
        fold = self.folds[name]
        for _ in range(some):
            data = self.rng.randbytes(self.rng.choice([1, 100, 5_000, 65_536, 300_000]))
            self.wire.send(m.Append(name, fold.size, fold.value, data))
            fold.update(data)
        self.wire.wait_synced(name, fold.size)

    def remove(self) -> None:
        name = self.rng.choice(NAMES)
        if self.folds[name].size:
            assert self.wire.ask(m.Delete(name)) == m.Deleted(name)
            self.folds[name] = PrefixDigest()


def test_a_scrub_at_full_speed_never_takes_work_for_damage(tmp_path: Path) -> None:
    # EVIDENCE-OF: P-2
    options = ("--scrub-rate", "10GB/s", "--scrub-every", "0")
    with ServerProcess(tmp_path / "data", options=options) as server:
        with Wire(server.address) as wire:
            wire.claim("dir")
            writer, rounds = Writer(wire, 5), 0
            deadline = time.monotonic() + PATIENCE_S
            for turn in count():
                writer.append() if turn % 8 else writer.remove()
                if turn % 20 == 0:
                    log = server.log_path.read_text()
                    rounds = max(map(int, re.findall(r"scrub: (\d+) rounds", log)), default=0)
                    if (rounds >= ROUNDS and turn >= 100) or time.monotonic() > deadline:
                        break
            entries = {entry.name: entry for entry in wire.ask(m.List()).entries}
        assert rounds >= ROUNDS
        for name, fold in writer.folds.items():
            if fold.size:
                entry = entries[name]
                assert (entry.synced, entry.digest, entry.corrupt) == (fold.size, fold.value, False)
        assert server.stop() == 0
        log = server.log_path.read_text()
        assert "damaged from" not in log
        assert "was not scrubbed" not in log
    assert {one.verdict for one in Check(server.data).run().findings} <= {Severity.NOTE}
