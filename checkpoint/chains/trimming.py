"""Trims a chain of rows, an input or an output log, under the claim of its writer, to what the registered
consumers still need.

`core/consumers.py` decides; this file reads the register and the manifests, and performs. Each step:

1. Read the register, then the manifest of each consumer.
2. Delete, in the background, what no consumer needs and an acknowledged start has released *before* 1. A
   consumer that registered before 1 is in the register; one that registers later sees the release.
3. Release more: the start of a new segment names the floor. The next step deletes.

If it is stopped at any point, nothing is lost: the next writer of the chain continues. It is deleted on
members that were unavailable, too, because the claim, or the next one, finds it there (R14).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import needs_of, settled_register
from checkpoint.core.consumers import (
    ChainNow,
    Reason,
    RegisterPlace,
    RetentionRule,
    may_trim,
    next_step,
    trim_floor,
)
from dos_client import Store
from journal import (
    NO_FLOOR,
    ChainState,
    ChainWriter,
    Floor,
    Op,
    Position,
    RecordDecoder,
    SegmentName,
    inspect_chain_at,
    parse_segment_name,
)

_READ_BYTES = 256 * 1024
_CLOCKS = {Op.INPUT: 5, Op.OUTPUT: 1, Op.INPUT_MARK: 6}
"""Operation -> the index of the int that is the wall clock of its rows."""


class RowsChain(NamedTuple):
    """A chain of rows: its directory and name, the split that it is, and its segments now, the lowest first.

    last_end: the position to which its writer may return; the segment that contains it stays.
    """

    directory: str
    name: str
    split: str
    segments: tuple[Floor, ...]
    end: int
    last_end: int


def segments_of(state: ChainState) -> list[Floor]:
    """Return the segments of a chain, the lowest first."""
    names = [parse_segment_name(span.name) for span in state.segments]
    return [name.order for name in names if name is not None]


class KeptSegments:
    """The segments of a chain of rows that its writer has not released, the lowest first."""

    def __init__(self, state: ChainState, writer: ChainWriter) -> None:
        self._orders = segments_of(state)
        self._writer = writer
        self.note()

    def note(self) -> None:
        """Note the segment that the writer is in, which it or the trimmer may have begun."""
        current = parse_segment_name(self._writer.segment)
        assert current is not None, "a writer writes segments"
        if not self._orders or self._orders[-1] != current.order:
            self._orders.append(current.order)

    def add_lower(self, orders: Iterable[Floor]) -> None:
        """Add segments that the take-over did not visit."""
        self._orders = sorted({*orders, *self._orders})

    def now(self) -> tuple[Floor, ...]:
        """Return them all, without those that were released meanwhile."""
        self.note()
        self._orders = [one for one in self._orders if one >= self._writer.released]
        return tuple(self._orders)

    def holding(self, position: int) -> Floor | None:
        """Return the segment that contains the byte before a position; None if that is below all."""
        return max((one for one in self._orders if one[1] < position), default=None)


class TrimPlanner:
    """Finds how far chains may be trimmed. Claims nothing, unless the last change of the register was
    interrupted: the register is settled then, because nothing can be trimmed before that. default: the rule
    unless a person has set one.
    """

    def __init__(self, store: Store, place: RegisterPlace, default: RetentionRule | None = None) -> None:
        self._store = store
        self._place = place
        self._default = RetentionRule() if default is None else default
        self._times: dict[tuple[str, Floor], int | None] = {}

    async def plan(self, chain: RowsChain, now_ms: int) -> Reason:
        """Return the lowest segment that anything needs, by what is committed now; NO_FLOOR if everything is
        needed.

        Raises what reading the register and the manifests raises.
        """
        register = await settled_register(self._store, self._place)
        rule = register.rule or self._default
        needs = await needs_of(self._store, register, self._place, chain.split) if rule.by_consumers else {}
        times = await self._first_times(chain) if rule.age_max_s is not None else {}
        now = ChainNow(chain.segments, chain.end, chain.last_end, times)
        return trim_floor(now, needs, rule, now_ms)

    async def deletes_anything(self) -> bool:
        """Return whether the rule may delete rows now. Raises what reading the register raises."""
        rule = (await settled_register(self._store, self._place)).rule or self._default
        return rule.by_consumers or rule.limits_anything

    async def segments_to(self, directory: str, chain: str, at: Position, released: Floor) -> list[Floor]:
        """Return the segments of a chain from the released floor to a committed position.

        Raises what `inspect_chain_at` raises.
        """
        state = await inspect_chain_at(self._store, directory, chain, at, floor=released[1])
        return segments_of(state)

    async def _first_times(self, chain: RowsChain) -> dict[Floor, int]:
        found = {}
        there = {(chain.directory, segment) for segment in chain.segments}
        self._times = {
            key: time_ms for key, time_ms in self._times.items() if key[0] != chain.directory or key in there
        }
        for segment in chain.segments[:-1]:
            key = chain.directory, segment
            if key not in self._times:
                self._times[key] = await self._first_time(chain, segment)
            if (time_ms := self._times[key]) is not None:
                found[segment] = time_ms
        return found

    async def _first_time(self, chain: RowsChain, segment: Floor) -> int | None:
        """Return the wall clock of the first record with rows; None if the segment has none."""
        name = str(SegmentName(chain.name, *segment))
        decoder, offset = RecordDecoder(where=name), 0
        while data := await self._store.read(chain.directory, name, offset, _READ_BYTES):
            offset += len(data)
            for _, record in decoder.feed(data):
                if (clock := _CLOCKS.get(record.op)) is not None:
                    return record.ints[clock]
        return None


class Trimmer:
    """Trims one chain. `step` is called by one task at a time.

    collect: deletes what is below a floor of this chain. appending: held by the task that appends to the
    chain, or moves it to a new segment.
    """

    def __init__(
        self,
        planner: TrimPlanner,
        writer: ChainWriter,
        collect: Callable[[Floor], None],
        appending: trio.Lock,
    ) -> None:
        self._planner = planner
        self._writer = writer
        self._collect = collect
        self._appending = appending
        self._collected = NO_FLOOR

    async def visit_below(self, kept: KeptSegments, directory: str, chain: str, at: Position) -> bool:
        """Add the segments below a committed position, unless the rule deletes nothing. Return whether it
        does: a long chain is not read in vain. Raises as `TrimPlanner.segments_to`.
        """
        if not await self._planner.deletes_anything():
            return False
        kept.add_lower(await self._planner.segments_to(directory, chain, at, self._writer.released))
        return True

    async def step(
        self, chain: RowsChain, now_ms: int, *, allowed: Floor | None = None
    ) -> tuple[Floor, bool]:
        """Perform one step. Return the lowest segment that anything needs, and whether another step has
        something to do at once. allowed: nothing at or above this floor is released; None: no such limit.

        Raises FencedError, ClosedError, and what `TrimPlanner.plan` raises; nothing more was deleted then.
        """
        released = self._writer.released  # acknowledged before the register is read
        if released == self._collected and not may_trim(chain.segments, chain.last_end):
            return NO_FLOOR, False
        floor = (await self._planner.plan(chain, now_ms)).floor
        upto = floor if allowed is None else min(floor, allowed)
        step = next_step(chain.segments, upto, released, self._collected, limits.trim_segments_max)
        if step.collect > self._collected:
            self._collect(step.collect)
            self._collected = step.collect
        if step.release == NO_FLOOR:
            return floor, False
        async with self._appending:
            await self._writer.release(step.release, collect=False)
        return floor, True
