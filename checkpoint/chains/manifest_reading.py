"""A region's manifest as anybody may read it who reaches the store: committed cuts, and who claims it.
Claims nothing.

Rules of this file: reads, and checks what it reads. Only committed records come out (R10); a cut that a
take-over could still leave out is not shown.
"""

import logging
from contextlib import aclosing
from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.coordinator.manifest_log import CHAIN, cuts_in
from checkpoint.core.manifest import Cut
from checkpoint.core.region import coordinator_directory
from checkpoint.core.retention import keep
from checkpoint.errors import CheckpointReleasedError, ManifestError, NoRegionError
from dos_client import Store
from dos_protocol.errors import NotFoundError
from journal import ChainState, LostBytesError, look_chain, read_records
from journal.core.segment import parse_segment_name

logger = logging.getLogger("dos.checkpoint")
_SUFFIX = coordinator_directory("")


@dataclass(frozen=True, slots=True)
class ManifestView:
    """What the manifest tells."""

    region: str
    epoch: int
    """The highest epoch with which it was claimed, as F members or more say: no older incarnation can
    commit.
    """
    cuts: list[Cut] = field(default_factory=list)
    """Committed, oldest first; those before the newest snapshot of the chain are not in it any more."""
    unproved: str = ""
    """Why there may be a later cut than the last one here; "" if nothing is hidden (decision 0216)."""

    @property
    def last(self) -> Cut | None:
        return self.cuts[-1] if self.cuts else None

    @property
    def retained(self) -> tuple[int, ...]:
        """Numbers of the cuts that can be restored, rising: the others are released (R14)."""
        kept: tuple[Cut, ...] = ()
        for cut in self.cuts:
            kept = keep(kept, cut)
        return tuple(cut.cut for cut in kept)

    def restorable(self, number: int) -> Cut:
        """The cut of that number. Raises CutReleasedError, or ManifestError if there never was one."""
        for cut in self.cuts:
            if cut.cut == number and number in self.retained:
                return cut
        last = self.last.cut if self.last is not None else 0
        if 0 < number < last:
            raise CheckpointReleasedError(self.region, number, self.retained)
        raise ManifestError(f"region {self.region} has {last} as its last one", cut=number)


async def regions_of(store: Store) -> list[str]:
    """Names of the regions that have a manifest, or a claim of one. Raises QuorumUnavailableError."""
    return [name.removesuffix(_SUFFIX) for name in await store.list_directories() if name.endswith(_SUFFIX)]


async def manifest_epoch(store: Store, region: str) -> int:
    """See `ManifestView.epoch`; 0 if nobody ever claimed it. Raises QuorumUnavailableError."""
    return (await store.look(coordinator_directory(region))).epoch_seen


async def read_manifest(store: Store, region: str) -> ManifestView:
    """All of it. Raises NoRegionError, naming the regions there are; ManifestError; and what reading
    raises.
    """
    directory = coordinator_directory(region)
    view = await store.look(directory)
    names = {name for objects in view.answers.values() for name in objects}
    if not view.epoch_seen and not any(_is_manifest(name) for name in names):
        raise NoRegionError(region, await regions_of(store))
    for _ in range(limits.manifest_looks_max - 1):
        try:
            return await _read(store, region, view.epoch_seen)
        except (LostBytesError, NotFoundError) as error:
            logger.info("%s: %s; looking again, its writer may have begun it anew", directory, error)
    return await _read(store, region, view.epoch_seen)


async def _read(store: Store, region: str, epoch: int) -> ManifestView:
    """As the chain is now. What it began with may go while it is read, when its writer has begun it anew."""
    directory = coordinator_directory(region)
    state = await look_chain(store, directory, CHAIN)
    async with aclosing(cuts_in(read_records(store, state, directory=directory))) as cuts:
        return ManifestView(region, epoch, [cut async for cut in cuts], _unproved_text(state))


def _unproved_text(state: ChainState) -> str:
    """No checkpoint names the newest record of a manifest, for that record is the checkpoint."""
    if not state.unproved:
        return ""
    return (
        f"a later cut may be committed: {state.unproved} more bytes of the manifest are there and cannot be"
        f" proved committed now, because a take-over at epoch {state.claimed} did not complete; they are not"
        " lost: the next `run` of this region settles them"
    )


def _is_manifest(name: str) -> bool:
    parsed = parse_segment_name(name)
    return parsed is not None and parsed.chain == CHAIN
