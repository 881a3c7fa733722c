"""O2: one history. What a take-over finds and a reader receives is in the order of epochs and numbers,
without duplicates, and was written by a writer. What a machine has of an object is a prefix of what its
writer appended.
"""

from typing import TYPE_CHECKING

from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.platters import payload_at

if TYPE_CHECKING:
    from tests.sim.history import History
    from tests.sim.run import Cluster


class Order(Oracle):
    """Checks the order of records in take-overs and reads."""

    number = "O2"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        self._in_order(history, directory, found)

    def returned(self, history: "History", directory: str, found: list[int], owed: int) -> None:
        self._in_order(history, directory, found)

    def _in_order(self, history: "History", directory: str, found: list[int]) -> None:
        line = history.line(directory)
        if len(set(found)) != len(found):
            self.object(f"records of {directory} occur twice")
        keys = [(line.appended.get(number, -1), number) for number in found]
        if keys != sorted(keys) or any(epoch < 0 for epoch, _ in keys):
            self.object(f"records of {directory} are out of order, or were never written")

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            for (directory, name), content in cluster.history.segments.items():
                path = f"d/{directory}/{name}"
                found = payload_at(machine.disk.after_start().content(path), path)
                if not content.startswith(found):
                    self.object(
                        f"{machine.name} has {len(found)} bytes of {path} that differ from what was written"
                    )
