"""Moments of a chain of files: how people write them, which part of the history holds one, what a trim
deletes.

A *stretch* is the part that one replay reads: from a finished snapshot, or the chain's beginning, to the next
snapshot or the chain's end. The search goes from the newest stretch backwards, by a reader (R10) or under a
claim. A trim keeps the stretch that holds the moment whole; all segments below it are deleted in two phases
(`ChainWriter.release`).
"""

import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

import msgspec

from dos_client.errors import MissingDataError
from dos_protocol.errors import LocalProtocolError, NotFoundError
from journal.chain import inspect_chain_at, inspect_committed, take_over
from journal.core.chain import (
    NO_FLOOR,
    ORIGIN,
    ChainState,
    Floor,
    Position,
    parse_segment_name,
    segments_seen,
)
from journal.core.errors import HistoryMissingError, HistoryTrimmedError, LostBytesError, StopNotFoundError
from journal.core.file_ops import TO_THE_END, FileSizes, FilesReplay, ReplayStop
from journal.core.record import Op, Record
from journal.ports import ClaimPort, StorePort
from journal.reading import ANY, ChainSource, read_batches, read_plain_batches, read_start
from journal.scratch import Scratch
from journal.writer import ChainWriter


@dataclass(frozen=True, slots=True)
class AtCheckpoint:
    """The end of a checkpoint."""

    number: int


@dataclass(frozen=True, slots=True)
class AtStep:
    """The end of the checkpoint at the end of a step."""

    number: int


Moment: TypeAlias = int | datetime | AtCheckpoint | AtStep | None
"""The stop of a replay: a logical offset, a time (with a time zone), a checkpoint, a step; None for
the end.
"""


_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NUMBERED: Final = re.compile(r"(checkpoint|step):(\d{1,19})", re.ASCII)
AGO: Final = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")


def complete_moment(incomplete: str) -> list[str]:
    """Return the shell completions of a moment, with the current time among them."""
    now = f"time:{datetime.now(UTC).astimezone():%Y-%m-%dT%H:%M:%S}"
    return [one for one in ("checkpoint:", "step:", now, "-1h", "-1d") if one.startswith(incomplete)]


def moment_here(text: str) -> Moment:
    """Parse a moment, with the current time and the local time zone. Raises ValueError."""
    return moment(text, datetime.now(UTC).astimezone())


def moment(text: str, now: datetime) -> Moment:
    """Parse a moment. now: with a time zone. Raises ValueError, which lists the valid forms.

    4096                        a logical offset
    time:2026-11-22T03:00:00    a local time; with +00:00 or Z, a time in that zone
    -90s  -10m  -1h  -2d        an age
    checkpoint:7, step:41       the end of a checkpoint, by its number or the step at its end
    """
    like = f"time:{now:%Y-%m-%dT%H:%M:%S}"
    if text.isascii() and text.isdigit():
        return int(text)
    if numbered := _NUMBERED.fullmatch(text):
        return (AtCheckpoint if numbered[1] == "checkpoint" else AtStep)(int(numbered[2]))
    if ago := AGO.fullmatch(text):
        try:
            return now - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        except OverflowError as error:
            raise ValueError(f"{text!r} is no moment: that is before the year 1") from error
    if not text.startswith("time:"):
        raise ValueError(
            f"{text!r} is no moment: give an offset (4096), a time ({like}), how long ago (-1h),"
            " checkpoint:7 or step:41"
        )
    try:
        moment = datetime.fromisoformat(text.removeprefix("time:"))
    except ValueError as error:
        raise ValueError(f"{text!r} is no moment: {error}; write it as {like}") from error
    return moment if moment.tzinfo is not None else moment.astimezone()


def stop_at(at: Position | Moment) -> ReplayStop:
    """Return the stop of a moment. Raises ValueError for a time without a time zone."""
    if isinstance(at, Position):
        return TO_THE_END  # the chain itself is read only up to the position
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{at.isoformat()} has no time zone; add +00:00 for UTC")
        return ReplayStop(wall_ms=int(at.timestamp() * 1000))
    if isinstance(at, AtCheckpoint):
        return ReplayStop(checkpoint=at.number)
    if isinstance(at, AtStep):
        return ReplayStop(step=at.number)
    return ReplayStop(size=at)


