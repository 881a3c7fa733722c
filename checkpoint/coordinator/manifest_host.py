"""The interface of `manifest_log.py` to the store, time and randomness, and its implementation on trio.

This file makes no decision about the manifest. The simulator has its own implementation, so that the order of
an opening is tested on virtual time.
"""

from typing import Any, Protocol

import trio

from checkpoint.runtime import wall_time_ms
from dos_protocol.errors import FencedError
from dos_protocol.store_record import StoreRecord
from journal import StoreStateHost
from journal.ports import ClaimPort, DirectoryViewPort


class ManifestClaimPort(ClaimPort, Protocol):
    """A claim as the manifest uses it; see `dos_client.Claim`."""

    @property
    def lost(self) -> FencedError | None: ...

    @property
    def waiting(self) -> bool: ...

    def status(self) -> Any:
        """Return its status; its `waiting` is a description."""
        ...

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds any collected object; False on timeout. Raises FencedError."""
        ...

    async def aclose(self) -> None: ...


class ManifestHead(DirectoryViewPort, Protocol):
    """A read view of a directory. `epoch_seen`: the highest claim that any member reports."""

    @property
    def epoch_seen(self) -> int: ...


class ManifestHost(Protocol):
    """The store, clock and random numbers of a manifest."""

    @property
    def record(self) -> StoreRecord: ...

    async def inspect(self, directory: str) -> ManifestHead: ...

    async def claim(self, directory: str, epoch: int, patience_s: float) -> ManifestClaimPort | None:
        """Claim the directory; None if it is not granted within `patience_s` seconds. Raises FencedError."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def rng(self) -> float:
        """Return a random number from 0 to 1."""
        ...

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def wall_time_ms(self) -> int: ...


class StoreHost(StoreStateHost):
    """A host on a real store, under trio."""

    def now(self) -> float:
        return trio.current_time()

    def wall_time_ms(self) -> int:
        return wall_time_ms()
