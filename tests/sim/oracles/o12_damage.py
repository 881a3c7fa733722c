"""O12: damage that was done is damage that is reported, and nothing else is.

At the end, after two more rounds of its scrub, a machine has reported exactly the objects that the run
damaged such that bytes are gone of which it had told; where no scrub runs, a look at the whole object finds
them. Objects whose damage cost nothing that was acknowledged may be reported or not, and so may those of a
machine whose disk gave errors: an object of which no mark can be written is one that nobody should go by.
Damage of an object whose newest mark a power cut took, before or after, and no later life has written anew,
may be taken for a torn tail (decision 0002, "What still fails").
"""

from typing import TYPE_CHECKING

from dos_server.core import scrub_reads
from dos_server.core.object_state import ObjectState
from dos_server.core.verify import VerifyGoal, beginning
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.platters import payload_at

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.server import Machine, Server


class Damage(Oracle):
    """Compares reported damage with the damage that was done. A server reports nothing about directories that
    it has not loaded.
    """

    number = "O12"

    def ended(self, cluster: "Cluster") -> None:
        for machine in cluster.machines:
            if machine.server is not None and machine.server.alive:
                self._judge(machine, machine.server)

    def _judge(self, machine: "Machine", server: "Server") -> None:
        for name, directory in server.core._tables.directories.items():
            if directory.problem or not directory.exists:
                continue
            objects = {
                key: reported
                for (folder, key), reported in machine.reported.items()
                if folder == name and reported
            }
            for key, reported in objects.items():
                path, state = f"d/{name}/{key}", directory.objects.get(key)
                if not machine.damaged.get(path, True):
                    continue
                lost = path in machine.damaged and self._lacks(machine, path, reported)
                if state is None or not self._reports(server, state):
                    if lost:
                        self.object(
                            f"{machine.name} has lost bytes of {path}, of which it told {reported}, unsaid"
                        )
                    if state is None or state.synced < reported:
                        has = "none" if state is None else state.synced
                        self.object(
                            f"{machine.name} told {reported} bytes of {path}, has {has}, and is silent"
                        )
            for key, state in directory.objects.items():
                damaged = f"d/{name}/{key}" in machine.damaged or machine.had_errors
                if state.corrupt_from is not None and not damaged:
                    self.object(f"{machine.name} says that {name}/{key} is damaged, which nobody did")

    @staticmethod
    def _lacks(machine: "Machine", path: str, reported: int) -> bool:
        return (
            not machine.disk.is_unreadable(path)
            and len(payload_at(machine.disk.stable(path), path)) < reported
        )

    @staticmethod
    def _reports(server: "Server", state: ObjectState) -> bool:
        """Whether the object is said to be damaged. Where nothing scrubs, all of it is looked at now."""
        if state.damaged or server.machine.scrub.bytes_per_s:
            return state.damaged
        chain, goal = beginning(state.root), VerifyGoal(state.synced, state.synced_digest)
        while chain.offset < goal.size:
            part = server.storage.inspect(
                scrub_reads.ScrubRead(state.directory, state.name, chain, goal), lambda: 0.0
            )
            if part.chain is None:
                return part.damaged_at is not None
            chain = part.chain
        return False
