"""The `steps` chain of a worker: the input division of each step, recorded before its output becomes visible.

`core/records/divisions.py` has the format. The chain is only rolled forward, except where a line of history
begins: steps recorded after that checkpoint do not count.
"""

from contextlib import aclosing
from typing import Final

from checkpoint.chains.chain_store import ChainStore, TakenChain
from checkpoint.core.records.divisions import (
    NO_MARK,
    Division,
    DivisionFold,
    Mark,
    Sources,
    decode_division,
    encode_division,
)
from checkpoint.core.records.manifest import Rolling
from dos_protocol.errors import LocalProtocolError
from journal import ChainWriter, Op, Position, Record, Scratch
from journal.ports import ClaimPort

STEPS_CHAIN: Final = "steps"


class StepsLog(ChainStore):
    """The divisions of one worker. Create it with `open`, on the trio loop that holds the claim."""

    def __init__(
        self,
        restored: TakenChain,
        writer: ChainWriter,
        fold: DivisionFold,
        rolling: Rolling | None = None,
        workers: int = 0,
    ) -> None:
        super().__init__(restored, writer, rolling)
        self._workers = workers
        self._fold = fold
        self._ends: dict[int, Position] = {}

    @classmethod
    async def open(
        cls,
        claim: ClaimPort,
        *,
        at: Position | None = None,
        after_step: int,
        workers: int = 0,
        generation: int,
        scratch: Scratch | None = None,
        rolling: Rolling | None = None,
    ) -> "StepsLog":
        """Take the chain over at its head, or at the position `at`, and open a segment there.

        after_step: of the restored checkpoint. workers: their number, if there is no checkpoint. Raises as
        `journal.take_over` and `ChainWriter.open`; ManifestError for an impossible division.
        """
        # At its head: a step whose output is visible is made again with the division on record. Divided anew,
        # its replay would show other rows.
        taken = await TakenChain.take(claim, STEPS_CHAIN, at=at, generation=generation, scratch=scratch)
        fold = DivisionFold(after_step, workers)
        async with aclosing(taken.records()) as records:
            async for _, record in records:
                if record.op is Op.DIVISION:
                    fold.add(decode_division(record.ints, record.strings))
        return cls(taken, await taken.open(), fold, rolling, workers)

    @property
    def last_step(self) -> int:
        """The highest step whose division is known without a gap; at least `after_step`."""
        return self._fold.last_step

    @property
    def of_others(self) -> bool:
        """Whether another number of workers recorded steps, before any checkpoint. They do not count."""
        return self._fold.others

    def divisions(self, after: int, until: int) -> list[Division]:
        """Return the divisions of steps after+1 .. until, in order, for an exact replay."""
        return self._fold.between(after, until)

    def record(self, step: int, time_ms: int, sources: Sources, mark: Mark = NO_MARK) -> Position:
        """Append the division of a step, in place of what was known of it and of later ones; `synced` waits.
        Raises LocalProtocolError for a gap, FencedError, ClosedError.
        """
        if not self._fold.after < step <= self.last_step + 1:
            raise LocalProtocolError(f"step {step} cannot be divided after step {self.last_step}")
        position = self._append(Division(step, time_ms, sources, self._workers, mark))
        # They are divided anew: their old positions would vouch for divisions that no longer count.
        for later in [known for known in self._ends if known > step]:
            del self._ends[later]
        self._ends[step] = position
        return position

    def void(self, step: int) -> Position:
        """Append that no division so far counts after `step`: another layout. Raises FencedError,
        ClosedError.
        """
        position = self._append(Division(0, 0, {}))
        self._ends = {step: position}
        return position

    def _append(self, division: Division) -> Position:
        position = self._writer.append(self._record(division))
        self._fold.add(division)
        return position

    async def synced(self, step: int) -> Position:
        """Wait until the division of `step` is synced; return the position after it. Raises FencedError."""
        # A step that was replayed as recorded was synced in an earlier incarnation: it is below the present
        # end.
        position = self._ends.get(step, self._writer.end)
        await self._writer.wait_synced(position)
        return position

    async def wait_room(self) -> None:
        """Wait until few enough bytes are unsynced (back-pressure)."""
        await self._writer.wait_room()

    async def forget(self, until: int) -> None:
        """Discard the steps up to `until`, that of the last checkpoint; also from the chain if it is long."""
        self._fold.forget(until)
        self._ends = {step: end for step, end in self._ends.items() if step > until}
        if self._due():
            await self._writer.roll(map(self._record, self._fold.between(until, self.last_step)))

    @staticmethod
    def _record(division: Division) -> Record:
        encoded = encode_division(division)
        return Record(Op.DIVISION, ints=encoded.ints, strings=encoded.strings)
