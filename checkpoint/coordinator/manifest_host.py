"""Where a manifest runs: what `manifest_log.py` needs of a store, of time and of chance, and trio's answer.

Rules of this file: no decision about the manifest. The simulator has an answer of its own, so that the order
of an opening is tried on virtual time as it is.
"""

from typing import Any, Protocol

import trio

from checkpoint.runtime import wall_time_ms
from dos_client import Store
from dos_client import randomness as rng
from dos_protocol.errors import FencedError
from dos_protocol.store_record import StoreRecord
from journal.ports import ClaimPort, DirectoryViewPort


class ManifestClaim(ClaimPort, Protocol):
    """A claim as the manifest needs it. See `dos_client.Claim`."""

    @property
    def lost(self) -> FencedError | None: ...

    @property
    def waiting(self) -> bool: ...

    def status(self) -> Any:
        """How it stands; `waiting` in words."""
        ...

    async def wait_collected(self, timeout_s: float) -> bool:
        """Until no connected member holds any of what is collected; False: not in time. FencedError."""
        ...

    async def aclose(self) -> None: ...


class ManifestHead(DirectoryViewPort, Protocol):
    """What a look found. `epoch_seen`: the highest claim that any member names."""

    @property
    def epoch_seen(self) -> int: ...


class ManifestHost(Protocol):
    """See the module."""

    @property
    def record(self) -> StoreRecord: ...

    async def look(self, directory: str) -> ManifestHead: ...

    async def claim(self, directory: str, epoch: int, patience_s: float) -> ManifestClaim | None:
        """Claim it; None: not granted within that time. Raises FencedError."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def rng(self) -> float:
        """A random number from 0 to 1."""
        ...

    def now(self) -> float:
        """Seconds of a clock that only goes forward."""
        ...

    def wall_time_ms(self) -> int: ...


class StoreHost:
    """On a real store, under trio."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def record(self) -> StoreRecord:
        return self._store.record

    async def look(self, directory: str) -> ManifestHead:
        return await self._store.look(directory)

    async def claim(self, directory: str, epoch: int, patience_s: float) -> ManifestClaim | None:
        with trio.move_on_after(patience_s):
            return await self._store.claim(directory, epoch, rng.fresh_id())
        return None

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def rng(self) -> float:
        return rng.jitter()

    def now(self) -> float:
        return trio.current_time()

    def wall_time_ms(self) -> int:
        return wall_time_ms()