logger: Final = logging.getLogger("dos.journal")


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of history of a chain: how to read it, and the chain as it was up to a position of it."""

    name: str
    reader: ClaimPort | StorePort
    directory: str | None
    up_to: Callable[[Position], Awaitable[ChainState]]

    @classmethod
    def of_reader(cls, store: StorePort, directory: str, chain: str) -> "_Line":
        up_to = partial(inspect_chain_at, store, directory, chain)
        return cls(f"chain {chain} in {directory}", store, directory, up_to)


async def stretch_at(store: StorePort, directory: str, chain: str, stop: ReplayStop) -> ChainState:
    """Return the stretch that holds the stop; the first one if the stop lies before all records. Raises the
    errors of `inspect_committed`, HistoryTrimmedError.
    """
    head = await inspect_committed(store, directory, chain)
    return await _find(_Line.of_reader(store, directory, chain), head, stop)


async def take_over_at(
    claim: ClaimPort, chain: str, stop: ReplayStop, *, generation: int, scratch: Scratch | None = None
) -> ChainState:
    """Take the chain over up to the stop on its present line of history: it ends just past the last record
    that a replay to `stop` applies; at ORIGIN if there is none. The log names the former end.

    Raises NotFoundError, HistoryTrimmedError, StopNotFoundError for an unknown checkpoint, and the errors of
    `take_over` and of reading a chain.
    """
    head = await take_over(claim, chain, generation=generation, scratch=scratch)
    if head.end is None:
        raise NotFoundError(f"there is no chain {chain}, so it has no {stop}", remedy="open it without `at`")
    # Under the claim, because while that is above the chain, no reader can prove that the newest records are
    # committed. The whole chain is settled first: a claim settles a segment once, at one length.
    up_to = partial(_taken_up_to, claim, chain, generation, scratch)
    stretch = await _find(_Line(f"chain {chain}", claim, None, up_to), head, stop)
    replay, position = FilesReplay(FileSizes(), stop=stop), ORIGIN
    async with aclosing(read_batches(claim, stretch, scratch=scratch)) as batches:
        async for batch in batches:  # to the end, because the digests of the spans are checked there
            before = replay.records
            replay.take((at.size, record) for at, record in batch)
            if replay.records > before:
                position = batch[replay.records - before - 1][0]
    replay.finish()
    if position != head.end:
        logger.warning("chain %s: %s is %s; the chain ended at %r", chain, stop, position, head.end)
    return msgspec.structs.replace(stretch.up_to(position), released=stretch.released)


async def _taken_up_to(
    claim: ClaimPort, chain: str, generation: int, scratch: Scratch | None, at: Position
) -> ChainState:
    return await take_over(claim, chain, at=at, generation=generation, scratch=scratch)


async def _find(line: _Line, head: ChainState, stop: ReplayStop) -> ChainState:
    state = head
    while state.segments and stop.begins_before(
        state.segments[0].base, await _first_locating_record(line.reader, line.directory, state, stop)
    ):
        below = await _below(line, state, head.released)
        if below is None:
            break
        state = below
    return state


async def has_checkpoint(store: StorePort, directory: str, stretch: ChainState, stop: ReplayStop) -> bool:
    async with aclosing(read_plain_batches(store, stretch, directory=directory)) as batches:
        async for batch in batches:
            if any(stop.ends_with(record) for _, record in batch):
                return True
    return False


async def has_locating_record(
    store: StorePort, directory: str, stretch: ChainState, stop: ReplayStop
) -> bool:
    if stop.locating_op is None:
        return True
    return await _first_locating_record(store, directory, stretch, stop) is not None


async def stretch_below(
    store: StorePort, directory: str, chain: str, state: ChainState, released: Floor = NO_FLOOR
) -> ChainState | None:
    """Return the stretch before this one; None if this is the first. released: the floor that the chain's
    head names. Raises as `stretch_at`; HistoryMissingError if no segment start released it.
    """
    return await _below(_Line.of_reader(store, directory, chain), state, released)


async def _below(line: _Line, state: ChainState, released: Floor) -> ChainState | None:
    span = state.segments[0]
    read = await read_start(ChainSource(line.reader, line.directory), span.name, span.length, ANY)
    assert read.start is not None, "a walk has read it"
    if read.start.end_below == ORIGIN:
        return None
    first = span.segment
    try:
        return await line.up_to(read.start.end_below)
    except (LostBytesError, NotFoundError) as error:
        if first.order <= released:
            raise HistoryTrimmedError(f"{line.name} was trimmed: it begins at {first.base} now") from error
        raise HistoryMissingError(
            f"{line.name} begins at {first.base}: the history below is missing, and no segment start says"
            f" that it was trimmed (a region's manifest may have released it, or an archive was trimmed):"
            f" {error}"
        ) from error


async def _first_locating_record(
    reader: ClaimPort | StorePort, directory: str | None, state: ChainState, stop: ReplayStop
) -> Record | None:
    """Return the first record of a stretch that has its time or checkpoint; None if there is none."""
    locating_op = stop.locating_op
    if locating_op is None:
        return None
    async with aclosing(read_plain_batches(reader, state, directory=directory)) as batches:
        async for batch in batches:
            for _, record in batch:
                if record.op is locating_op:
                    return record
    return None


# --- trimming -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrimPlan:
    """The plan or the result of a trim: delete all segments below `floor`, an (epoch, base). keeps_from: the
    logical offset from which on everything can still be restored. segments: (name, bytes of the longest
    copy). released: whether only the deletion is incomplete.
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
    """Return the plan for a trim to a moment. Changes nothing. Raises LocalProtocolError for a directory with
    other chains, StopNotFoundError for an unknown checkpoint, the errors of `stretch_at`.
    """
    view = await store.inspect(directory)
    _refuse_others(directory, chain, [name for objects in view.answers.values() for name in objects])
    head = await inspect_committed(store, directory, chain)
    await refuse_tree(store, directory, head)
    state = await stretch_at(store, directory, chain, before)
    if before.names_a_checkpoint and not await has_checkpoint(store, directory, state, before):
        raise StopNotFoundError(f"{directory} does not hold {before}; nothing was trimmed")
    lowest = state.segments[0].segment
    seen = [one for one in segments_seen(chain, view.answers) if one.name.order < lowest.order]
    return TrimPlan(
        chain=chain,
        floor=lowest.order,
        keeps_from=lowest.base,
        segments=tuple((str(one.name), one.longest) for one in reversed(seen)),
        released=head.released >= lowest.order,
    )


