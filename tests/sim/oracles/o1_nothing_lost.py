"""O1: no acknowledged byte is lost. Every take-over finds what was acknowledged to older writers; and what
one server reported as synced is on its platters when its power is cut, whatever other servers have (P-1).
"""

from typing import TYPE_CHECKING

from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.platters import payload_at

if TYPE_CHECKING:
    from tests.sim.history import History
    from tests.sim.store.machine import Machine


class NothingLost(Oracle):
    """Compares take-overs with what was acknowledged."""

    number = "O1"

    def took_over(self, history: "History", directory: str, epoch: int, found: list[int]) -> None:
        """(There may be newer records too: a process can be stopped between its start and this call.)"""
        line, there = history.line(directory), set(found)
        missing = [one for one in line.acknowledged if one not in there and line.appended[one] < epoch]
        if missing:
            self.object(
                f"epoch {epoch} of {directory} found {len(found)} records, lacks acknowledged {missing[:5]}"
            )

    def power_cut(self, machine: "Machine") -> None:
        """Check all objects except those that the run itself damaged."""
        for (directory, name), reported in machine.reported.items():
            path = f"d/{directory}/{name}"
            if reported and path not in machine.damaged:
                found = len(payload_at(machine.disk.after_start().content(path), path))
                if found < reported:
                    self.object(f"{machine.name} reported {reported} bytes of {path}, and has {found}")
