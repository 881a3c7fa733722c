"""Follows the visible output of a region, worker by worker, for another region that reads it.

This file claims nothing and returns only committed output: of a log with publish="step" what a quorum holds,
of a log with publish="checkpoint" what the last committed checkpoint covers. `dataflow.outputs` reads the
same for users, step by step over all workers.

A position in a worker's log is the size of its chain just after a step; its digest is the number of the step,
so that a reader that continues from there can verify that the next step follows. A size has one meaning: a
log with publish="step" never goes back, a log with publish="checkpoint" never goes back to before a committed
checkpoint. Only a restore to an older checkpoint takes visible output back. Then a line of history begins
(`core/lines.py`), which a position states too, and a reader fails or follows, as it chose.
"""

from contextlib import aclosing

import msgspec
import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import register_consumer, why_trimmed
from checkpoint.chains.manifest_log import CHAIN as MANIFEST_CHAIN
from checkpoint.chains.output_reading import OnRewind, OutputFollower
from checkpoint.core.consumers import output_register
from checkpoint.core.manifest import Checkpoint, SplitPosition, decode_checkpoint
from checkpoint.core.outputs import output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.errors import InputTrimmedError
from dos_client import Store
from journal import (
    NO_FLOOR,
    ChainFollower,
    Op,
    Position,
)


class PublishedOutput:
    """The output of one sink of a region: up to where each worker's log is visible, and whether that is its
    end.
    """

    def __init__(
        self,
        store: Store,
        region: str,
        sink: str,
        *,
        from_retained: bool = False,
        on_rewind: OnRewind = "fail",
    ) -> None:
        """from_retained: a reader without a position begins with the oldest step that is retained. on_rewind:
        what a reader does if output that it has read was taken back.
        """
        self.on_rewind = on_rewind
        self._from_retained = from_retained
        self._store = store
        self.region = region
        self.sink = sink
        directory = coordinator_directory(region)
        self._manifest = ChainFollower(store, directory, MANIFEST_CHAIN, skip_lost=True)
        self._newest: Checkpoint | None = None
        self._checkpoint: Checkpoint | None = None
        self._listed: set[str] | None = None
        self._polled_at = -limits.output_poll_s
        self._lock = trio.Lock()

    async def register(self, region: str, source: str) -> None:
        """Register a source of a region as a consumer, as `register_consumer` does."""
        await register_consumer(self._store, output_register(self.region, self.sink), region, source)

    async def last_checkpoint(self, *, fresh: bool = False) -> Checkpoint | None:
        """Return the last committed checkpoint, cached for `output_poll_s` unless it must be fresh. Raises as
        reading does.

        Once `splits` was called, one with a worker that it did not list does not count before it does: what
        other workers made after that is not read before the reader knows of the new one.
        """
        async with self._lock:
            if fresh or trio.current_time() >= self._polled_at + limits.output_poll_s:
                async with aclosing(self._manifest.poll()) as records:
                    async for _, record in records:
                        if record.op is Op.CHECKPOINT:
                            self._newest = decode_checkpoint(record.flags, record.ints, record.strings[0])
                if self._newest is not None and (
                    self._listed is None or self._listed.issuperset(map(split_of, self._newest.workers))
                ):
                    self._checkpoint = self._newest
                self._polled_at = trio.current_time()
            return self._checkpoint

    async def splits(self) -> list[str]:
        """Return one split per worker: the last part of its directory's name. Raises
        QuorumUnavailableError.
        """
        prefix = worker_directory(self.region, 0)[:-4]
        names = await self._store.list_directories(prefix)
        found = [name.removeprefix(prefix) for name in names]
        self._listed = {f"w{name}" for name in found if len(name) == 4 and name.isdigit()}
        return sorted(self._listed)

    async def ends(self) -> dict[str, int] | None:
        """Return the end of each log if the region has processed all of its input, otherwise None."""
        checkpoint = await self.last_checkpoint()
        if checkpoint is None or not checkpoint.final:
            return None
        return {split_of(worker): at.size for worker, at in self._positions(checkpoint).items()}

    async def position(self, split: str) -> Position | None:
        """Return the position of a worker's log in the last checkpoint."""
        checkpoint = await self.last_checkpoint()
        return None if checkpoint is None else self._positions(checkpoint).get(int(split[1:]))

    async def begin(self, split: str) -> int:
        """Return the offset from which on a worker's log is retained, according to the last checkpoint: 0 if
        it was never trimmed. What is below may be deleted.
        """
        checkpoint = await self.last_checkpoint()
        return 0 if checkpoint is None else begin_in(checkpoint, int(split[1:]), self.sink)

    async def trimmed(self, split: str, begin: int, end: int) -> InputTrimmedError:
        """Return the error of a reader that needs what was trimmed."""
        because = await why_trimmed(self._store, output_register(self.region, self.sink))
        where = f"the log {split} of output {self.sink!r} of region {self.region!r}"
        return InputTrimmedError(where, begin, end, because, source="LogSource")

    async def trimmed_steps(self, first: int, last: int) -> InputTrimmedError:
        """Return the error of a reader that needs steps that were trimmed."""
        because = await why_trimmed(self._store, output_register(self.region, self.sink))
        where = f"output {self.sink!r} of region {self.region!r}"
        return InputTrimmedError(where, first, last, because, source="LogSource", unit="steps")

    def _positions(self, checkpoint: Checkpoint) -> dict[int, Position]:
        prepared = {worker: part.sinks.get(self.sink) for worker, part in checkpoint.outputs().items()}
        return {worker: msgspec.convert(at, Position) for worker, at in prepared.items() if at is not None}

    async def present(self) -> dict[str, OutputFollower]:
        """Return for each worker's log a follower at the end of what is visible now."""
        found = {}
        for split in await self.splits():
            follower = self.follower(split, SplitPosition(0))
            await follower.skip()
            found[split] = follower
        return found

    def follower(self, split: str, at: SplitPosition) -> OutputFollower:
        """Return a follower of one worker's log that starts at a position."""
        return OutputFollower(self._store, self, split, at=at, from_retained=self._from_retained)


def begin_in(checkpoint: Checkpoint, worker: int, sink: str) -> int:
    """Return the offset from which on a checkpoint retains a worker's log."""
    part = checkpoint.outputs().get(worker)
    return NO_FLOOR[1] if part is None else part.floors.get(output_chain(sink), NO_FLOOR)[1]


def split_of(worker: int) -> str:
    """Return the split of a worker's log."""
    return f"w{worker:04d}"
