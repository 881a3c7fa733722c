"""O3: what a reader received is in every later take-over, at the same position, and all readers receive the
same history. A read that does not report unproved bytes has what was acknowledged before it began (P-5).
"""

from typing import TYPE_CHECKING

from tests.sim.oracles.oracle import Oracle

if TYPE_CHECKING:
    from tests.sim.history import History


class ReadsStay(Oracle):
    """Compares take-overs and reads with what readers got before."""

    number = "O3"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        line = history.line(directory)
        returned = [number for number in line.returned if line.appended.get(number, 0) < epoch]
        if found[: len(returned)] != returned:
            self.object(f"epoch {epoch} of {directory} lacks records that a reader received")

    def returned(self, history: "History", directory: str, found: list[int], owed: int) -> None:
        returned = history.line(directory).returned
        common = min(len(found), len(returned))
        if found[:common] != returned[:common]:
            self.object(f"two readers of {directory} received different histories")
        there = set(found)
        if missing := [one for one in history.line(directory).acknowledged[:owed] if one not in there]:
            self.object(f"a reader of {directory} was not told that it lacks acknowledged {missing[:5]}")
