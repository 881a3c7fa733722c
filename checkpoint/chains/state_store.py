"""The versioned store of a worker, over its `state` chain: version v *is* checkpoint v.

`open` moves to a version, regardless of longer or newer data (R13); `load` returns its content; `commit`
makes the next version durable on the quorum, as a vote requires. The manifest decides which versions count.
`state_blocks.py` has the format of blocks; this file only stores them.

The caller encodes blocks, because that is work for the circuit's thread; this class lives on the trio loop
that holds the claim.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.chains.state_blocks import StateFold
from checkpoint.chains.state_reading import STATE_CHAIN, StoredStateBlock, blocks_in
from checkpoint.core.retention import Rolling
from checkpoint.runtime import runtime
from dos_protocol.errors import LocalProtocolError
from journal import ORIGIN, ChainWriter, Op, Position, Record, Scratch, read_batches
from journal.ports import ClaimPort


class StateStore(ChainStore):
    """The state of one worker at one version. Not for several tasks at once.

    Invariant: everything of `version` is synced on the quorum.
    """

    def __init__(
        self, restored: TakenChain, writer: ChainWriter, version: int, rolling: Rolling | None = None
    ) -> None:
        super().__init__(restored, writer, rolling)
        spans = restored.state.segments
        self._snapshot_bytes = spans[0].snapshot_end if spans else 0
        self.version = version

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        *,
        version: int,
        at: Position | None,
        generation: int,
        scratch: Scratch | None = None,
        rolling: Rolling | None = None,
    ) -> "StateStore":
        """Move to `version`, which ends at the position `at` (None with version 0: no state), and open a
        segment there.

        The claim's epoch is the incarnation. Raises what `journal.take_over` and `ChainWriter.open` raise;
        LocalProtocolError if version and position do not match.
        """
        if (at is None) != (version == 0):
            raise LocalProtocolError(
                f"version {version} does not match position {at}: version 0, and no other, has no position"
            )
        at = ORIGIN if at is None else at
        taken = await TakenChain.take(claim, STATE_CHAIN, at=at, generation=generation, scratch=scratch)
        return cls(taken, await taken.open(), version, rolling)

    def blocks(self) -> AsyncGenerator[StoredStateBlock, None]:
        """Yield (checkpoint, operator, encoded block) of the opened version, oldest first, from its newest
        snapshot on.

        If the iteration ends with an error, discard everything it yielded. Raises CorruptDataError and what
        reading raises.
        """
        claim, state, _, scratch = self._restored
        return blocks_in(read_batches(claim, state, scratch=scratch))

    async def load(self) -> dict[str, Any]:
        """Return the state of each operator as one block (pyarrow RecordBatch) without deleted rows. Folds in
        a thread.
        """
        fold = StateFold()
        blocks = self.blocks()
        async with aclosing(blocks):
            async for block in blocks:
                await runtime().in_thread(_add, fold, block)
        return {operator: await runtime().in_thread(fold.take, operator) for operator in fold.operators()}

    async def commit(self, checkpoint: int, blocks: Iterable[tuple[str, bytes]]) -> Position:
        """Append (operator, encoded block) pairs of checkpoint `checkpoint`, wait until all are synced on the
        quorum, and become that version.

        Returns the position for the vote. Raises LocalProtocolError if `checkpoint` is not above `version`,
        FencedError. If it is cancelled or fails, the version has not changed, and the chain must be opened
        again.
        """
        self._check_above(checkpoint)
        for record in _records(checkpoint, blocks):
            self._writer.append(record)
            await self._writer.wait_room()
        end = self._writer.end
        # Before the vote: a committed checkpoint may name only positions that the quorum has.
        await self._writer.wait_synced(end)
        self.version = checkpoint
        return end

    async def commit_whole(self, checkpoint: int, blocks: Iterable[tuple[str, bytes]]) -> Position:
        """Commit the whole state of checkpoint `checkpoint` as a snapshot, which refers to nothing before it.
        Returns and raises as `commit`.
        """
        self._check_above(checkpoint)
        await self._roll(checkpoint, blocks)
        end = self._writer.end
        await self._writer.wait_synced(end)
        self.version = checkpoint
        return end

    def _check_above(self, checkpoint: int) -> None:
        if checkpoint <= self.version:
            raise LocalProtocolError(f"checkpoint {checkpoint} is not above version {self.version}")

    async def _roll(self, checkpoint: int, blocks: Iterable[tuple[str, bytes]]) -> None:
        """Begin a new segment with these blocks, which are the whole state of checkpoint `checkpoint`."""
        before = self._writer.end.size
        await self._writer.roll(_records(checkpoint, blocks))
        self._snapshot_bytes = self._writer.end.size - before

    @property
    def snapshot_due(self) -> bool:
        """Whether so much was appended since the last snapshot that a restore should not have to read it."""
        return self._due(self._snapshot_bytes)

    async def snapshot(self, blocks: Iterable[tuple[str, bytes]]) -> None:
        """Write the whole state of `version` at the start of a new segment, so that a restore starts there.

        Nothing may be committed at the same time. Raises FencedError. If it fails or is cancelled, the store
        is closed.
        """
        await self._roll(self.version, blocks)


def _records(checkpoint: int, blocks: Iterable[tuple[str, bytes]]) -> Iterable[Record]:
    for operator, data in blocks:
        yield Record(Op.STATE_BLOCK, ints=(checkpoint,), strings=(operator.encode(), data))


def _add(fold: StateFold, block: StoredStateBlock) -> None:
    fold.add(block.operator, block.decoded())
