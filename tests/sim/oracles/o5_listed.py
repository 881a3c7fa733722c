"""O5: LIST and STAT return every object of which the server has acknowledged bytes, with at least the
acknowledged size, and never with more than is durable. An observer sends these requests during the run.
"""

from typing import TYPE_CHECKING

from dos_protocol.messages import ObjectInfo
from tests.sim.oracles.oracle import Oracle
from tests.sim.oracles.platters import payload_at

if TYPE_CHECKING:
    from tests.sim.store.machine import Machine


class Listed(Oracle):
    """Compares LIST and STAT with what was acknowledged. O12 checks damaged objects."""

    number = "O5"

    def listed(
        self, machine: "Machine", directory: str, reported: dict[str, int], infos: dict[str, ObjectInfo]
    ) -> None:
        for name, size in reported.items():
            path = f"d/{directory}/{name}"
            if not size or path in machine.damaged:
                continue
            info = infos.get(name)
            if info is None:
                self.object(f"{machine.name} reported {size} bytes of {path} and does not list it")
            elif info.synced < size and not info.corrupt:
                self.object(f"{machine.name} reported {size} bytes of {path} and lists {info.synced}")
        for name, info in infos.items():
            path = f"d/{directory}/{name}"
            if path not in machine.damaged and (directory, name) not in machine.reportable_max:
                durable = len(payload_at(machine.disk.after_start(durable=True).stable(path), path))
                if info.synced > durable:
                    self.object(f"{machine.name} lists {info.synced} bytes of {path}, {durable} are durable")