async def trim(
    store: StorePort, directory: str, writer: ChainWriter, chain: str, before: ReplayStop
) -> TrimPlan:
    """Trim the chain of `writer` to a moment; the segments are deleted in the background. Raises as
    `plan_trim`, `ChainWriter.release`.
    """
    # The plan is made under the claim, so that nobody rolls back below the floor.
    plan = await plan_trim(store, directory, chain, before)
    if plan.segments and not plan.released:
        await writer.release(plan.floor)
    else:
        writer.collect_released()
    return plan


async def trim_stopped(
    store: StorePort, directory: str, claim: ClaimPort, chain: str, before: ReplayStop
) -> tuple[TrimPlan, ChainWriter]:
    """Trim a chain that has no active writer, under `claim`, which fences one that is alive. The deletion
    continues while the claim is held. The caller closes the returned writer.
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


async def refuse_tree(store: StorePort, directory: str, chain: ChainState) -> None:
    """Raise LocalProtocolError for the chain of a gateway: its bodies lie below the snapshot with which a
    replay begins, so what a replay needs is not all that is alive.
    """
    async with aclosing(read_plain_batches(store, chain, directory=directory)) as batches:
        async for batch in batches:
            if any(record.op in (Op.FS_CHANGE, Op.FS_DATA) for _, record in batch):
                raise LocalProtocolError(
                    f"{directory} has the tree of a gateway, not files",
                    remedy="its gateway gives back what is deleted; see `dos gateway du`",
                )
            return  # a chain of another kind has none at its beginning


def _refuse_others(directory: str, chain: str, names: list[str]) -> None:
    # A directory with other chains belongs to a worker of a region, whose manifest determines what its
    # checkpoints need: a trim by times would delete state that a checkpoint names.
    others = {parsed.chain for name in names if (parsed := parse_segment_name(name)) is not None} - {chain}
    if others:
        raise LocalProtocolError(
            f"{directory} has other chains besides {chain}: {', '.join(sorted(others))}",
            remedy="for a directory of a region, use `dos region trim`",
        )
