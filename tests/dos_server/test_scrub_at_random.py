"""Random runs of the scrub: all rot is found in the end, and nothing sound is ever quarantined."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dos_protocol import messages as m
from dos_protocol.digests import prefix_digest
from dos_server.core import vocabulary as v
from dos_server.core.object_state import ObjectState
from dos_server.core.requests.scrub import ScrubPlan
from tests.dos_server.core_requests import to_claim
from tests.dos_server.scrub_rounds import one_round, state_of
from tests.dos_server.store_member import HELLO, StoreMember


class RandomRun:
    """Two objects that are appended to, removed, made again and replaced by longer copies, while late looks
    come in. One number is a whole run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.member = StoreMember(b"", ScrubPlan(10**9, 0.0))
        self.history = {"a": b"", "b": b""}
        self.deletes: dict[str, int] = {}
        self.rotten: dict[str, int] = {}
        self.flipped: set[tuple[ObjectState, int]] = set()
        self.late = self.repairs = self.removals = 0
        self.in_store = self.rng.random() < 0.5  # where copies are repaired, and none is removed
        if not self.in_store:
            self.member.core._tables.record = None

    def finish_all_but_reads(self) -> None:
        """Everything but looks is done and told."""
        member = self.member
        while indexes := [n for n, (e, _) in enumerate(member.pending) if not isinstance(e, v.ScrubRead)]:
            member.finish(self.rng.choice(indexes))
        for name, number in list(self.deletes.items()):
            del self.deletes[name]
            if isinstance(member.answer(member.writer, number), m.Deleted):
                self.history[name], self.removals = b"", self.removals + 1
                self.rotten.pop(name, None)

    def append(self) -> None:
        name = self.rng.choice("ab")
        content, data = self.history[name], self.rng.randbytes(self.rng.choice([1, 700, 20_000, 70_000]))
        request = m.Append(name, len(content), prefix_digest(content), data)
        if self.member.answer(self.member.writer, self.member.send(self.member.writer, request)) is None:
            self.history[name] = content + data

    def finish(self) -> None:
        if self.member.pending:
            self.member.finish(self.rng.randrange(len(self.member.pending)))

    def scrub(self) -> None:
        self.member.scrub_on(busy=self.rng.random() < 0.2)

    def remove(self) -> None:
        self.finish_all_but_reads()
        name = self.rng.choice("ab")
        if self.history[name]:
            self.deletes[name] = self.member.send(self.member.writer, m.Delete(name))

    def repair(self) -> None:
        """A longer copy takes the place of one, while a look may be at the old one."""
        self.finish_all_but_reads()
        member, name = self.member, self.rng.choice("ab")
        state = member.core._tables.find("dir", name)
        if state is None or not state.exists or state.poisoned:
            return
        size, digest = state.claimed_size
        data = self.history[name] + self.rng.randbytes(1_000)
        repairer = member.connect(HELLO)
        member.send(repairer, m.ChangeDirectory("dir"))
        self.finish_all_but_reads()
        for start in range(0, len(data), 1 << 18):
            part = data[start : start + (1 << 18)]
            goal = (len(data), prefix_digest(data), size, digest)
            number = member.send(repairer, m.RepairChunk(name, start, *goal, overwrite=False, payload=part))
            self.finish()
            self.finish_all_but_reads()
            answer = member.answer(repairer, number)
            if not isinstance(answer, m.RepairAck):
                assert state.damaged, (self.seed, answer)  # found by this read: the copy has changed
                member.end(repairer)
                return
        self.history[name], self.repairs = data, self.repairs + 1
        self.rotten.pop(name, None)
        member.end(repairer)
        self.claim()

    def claim(self) -> None:
        member = self.member
        member.writer = member.connect(HELLO)
        claim = to_claim(3)
        number = member.send(member.writer, claim)
        self.finish_all_but_reads()
        assert isinstance(member.answer(member.writer, number), m.DirectoryOpened), self.seed

    def rot(self) -> None:
        name = self.rng.choice("ab")
        state = self.member.core._tables.find("dir", name)
        if state is not None and state.synced and not state.damaged and state.changing is None:
            position = self.rng.randrange(state.synced)  # of the file: at or before that offset
            stable = self.member.file(name).stable
            bit = 1 << self.rng.randrange(8)
            if (state, position) not in self.flipped:  # the same bit twice would be no rot at all
                stable[position] ^= bit
            self.flipped.add((state, position))
            self.rotten[name] = max(position, self.rotten.get(name, 0))

    def check(self) -> None:
        directory = self.member.core._tables.directories["dir"]
        for name, state in directory.objects.items():
            if state.corrupt_from is not None:
                assert name in self.rotten, (self.seed, name, state.corrupt_from)
                assert state.corrupt_from <= self.rotten[name], (self.seed, name)

    def run(self, steps: int, *, rot: bool) -> None:
        """Looks are short here, so that there are many, and objects are small."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dos_server.storage.scrub_part_extents_max", 2)
            self._run(steps, rot=rot)

    def _run(self, steps: int, *, rot: bool) -> None:
        actions: list[Callable[[], None]] = [self.append] * 5 + [self.finish] * 8 + [self.scrub] * 6
        actions += (
            [self.repair if self.in_store else self.remove] * 2
            + [self.finish_all_but_reads]
            + [self.rot] * rot
        )
        for _ in range(steps):
            self.late += any(isinstance(effect, v.ScrubRead) for effect, _ in self.member.pending)
            self.rng.choice(actions)()
            self.check()
        self.finish_all_but_reads()
        self.member.settle()
        for _ in range(2):
            one_round(self.member)
        self.check()
        for name in self.rotten:
            assert state_of(self.member, "dir", name).corrupt_from is not None, (self.seed, name)


@given(seed=st.integers(0, 2**32))
def test_nothing_sound_is_ever_quarantined_however_late_looks_are(seed: int) -> None:
    RandomRun(seed).run(60, rot=False)


@given(seed=st.integers(0, 2**32))
def test_all_rot_is_found_in_the_end_and_nothing_else(seed: int) -> None:
    # EVIDENCE-OF: P-5
    RandomRun(seed).run(60, rot=True)


def test_the_runs_read_late_repair_and_remove() -> None:
    runs = [RandomRun(seed) for seed in range(12)]
    for run in runs:
        run.run(60, rot=True)
    assert sum(run.late for run in runs) > 100
    assert sum(run.repairs for run in runs) > 10
    assert sum(run.removals for run in runs) > 2
    assert sum(len(run.rotten) for run in runs) > 5
