"""O12: a server that lost something of an object, of which it told more once, says so.

A flipped bit in the middle is found when it is read; but a server that has less of an object than it once
told, and takes that for all there is, has lost it without a word.
"""

from typing import TYPE_CHECKING

from tests.sim.history import ViolationError

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def check(cluster: "Cluster") -> None:
    """Raises ViolationError. Of directories that it has not loaded, or cannot, a server answers nothing."""
    for machine in cluster.machines:
        if machine.server is None:
            continue
        for (directory, name), told in machine.told.items():
            loaded = machine.server.core._tables.directories.get(directory)
            if loaded is None or loaded.problem or not told:
                continue
            state = loaded.objects.get(name)
            if state is None or (state.synced < told and not state.damaged):
                has = "nothing" if state is None else f"{state.synced} bytes"
                what = f"{machine.name} told {told} bytes of {directory}/{name}, has {has}, and is silent"
                raise ViolationError("O12", what)
