"""Reads a region's manifest from any client of the store: the committed checkpoints, and the epoch of the
claim. Claims nothing.

Returns only verified, committed records (R10). A checkpoint that a take-over could still discard is not
returned.
"""

import logging
from contextlib import aclosing
from dataclasses import dataclass, field

from checkpoint import limits
from checkpoint.chains.manifest_log import CHAIN, checkpoints_in
from checkpoint.core.manifest import Checkpoint
from checkpoint.core.region import coordinator_directory
from checkpoint.core.retention import keep
from checkpoint.errors import CheckpointReleasedError, ManifestError, NoRegionError
from dos_client import Store
from dos_protocol.errors import NotFoundError
from journal import ChainState, LostBytesError, inspect_chain, parse_segment_name, read_records
from journal.ports import StorePort

logger = logging.getLogger("dos.checkpoint")
_SUFFIX = coordinator_directory("")


@dataclass(frozen=True, slots=True)
class ManifestView:
    """The content of a manifest."""

    region: str
    epoch: int
    """The highest epoch with which it was claimed, as reported by F or more members: no older incarnation can
    commit.
    """
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Committed checkpoints, oldest first. Those before the newest snapshot of the chain are no longer
    included.
    """
    unproved: str = ""
    """Why there may be a checkpoint later than the last one here; "" if there is none (decision 0216)."""

    @property
    def last(self) -> Checkpoint | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def retained(self) -> tuple[int, ...]:
        """Numbers of the checkpoints that can be restored, in increasing order. All others are released
        (R14).
        """
        return tuple(checkpoint.number for checkpoint in self.kept)

    @property
    def kept(self) -> tuple[Checkpoint, ...]:
        """The retained checkpoints, including those of savepoints, oldest first."""
        return _kept(self.checkpoints)

    def restorable(self, number: int) -> Checkpoint:
        """Return the checkpoint of that number. Raises CheckpointReleasedError, or ManifestError if it never
        existed.
        """
        for checkpoint in self.checkpoints:
            if checkpoint.number == number and number in self.retained:
                return checkpoint
        last = self.last.number if self.last is not None else 0
        if 0 < number < last:
            raise CheckpointReleasedError(self.region, number, self.retained)
        raise ManifestError(f"the last one of region {self.region} is {last}", checkpoint=number)


async def regions_of(store: Store) -> list[str]:
    """Return the names of the regions that have a manifest, or a claim of one. Raises
    QuorumUnavailableError.
    """
    return [name.removesuffix(_SUFFIX) for name in await store.list_directories() if name.endswith(_SUFFIX)]


async def manifest_epoch(store: Store, region: str) -> int:
    """Return `ManifestView.epoch`; 0 if the manifest was never claimed. Raises QuorumUnavailableError."""
    return (await store.inspect(coordinator_directory(region))).epoch_seen


async def read_manifest(store: Store, region: str) -> ManifestView:
    """Read the whole manifest. Raises NoRegionError, which names the existing regions; ManifestError; and
    what reading raises.
    """
    directory = coordinator_directory(region)
    view = await store.inspect(directory)
    names = {name for objects in view.answers.values() for name in objects}
    if not view.epoch_seen and not any(_is_manifest(name) for name in names):
        raise NoRegionError(region, await regions_of(store))
    return await _read(store, region, view.epoch_seen)


async def retained_checkpoints(store: StorePort, region: str) -> tuple[Checkpoint, ...]:
    """Return the retained checkpoints of a region, in increasing order, as its committed manifest states
    them; none if it has committed none.

    The manifest may be newer when this returns. Then other checkpoints are retained, and no older ones.
    Raises ManifestError, and what reading a chain raises.
    """
    return _kept((await _read(store, region, 0)).checkpoints)


def _kept(checkpoints: list[Checkpoint]) -> tuple[Checkpoint, ...]:
    kept: tuple[Checkpoint, ...] = ()
    for checkpoint in checkpoints:
        kept = keep(kept, checkpoint)
    return kept


async def _read(store: StorePort, region: str, epoch: int) -> ManifestView:
    """Read the chain, again if its writer restarts it meanwhile."""
    for _ in range(limits.manifest_reads_max - 1):
        try:
            return await _read_once(store, region, epoch)
        except (LostBytesError, NotFoundError) as error:
            logger.info(
                "manifest of %s: %s; reading again, its writer may have restarted the chain", region, error
            )
    return await _read_once(store, region, epoch)


async def _read_once(store: StorePort, region: str, epoch: int) -> ManifestView:
    """Read the chain once. Its first segments may be deleted during the read, if its writer restarts it with
    a snapshot.
    """
    directory = coordinator_directory(region)
    state = await inspect_chain(store, directory, CHAIN)
    async with aclosing(checkpoints_in(read_records(store, state, directory=directory))) as checkpoints:
        return ManifestView(
            region, epoch, [checkpoint async for checkpoint in checkpoints], _unproved_text(state)
        )


def _unproved_text(state: ChainState) -> str:
    """Describe the unproved end of a manifest. No checkpoint proves the newest record of a manifest, because
    that record is the newest checkpoint.
    """
    if not state.unproved:
        return ""
    return (
        f"a later checkpoint may be committed: the manifest has {state.unproved} more bytes that cannot be"
        f" proved committed at present, because {state.unproved_because}"
    )


def _is_manifest(name: str) -> bool:
    parsed = parse_segment_name(name)
    return parsed is not None and parsed.chain == CHAIN
