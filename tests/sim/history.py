"""What really happened in a run, as the oracles see it: who wrote what where, what was acknowledged, what was
shown.

Rules of this file: it remembers. A contradiction that shows at once is raised at once, as `Violation`; what
only shows in the end is the oracles' matter.
"""

from collections import Counter
from dataclasses import dataclass, field


class ViolationError(Exception):
    """A promise is broken. `oracle`: which one saw it."""

    def __init__(self, oracle: str, what: str) -> None:
        super().__init__(f"{oracle}: {what}")
        self.oracle = oracle


@dataclass
class Line:
    """One chain: records have numbers, each used once."""

    appended: dict[int, int] = field(default_factory=dict)
    """The epoch in which each number was appended."""
    acknowledged: list[int] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)
    """The longest that a reader was shown."""


@dataclass
class History:
    """See the module. `segments`: what writers appended, by (directory, object); `sometimes`: how often
    things happened that should, sometimes."""

    lines: dict[str, Line] = field(default_factory=dict)
    segments: dict[tuple[str, str], bytearray] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    """The highest epoch of each directory whose start was acknowledged."""
    sometimes: Counter[str] = field(default_factory=Counter)
    numbers: int = 0

    def line(self, directory: str) -> Line:
        return self.lines.setdefault(directory, Line())

    def wrote(self, directory: str, name: str, offset: int, data: bytes) -> None:
        """A writer handed this to its claim."""
        content = self.segments.setdefault((directory, name), bytearray())
        if len(content) != offset:
            raise ViolationError(
                "O4", f"{directory}/{name} is written at {offset}, it has {len(content)} bytes"
            )
        content += data

    def number(self, directory: str, epoch: int) -> int:
        """A number for the next record."""
        self.numbers += 1
        self.line(directory).appended[self.numbers] = epoch
        return self.numbers

    def acknowledge(self, directory: str, number: int) -> None:
        self.line(directory).acknowledged.append(number)

    def took_over(self, directory: str, epoch: int, found: list[int]) -> None:
        """A take-over is done, its start acknowledged: everything that older writers had acknowledged must be
        in it. (Newer ones there may be too: a process can be stopped between the two.)"""
        line = self.line(directory)
        there = set(found)
        missing = [
            number for number in line.acknowledged if number not in there and line.appended[number] < epoch
        ]
        if missing:
            raise ViolationError(
                "O1",
                f"epoch {epoch} of {directory} found {len(found)} records, lacks acknowledged {missing[:5]}",
            )
        self._in_order(directory, found)
        shown = [number for number in line.shown if line.appended[number] < epoch]
        if found[: len(shown)] != shown:
            raise ViolationError("O3", f"epoch {epoch} of {directory} lacks records that a reader was shown")
        self.starts[directory] = max(self.starts.get(directory, 0), epoch)

    def refuse(self, directory: str, why: str) -> None:
        """A take-over was refused for good, though no more is damaged than the promise allows (P-5)."""
        raise ViolationError("O6", f"a take-over of {directory} was refused: {why}")

    def showed(self, directory: str, found: list[int]) -> None:
        """A reader was shown this."""
        line = self.line(directory)
        self._in_order(directory, found)
        common = min(len(found), len(line.shown))
        if found[:common] != line.shown[:common]:
            raise ViolationError("O3", f"two readers of {directory} were shown different histories")
        if len(found) > len(line.shown):
            line.shown = list(found)

    def _in_order(self, directory: str, found: list[int]) -> None:
        """Epochs never go back, numbers neither within one; none twice, none that nobody wrote."""
        line = self.line(directory)
        if len(set(found)) != len(found):
            raise ViolationError("O1", f"records of {directory} are there twice")
        keys = [(line.appended.get(number, -1), number) for number in found]
        if keys != sorted(keys) or any(epoch < 0 for epoch, _ in keys):
            raise ViolationError("O2", f"records of {directory} are out of order, or nobody wrote them")
