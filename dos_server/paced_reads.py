"""Reading for GETs, with answers kept from piling up in memory before peers that do not take them.

Rules of this file: when a read may go to the disk, and how much of it. What is read is `storage`'s.
"""

from collections.abc import Mapping

import trio

from dos_server.connection import Connection
from dos_server.core import vocabulary as v
from dos_server.limits import outgoing_bytes_max, outgoing_total_bytes_max, read_pressed_bytes
from dos_server.storage import Storage


class PacedReads:
    """See the module. `connections`: by session, those that are open now."""

    def __init__(
        self, storage: Storage, connections: Mapping[int, Connection], limiter: trio.CapacityLimiter
    ) -> None:
        self._storage = storage
        self._connections = connections
        self._limiter = limiter

    async def read(self, effect: v.ReadData) -> v.GotData:
        """Read once the peer has taken enough of its earlier answers.

        Under pressure of many slow peers, read less; nothing for a peer that is gone.
        """
        wanted = effect.end - effect.start
        while (connection := self._connections.get(effect.session)) is not None:
            held = connection.outgoing_bytes + connection.reserved_bytes
            if held + wanted <= outgoing_bytes_max:
                if self._held_bytes() <= outgoing_total_bytes_max:
                    break
                if held == 0:
                    effect = effect._replace(end=min(effect.end, effect.start + read_pressed_bytes))
                    break
            await connection.wait_for_room()
        else:
            return v.GotData(effect, b"")
        wanted = effect.end - effect.start
        connection.reserved_bytes += wanted
        try:
            return await trio.to_thread.run_sync(self._storage.read, effect, limiter=self._limiter)
        finally:
            connection.reserved_bytes -= wanted

    def _held_bytes(self) -> int:
        return sum(one.outgoing_bytes + one.reserved_bytes for one in self._connections.values())
