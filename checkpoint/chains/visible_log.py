"""What of a worker's output log is visible: the rule that every reader of output follows.

| log | visible |
|---|---|
| publish="checkpoint" | what the last committed checkpoint covers |
| publish="step" | what a quorum holds, if it counts (`VisibleLog.counts`) |
| either, while the last checkpoint begins a line of history, or does not have the log | what it covers |

A checkpoint does not have the log of a worker that was not there, or that has left since, and that of a sink
that comes with a later graph, or was removed.
"""

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from checkpoint.core.links.messages import BatchProcessed
from checkpoint.core.records.manifest import Checkpoint, check_output
from checkpoint.core.records.outputs import Output, Publish, decode_output, output_chain
from checkpoint.core.region import worker_directory
from dos_client import Store
from journal import NO_FLOOR, ChainFollower, Op, Position, Record


@dataclass(frozen=True, slots=True)
class VisibleLog:
    """One worker's log of an output, as a committed checkpoint shows it."""

    directory: str
    chain: str
    covered: Position | None
    """The position of the log in the checkpoint; None if the checkpoint does not have the log."""
    begin: int
    """The offset from which on it is retained: 0 if it was never trimmed."""
    line: int
    reopens: bool
    """Nothing beyond what is covered counts: the workers may open the log there again and again, until the
    next checkpoint, which comes before any step.
    """
    ended: bool = False
    """The sink was removed: nothing follows what is covered."""

    @classmethod
    def of(cls, checkpoint: Checkpoint | None, region: str, worker: int, sink: str) -> "VisibleLog":
        """Return what a checkpoint (None: the region has none yet) says of the log of a worker. sink: its
        uid, as everywhere here.
        """
        directory, chain = worker_directory(region, worker), output_chain(sink)
        if checkpoint is None:
            return cls(directory, chain, None, 0, 0, reopens=False)
        covered = covered_in(checkpoint, sink).get(worker)
        begin = begin_in(checkpoint, worker, sink)
        own, ended = checkpoint.workers.get(worker), sink in checkpoint.ended
        reopens = checkpoint.rewound or own is None or sink not in own.sinks
        return cls(directory, chain, covered, begin, checkpoint.line, reopens, ended)

    def ends_with_checkpoint(self, publish: Publish) -> bool:
        """Return whether nothing is visible that the checkpoint does not cover."""
        # After the end of a log, a worker that was superseded may also have written more.
        return publish is Publish.CHECKPOINT or self.reopens

    def counts(self, end: int, of_line: int) -> bool:
        """Return whether the output that ends at `end` and states this line of history counts."""
        # The chain contains the position in the checkpoint, so what is below it is of the line, whichever
        # one it states. After it follows what was taken back, until the worker opens the log on the new line;
        # or a line that began after the checkpoint was read. Reading either would show output that is void.
        return end <= (0 if self.covered is None else self.covered.size) or of_line == self.line

    def output(self, record: Record, end: int) -> Output:
        """Return the output in a record that ends at an offset. Raises CorruptDataError."""
        return decode_output(record.ints, record.strings, where=self.directory, at=end)

    async def first(self, store: Store, begin: int | None = None) -> Output | None:
        """Return the first output from an offset (None: `begin`) on, visible or not; None if there is none.
        Its head states how the log is published. Raises as reading does.
        """
        chain = ChainFollower(store, self.directory, self.chain, at=self.begin if begin is None else begin)
        async with aclosing(chain.poll(proved=self.covered)) as records:
            return await self.first_of(records)

    async def first_of(self, records: AsyncIterable[tuple[int, Record]]) -> Output | None:
        """Return the first output of records, which come with their ends."""
        async for end, record in records:
            if record.op is Op.OUTPUT:
                return self.output(record, end)
        return None


class BatchOutputReader:
    """Reads what one worker's log has of batches, of which one coordinator has said that they are processed.
    Use another one for what another coordinator says: the region may have been made anew since.
    """

    def __init__(self, store: Store, region: str, worker: int, sink: str) -> None:
        self._store = store
        self._region = region
        self._worker = worker
        self._sink = sink
        self._follower: ChainFollower | None = None

    async def read(self, processed: BatchProcessed) -> AsyncGenerator[Output]:
        """Yield the output of a batch, in the order of steps, for one caller at a time. Raises as reading
        does, and GraphChangeRefusedError if the sink came after the batch. The batch after the one that was
        read last is found without reading its segment again.
        """
        note, worker = processed.batch, self._worker
        check_output(self._region, note, self._sink, processed.uids)
        sink = processed.uids.get(self._sink, self._sink)
        begin, end = (sizes.get(worker, {}).get(sink, 0) for sizes in (note.begins, note.ends))
        if end <= begin:
            return
        covered = msgspec.convert(processed.logs[worker][sink], Position)
        directory, chain = worker_directory(self._region, worker), output_chain(sink)
        log = VisibleLog(directory, chain, covered, 0, processed.line, reopens=False)
        follower = self._follower
        # Another epoch is of another incarnation: after a rollback it may have other bytes below this offset.
        if follower is None or (follower.at, follower.epoch) != (begin, covered.epoch):
            follower = self._follower = ChainFollower(self._store, directory, chain, at=begin)
        async with aclosing(follower.poll(covered)) as records:
            async for at, record in records:
                if at > end:
                    return
                if record.op is Op.OUTPUT:
                    yield log.output(record, at)


def covered_in(checkpoint: Checkpoint, sink: str) -> dict[int, Position]:
    """Return worker -> the position of its log in a checkpoint, for those that have it."""
    if (ended := checkpoint.ended.get(sink)) is not None:
        return dict(ended.ends)
    prepared = {worker: part.sinks.get(sink) for worker, part in checkpoint.outputs().items()}
    return {worker: msgspec.convert(at, Position) for worker, at in prepared.items() if at is not None}


def begin_in(checkpoint: Checkpoint, worker: int, sink: str) -> int:
    """Return the offset from which on a checkpoint retains a worker's log."""
    ended = checkpoint.ended.get(sink)
    if ended is not None and not ended.floors and worker in ended.ends:
        return ended.ends[worker].size  # it was dropped
    part = checkpoint.outputs().get(worker)
    return NO_FLOOR[1] if part is None else part.floors.get(output_chain(sink), NO_FLOOR)[1]
