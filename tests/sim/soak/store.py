"""The store of one simulated process with the methods that the product's code for trio uses.

It lets `InputLog`, `QueueReader`, `write_records`, `change_register` and the followers run on the simulator's
own coroutines, unless they have to wait for anything but the store. For stores of one server.
"""

from collections.abc import AsyncGenerator
from random import Random

from dos_client import Bookmark
from dos_client.core.agreement import DirectoryView
from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import DosError, NotFoundError
from dos_protocol.store_record import StoreRecord
from tests.sim.engine.environment import Process
from tests.sim.engine.network import Network
from tests.sim.history import History
from tests.sim.regions.claiming import Host, RegionClaim
from tests.sim.store.sim_store import SimStore

_READ_BYTES = 256 * 1024


class SoakStore(SimStore):
    """The store as one process uses it, for one task at a time."""

    def __init__(
        self, process: Process, network: Network, record: StoreRecord, history: History, rng: Random
    ) -> None:
        super().__init__(process, network, record)
        self._host = Host(process, network, record, history, rng)
        self._selected = ""
        """The directory that the open sessions read."""

    async def inspect(self, directory: str, *, keep: bool = True) -> DirectoryView:
        self._selected = ""
        view = await super().inspect(directory, keep=keep)
        self._selected = directory
        return view

    async def _select(self, directory: str) -> None:
        if self._selected != directory or any(one.failure is not None for one in self._sessions.values()):
            await self.inspect(directory)

    async def claim(self, directory: str, epoch: int, writer_id: bytes = b"") -> RegionClaim:
        """Claim a directory; waits without a limit. The identity is drawn by the claim."""
        del writer_id
        claim = await self._host.claim(directory, epoch)
        assert claim is not None, "it waits without a limit"
        return claim

    async def read(self, directory: str, name: str, offset: int, max_bytes: int) -> bytes:
        """Return bytes of an object."""
        await self._select(directory)
        return await super().read(directory, name, offset, max_bytes)

    async def stream(
        self, directory: str, name: str, offset: int = 0, end: int | None = None, seen: Bookmark | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield what the one server has synced."""
        await self._select(directory)
        for session in list(self._sessions.values()):
            while end is None or offset < end:
                wanted = _READ_BYTES if end is None else min(end - offset, _READ_BYTES)
                try:
                    data = await session.get(name, offset, wanted)
                except NotFoundError:
                    raise
                except DosError as error:
                    raise QuorumUnavailableError(
                        f"{directory}/{name} cannot be read", [str(error)]
                    ) from error
                if not data:
                    return
                offset += len(data)
                yield data
            return
        raise QuorumUnavailableError(f"no server has {directory}/{name}", [])
