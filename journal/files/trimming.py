"""Trimming a chain of files: letting the history before a moment go, for ever.

Rules of this file: which segments need not be there once nobody wants to go back beyond a moment, and the two
phases of taking them away (`ChainWriter.release`). The *stretch* in which the moment lies stays whole, with
the snapshot that begins it; what lies below that segment, on the chain or beside it, goes. So whatever moment
is given, everything from it on stays restorable, and so does a little before it.

Only what is committed decides (R10), as the chain's present line of history has it. A directory in which
other chains lie is refused: it is a worker's of a region, whose manifest says what its cuts need.
"""

from dataclasses import dataclass

from dos_client.errors import MissingDataError
from dos_protocol.errors import LocalProtocolError
from journal.chain import look_committed, take_over
from journal.core.chain import ChainState, segments_seen
from journal.core.errors import StopNotFoundError
from journal.core.file_ops import ReplayStop
from journal.core.segment import parse_segment_name
from journal.core.trimming import Floor
from journal.files.history import has_cut, stretch_at
from journal.ports import ClaimPort, StorePort
from journal.writer import ChainWriter


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """What a trimming takes away, or would: segments below `floor`, (epoch, base).

    keeps_from: the logical offset from which on everything stays restorable. segments: (name, bytes of the
    longest copy). released: whether the chain says so already, and only the deletion is not complete.
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
    """What may go when nobody goes back beyond that moment. Claims nothing, changes nothing.

    Raises NotFoundError, LocalProtocolError for a directory with other chains, HistoryTrimmedError for a
    moment that is not held any more, StopNotFoundError for a cut that is none, and what looking and reading
    raise.
    """
    view = await store.look(directory)
    _refuse_others(directory, chain, [name for objects in view.answers.values() for name in objects])
    head = await look_committed(store, directory, chain)
    state = await stretch_at(store, directory, chain, before)
    if before.names_a_cut and not await has_cut(store, directory, state, before):
        raise StopNotFoundError(f"{directory} has not {before}: nothing is let go")
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
    """Let go of what `plan_trim` says, by who writes the chain; what goes is deleted in the background.

    The plan is made while the claim is held, so that nobody goes back below the floor meanwhile. Raises as
    `plan_trim` and `ChainWriter.release`.
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
    """The same, of a chain that nobody writes, under a claim of its own: takes the chain over, which fences a
    writer that is alive after all. The deletion goes on as long as the claim is held; close the writer after.
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
    """Raise LocalProtocolError if chains of somebody else lie in the directory."""
    others = {parsed.chain for name in names if (parsed := parse_segment_name(name)) is not None} - {chain}
    if others:
        raise LocalProtocolError(
            f"{directory} has other chains besides {chain}: {', '.join(sorted(others))}",
            remedy="of a region, `dos region trim` knows what may go",
        )
