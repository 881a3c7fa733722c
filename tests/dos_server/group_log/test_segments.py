"""No slot is overwritten that a start may still have to replay, and every slot becomes free again."""

from random import Random

import pytest

from dos_server.core.group_log import Segments
from dos_server.limits import log_reserved_bytes

SLOT_BYTES = log_reserved_bytes + 64 * 4096


class Model:
    """A disk with slots, and a server that writes and syncs records in order."""

    def __init__(self, rng: Random, busy: frozenset[int] = frozenset()) -> None:
        self.rng = rng
        self.log = Segments(4, SLOT_BYTES, 10, busy)
        self.slots = dict.fromkeys(busy, 9)
        """Slot -> the newest segment in it."""
        self.synced_first = 0
        """The first live segment of the last record that is synced: a start replays from there on."""
        self.unsynced = 0
        self.sequence, self.now, self.overwritten = 100, 0.0, 0
        self.content: dict[int, set[tuple[tuple[str, str], int]]] = {}
        self.filed: dict[tuple[str, str], int] = {}

    def sync(self) -> None:
        self.synced_first = self.unsynced
        self.log.synced(self.unsynced)
        self.check()

    def step(self) -> None:
        if self.unsynced > self.synced_first:
            self.sync()
        size = 4096 * self.rng.randrange(1, 24)
        reserved = self.rng.random() < 0.2
        if not self.log.room(size, reserved=reserved):
            self.file()
            return
        slot, offset, segment = self.log.place(size, self.sequence, self.now, reserved=reserved)
        first, _ = self.log.first_live(segment, self.sequence)
        if offset == 0:
            held = self.slots.get(slot)
            assert held is None or held < self.synced_first or (held == 9 and self.sequence == 100), (
                f"segment {held} is live from {self.synced_first} on"
            )
            self.overwritten += held is not None
        self.slots[slot] = segment
        for _ in range(self.rng.randrange(6)):
            key = ("d", f"o{self.rng.randrange(12)}")
            end = self.filed.get(key, 0) + self.rng.randrange(1, 9)
            self.log.holds(key, end)
            self.content.setdefault(segment, set()).add((key, end))
        self.sequence += 1
        self.now += self.rng.random()
        self.log.seal(self.now)
        self.unsynced = first
        if self.rng.random() < 0.8:
            self.sync()
        if self.rng.random() < 0.3:
            self.file()

    def file(self) -> None:
        """File some or all of what is to be filed, and release what is filed."""
        if not self.log.to_file():
            self.now += 10.0
            self.log.seal(self.now)
        for key in self.log.to_file():
            if self.rng.random() < 0.8:
                upto = max(
                    (end for held in self.content.values() for one, end in held if one == key), default=0
                )
                self.filed[key] = upto
                self.log.filed(key, upto)
        self.log.release()

    def check(self) -> None:
        """Everything that is not filed is in a segment that a start replays, and that is on the disk."""
        for segment, held in self.content.items():
            if any(end > self.filed.get(key, 0) for key, end in held):
                assert segment >= self.synced_first, f"segment {segment} was released"
                assert segment in self.slots.values(), f"segment {segment} was overwritten"


def play(seed: int, busy: frozenset[int] = frozenset()) -> Model:
    model = Model(Random(seed), busy)
    for _ in range(400):
        model.step()
    return model


@pytest.mark.parametrize("busy", [frozenset(), frozenset({1}), frozenset({0, 1, 3})])
def test_slots_are_used_again_and_never_too_soon(busy: frozenset[int]) -> None:
    for seed in range(30):
        assert play(seed, busy).overwritten > 10


def freed_at_release(self: Segments) -> None:
    while self.live and self.live[0] is not self._active and not self.live[0].unfiled:
        self._free.appendleft(self.live.popleft().slot)  # first: behind the others it would be safe by luck


def released_unfiled(self: Segments) -> None:
    while self.live and self.live[0] is not self._active:
        self._released.append(self.live.popleft())


def play_all() -> None:
    for seed in range(30):
        play(seed)


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("release", freed_at_release),  # a slot is overwritten before a synced record releases its segment
        ("release", released_unfiled),  # a segment is released before its objects are filed
    ],
)
def test_the_model_finds_a_log_that_forgets(
    monkeypatch: pytest.MonkeyPatch, method: str, fault: object
) -> None:
    monkeypatch.setattr(Segments, method, fault)
    with pytest.raises(AssertionError, match=r"is live from|was overwritten|was released"):
        play_all()
