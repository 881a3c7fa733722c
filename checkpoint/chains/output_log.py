"""An output log: the output of one sink on one worker, step by step, in its own chain.

This file performs what `core/outputs.py` decides. A log with publish="step" is taken over at its head and
never goes back; a log with publish="checkpoint" goes back to its position in the restored checkpoint, as
state does.
"""

from contextlib import aclosing
from typing import Final

import msgspec

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
from journal import ORIGIN, ChainState, ChainWriter, Op, Position, Record, Scratch, read_records, take_over
from journal.ports import ClaimPort

segment_bytes_max: Final = 64 * 1024 * 1024
"""A log continues in a new segment after this many bytes, which bounds what a restore reads."""


class OutputLog:
    """An output log. Create it with `open`, on the trio loop that holds the claim. Not for several tasks at
    once.
    """

    def __init__(
        self, writer: ChainWriter, line: OutputSequence, publish: Publish, replayed_bytes: int
    ) -> None:
        self._writer = writer
        self._line = line
        self._publish = publish
        self._segment_begin = writer.end.size
        self.replayed_bytes = replayed_bytes

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
        chain = await take_over(claim, chain_name, at=ordered, generation=generation, scratch=scratch)
        line = OutputSequence(sink, after_step)
        behind = ChainState(chain_name) if back else _behind(chain, at)
        if behind.segments:
            async with aclosing(read_records(claim, behind, scratch=scratch)) as records:
                async for end, record in records:
                    if record.op is Op.OUTPUT:
                        output = decode_output(record.ints, record.strings, where=chain_name, at=end.size)
                        line.add(output.step, output.digest, end)
        writer = await ChainWriter.open(claim, chain_name, chain, generation, scratch)
        return cls(writer, line, publish, behind.bytes)

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
        if self._writer.end.size - self._segment_begin > segment_bytes_max:
            await self._writer.roll()
            self._segment_begin = self._writer.end.size
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

    async def aclose(self) -> None:
        """Stop appending."""
        await self._writer.aclose()


def _behind(chain: ChainState, at: Position | None) -> ChainState:
    """Return the part of the chain that may contain anything after `at`, which a restore must read."""
    size = 0 if at is None else at.size
    return msgspec.structs.replace(chain, segments=tuple(s for s in chain.segments if s.end.size > size))
