"""O12: damage was found, reported and repaired. After a repair that reports success, each member of the store
has everything that it ever reported, undamaged. A repair reads what readers see: the scrub must find damage
of platters that the page cache still hides.

Other oracles ignore what the run itself damaged; this one does not.
"""

from typing import TYPE_CHECKING

from dos_server.core.files.extent import object_seed
from tests.sim.oracles.oracle import ViolationError
from tests.sim.oracles.platters import whole_of
from tests.sim.visitors import LOOSE

if TYPE_CHECKING:
    from tests.sim.membership.cluster import MembershipCluster


def check_repaired(cluster: "MembershipCluster") -> None:
    """Check the copies after a repair. Raises ViolationError. The writer fills a copy that is short and
    undamaged; what was reported from a lost disk does not count."""
    for machine in cluster.machines:
        member = cluster.record.member(machine.identity)
        for (directory, name), reported in machine.reported.items() if member is not None else ():
            if directory == LOOSE:
                continue  # on one server only and never claimed: repair ignores it, as specified
            path = f"d/{directory}/{name}"
            data = machine.disk.content(path) or b""
            whole, end = whole_of(data, object_seed(directory, name))
            if len(whole) < reported and end < len(data):
                how = "damage was not found" if path in machine.damaged else "for an unknown reason"
                raise ViolationError(
                    "O12", f"{machine.name} has {len(whole)} of {reported} bytes of {path}: {how}"
                )
        cluster.history.sometimes["damaged copies were repaired"] += machine.copies_repaired
