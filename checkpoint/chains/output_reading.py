"""Follows the visible output of a region, worker by worker, for another region that reads it.

It claims nothing and returns only committed output: of a log with publish="step" what a quorum holds, of a
log with publish="checkpoint" what the last committed checkpoint covers. A position is the size of the chain
just after a step, its digest the number of the step. Only a restore to an older checkpoint takes visible
output back. Then a line of history begins (`core/records/lines.py`), and a reader fails or follows.

The log of a sink that was removed ends: it is read up to the end that each later checkpoint states
(`Checkpoint.ended`), and then its reader knows that nothing follows.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Literal, NamedTuple, TypeAlias

import trio

from checkpoint import limits
from checkpoint.chains.consumer_register import register_consumer, settled_register, why_trimmed
from checkpoint.chains.manifest_log import CHAIN as MANIFEST_CHAIN
from checkpoint.chains.visible_log import VisibleLog, covered_in
from checkpoint.core.records.consumers import output_register
from checkpoint.core.records.inputs import InputPiece
from checkpoint.core.records.lines import parting, taken_back
from checkpoint.core.records.manifest import Checkpoint, SplitPosition, decode_checkpoint
from checkpoint.core.records.outputs import Output, Publish, output_chain
from checkpoint.core.region import coordinator_directory, worker_directory
from checkpoint.errors import InputTrimmedError, OutputRewoundError
from dos_client import Store
from dos_protocol.errors import CorruptDataError
from journal import (
    ChainFollower,
    ChainWatch,
    LostBytesError,
    Op,
    Position,
    RewrittenChainError,
    inspect_chain,
    size_seen,
)

logger = logging.getLogger("dos.checkpoint")

_REWIND_REMEDY: Final = (
    "restore this region as well, to a checkpoint from before (`dos region restore`), or read with"
    ' on_rewind="follow" to keep what was made of those rows'
)


OnRewind: TypeAlias = Literal["fail", "follow"]
"""What a reader does if output that it has read was taken back: it fails, or continues with what replaces it.
"""


class FollowedOutput(NamedTuple):
    """The output of one step on one log, from `begin` to `end` in its chain."""

    begin: int
    end: int
    output: Output


class OutputFollower:
    """Reads one worker's log from a position on. Not for several tasks at once."""

    def __init__(
        self,
        store: Store,
        published: "PublishedOutput",
        split: str,
        *,
        at: SplitPosition,
        from_retained: bool = False,
    ) -> None:
        self._may_move = from_retained and at.position == 0
        self._output = published
        self._split = split
        self._directory = f"{published.region}.{split}"
        self._store = store
        self._go_to(at.position, at.epoch)
        self._step, self._line = at.digest, at.line
        """The last step that was read, and its line of history."""
        self._chain_begun = at.position > 0
        self._skipped = 0
        """Steps up to here may have been yielded to other readers, and are not yielded here."""
        self._publish: Publish | None = None

    def _go_to(self, at: int, epoch: int = 0) -> None:
        self._read_to, self._read_epoch = at, epoch
        """The end of the last output that was read, and the epoch of its segment; 0: not known."""
        self._uid, chain = self._output.uid, output_chain(self._output.uid)
        self._chain = ChainFollower(self._store, self._directory, chain, at=at, epoch=epoch)
        self._watch = ChainWatch(self._store, self._chain)
        self._proved: VisibleLog | None = None
        """The log in the checkpoint with which this chain was read first."""

    @property
    def seen(self) -> int:
        """The position up to which it was read."""
        return self._chain.at

    async def skip(self) -> None:
        """Skip what is visible now."""
        self._publish = await self._publish_mode()
        if self._publish is Publish.STEP:
            proved = await self._output.position(self._split)
            log = await inspect_chain(
                self._store,
                self._directory,
                output_chain(self._uid),
                proved=proved,
                floor=await self._output.begin(self._split),
            )
            end = log.end
            size = 0 if end is None else end.size
        else:
            upto = await self._output.position(self._split)
            size = 0 if upto is None else upto.size
        self._go_to(size)
        checkpoint = await self._output.last_checkpoint()
        self._line = 0 if checkpoint is None else checkpoint.line
        self._skipped = await size_seen(self._store, self._directory, output_chain(self._uid))

    def begin_at(self, position: int) -> None:
        """Begin at a position whose step is not known, such as the oldest one that is retained."""
        self._may_move = False
        self._go_to(position)
        self._chain_begun = False

    async def poll(self) -> AsyncGenerator[InputPiece]:
        """Yield the visible steps with rows that were not yielded before, then end; iterate to the end.
        Raises as `outputs`.
        """
        async with aclosing(self.outputs()) as outputs:
            async for begin, end, output in outputs:
                if output.rows and end > self._skipped:
                    yield InputPiece(
                        self._split,
                        begin,
                        end,
                        output.step,
                        output.rows,
                        output.data,
                        line=self._line,
                        epoch=self._chain.epoch,
                    )

    async def outputs(self) -> AsyncGenerator[FollowedOutput]:
        """Yield the visible steps that were not yielded before, also those without rows; iterate to the end.

        Raises CorruptDataError if the log does not continue what was read, InputTrimmedError,
        OutputRewoundError if output that was read was taken back (on_rewind="fail") or the region was deleted
        and begins again.
        """
        await self._notice_restore(await self._output.last_checkpoint())
        if not await self._output.exists(read=self._step):
            return
        if self._uid != self._output.uid:  # the log of a graph that came after this reader
            self._go_to(self._chain.at, self._chain.epoch)
        log = await self._output.log(self._split)
        self._publish = self._publish or await self._publish_mode()
        if self._publish is None or await self._is_dropped(log):
            return
        by_checkpoint = log.ends_with_checkpoint(self._publish)
        if by_checkpoint and log.covered is None:
            return
        if self._may_move:
            self._may_move = False
            if log.begin > 0:
                self._go_to(log.begin)
        if self._proved is None and log.covered is not None:
            self._proved = log
        try:
            async with aclosing(self._poll(log, by_checkpoint=by_checkpoint)) as outputs:
                async for followed in outputs:
                    yield followed
        except (LostBytesError, CorruptDataError) as error:
            # The log may have branched off below what was read, since the manifest was read.
            if await self._goes_back(await self._output.last_checkpoint(fresh=True), error):
                return
            await self._refuse(error)
            raise

    async def _is_dropped(self, log: VisibleLog) -> bool:
        """Return whether the log was dropped after it was read to its end. Raises InputTrimmedError if it was
        before.
        """
        if not log.ended or log.covered is None or log.begin < log.covered.size:
            return False
        if self._may_move:
            self._go_to(log.begin)
        if self._chain.at < log.begin:
            raise await self._output.trimmed(self._split, self._chain.at, log.begin)
        return True

    async def _refuse(self, error: LostBytesError | CorruptDataError) -> None:
        """Raise what the log's error means, if it is known: the region was deleted, or the log trimmed."""
        if isinstance(error, RewrittenChainError):
            region, sink = self._output.region, self._output.sink
            raise OutputRewoundError(region, sink, read=self._step, deleted=str(error.args[0])) from error
        # Only what a committed checkpoint has released was trimmed; what else is missing is lost.
        base = await self._output.begin(self._split)
        if isinstance(error, LostBytesError) and base > self._chain.at:
            raise await self._output.trimmed(self._split, self._chain.at, base) from error

    async def _poll(self, log: VisibleLog, *, by_checkpoint: bool) -> AsyncGenerator[FollowedOutput]:
        begin = self._chain.at
        polled = self._chain.poll(log.covered) if by_checkpoint else self._chain.poll(proved=log.covered)
        async with aclosing(polled) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT:
                    output = log.output(record, end)
                    # Until a checkpoint covers this record, the worker may open the log again at this place.
                    # A checkpoint that was read before the worker left does not show that (`reopens`).
                    if output.head.begins and (log.covered is None or end > log.covered.size):
                        self._go_to(self._read_to, self._read_epoch)
                        return
                    if not await self._belongs(output, end):
                        return
                    self._check_follows(output, end)
                    self._read_to, self._read_epoch = end, self._chain.epoch
                    yield FollowedOutput(begin, end, output)
                begin = end

    async def _belongs(self, output: Output, end: int) -> bool:
        """Return whether an output read up to `end` belongs to the present line; if not, a later poll reads
        again.
        """
        checkpoint = await self._output.last_checkpoint(fresh=output.head.line > self._line)
        if await self._notice_restore(checkpoint):
            return False
        line, of_line = 0 if checkpoint is None else checkpoint.line, output.head.line
        back = taken_back(checkpoint, of_line, output.step) if checkpoint and of_line <= line else None
        proved = self._proved
        if (
            back is not None
            and not back.to
            and proved
            and proved.line == line
            and proved.counts(end, of_line)
        ):
            # The checkpoint states too few restores to know of this one. But it covers what was read.
            self._line = line
            return True
        if of_line > line or back is not None:
            # The reader does not know of the line yet, or the worker has not opened its log on it.
            self._go_to(self._read_to, self._read_epoch)
            return False
        self._line = of_line
        return True

    async def _goes_back(self, checkpoint: Checkpoint | None, error: Exception) -> bool:
        """Return whether a restore, or that the log was opened again, explains a gap; then this reader is
        where it continues. Raises as `_notice_restore`.
        """
        if await self._notice_restore(checkpoint):
            return True
        # What lies between the last output and here may be of an opening that is void.
        at, epoch = self._read_to, self._read_epoch
        if checkpoint and checkpoint.line > self._line and (parted := parting(checkpoint, self._line)):
            at = min(self._size_in(parted.outputs, 0), at)
            epoch = epoch if at == self._read_to else 0
        elif not isinstance(error, RewrittenChainError) or (at and not epoch):
            return False  # without the epoch, a log that was deleted and begun again is not noticed
        if at >= self._chain.at:
            return False
        self._go_to(at, epoch)
        return True

    def _size_in(self, outputs: dict[int, dict[str, int]], default: int) -> int:
        return outputs.get(int(self._split[1:]), {}).get(self._uid, default)

    async def _notice_restore(self, checkpoint: Checkpoint | None) -> bool:
        """Return whether output that was read was taken back; then this reader is where the new line begins.
        Raises OutputRewoundError if it must not follow.
        """
        if checkpoint is None or checkpoint.line < self._line:
            return False
        if (back := taken_back(checkpoint, self._line, self._step)) is None:
            return False
        region, sink = self._output.region, self._output.sink
        if self._output.on_rewind == "fail" or not back.to:
            first, read, remedy = back.step + 1, self._step, _REWIND_REMEDY
            raise OutputRewoundError(
                region, sink, line=checkpoint.line, checkpoint=back.to, step=first, read=read, remedy=remedy
            )
        logger.warning(
            "%s: output %r of region %r was taken back from step %d on, and had been read up to step %d here;"
            " what follows is read from checkpoint %d on",
            self._split,
            sink,
            region,
            back.step + 1,
            self._step,
            back.to,
        )
        size = self._size_in(back.outputs, 0)
        self._output.find_again(checkpoint)
        self._go_to(size)
        self._step, self._line, self._chain_begun = back.step, checkpoint.line, self._chain.at > 0
        self._skipped = 0
        return True

    async def end(self) -> int:
        """Return up to where the log is visible; with publish="step", written. Raises QuorumUnavailableError,
        CorruptDataError.
        """
        if self._publish is Publish.STEP:
            return await size_seen(self._store, self._directory, output_chain(self._uid))
        end = await self._output.position(self._split)
        return 0 if end is None else end.size

    async def rests(self) -> bool:
        """Return whether the region does not have this worker, or the sink, now, and all of its log was
        read.
        """
        checkpoint, worker = await self._output.last_checkpoint(), int(self._split[1:])
        log = await self._output.log(self._split)
        if checkpoint is None or (worker in checkpoint.workers and not log.ended):
            return False
        return log.covered is None or self._chain.at >= log.covered.size

    async def wait(self, timeout_s: float) -> None:
        """Wait until more may be visible, at most `timeout_s` seconds; with publish="step" until the log has
        grown.
        """
        if self._publish is Publish.STEP:
            await self._watch.wait(timeout_s)
        else:
            await trio.sleep(timeout_s)

    def close(self) -> None:
        """End all waits."""
        self._watch.close()

    def _check_follows(self, output: Output, end: int) -> None:
        follows = output.step >= self._step if output.head.begins else output.step == self._step + 1
        if self._chain_begun and not follows:
            expected = f"the output of step {self._step + 1}"
            raise CorruptDataError(self._directory, end, expected, f"that of step {output.step}")
        self._chain_begun, self._step = True, output.step

    async def _publish_mode(self) -> Publish | None:
        """Return how the log is published, according to its first record; None if it has no record."""
        if (await self._output.log(self._split)).ended:
            return Publish.CHECKPOINT  # all of it is covered
        first = await self.first()
        return None if first is None else first.head.publish

    async def first(self, begin: int | None = None) -> Output | None:
        """Return the first record from a position on, as `VisibleLog.first`."""
        return await (await self._output.log(self._split)).first(self._store, begin)


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
        uid: str = "",
    ) -> None:
        """from_retained: a reader without a position begins with the oldest retained step. on_rewind: what a
        reader does if output was taken back. uid: of the log; "": that of the sink in the last checkpoint.
        """
        self.on_rewind = on_rewind
        self._from_retained = from_retained
        self._store = store
        self.region = region
        self.sink = sink
        self.uid = uid or sink
        """Under which the log is stored (`Checkpoint.uids`). Before the region has a checkpoint, it is the
        name in its first graph.
        """
        self._is_found = bool(uid)
        """Whether the sink was in a checkpoint, which has told `uid`."""
        self._registered: tuple[str, str, str] | None = None
        directory = coordinator_directory(region)
        self._manifest = ChainFollower(store, directory, MANIFEST_CHAIN, skip_lost=True)
        self._newest: Checkpoint | None = None
        self._checkpoint: Checkpoint | None = None
        self._listed: set[str] | None = None
        self._polled_at = -limits.output_poll_s
        self._lock = trio.Lock()

    async def register(self, region: str, source: str) -> None:
        """Register a source of a region as a consumer, as `register_consumer` does. Call it first: one that
        is registered for a log that has ended reads that to its end, although the name is of another log now.
        """
        checkpoint = await self.last_checkpoint()
        for uid, log in {} if checkpoint is None else checkpoint.ended.items():
            if log.ends and self.sink in (uid, log.sink):
                known = (await settled_register(self._store, output_register(self.region, uid))).consumers
                if region in known and source in known[region].sources:
                    self.uid, self._is_found = uid, True
        uid = self.uid
        await register_consumer(self._store, output_register(self.region, uid), region, source)
        self._registered = region, source, uid

    def find_again(self, checkpoint: Checkpoint) -> None:
        """Find the log anew: this checkpoint began a line of history, on which the sink may have another log,
        or none yet.
        """
        self._is_found = False
        self._find(checkpoint)

    def _find(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None or self._is_found:
            return
        uid = checkpoint.log_of(self.sink)
        if uid is not None and not (self.on_rewind == "follow" and is_taken_back(checkpoint, uid)):
            self.uid, self._is_found = uid, True

    async def exists(self, *, read: int = 0) -> bool:
        """Return whether the region has, or had, such a sink. Raises OutputRewoundError if a restore took all
        of its log back, unless the reader follows: then it may come again with a later graph. read: the last
        step that was read.
        """
        checkpoint = await self.last_checkpoint()
        if checkpoint is None:
            return True  # unless the first checkpoint lacks it
        if self._is_found and is_taken_back(checkpoint, self.uid):
            if self.on_rewind == "fail":
                raise self.rewound(checkpoint, read=read)
            self.find_again(checkpoint)
        return self._is_found

    def rewound(self, checkpoint: Checkpoint, *, read: int, step: int = 1) -> OutputRewoundError:
        """Return the error of a reader whose log was taken back from a step on. read: the last one read."""
        to, line = checkpoint.rewinds[-1].to, checkpoint.line
        return OutputRewoundError(
            self.region, self.sink, line=line, checkpoint=to, step=step, read=read, remedy=_REWIND_REMEDY
        )

    async def last_checkpoint(self, *, fresh: bool = False) -> Checkpoint | None:
        """Return the last committed checkpoint, cached for `output_poll_s` unless it must be fresh. Raises as
        reading.
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
                self._find(self._checkpoint)
            return self._checkpoint

    async def splits(self) -> list[str]:
        """Return one split per worker, named by its directory; none while the region has no such sink. Raises
        QuorumUnavailableError.
        """
        if not await self.exists():
            return []  # it may come with a later graph, with a log that is not known yet
        if self._registered is not None and self._registered[2] != self.uid:
            await self.register(*self._registered[:2])  # before anything is read
        prefix = worker_directory(self.region, 0)[:-4]
        names = await self._store.list_directories(prefix)
        found = [name.removeprefix(prefix) for name in names]
        self._listed = {f"w{name}" for name in found if len(name) == 4 and name.isdigit()}
        return sorted(self._listed)

    async def ends(self) -> dict[str, int] | None:
        """Return the end of each log if the region has processed all of its input, or has the sink no more;
        otherwise None.
        """
        checkpoint = await self.last_checkpoint()
        if checkpoint is None or not (checkpoint.final or self.uid in checkpoint.ended):
            return None
        return {split_of(worker): at.size for worker, at in covered_in(checkpoint, self.uid).items()}

    async def watch_end(self, read: int) -> None:
        """Return if the log is not that of a removed sink. Otherwise run until it is cancelled, and raise
        OutputRewoundError if a restore takes the removal back: more rows may follow. read: the last step that
        was read.
        """
        ended = None
        while True:
            checkpoint = await self.last_checkpoint()
            now = None if checkpoint is None else checkpoint.ended.get(self.uid)
            if checkpoint is None or (ended is None and now is None):
                return
            ended = ended or now
            if now is None or ended is None or now.ends != ended.ends:
                step = min(read, checkpoint.rewinds[-1].step) + 1 if checkpoint.rewinds else 1
                raise self.rewound(checkpoint, read=read, step=step)
            await trio.sleep(limits.inputs_poll_s)

    async def position(self, split: str) -> Position | None:
        """Return the position of a worker's log in the last checkpoint."""
        return (await self.log(split)).covered

    async def begin(self, split: str) -> int:
        """Return the offset from which on a worker's log is retained, according to the last checkpoint."""
        return (await self.log(split)).begin

    async def log(self, split: str) -> VisibleLog:
        """Return a worker's log as the last checkpoint shows it."""
        return VisibleLog.of(await self.last_checkpoint(), self.region, int(split[1:]), self.uid)

    async def trimmed(self, split: str, begin: int, end: int) -> InputTrimmedError:
        """Return the error of a reader that needs what was trimmed."""
        checkpoint = await self.last_checkpoint()
        ended = None if checkpoint is None else checkpoint.ended.get(self.uid)
        if ended is not None and ended.dropped_by:
            because = f"{ended.dropped_by} dropped the log of the removed sink"
        else:
            because = await why_trimmed(self._store, output_register(self.region, self.uid))
        where = f"the log {split} of output {self.sink!r} of region {self.region!r}"
        return InputTrimmedError(where, begin, end, because, source="LogSource")

    async def trimmed_steps(self, first: int, last: int) -> InputTrimmedError:
        """Return the error of a reader that needs steps that were trimmed."""
        because = await why_trimmed(self._store, output_register(self.region, self.uid))
        where = f"output {self.sink!r} of region {self.region!r}"
        return InputTrimmedError(where, first, last, because, source="LogSource", unit="steps")

    async def latest(self) -> dict[str, SplitPosition]:
        """Return for each worker with output the end of its log in the last checkpoint."""
        checkpoint = await self.last_checkpoint(fresh=True)
        if checkpoint is None:
            return {}
        return {
            split_of(worker): SplitPosition(at.size, checkpoint.step, line=checkpoint.line, epoch=at.epoch)
            for worker, at in covered_in(checkpoint, self.uid).items()
            if at.size
        }

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


def is_taken_back(checkpoint: Checkpoint, uid: str) -> bool:
    """Return whether this line of history does not have an output log that an earlier one had."""
    return uid in checkpoint.ended and not checkpoint.ended[uid].ends


def split_of(worker: int) -> str:
    """Return the split of a worker's log."""
    return f"w{worker:04d}"
