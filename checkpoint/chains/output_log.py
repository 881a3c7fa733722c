"""An output log: the output of one sink on one worker, step by step, in a chain of its own.

Rules of this file: it performs what `core/outputs.py` decides. A log with publish="step" is taken over at its
head and never goes back; one with publish="checkpoint" goes back to where the restored cut says, as state does.
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
"""A log goes on in a new segment after so much: a restore reads back at most about that."""


class OutputLog:
    """See the top of this file. Make it with `open`, on the trio loop that holds the claim. Not for several
    tasks at once.
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
        """Open a segment where the log goes on. after_step: the step of the cut restored; at: where the log
        ended in that cut, None if the cut knows no such log.

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
        """See `OutputSequence.judge`."""
        return self._line.judge(step, digest if self._publish is Publish.STEP else 0)

    async def append(
        self, sink: str, step: int, rows: int, digest: int, data: bytes, inputs: dict[str, dict[str, int]]
    ) -> None:
        """Put the output of the next step into the log; returns when there is room for more, before it is
        synced. For publish="step": only when the division of the step is durable everywhere.

        Raises FencedError; cancelled, the step may be in the log: the next opening finds out.
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
        """Wait until the output up to `step`, which is in the log, is synced on the quorum; the position just
        past it, for the cut at that step. Forgets what is below. Raises FencedError, LocalProtocolError.
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
    """The part of the chain in which anything can lie past `at`: what a restore must read."""
    size = 0 if at is None else at.size
    return msgspec.structs.replace(chain, segments=tuple(s for s in chain.segments if s.end.size > size))
