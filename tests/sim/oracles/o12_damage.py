"""O12: damage is reported, and nothing else is reported as damage.

At the end, after two more rounds of its scrub, a machine must report every object of which the run has
damaged bytes that were reported as synced. If it has no scrub, a read of the whole object must find the
damage. Other damage may be reported or not. The same is true of a machine whose disk returned errors, because
an object whose mark cannot be written is not trusted. If a power cut has lost the newest mark of an object,
before or after the damage, and no later start has written it again, the damage may be treated as a torn tail
(decision 0002, "What still fails").
"""

from typing import TYPE_CHECKING

from dos_server.core import vocabulary as v
from dos_server.core.files.scan import VerifyGoal, beginning
from dos_server.core.object_state import ObjectState
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.platters import payload_at

if TYPE_CHECKING:
    from tests.sim.run import Cluster
    from tests.sim.store.machine import Machine
    from tests.sim.store.server import Server


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
                            f"{machine.name} lost bytes of {path}, had reported {reported}: no report"
                        )
                    if state is None or state.synced < reported:
                        has = "none" if state is None else state.synced
                        self.object(
                            f"{machine.name} reported {reported} bytes of {path}, has {has}: no report"
                        )
            for key, state in directory.objects.items():
                damaged = f"d/{name}/{key}" in machine.damaged or machine.had_errors
                if state.corrupt_from is not None and not damaged:
                    self.object(f"{machine.name} reports that {name}/{key} is damaged, and it is not")

    @staticmethod
    def _lacks(machine: "Machine", path: str, reported: int) -> bool:
        return (
            not machine.disk.is_unreadable(path)
            and len(payload_at(machine.disk.after_start(durable=True).stable(path), path)) < reported
        )

    @staticmethod
    def _reports(server: "Server", state: ObjectState) -> bool:
        """Return whether the object is reported as damaged. Without a scrub, the whole object is read now."""
        if state.damaged or server.machine.scrub.bytes_per_s:
            return state.damaged
        chain, goal = beginning(state.root), VerifyGoal(state.synced, state.synced_digest)
        while chain.offset < goal.size:
            part = server.storage.scrub_read(
                v.ScrubRead(state.directory, state.name, chain, goal), lambda: 0.0
            )
            if part.chain is None:
                return part.damaged_at is not None
            chain = part.chain
        return False
