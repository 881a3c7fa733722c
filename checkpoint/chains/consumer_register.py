"""The register of the consumers of an input or an output, in the store beside the data, and the trimming of
the rows that no consumer needs. `core/records/consumers.py` decides; this file reads, performs, and waits for
the quorum.

The writer of a chain trims it, under its claim. Each step: read the register, then the manifest of each
consumer; delete what no consumer needs and an acknowledged start has released before; release more: the start
of a new segment names the floor, and the next step deletes. Stopped at any point, nothing is lost.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import trio

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestHost, StoreHost, retained_checkpoints
from checkpoint.core.records.consumers import (
    POSITIONS_PER_RETENTION,
    QUERY_PREFIX,
    ChainNow,
    OutputOf,
    Reason,
    Register,
    RegisteredQuery,
    RegisterPlace,
    RetentionRule,
    check_session,
    continued_later,
    continued_query,
    decode_register,
    encode_register,
    may_trim,
    names_of,
    need_of,
    new_query,
    next_step,
    output_of,
    published,
    query_need,
    trim_floor,
    trimmed_because,
    with_consumer,
    with_query,
)
from checkpoint.errors import RegisterUnsettledError
from checkpoint.runtime import wall_time_ms
from dos_client import Store
from journal import (
    NO_FLOOR,
    ChainState,
    ChainWriter,
    Floor,
    Op,
    Position,
    Record,
    RecordDecoder,
    SegmentName,
    StatePlace,
    StateRecord,
    UnsettledStateError,
    change_state,
    inspect_chain_at,
    parse_segment_name,
    read_state,
)
from journal.ports import StorePort

logger = logging.getLogger("dos.checkpoint")


async def read_register(store: StorePort, place: RegisterPlace) -> Register:
    """Return the committed register; an empty one if there is none. Claims nothing.

    Raises RegisterUnsettledError if another process changes it for longer than about two seconds,
    CorruptDataError, QuorumUnavailableError, and what reading a chain raises.
    """
    try:
        return _decoded(await read_state(store, _state(place)), place)
    except UnsettledStateError as error:
        # Not the older register: it may lack a consumer whose registration was acknowledged, and its rows
        # would be trimmed.
        raise RegisterUnsettledError(place.directory, error.reason) from error


def _state(place: RegisterPlace) -> StatePlace:
    return StatePlace(place.directory, place.chain, Op.CONSUMERS)


def _decoded(found: StateRecord | None, place: RegisterPlace) -> Register:
    if found is None:
        return Register()
    return decode_register(found.record.strings, where=place.directory, at=found.end)


async def why_trimmed(store: StorePort, place: RegisterPlace) -> str:
    """Return why rows were trimmed, for the error of a reader. Raises what reading a chain raises."""
    try:
        return trimmed_because(await read_register(store, place))
    except RegisterUnsettledError as error:
        return f"{error}"


async def settled_register(store: Store, place: RegisterPlace) -> Register:
    """Return the register, after settling an interrupted change. Raises as `read_register`."""
    try:
        return await read_register(store, place)
    except RegisterUnsettledError as error:
        logger.warning("%s", error)
        return await change_register(StoreHost(store), place, lambda register: register)


async def change_register(
    host: ManifestHost, place: RegisterPlace, change: Callable[[Register], Register]
) -> Register:
    """Replace the register by `change` of it, once, and return it when the quorum holds it; `change` may run
    again.

    Waits while too few members answer. Raises what `change` raises, with nothing changed, and what taking a
    chain over raises. Cancelled, it may be changed or not, and cannot be read until it is changed again.
    """

    def changed(before: StateRecord | None) -> Record:
        register = change(_decoded(before, place))
        return Record(Op.CONSUMERS, ints=(host.wall_time_ms(),), strings=(encode_register(register),))

    made = await change_state(host, _state(place), changed)
    assert made is not None, "`changed` always makes one"
    return decode_register(made.strings, where=place.directory, at=0)


async def register_consumer(store: Store, place: RegisterPlace, region: str, source: str) -> None:
    """Register a source of a region, if it is not: acknowledged when this returns."""
    known = (await settled_register(store, place)).consumers.get(region)
    if known is None or source not in known.sources:
        now_ms = wall_time_ms()
        await change_register(
            StoreHost(store), place, lambda register: with_consumer(register, region, source, now_ms)
        )


async def needs_of(store: StorePort, register: Register, place: RegisterPlace, split: str) -> dict[str, int]:
    """Return consumer -> the position from which on it needs a split. Raises ManifestError and what reading
    raises: then nothing may be deleted.
    """
    if not names_of(register):
        return {}
    output = await read_output_of(store, place)
    queries = {
        QUERY_PREFIX + name: query_need(query, split, output) for name, query in register.queries.items()
    }
    regions = {
        # An error here ends the trimming: a consumer whose manifest cannot be read may need everything.
        region: need_of(
            await retained_checkpoints(store, region), consumer.sources, split, output, region=region
        )
        for region, consumer in register.consumers.items()
    }
    return queries | {region: need for region, need in regions.items() if need is not None}


async def read_output_of(store: StorePort, place: RegisterPlace) -> OutputOf | None:
    """Return whose output log the consumers of a register read, None for an input. Raises as `needs_of`."""
    if (of := output_of(place)) is None:
        return None
    return OutputOf(of[1], next(reversed(await retained_checkpoints(store, of[0])), None))


class QueryRegistration:
    """The registration of one process that runs a query. Its methods are called by one task at a time.

    session: a random identity. retain_s: how long a position is retained after a later one was published.
    """

    def __init__(
        self, host: ManifestHost, place: RegisterPlace, name: str, *, session: str, retain_s: float
    ) -> None:
        self._host, self._place, self._name = host, place, name
        self._session, self._retain_s = session, retain_s
        self.begun = False
        """Whether it is registered."""
        self._before: RegisteredQuery | None = None
        """What was registered under the name before."""
        self._published_at: float | None = None

    async def begin(
        self, start: Mapping[str, int] | None, lines: Mapping[str, int] = {}, *, again: bool = False
    ) -> None:
        """Register the query, acknowledged when this returns: from then on, nothing that it needs is trimmed.

        start: split -> the offset of its checkpoint, None: it has none. lines: split -> the line of history
        of that offset. again: the session was registered before. Raises ConsumerRefusedError, with `again`
        ConsumerTakenError if another process has the name; waits while too few members answer.
        """
        now_ms = self._host.wall_time_ms()

        def change(register: Register) -> Register:
            self._before = known = register.queries.get(self._name)
            if again and known is not None:
                check_session(known, self._name, self._session)
            if start is None:
                query = new_query(known, self._name, self._session, now_ms)
            else:
                query = continued_query(known, self._session, start, now_ms, lines)
            return with_query(register, self._name, query)

        await change_register(self._host, self._place, change)
        self.begun = True

    async def continues(self, start: Mapping[str, int], lines: Mapping[str, int] = {}) -> None:
        """Register where the query continues, after `begin({})`: it needs everything until then. Raises as
        `committed`.
        """
        now_ms = self._host.wall_time_ms()

        def change(register: Register) -> Register:
            known = register.queries.get(self._name)
            before, name, session = self._before, self._name, self._session
            query = continued_later(known, before, name, session, start, now_ms, lines)
            return with_query(register, self._name, query)

        await change_register(self._host, self._place, change)

    async def committed(self, splits: Mapping[str, int], lines: Mapping[str, int] = {}) -> bool:
        """Publish split -> the offset up to which the engine has committed; return False if the last time is
        too recent.

        Raises ConsumerRefusedError if another process has the name; waits while too few members answer.
        """
        now = self._host.now()
        pause_s = max(limits.query_publish_s, self._retain_s / POSITIONS_PER_RETENTION)
        if self._published_at is not None and now < self._published_at + pause_s:
            return False
        now_ms = self._host.wall_time_ms()

        def change(register: Register) -> Register:
            known = register.queries.get(self._name)
            query = published(known, self._name, self._session, splits, now_ms, self._retain_s, lines)
            return with_query(register, self._name, query)

        await change_register(self._host, self._place, change)
        self._published_at = now
        return True


_READ_BYTES = 256 * 1024
_CLOCKS = {Op.INPUT: 5, Op.OUTPUT: 1, Op.INPUT_MARK: 6}
"""Operation -> the index of the int that is the wall clock of its rows."""


class RowsChain(NamedTuple):
    """A chain of rows, as a split, with its segments, the lowest first. last_end: to where its writer may
    return. query: from where on the query that drives its region needs it; None: it has none.
    """

    directory: str
    name: str
    split: str
    segments: tuple[Floor, ...]
    end: int
    last_end: int
    query: int | None = None


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
    """Finds how far chains may be trimmed, claiming nothing but an interrupted register. default: the rule
    unless a person has set one.
    """

    def __init__(self, store: Store, place: RegisterPlace, default: RetentionRule | None = None) -> None:
        self._store = store
        self._place = place
        self._default = RetentionRule() if default is None else default
        self._times: dict[tuple[str, Floor], int | None] = {}

    async def plan(self, chain: RowsChain, now_ms: int) -> Reason:
        """Return the lowest segment that anything needs; NO_FLOOR for all. Raises what reading raises."""
        register = await settled_register(self._store, self._place)
        rule = register.rule or self._default
        needs = await needs_of(self._store, register, self._place, chain.split) if rule.by_consumers else {}
        times = await self._first_times(chain) if rule.age_max_s is not None else {}
        last_end = chain.last_end
        if chain.query is not None:
            needs["the query"] = chain.query
            last_end = min(last_end, chain.query)  # no limit deletes what a batch may read
        now = ChainNow(chain.segments, chain.end, last_end, times)
        return trim_floor(now, needs, rule, now_ms)

    async def deletes_anything(self) -> bool:
        """Return whether the rule may delete rows now. Raises what reading the register raises."""
        rule = (await settled_register(self._store, self._place)).rule or self._default
        return rule.by_consumers or rule.limits_anything

    async def segments_to(self, directory: str, chain: str, at: Position, released: Floor) -> list[Floor]:
        """Return the segments of a chain from the released floor to a committed position. Raises as
        `inspect_chain_at`.
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
    """Trims one chain; `step` is called by one task at a time. collect: deletes below a floor of this chain.
    appending: held by the task that appends to the chain, or moves it to a new segment.
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
        """Add the segments below a position, unless the rule deletes nothing. Return whether it does."""
        if not await self._planner.deletes_anything():
            return False
        kept.add_lower(await self._planner.segments_to(directory, chain, at, self._writer.released))
        return True

    async def step(
        self, chain: RowsChain, now_ms: int, *, allowed: Floor | None = None
    ) -> tuple[Floor, bool]:
        """Perform one step. Return the lowest segment that anything needs, and whether another step can do
        more now.

        allowed: nothing at or above this floor is released; None: no limit. Raises FencedError, ClosedError,
        and as `TrimPlanner.plan`; nothing more was deleted then.
        """
        # In this order: a consumer that registers after the plan was made sees this release, and does not
        # begin below it. Released after the plan, rows could be deleted under it.
        released = self._writer.released  # acknowledged before the register is read
        if released == self._collected and not may_trim(chain.segments, chain.last_end):
            return NO_FLOOR, False
        floor = (await self._planner.plan(chain, now_ms)).floor
        # Above what the manifest has released, a restore of a retained checkpoint would lack rows.
        upto = floor if allowed is None else min(floor, allowed)
        step = next_step(chain.segments, upto, released, self._collected, limits.trim_segments_max)
        if step.collect > self._collected:
            # Only what an earlier step released, and the quorum has: a release that is not acknowledged may
            # be undone by a take-over, whose reader then finds a gap.
            self._collect(step.collect)
            self._collected = step.collect
        if step.release == NO_FLOOR:
            return floor, False
        async with self._appending:
            await self._writer.release(step.release, collect=False)
        return floor, True
