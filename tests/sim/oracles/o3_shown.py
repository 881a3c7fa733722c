"""O3: what a reader was shown is in every later take-over, in the same place, and two readers are shown one
history.
"""

from typing import TYPE_CHECKING

from tests.sim.oracles.oracle import Oracle

if TYPE_CHECKING:
    from tests.sim.history import History


class Shown(Oracle):
    """Compares take-overs and reads with what readers got before."""

    number = "O3"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        line = history.line(directory)
        shown = [number for number in line.shown if line.appended.get(number, 0) < epoch]
        if found[: len(shown)] != shown:
            self.object(f"epoch {epoch} of {directory} lacks records that a reader was shown")

    def showed(self, history: "History", directory: str, found: list[int]) -> None:
        shown = history.line(directory).shown
        common = min(len(found), len(shown))
        if found[:common] != shown[:common]:
            self.object(f"two readers of {directory} were shown different histories")
