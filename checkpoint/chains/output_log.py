"""An output log: the output of one sink on one worker, step by step, in its own chain.

This file performs what `core/outputs.py` decides. A log with publish="step" is taken over at its head and
never goes back; a log with publish="checkpoint" goes back to its position in the restored checkpoint, as
state does.
"""

from contextlib import aclosing
from typing import Final

from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.core.outputs import (
    Output,
    OutputDecision,
    OutputHead,
    OutputSequence,
    Publish,
    decode_output,
    encode_output,
    output_chain,
)
from checkpoint.runtime import wall_time_ms
from dos_protocol.errors import LocalProtocolError
from journal import ORIGIN, ChainWriter, Op, Position, Record, Scratch
from journal.ports import ClaimPort

segment_bytes_max: Final = 64 * 1024 * 1024
"""A log continues in a new segment after this many bytes, which bounds what a restore reads."""


class OutputLog(ChainStore):
    """An output log. Create it with `open`, on the trio loop that holds the claim. Not for several tasks at
    once.
    """

    def __init__(
        self, restored: TakenChain, writer: ChainWriter, line: OutputSequence, publish: Publish
    ) -> None:
        super().__init__(restored, writer)
        self._line = line
        self._publish = publish

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
    ) -> "OutputLog":
        """Open a segment where the log continues. after_step: the step of the restored checkpoint; at: the
        end of the log in that checkpoint, None if it has no such log.

        Raises what `journal.take_over` and `ChainWriter.open` raise, CorruptDataError.
        """
        back = publish is Publish.CUT
        chain_name = output_chain(sink)
        ordered = (ORIGIN if at is None else at) if back else None
        # A log has no snapshots: without `proved` the walk would visit every segment since the region began.
        taken = await TakenChain.take(
            claim, chain_name, at=ordered, proved=at, generation=generation, scratch=scratch
        )
        line = OutputSequence(sink, after_step)
        restored = taken.after(taken.state.end if back else at)
        async with aclosing(restored.records()) as records:
            async for end, record in records:
                if record.op is Op.OUTPUT:
                    output = decode_output(record.ints, record.strings, where=chain_name, at=end.size)
                    line.add(output.step, output.digest, end)
        return cls(restored, await taken.open(), line, publish)

    @property
    def last_step(self) -> int:
        """The highest step whose output is in the log, or was when it was opened."""
        return self._line.last

    def judge(self, step: int, digest: int) -> OutputDecision:
        """Decide what to do with the output of a step; see `OutputSequence.judge`."""
        return self._line.judge(step, digest if self._publish is Publish.STEP else 0)

    async def append(
        self, sink: str, step: int, rows: int, digest: int, data: bytes, inputs: dict[str, dict[str, int]]
    ) -> None:
        """Append the output of the next step; returns when there is room for more, before it is synced. With
        publish="step", call it only after the division of the step is durable at every worker: a replay of
        the step then has the same input.

        Raises FencedError. If cancelled, the step may be in the log: the next opening finds out.
        """
        await self._roll_if_longer(segment_bytes_max)
        digest = digest if self._publish is Publish.STEP else 0
        head = OutputHead(sink=sink, publish=self._publish, inputs=inputs)
        ints, strings = encode_output(Output(step, wall_time_ms(), rows, digest, head, data))
        end = self._writer.append(Record(Op.OUTPUT, ints=ints, strings=strings))
        self._line.add(step, digest, end)
        await self._writer.wait_room()

    async def synced(self, step: int) -> Position:
        """Wait until the output up to `step`, which is in the log, is synced on the quorum. Return the
        position just after it, for the checkpoint at that step. Forgets what is below. Raises FencedError,
        LocalProtocolError.
        """
        end = self._line.end_of(step)
        if end is None:
            raise LocalProtocolError(f"the output of step {step} is not known; the last is {self.last_step}")
        await self._writer.wait_synced(end)
        self._line.forget(step)
        return end
