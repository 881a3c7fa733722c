"""A client with a valid token that sends false stamps, so that members count for nothing."""

from typing import TYPE_CHECKING

from dos_client.sessions.connection import Connection, open_connection
from dos_protocol.errors import DosError
from dos_protocol.messages import Stamp, Stamped, Witness, Witnessed
from dos_protocol.store_record import NO_STAMP, DiskStamp, decode_witnessed
from tests.shells.clients import Client

if TYPE_CHECKING:
    from tests.shells.machines import Machine
    from tests.shells.run import Cluster

TIMEOUT_S = 2.0
ROUNDS = 2


class Forger(Client):
    """Sends each member stamps of it that it never made, and stamps of the others that they never made.

    It sends none of the victim to others: the victim's disk may be restored, and a client that overwrites
    what others know of it hides that (docs/decisions/0258, "Limits").
    """

    kind = "forger"

    async def perform(self) -> None:
        for _ in range(ROUNDS):
            for machine in self.cluster.machines:
                record = machine.kept_record()
                if record is not None:
                    try:
                        async with open_connection(
                            machine.address,
                            store_id=record.store_id,
                            generation=record.generation,
                            client=self.name,
                        ) as connection:
                            await self._forge_witnessed(connection, machine)
                            await self._forge_stamps(connection)
                    except DosError as error:
                        self.note(f"cannot forge: {error.args[0]}")
            await self.sleep(0.3)

    async def _forge_stamps(self, connection: Connection) -> None:
        """Announce stamps that the server never made."""
        number, stamp_id = connection.welcome.stamp_number, connection.welcome.stamp_id
        for forged in (
            DiskStamp(number + self.rng.randrange(3), self.rng.randbytes(16)),
            DiskStamp(number + 1, stamp_id),
        ):
            await connection.call(Stamp(*forged), Stamped, TIMEOUT_S)
            self.history.sometimes["forger: announced a stamp"] += 1

    async def _forge_witnessed(self, connection: Connection, machine: "Machine") -> None:
        """Let the server remember stamps that other members never made."""
        cluster: Cluster = self.cluster
        witnessed = decode_witnessed(connection.welcome.witnessed)
        for other in cluster.machines:
            if other not in (machine, cluster.victim) and other.is_member_with(machine):
                held = witnessed.get(other.identity, NO_STAMP)
                forged = DiskStamp(held.number + 1, self.rng.randbytes(16))
                await connection.call(Witness(other.identity, *forged, *held), Witnessed, TIMEOUT_S)
                self.history.sometimes["forger: changed a memory"] += 1
