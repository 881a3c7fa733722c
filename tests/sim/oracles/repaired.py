"""O12: damage was found, reported and repaired. After a repair that reports success, each member
of the store has, whole, all that it ever told of. Damage of platters below a cache that still has the bytes
is the scrub's to find, not the repair's: it reads what readers see.

Other oracles leave out what the run itself damaged; this one does not.
"""

from typing import TYPE_CHECKING

from dos_server.core.extent import object_seed
from tests.sim.oracles.oracle import ViolationError
from tests.sim.oracles.platters import whole_of
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.membership.cluster import MembershipCluster


def check_repaired(cluster: "MembershipCluster") -> None:
    """Raises ViolationError. A copy that is whole and short is its writer's to fill; what a lost disk had
    told is forgotten with it."""
    for machine in cluster.machines:
        member = cluster.record.member(machine.identity)
        for (directory, name), reported in machine.reported.items() if member is not None else ():
            if directory == LOOSE:
                continue  # of one server alone, never claimed: repair leaves it alone, as it should
            path = f"d/{directory}/{name}"
            data = machine.disk.content(path) or b""
            whole, end = whole_of(data, object_seed(directory, name))
            if len(whole) < reported and end < len(data):
                how = "damage was not found" if path in machine.damaged else "nobody knows why"
                raise ViolationError(
                    "O12", f"{machine.name} has {len(whole)} of {reported} bytes of {path}: {how}"
                )
        cluster.history.sometimes["damaged copies were repaired"] += machine.copies_repaired
