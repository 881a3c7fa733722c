"""Claims of a region's directories, and the host of its manifest: `ManifestHost` on virtual time.

It has the parts of `dos_client.Claim` that the claims of plain writers do not need.
"""

from random import Random
from typing import NamedTuple, Self

from dos_client.core.agreement import DirectoryView
from dos_client.core.claim import ClaimState
from dos_client.limits import waiting_after_s
from dos_protocol.store_record import StoreRecord
from tests.sim.engine.environment import Process
from tests.sim.engine.network import Network
from tests.sim.history import History
from tests.sim.store.claim import SimClaim
from tests.sim.store.sim_store import SimStore


class WaitStatus(NamedTuple):
    """Why a claim waits, as `status()` of `dos_client.Claim`."""

    waiting: str


class RegionClaim(SimClaim):
    """A claim that reports when it waits, and reports what is appended to the history."""

    history: History

    def on_append(self, name: str, offset: int, data: bytes) -> None:
        self.history.wrote(self.directory, name, offset, data)

    async def read(self, name: str, offset: int, max_bytes: int, member: bytes | None = None) -> bytes:
        data = await super().read(name, offset, max_bytes, member)
        return self.store.spoil(self.directory, name, offset, member, data)

    @property
    def waiting(self) -> bool:
        """Return whether too few members are available, or appended bytes wait and no member made
        progress."""
        if self.state is ClaimState.WAITING:
            return True
        moved: dict[str, tuple[int, float]] = self.__dict__.setdefault("_moved", {})
        now, late = self.process.now, False
        for name in moved.keys() - self.targets.keys():
            del moved[name]
        for name, target in self.targets.items():
            known = moved.get(name)
            if known is None or known[0] != target.synced or target.synced >= target.size:
                moved[name] = (target.synced, now)
            elif now - known[1] > waiting_after_s:
                late = True
        return late

    @property
    def lag_bytes(self) -> int:
        return sum(max(0, one.size - one.synced) for one in self.targets.values())

    def status(self) -> WaitStatus:
        return WaitStatus("too few members")

    async def wait_collected(self, timeout_s: float) -> bool:
        """Wait until no connected member holds anything that is garbage; False on timeout."""
        deadline = self.process.now + timeout_s
        while self.holds_garbage and self.process.now < deadline:
            self.check()
            await self.wait_changed(0.05)
        return not self.holds_garbage

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Host:
    """The host of a driver's manifest, and of a worker's chains."""

    def __init__(
        self, process: Process, network: Network, record: StoreRecord, history: History, rng: Random
    ) -> None:
        self.process = process
        self.record = record
        self._network = network
        self._history = history
        self._rng = rng
        self._store = SimStore(self.process, network, record)
        self._store.spoiled = history.spoiled

    @property
    def store(self) -> SimStore:
        return self._store

    async def inspect(self, directory: str) -> DirectoryView:
        return await self._store.inspect(directory, keep=True)

    async def claim(self, directory: str, epoch: int, patience_s: float = float("inf")) -> RegionClaim | None:
        store = SimStore(self.process, self._network, self.record)
        store.spoiled = self._history.spoiled
        claim = RegionClaim(store, self.process, self._network, self._rng, directory, epoch)
        claim.history = self._history
        deadline = self.process.now + patience_s
        try:
            while claim.state is ClaimState.CLAIMING:
                if self.process.now >= deadline:
                    claim.close()
                    return None
                await claim.wait_changed(min(1.0, deadline - self.process.now))
            await claim.wait_granted()
        except BaseException:
            claim.close()
            raise
        return claim

    async def sleep(self, seconds: float) -> None:
        await self.process.sleep(seconds)

    def rng(self) -> float:
        return self._rng.random()

    def now(self) -> float:
        return self.process.now

    def wall_time_ms(self) -> int:
        return int(self.process.now * 1000)
