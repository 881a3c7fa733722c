"""Writing to an input handle: a producer, from trio. `dataflow.blocking` has it for plain threads.

    async with open_producer(store, "shop", "orders", "till-7", "item string, price bigint") as producer:
        for batch in batches_after(producer.last.mark):
            number = await producer.send(batch.rows, mark=batch.place)
        await producer.wait_recorded(number)

Rules of this file: rows to parts. What is recorded, and what counts, is `checkpoint.chains.input_log`'s.

Exactly once, from where the rows come from: give each batch a `mark` that says where the next one begins
there. A producer that is started again asks `last` and goes on behind its mark. Or number the batches: a
number that was recorded before is discarded.
"""

import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from checkpoint.chains.input_log import InputLog
from checkpoint.limits import input_part_bytes_max
from dataflow.errors import SchemaError
from dataflow.schema import parse_schema, schema_text
from dos_client import Store

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]"


class InputEnd(NamedTuple):
    """Where an input ends: its last batch (0: none), the mark that came with it, and the position just past
    it, which is what outputs name (`StepRows.inputs`).
    """

    batch: int
    mark: bytes
    position: int


class Producer:
    """Writes batches of rows, in order. Made by `open_producer`; one `send` at a time, any number of
    waits.
    """

    def __init__(self, log: InputLog, schema: pa.Schema) -> None:
        self._log = log
        self.schema = schema

    @property
    def last(self) -> InputEnd:
        """The last batch that was sent. When the producer was just opened, all of it is recorded."""
        return InputEnd(self._log.last, self._log.last_mark, self._log.last_end)

    async def send(self, rows: Rows, *, batch: int | None = None, mark: bytes = b"") -> int:
        """Send a batch, of any size; its number. Returns when there is room for more: `wait_recorded` says
        when it is safe. All of it will be read, or nothing.

        rows: a table, a record batch, or dicts, with the columns of the schema. batch: its number; without
        it the next one. One that was sent before is discarded, whatever it holds.

        Raises SchemaError for rows that do not fit, LocalProtocolError for a number that leaves a hole
        (nothing was sent then), FencedError when this producer was opened again elsewhere, or the handle
        closed. Cancelled, the batch counts or not: `last` tells.
        """
        number = self._log.last + 1 if batch is None else batch
        if number <= self._log.last:
            await self._log.append([], number=number)
            return number
        await self._log.append(_parts(rows, self.schema), number=number, mark=mark)
        return number

    async def wait_recorded(self, batch: int | None = None) -> int:
        """Wait until a batch (None: the last one) is recorded: on stable storage of a quorum. A position up
        to which everything is.

        Raises FencedError when it can no more be known here: open the producer again, and ask `last`. Waits
        for ever without a quorum.
        """
        return await self._log.recorded(self._log.last if batch is None else batch)


@asynccontextmanager
async def open_producer(
    store: Store, application: str, handle: str, producer: str, schema: "str | pa.Schema"
) -> AsyncIterator[Producer]:
    """Be the producer of that name of an input handle, for as long as the `with` block lasts. Any number of
    producers write to a handle at one time, each under its own name; of one name the one opened last.

    application: the name that `run` has. schema: as the `InputSource` has it. Leaving waits for nothing:
    what was sent and not waited for may be lost.

    Raises InputClosedError, BadNameError, SchemaError; NotEnoughAnswersError when a producer is new and a
    member of the store is away. Waits while fewer than a quorum are there.
    """
    columns = parse_schema(schema)
    async with await InputLog.open(store, application, handle, producer) as log:
        yield Producer(log, columns)


def _parts(rows: Rows, schema: pa.Schema) -> list[tuple[int, bytes]]:
    table = _table(rows, schema)
    count = max(1, math.ceil(table.nbytes / input_part_bytes_max))
    step = max(1, math.ceil(table.num_rows / count))
    slices = [table.slice(at, step) for at in range(0, table.num_rows, step)] or [table]
    return [(one.num_rows, _stream(one)) for one in slices]


def _table(rows: Rows, schema: pa.Schema) -> pa.Table:
    try:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            return rows if rows.schema.equals(schema) else rows.select(schema.names).cast(schema)
        listed = list(rows)
        unknown = sorted({str(name) for row in listed for name in row} - set(schema.names))
        if unknown:
            raise SchemaError(
                f"rows have columns {', '.join(unknown)}, and the schema is {schema_text(schema)}"
            )
        return pa.Table.from_pylist(listed, schema)
    except (pa.ArrowException, KeyError, TypeError, AttributeError) as error:
        raise SchemaError(f"these rows do not fit {schema_text(schema)}: {error}") from error


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
