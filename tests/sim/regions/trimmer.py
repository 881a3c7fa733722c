"""A producer that trims the input of a region to what its committed manifest says that it needs.

It reads the manifest without a claim, with the code that producers use, while servers and drivers fail. The
input of a simulated region is in no store, so trimming only notes how far: reading below is a violation.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from checkpoint.chains.manifest_log import retained_checkpoints
from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.manifest import Checkpoint
from dos_protocol.errors import DosError
from tests.sim.engine.environment import Process
from tests.sim.regions.forking import FORK
from tests.sim.store.sim_store import SimStore

if TYPE_CHECKING:
    from tests.sim.regions.region import Region

SOURCES = ("lines",)


class Trimmer(Process):
    """The trimmer of one region's input."""

    def __init__(self, region: "Region") -> None:
        super().__init__(region.env, "trimmer")
        self._region = region
        self._rng = region.rng.stream("trimmer")
        self.start("trim", self._trim())

    async def _trim(self) -> None:
        region = self._region
        store = SimStore(self, region.network, region.store)
        while True:
            await self.sleep(0.1 + self._rng.expovariate(2.0))
            try:
                kept = await retained_checkpoints(store, region.spec.name)
                # The fork registers as a consumer before it reads. Until then the original holds its input.
                forked = region.fork is not None and await retained_checkpoints(store, FORK)
            except DosError as error:  # what is needed is unknown: nothing is trimmed
                region.saw(f"trimmer: {type(error).__name__}")
                continue
            finally:
                store.close()
            for split in region.given.splits:
                needs = [self.needs(of_one, split) for of_one in (kept, forked) if of_one]
                region.given.trim(split, min(needs, default=0))
            region.saw("trimmed")

    def needs(self, kept: Sequence[Checkpoint], split: str) -> int:
        """Return the position from which on the retained checkpoints need a split."""
        return need_of(kept, SOURCES, split)
