"""P-4, P-5 of stores that change: a generation has one record, and when the command reports that a change is
done, every byte acknowledged so far is on so many members of the new record that any take-over finds it.

Platters are read by `platters`, without a request to any server.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dos_protocol.store_record import StoreRecord, claims_needed
from dos_server.core.files.extent import object_seed
from tests.sim.oracles.oracle import ViolationError
from tests.sim.oracles.platters import payload_of

if TYPE_CHECKING:
    from tests.sim.membership.cluster import MembershipCluster
    from tests.sim.store.machine import Machine


def check_records(machines: "Iterable[Machine]") -> None:
    """Check that each generation has one record on all servers that ever stored it. Raises ViolationError."""
    known: dict[int, StoreRecord] = {}
    for machine in machines:
        for record in machine.records:
            if known.setdefault(record.generation, record) != record:
                raise ViolationError(
                    "P-4", f"{machine.name} kept another record of generation {record.generation}"
                )


def check_copies(cluster: "MembershipCluster", record: StoreRecord) -> None:
    """Check that acknowledged bytes are on enough members. One member whose disk was lost or is damaged is
    excused. Raises ViolationError."""
    count = len(record.voters)
    if count < len(record.members):
        return  # while a member is filled, few may have a byte; the next record waits for it
    enough = count - claims_needed(count, record.ack_quorum) + 1
    members = [one for one in cluster.machines if record.member(one.identity) is not None]
    hurt = [one for one in members if one in cluster.lost or one is cluster.victim]
    absent = count - len(members)
    for (directory, name), size in cluster.history.durable.items():
        holders = _holders(members, directory, name, size)
        excused = absent + sum(one not in holders for one in hurt)
        if len(holders) + min(excused, 1) < enough:
            names = ", ".join(one.name for one in holders) or "no member"
            raise ViolationError(
                "P-5",
                f"generation {record.generation} counts; {size} bytes of {directory}/{name} are on {names}",
            )


def _holders(members: "Iterable[Machine]", directory: str, name: str, size: int) -> "list[Machine]":
    seed, path = object_seed(directory, name), f"d/{directory}/{name}"
    return [
        one
        for one in members
        if len(payload_of(one.disk.after_start(durable=True).stable(path) or b"", seed)) >= size
    ]
