"""The true history of a run: who wrote what where, what was acknowledged, what was returned to readers.

It records, and passes the events to the oracles (tests/sim/oracles), which judge.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.sim.oracles.store import Bench, ViolationError

if TYPE_CHECKING:
    from tests.sim.oracles.accepted import Loss

__all__ = ["History", "Line", "ViolationError"]


@dataclass
class Line:
    """One chain: records have numbers, each used once."""

    appended: dict[int, int] = field(default_factory=dict)
    """The epoch in which each number was appended."""
    acknowledged: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    """The longest list of records that a reader received."""


@dataclass
class History:
    """The history of one run. `segments`: what writers appended, by (directory, object); `sometimes`: how
    often each event of `tests.sim.sometimes` happened.
    """

    bench: Bench = field(default_factory=lambda: Bench(()))
    lines: dict[str, Line] = field(default_factory=dict)
    segments: dict[tuple[str, str], bytearray] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    """The highest epoch of each directory whose start was acknowledged."""
    durable: dict[tuple[str, str], int] = field(default_factory=dict)
    """How much of a segment was acknowledged, as far as writers reported it."""
    forgotten: set[tuple[str, str]] = field(default_factory=set)
    """Segments of which no disk has a byte, nor the claim of their epoch, since disks were restored from
    backups. That exceeds what the store promises (R2: a claim is durable), and none of it was acknowledged:
    the epoch, and with it the name, may occur again."""
    sometimes: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    spoiled: dict[tuple[str, str], tuple[int, frozenset[bytes]]] = field(default_factory=dict)
    """Segments whose copies on these members are damaged from an offset on, for readers of regions."""
    put_back: bool = False
    """More disks are back from backups than the promise allows: a reader may believe these."""
    loss: "Loss | None" = None
    """More was lost than the store tolerates, so a person has to decide."""

    def line(self, directory: str) -> Line:
        return self.lines.setdefault(directory, Line())

    def wrote(self, directory: str, name: str, offset: int, data: bytes) -> None:
        """A writer passed these bytes to its claim."""
        if offset == 0 and (directory, name) in self.forgotten:
            self.forgotten.discard((directory, name))
            del self.segments[directory, name]
        content = self.segments.setdefault((directory, name), bytearray())
        content += data
        self.bench.wrote(self, directory, name, offset, data)

    def number(self, directory: str, epoch: int) -> int:
        """Return the number of the next record."""
        self.numbers += 1
        self.line(directory).appended[self.numbers] = epoch
        return self.numbers

    def acknowledge(self, directory: str, number: int) -> None:
        """A record was acknowledged to its writer."""
        self.line(directory).acknowledged.append(number)
        self.bench.acknowledged(self, directory, number)

    def acknowledged_to(self, directory: str, name: str, size: int) -> None:
        """A quorum has synced that size of an object."""
        self.durable[directory, name] = max(self.durable.get((directory, name), 0), size)

    def took_over(self, directory: str, epoch: int, found: list[int]) -> None:
        """A take-over is done and its start acknowledged. `found`: the records that it read."""
        self.bench.took_over(self, directory, epoch, found)
        self.starts[directory] = max(self.starts.get(directory, 0), epoch)

    def refuse(self, directory: str, why: str) -> None:
        """A take-over was refused permanently, although no more is damaged than the promise allows."""
        if self.loss is not None and directory in self.loss.broken:
            self.sometimes["loss: a chain names bytes that are gone"] += 1
        elif self.loss is not None and directory in self.loss.pending:
            self.sometimes["loss: refused until the person decides"] += 1  # O11 objects if this continues
        else:
            self.bench.refused(directory, why)

    def continues_after_loss(self, directory: str, found: list[int]) -> None:
        """A take-over is done in a store that continues after a person accepted a loss."""
        if self.loss is not None:
            self.loss.taken_over(self, directory, found)

    def acknowledged_now(self, directory: str) -> int:
        """Return how many records were acknowledged so far: a reader calls it before it reads."""
        return len(self.line(directory).acknowledged)

    def returned(self, directory: str, found: list[int], *, owed: int = 0) -> None:
        """A reader received these records. owed: so many acknowledged ones, the first, it must have received:
        those from before its read, unless the read reported that more cannot be proved.
        """
        if self.loss is not None and directory in self.loss.pending:
            return
        self.bench.returned(self, directory, found, 0 if self.loss is not None or self.put_back else owed)
        line = self.line(directory)
        if len(found) > len(line.returned):
            line.returned = list(found)
