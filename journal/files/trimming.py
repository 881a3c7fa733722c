"""Trim a chain of files: delete the history before a moment.

The stretch that holds the moment is kept whole, with the snapshot that begins it. All segments below it are
deleted, whether they are part of the chain or not, in two phases (`ChainWriter.release`). So every moment
from the given one on can still be restored, and some time before it.

The plan uses committed records of the chain's current line of history only (R10). A directory with other
chains is rejected: it belongs to a worker of a region, whose manifest determines what its checkpoints need.
"""

from dataclasses import dataclass

from dos_client.errors import MissingDataError
from dos_protocol.errors import LocalProtocolError
from journal.chain import inspect_committed, take_over
from journal.core.chain import ChainState, segments_seen
from journal.core.errors import StopNotFoundError
from journal.core.file_ops import ReplayStop
from journal.core.segment import parse_segment_name
from journal.core.trimming import Floor
from journal.files.history import has_checkpoint, stretch_at
from journal.ports import ClaimPort, StorePort
from journal.writer import ChainWriter


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """The plan or the result of a trim: delete all segments below `floor`, an (epoch, base).

    keeps_from: the logical offset from which on everything can still be restored.
    segments: the segments to delete: (name, bytes of the longest copy).
    released: whether the chain has already released them, and only the deletion is incomplete.
    """

    chain: str
    floor: Floor
    keeps_from: int
    segments: tuple[tuple[str, int], ...]
    released: bool

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.segments)


async def plan_trim(store: StorePort, directory: str, chain: str, before: ReplayStop) -> TrimPlan:
    """Return the plan for a trim to a moment. Takes no claim and changes nothing.

    Raises NotFoundError, LocalProtocolError for a directory with other chains, HistoryTrimmedError for a
    moment that the chain no longer holds, StopNotFoundError for an unknown checkpoint, and the errors of
    finding and reading a chain.
    """
    view = await store.inspect(directory)
    _refuse_others(directory, chain, [name for objects in view.answers.values() for name in objects])
    head = await inspect_committed(store, directory, chain)
    state = await stretch_at(store, directory, chain, before)
    if before.names_a_checkpoint and not await has_checkpoint(store, directory, state, before):
        raise StopNotFoundError(f"{directory} does not hold {before}; nothing was trimmed")
    floor, base = _lowest(state)
    seen = [one for one in segments_seen(chain, view.answers) if one.name.order < floor]
    return TrimPlan(
        chain=chain,
        floor=floor,
        keeps_from=base,
        segments=tuple((str(one.name), one.longest) for one in reversed(seen)),
        released=head.released >= floor,
    )


async def trim(
    store: StorePort, directory: str, writer: ChainWriter, chain: str, before: ReplayStop
) -> TrimPlan:
    """Trim the chain of `writer` to a moment. The segments are deleted in the background.

    The plan is made under the claim, so that no other writer can roll back below the floor meanwhile. Raises
    the errors of `plan_trim` and of `ChainWriter.release`.
    """
    plan = await plan_trim(store, directory, chain, before)
    if plan.segments and not plan.released:
        await writer.release(plan.floor)
    else:
        writer.collect_released()
    return plan


async def trim_stopped(
    store: StorePort, directory: str, claim: ClaimPort, chain: str, before: ReplayStop
) -> tuple[TrimPlan, ChainWriter]:
    """Trim a chain that has no active writer, under `claim`.

    Takes the chain over, which fences a writer that is still alive. The deletion continues as long as the
    claim is held. The caller must close the returned writer.
    """
    generation = claim.store.record.generation
    state = await take_over(claim, chain, generation=generation)
    if state.end is None:
        raise MissingDataError(f"{directory} has no chain {chain}")
    writer = await ChainWriter.open(claim, chain, state, generation)
    try:
        return await trim(store, directory, writer, chain, before), writer
    except BaseException:
        await writer.aclose()
        raise


def _lowest(state: ChainState) -> tuple[Floor, int]:
    first = parse_segment_name(state.segments[0].name)
    assert first is not None, "spans are of segments"
    return first.order, first.base


def _refuse_others(directory: str, chain: str, names: list[str]) -> None:
    """Raise LocalProtocolError if the directory holds other chains."""
    others = {parsed.chain for name in names if (parsed := parse_segment_name(name)) is not None} - {chain}
    if others:
        raise LocalProtocolError(
            f"{directory} has other chains besides {chain}: {', '.join(sorted(others))}",
            remedy="for a directory of a region, use `dos region trim`",
        )
