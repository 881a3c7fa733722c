"""An output log: the output of one sink on one worker, step by step, in its own chain.

This file performs what `core/records/outputs.py` decides. A log with publish="step" is taken over at its
head; a log with publish="checkpoint" goes back to its position in the restored checkpoint, as state does.
"""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import trio

from checkpoint import limits
from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.chains.consumer_register import KeptSegments, RowsChain, Trimmer, TrimPlanner
from checkpoint.core.records.outputs import (
    BatchOutput,
    Output,
    OutputDecision,
    OutputHead,
    OutputSequence,
    OutputTime,
    Publish,
    decode_output,
    encode_output,
    output_chain,
)
from checkpoint.runtime import wall_time_ms
from dos_protocol.errors import LocalProtocolError
from journal import NO_FLOOR, ORIGIN, ChainWriter, Floor, Op, Position, Record, Scratch
from journal.ports import ClaimPort

_FIRST_SEGMENT: Final[Floor] = (1, 0)
"""A floor of which nothing is below: epochs begin at 1, and a checkpoint names a floor of each chain."""


class OutputLog(ChainStore):
    """An output log, from `open`, on the trio loop that holds the claim. Not for several tasks at once."""

    def __init__(
        self,
        restored: TakenChain,
        writer: ChainWriter,
        sequence: OutputSequence,
        publish: Publish,
        chain: str,
        segments: KeptSegments,
        below: Position | None,
        history: int,
        workers: int,
        batches: BatchOutput | None,
    ) -> None:
        super().__init__(restored, writer)
        self._sequence = sequence
        self._publish = publish
        self._chain = chain
        self._history = history
        self._workers = workers
        self._segments = segments
        self._below = below
        """The position below whose segment the take-over did not go: `trim` reads what is there. None: all of
        it is in `_segments`.
        """
        self._needed = NO_FLOOR
        """The lowest segment that anybody needs, as the trimmer found it last."""
        self._voted = 0
        """The position in the last vote."""
        self._batches = batches
        self._appending = trio.Lock()

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        sink: str,
        publish: Publish,
        *,
        after_step: int,
        at: Position | None,
        generation: int,
        scratch: Scratch | None = None,
        released: Floor = NO_FLOOR,
        line: int = 0,
        rewound: bool = False,
        workers: int,
        driven: bool = False,
    ) -> "OutputLog":
        """Open a segment where the log continues.

        after_step: the step of the restored checkpoint; at: the end of the log there, None for none.
        released: the floor that the manifest has released. line: the line of history of what follows;
        rewound: it begins here, or the worker is new, so the log goes back to `at` even if later steps are
        visible. workers: how many make the steps that follow. driven: by the batches of a query. Raises
        as `journal.take_over` and `ChainWriter.open`, CorruptDataError.
        """
        back = rewound or publish is Publish.CHECKPOINT
        chain_name = output_chain(sink)
        ordered = (ORIGIN if at is None else at) if back else None
        # A log has no snapshots: without `proved` the walk would visit every segment that is retained.
        taken = await TakenChain.take(
            claim,
            chain_name,
            at=ordered,
            proved=None if at == ORIGIN else at,
            generation=generation,
            scratch=scratch,
            released=released,
        )
        sequence = OutputSequence(sink, after_step)
        restored = taken.after(taken.state.end if back else at)
        async with aclosing(restored.records()) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT:
                    output = decode_output(record.ints, record.strings, where=chain_name, at=end.size)
                    sequence.add(output.step, output.digest, end)
        writer = await taken.open()
        segments = KeptSegments(taken.state, writer)
        batches = BatchOutput(limits.batch_output_kept_s) if driven else None
        return cls(restored, writer, sequence, publish, chain_name, segments, at, line, workers, batches)

    @property
    def last_step(self) -> int:
        """The highest step whose output is in the log, or was when it was opened."""
        return self._sequence.last

    def judge(self, step: int, digest: int) -> OutputDecision:
        """Decide what to do with the output of a step; see `OutputSequence.judge`."""
        return self._sequence.judge(step, digest if self._publish is Publish.STEP else 0)

    # With publish="step", only after the division of the step is durable at every worker: otherwise a replay
    # of the step may show other rows than readers have.
    async def append(
        self,
        sink: str,
        step: int,
        rows: int,
        digest: int,
        data: bytes,
        inputs: dict[str, dict[str, int]],
        time: OutputTime | None = None,
    ) -> None:
        """Append the output of the next step; returns when there is room, before it is synced. Raises
        FencedError. If cancelled, the step may be in the log: the next opening finds out.
        """
        head = self._head(sink, time, inputs=inputs)
        await self._append(step, rows, digest, head, data)

    async def begin_after(self, sink: str, step: int, time: OutputTime | None = None) -> None:
        """Append that this worker joins the region after a step. Raises FencedError."""
        await self._append(step, 0, 0, self._head(sink, time, begins=True), b"")

    def _head(self, sink: str, time: OutputTime | None, **more: Any) -> OutputHead:
        return OutputHead(
            sink=sink,
            publish=self._publish,
            line=self._history,
            time=time,
            workers=self._workers,
            **more,
        )

    async def _append(self, step: int, rows: int, digest: int, head: OutputHead, data: bytes) -> None:
        async with self._appending:
            self._segments.note()  # the trimmer may have begun one
            await self._roll_if_longer(limits.output_segment_bytes_max)
            self._segments.note()
            digest = digest if self._publish is Publish.STEP else 0
            ints, strings = encode_output(Output(step, wall_time_ms(), rows, digest, head, data))
            # Under the lock of the trimmer: a segment that it begins between the two would end within a step.
            end = self._writer.append(Record(Op.OUTPUT, ints=ints, strings=strings))
            self._sequence.add(step, digest, end)
        await self._writer.wait_room()

    async def synced(self, step: int) -> Position:
        """Wait until the output up to `step` is synced; return the position after it. Raises FencedError,
        LocalProtocolError.
        """
        end = self._sequence.end_of(step)
        if end is None and step == self._sequence.last:
            end = self._writer.end  # nothing was appended since it was opened
        if end is None:
            raise LocalProtocolError(f"the output of step {step} is not known; the last is {self.last_step}")
        await self._writer.wait_synced(end)
        self._sequence.forget(step)
        self._voted = end.size
        return end

    # --- trimming -----------------------------------------------------------------------------------------

    def trimmer(self, planner: TrimPlanner, collect: Callable[[Floor], None]) -> Trimmer:
        """Return the trimmer of this log. collect: deletes the log below a floor."""
        return Trimmer(planner, self._writer, collect, self._appending)

    async def trim(self, trimmer: Trimmer, directory: str, split: str, allowed: Floor) -> None:
        """Perform a step of trimming. allowed: the floor that the manifest has released."""
        if self._below is not None:
            if not await trimmer.visit_below(self._segments, directory, self._chain, self._below):
                return
            self._below = None
        end = self._writer.synced
        query = None if self._batches is None else self._batches.needed_from(trio.current_time())
        now = RowsChain(directory, self._chain, split, self._segments.now(), end, end, query)
        needed, _ = await trimmer.step(now, wall_time_ms(), allowed=allowed)
        self._needed = max(self._needed, needed)

    @property
    def vote_floor(self) -> Floor:
        """The lowest segment that the checkpoint of the last `synced` keeps."""
        lowest = max(self._writer.released, _FIRST_SEGMENT)
        end = self._voted
        if self._batches is not None:
            # A task reads the output of its batch after the record, and after a restart by that record alone.
            end = min(end, self._batches.needed_from(trio.current_time()))
        return max(lowest, min(self._needed, self._segments.holding(end) or lowest))

    def batch_processed(self) -> None:
        """Note that the checkpoint of the last `synced` is committed, and is that of a batch."""
        if self._batches is not None:
            self._batches.processed(self._voted, trio.current_time())
