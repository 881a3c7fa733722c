"""O14: what is said of a disk is true, and causes that pass leave nothing behind (docs/decisions/0202).

Nobody hears NO_SPACE from a server whose disk was never full. Of an object whose file was removed nothing is
acknowledged that was written after. At the end, a server whose disk was not damaged refuses no directory, and
no object of it, and takes appends: want of descriptors, of rights or of room is over then.
"""

from typing import TYPE_CHECKING, Final

from dos_protocol.errors import ErrorCode
from tests.sim.oracles.oracle import Oracle

if TYPE_CHECKING:
    from dos_server.core.server import ServerCore
    from tests.sim.run import Cluster
    from tests.sim.store.server import Machine

_NO_SPACE: Final = int(ErrorCode.NO_SPACE)


class Causes(Oracle):
    """Checks what servers report about causes."""

    number = "O14"

    def append_refused(self, machine: "Machine", session: int, request_id: int, code: int) -> None:
        if code == _NO_SPACE and not machine.disk.was_full:
            self.object(f"{machine.name} refuses an append for want of room, and its disk was never full")

    def acknowledged_bytes(self, machine: "Machine", directory: str, name: str, synced: int) -> None:
        most = machine.reportable_max.get((directory, name), synced)
        if synced > most:
            self.object(
                f"{machine.name} acknowledges {synced} bytes of {directory}/{name}, removed at {most}"
            )

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            server = machine.server
            if server is not None and server.alive and not (machine.had_errors or machine.damaged):
                for what in kept_from_a_cause(server.core):
                    self.object(f"{machine.name}: {what}, which nothing but causes that passed can be behind")


def kept_from_a_cause(core: "ServerCore") -> list[str]:
    """What a server refuses for good: directories, and objects."""
    found = []
    for name, directory in core._tables.directories.items():
        if directory.problem:
            found.append(f"directory {name} is refused ({directory.problem})")
        found += [
            f"object {name}/{key} is refused"
            for key, state in directory.objects.items()
            if state.damaged or state.corrupt_from is not None
        ]
    return found
