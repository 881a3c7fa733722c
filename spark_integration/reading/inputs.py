"""An input handle as a source: a split is a producer, a piece one of its batches, which is read whole.

`checkpoint.core.records.inputs` defines which records form a valid batch. A segment of a producer's chain
begins between two batches; an incomplete batch that a failed producer left at its end does not count.
"""

import pyarrow as pa

from checkpoint import INPUT_CHAIN, InputSequence, decode_part, producer_directory
from checkpoint.chains.input_log import InputHandle
from dos_client import Store
from journal import Op, Position, Record
from spark_integration.core.offsets import SplitPoint
from spark_integration.core.options import SourceOptions
from spark_integration.core.wording import nearest
from spark_integration.errors import MalformedOffsetError, NothingThereError
from spark_integration.reading.chains import ALL, ChainOrigin, PieceReader

EXTRA = pa.schema([("_split", pa.string()), ("_batch", pa.int64()), ("_written", pa.timestamp("us", "UTC"))])


class InputOrigin(ChainOrigin):
    """The batches of an input handle."""

    chain = INPUT_CHAIN
    steps = False
    times = True

    def __init__(self, store: Store, options: SourceOptions) -> None:
        super().__init__(store, fail_on_loss=options.fail_on_data_loss)
        assert options.input is not None, "the options guarantee it"
        self._application, self._name = options.directory, options.input
        self._handle = InputHandle(store, self._application, self._name)

    def directory(self, split: str) -> str:
        return producer_directory(self._application, self._name, split)

    def extra(self) -> pa.Schema:
        return EXTRA

    def piece_reader(self, split: str, start: SplitPoint) -> PieceReader:
        return _BatchReader(split, self.directory(split), start)

    async def splits(self) -> list[str]:
        found = await self._handle.splits()
        if not found:
            prefix = f"{self._application}.in."
            names = [name.removeprefix(prefix) for name in await self.store.list_directories(prefix)]
            handles = sorted({name.split(".")[0] for name in names})
            handles_text = f"it has {', '.join(handles)}" if handles else "it has none"
            raise NothingThereError(
                f"application {self._application!r} has no input handle {self._name!r} with data"
                f"{nearest(self._name, handles)}; {handles_text}",
                remedy="`dos ls` lists what is in the store; a handle exists once its first producer has"
                " opened it",
            )
        return found

    async def visible_end(self, split: str) -> Position | None:
        del split
        return ALL

    async def checkpoint(self, number: int) -> dict[str, SplitPoint]:
        raise MalformedOffsetError(
            f"startingOffset checkpoint:{number}: only the output of a region has checkpoints, not an"
            " input handle",
            remedy="write earliest, latest or time:2026-01-31T12:00:00Z",
        )

    def data_of(self, record: Record) -> bytes:
        return record.strings[0] if record.op is Op.INPUT else b""


class _BatchReader(PieceReader):
    """Finds batches: a batch ends with its last part, if all parts are there."""

    def __init__(self, split: str, where: str, start: SplitPoint) -> None:
        self._line = InputSequence(split, at=start.size, digest=None, bytes_max=-1, where=where)
        self._name = where
        self._rows = 0

    def take(self, begin: int, end: int, record: Record) -> bool:
        if record.op is not Op.INPUT:
            return False
        part = decode_part(record.ints, record.strings, where=self._name, at=end)
        self._rows = part.rows + (self._rows if part.part else 0)
        before = self._line.end
        batches = self._line.batches
        self._line.add(part, begin, end)
        if self._line.batches == batches:
            return False
        self.rows, self.bytes, self.order, self.time_ms = self._rows, end - before, part.time_ms, part.time_ms
        return True
