"""O2: what a machine has of an object is a prefix of what its writer appended.

As `platters` reads them.
"""

from typing import TYPE_CHECKING

from dos_server.core.extent import object_seed
from tests.sim.history import ViolationError
from tests.sim.oracles.platters import payload_of

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def check(cluster: "Cluster") -> None:
    """Raises ViolationError."""
    for machine in cluster.machines:
        for (directory, name), content in cluster.history.segments.items():
            data = machine.disk.content(f"d/{directory}/{name}")
            found = b"" if data is None else payload_of(data, object_seed(directory, name))
            if not content.startswith(found):
                raise ViolationError(
                    "O2", f"{machine.name} has {len(found)} bytes of {directory}/{name} that nobody wrote so"
                )
