"""A machine in memory: an address, a disk, and the successive incarnations of its server process.

The server is the real `server.ObjectServer` with its tasks, core and storage. An incarnation ends as a
process ends: nothing that it does in its last moment reaches the disk or a peer.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import trio

from dos_protocol.names import id_text
from dos_protocol.store_record import StoreRecord, encode_store_record
from dos_server.core.requests.scrub import NO_SCRUB, ScrubPlan
from dos_server.memory.disk import MemoryDisk
from dos_server.memory.ports import MemoryPorts
from dos_server.ports import Listener
from dos_server.server import ObjectServer
from dos_server.storage import Storage


class HostNetwork(Protocol):
    """The network of a host."""

    def listen(self, host: str, port: int) -> Listener: ...

    def process_died(self, host: str) -> None: ...

    def power_lost(self, host: str) -> None: ...

    def power_back(self, host: str) -> None: ...


class MemoryHost:
    """A machine in memory.

    `make_ports` returns the interfaces to the outside for each incarnation; `server` is that of the current
    one, if any.
    """

    def __init__(
        self,
        network: HostNetwork,
        host: str,
        port: int,
        make_ports: Callable[[], MemoryPorts],
        *,
        disk: MemoryDisk | None = None,
        **options: Any,
    ) -> None:
        self.network = network
        self.host = host
        self.port = port
        self.disk = disk if disk is not None else MemoryDisk()
        self.server: ObjectServer | None = None
        self.without_power = False
        self._make_ports = make_ports
        self._ports = make_ports()
        self._options = options
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def up(self) -> bool:
        """Whether a server runs and was not told to end."""
        return self.server is not None and not self._scope.cancel_called

    def prepare(self, fresh_id: bytes, record: StoreRecord | None = None) -> None:
        """Write the server's identity, a stamp and its store record to the disk before the first
        incarnation.
        """
        storage = Storage(self.disk)
        storage.start(fresh_id)
        storage.add_stamp(fresh_id)  # with the identity, as in the start of a new server
        if record is not None:
            storage.store_record(encode_store_record(record))
        storage.stop()

    def start(self, nursery: trio.Nursery, scrub: ScrubPlan = NO_SCRUB, *, log_bytes: int = 0) -> None:
        """Start an incarnation, which accepts connections on return. `log_bytes`: see `ObjectServer`. Raises
        CorruptDataError, OSError."""
        assert self.server is None, "the server runs already"
        self.disk.off = False
        self._ports = self._make_ports()
        server = ObjectServer(
            Storage(self.disk), ports=self._ports, scrub=scrub, log_bytes=log_bytes, **self._options
        )
        if self.without_power:
            self.without_power = False
            self.network.power_back(self.host)
        listener = self.network.listen(self.host, self.port)
        self.server, self._scope, self._ended = server, trio.CancelScope(), trio.Event()
        nursery.start_soon(self._live, server, listener, self._scope, self._ended)

    async def _live(
        self, server: ObjectServer, listener: Listener, scope: trio.CancelScope, ended: trio.Event
    ) -> None:
        try:
            with scope:
                await server.serve(listener)
        finally:
            self.server = None
            ended.set()

    def stop(self) -> None:
        """End it as SIGTERM does: work that has begun is finished, files are synced and closed."""
        self._scope.cancel()

    def crash(self) -> None:
        """End it as SIGKILL does: what was written stays in the page cache, connections are closed."""
        if self._end_abruptly():
            self.network.process_died(self.host)
            self.disk.kill()

    def power_cut(self, rng: Random) -> None:
        """End the machine: unsynced data is lost at random, and no peer is notified."""
        self._end_abruptly()
        self.without_power = True
        self.network.power_lost(self.host)
        self.disk.power_cut(rng)

    def _end_abruptly(self) -> bool:
        """Cancel the server's tasks, before the disk and network change in a way that they would notice."""
        if self.server is None:
            return False
        self._scope.cancel()
        self.disk.off = True
        self._ports.hurried = True
        return True

    async def wait_ended(self) -> None:
        """Wait until the incarnation that was ended is over."""
        if self.server is not None:
            await self._ended.wait()

    @property
    def server_id(self) -> str:
        """The id of the running server in hex, or ''."""
        return id_text(self.server.server_id) if self.server is not None else ""
