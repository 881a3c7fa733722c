"""Trims the chain of one producer, under the producer's claim, to what the registered consumers still need.

`core/consumers.py` decides; this file reads the register and the manifests, and performs. Each step:

1. Read the register, then the manifest of each consumer.
2. Delete, in the background, what no consumer needs and an acknowledged start has released *before* 1. A
   consumer that registered before 1 is in the register; one that registers later sees the release.
3. Release more: the start of a new segment names the floor. The next step deletes.

If it is stopped at any point, nothing is lost: the next producer of that name continues. It is deleted on
members that were unavailable, too, because the claim, or the next one, finds it there (R14).
"""

from typing import NamedTuple

import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import needs_of, read_register
from checkpoint.core.consumers import (
    NOTHING,
    ChainNow,
    Reason,
    input_register_directory,
    may_trim,
    next_step,
    trim_floor,
)
from checkpoint.core.inputs import INPUT_CHAIN, decode_part
from journal import (
    ChainState,
    ChainWriter,
    Floor,
    Op,
    RecordDecoder,
    SegmentName,
    below,
    parse_segment_name,
)
from journal.ports import ClaimPort, StorePort

_READ_BYTES = 256 * 1024


class InputChain(NamedTuple):
    """A producer's chain: its directory, and its segments at some time, the lowest first."""

    directory: str
    producer: str
    segments: tuple[Floor, ...]
    end: int
    last_end: int


def segments_of(state: ChainState) -> list[Floor]:
    """Return the segments of a chain, the lowest first."""
    names = [parse_segment_name(span.name) for span in state.segments]
    return [name.order for name in names if name is not None]


class TrimPlanner:
    """Finds how far the chains of one input may be trimmed. Claims nothing."""

    def __init__(self, store: StorePort, application: str, handle: str) -> None:
        self._store = store
        self._register = input_register_directory(application, handle)
        self._times: dict[tuple[str, Floor], int | None] = {}

    async def plan(self, chain: InputChain, now_ms: int) -> Reason:
        """Return the lowest segment that anything needs, by what is committed now; NOTHING if all are needed.

        Raises what reading the register and the manifests raises.
        """
        register = await read_register(self._store, self._register)
        needs = await needs_of(self._store, register, chain.producer)
        times = await self._first_times(chain) if register.rule.age_max_s is not None else {}
        now = ChainNow(chain.segments, chain.end, chain.last_end, times)
        return trim_floor(now, needs, register.rule, now_ms)

    async def _first_times(self, chain: InputChain) -> dict[Floor, int]:
        found = {}
        for segment in chain.segments[:-1]:
            key = chain.directory, segment
            if key not in self._times:
                self._times[key] = await self._first_time(chain.directory, segment)
            if (time_ms := self._times[key]) is not None:
                found[segment] = time_ms
        return found

    async def _first_time(self, directory: str, segment: Floor) -> int | None:
        """Return the wall clock of the first record with rows; None if the segment has none."""
        name = str(SegmentName(INPUT_CHAIN, *segment))
        decoder, offset = RecordDecoder(where=name), 0
        while data := await self._store.read(directory, name, offset, _READ_BYTES):
            offset += len(data)
            for end, record in decoder.feed(data):
                if record.op is Op.INPUT:
                    return decode_part(record.ints, record.strings, where=name, at=end).time_ms
        return None


class InputTrimmer:
    """Trims one producer's chain. `step` is called by one task at a time.

    appending: held by whoever appends to the chain or moves it to a new segment.
    """

    def __init__(
        self, planner: TrimPlanner, claim: ClaimPort, writer: ChainWriter, appending: trio.Lock
    ) -> None:
        self._planner = planner
        self._claim = claim
        self._writer = writer
        self._appending = appending
        self._collected = NOTHING

    async def step(self, chain: InputChain, now_ms: int) -> bool:
        """Perform one step. Return whether another one has something to do at once.

        Raises FencedError, ClosedError, and what `TrimPlanner.plan` raises; nothing more was deleted then.
        """
        released = self._writer.released  # acknowledged before the register is read
        if released == self._collected and not may_trim(chain.segments, chain.last_end):
            return False
        reason = await self._planner.plan(chain, now_ms)
        step = next_step(chain.segments, reason.floor, released, self._collected, limits.trim_segments_max)
        if step.collect > self._collected:
            self._claim.collect(below({INPUT_CHAIN: step.collect}))
            self._collected = step.collect
        if step.release == NOTHING:
            return False
        async with self._appending:
            await self._writer.release(step.release, collect=False)
        return True
