"""One chain under a claim, as all stores in this folder use it.

`TakenChain.take`: everything up to the end is synced on the quorum (R5-R7); `at` sets that end (R13).
`records`: what a store must know before it appends. `open`: a new segment, whose start is synced (R8).
`_roll_if_longer` bounds the size of a segment, `_due` and `roll` of the writer what a restore reads. What the
records mean, and when a snapshot is written, is up to the store.
"""

from collections.abc import AsyncGenerator, Iterable
from typing import NamedTuple, Self

import msgspec

from checkpoint import limits
from checkpoint.core.records.manifest import Rolling
from journal import (
    NO_FLOOR,
    ChainState,
    ChainWriter,
    Floor,
    Position,
    Record,
    Scratch,
    read_records,
    take_over,
)
from journal.ports import ClaimPort


class TakenChain(NamedTuple):
    """A chain that was taken over under `claim`, and is not open yet. `state` is the part to restore."""

    claim: ClaimPort
    state: ChainState
    generation: int
    scratch: Scratch | None

    @classmethod
    async def take(
        cls,
        claim: ClaimPort,
        chain: str,
        *,
        at: Position | None = None,
        proved: Position | None = None,
        generation: int,
        scratch: Scratch | None = None,
        released: Floor = NO_FLOOR,
    ) -> "TakenChain":
        """Take a chain over, as `journal.take_over` does, and raise what that raises."""
        state = await take_over(
            claim, chain, at=at, proved=proved, generation=generation, scratch=scratch, released=released
        )
        return cls(claim, state, generation, scratch)

    def after(self, at: Position | None) -> Self:
        """Return this chain with only the segments that contain anything after `at`, to be read."""
        size = 0 if at is None else at.size
        segments = tuple(one for one in self.state.segments if one.end.size > size)
        return self._replace(state=msgspec.structs.replace(self.state, segments=segments))

    def records(self) -> AsyncGenerator[tuple[Position, Record]]:
        """Yield the records to restore, as `journal.read_records` does. Close the generator."""
        return read_records(self.claim, self.state, scratch=self.scratch)

    async def open(self, snapshot: Iterable[Record] | None = None, *, pipelined: bool = True) -> ChainWriter:
        """Open a segment at the chain's end, as `ChainWriter.open` does, and raise what that raises."""
        return await ChainWriter.open(
            self.claim,
            self.state.chain,
            self.state,
            self.generation,
            self.scratch,
            snapshot,
            pipelined=pipelined,
        )


class ChainStore:
    """A store whose content is one chain, open for appending."""

    def __init__(self, restored: TakenChain, writer: ChainWriter, rolling: Rolling | None = None) -> None:
        self._restored = restored
        self._writer = writer
        self._rolling = Rolling() if rolling is None else rolling
        self._segment_begin = writer.end.size

    @property
    def replayed_bytes(self) -> int:
        """The number of bytes that a restore reads."""
        return self._restored.state.bytes

    @property
    def end(self) -> Position:
        """The position just after the last appended record."""
        return self._writer.end

    @property
    def floor(self) -> Floor:
        """The lowest segment that a restore of the present content reads; see `ChainWriter.floor`."""
        return self._writer.floor

    def _due(self, live_bytes: int = 0) -> bool:
        """Return whether a snapshot of `live_bytes` is due, so that a restore reads less."""
        if self._writer.segments > self._rolling.segments_max:
            return True
        since = self._writer.bytes_since_snapshot
        return since > max(self._rolling.snapshot_bytes_min, limits.snapshot_growth * live_bytes)

    async def _roll_if_longer(self, bytes_max: int) -> None:
        """Continue in a new segment, without a snapshot, if this one has more than `bytes_max` bytes."""
        if self._writer.end.size - self._segment_begin > bytes_max:
            await self._writer.roll()
            self._segment_begin = self._writer.end.size

    async def aclose(self) -> None:
        """Stop appending. Calls in progress fail."""
        await self._writer.aclose()
