"""Producers: write rows to an input handle, from trio. `dataflow.blocking` is for plain threads.

    async with open_producer(store, "shop", "orders", "till-7", "item string, price bigint") as producer:
        for batch in batches_after(producer.last.mark):
            number = await producer.send(batch.rows, mark=batch.place)
        await producer.wait_recorded(number)

Exactly once, from the origin of the rows: give each batch a `mark` that says where the next one begins there;
a restarted producer reads `last` and continues after it. Or number the batches: a known number is discarded.
"""

import math
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from checkpoint import check_input_name
from checkpoint.chains.input_log import InputLog
from checkpoint.limits import input_part_bytes_max
from dataflow.entry.sending import EntryLog
from dataflow.errors import SchemaError, UserFault
from dataflow.schema import parse_schema, schema_text
from dataflow.values.python_rows import batch_of_result, batch_of_rows
from dos_client import Store
from dos_client.tasks import background_tasks
from dos_protocol.arguments import parse_listen

Rows: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]"


class InputEnd(NamedTuple):
    """The end of an input: the number of its last batch (0 for none), its mark, and the position just after
    it.
    """

    batch: int
    mark: bytes
    position: int


@dataclass(frozen=True, slots=True)
class EntryPoints:
    """The entry points of a handle, for `open_producer`: HOST:PORT of each, separated by commas. A producer
    connects to the first that serves it, and to the next when that fails. token: that of the entry store.
    Raises SchemaError for an invalid address.
    """

    addresses: str
    token: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        for address in self.each:
            try:
                parse_listen(address, "an entry point")
            except ValueError as error:
                raise SchemaError(str(error)) from error

    @property
    def each(self) -> tuple[str, ...]:
        return tuple(address.strip() for address in self.addresses.split(","))


class Producer:
    """A writer of batches of rows, in order (`open_producer`). One `send` at a time, any number of waits."""

    def __init__(self, log: InputLog | EntryLog, schema: pa.Schema) -> None:
        self._log = log
        self.schema = schema

    @property
    def last(self) -> InputEnd:
        """The last batch that was sent. Right after opening, all of it is recorded."""
        return InputEnd(self._log.last, self._log.last_mark, self._log.last_end)

    async def send(self, rows: Rows, *, batch: int | None = None, mark: bytes = b"") -> int:
        """Send a batch of any size and return its number, when there is room for more. Readers get all of it
        or nothing.

        rows: a table, a record batch, or dicts, with the columns of the schema. batch: its number, by default
        the next one; a number that was sent before is discarded, whatever its rows. mark: returned by `last`.

        Raises SchemaError for rows that do not fit; LocalProtocolError for a number that leaves a gap, with
        nothing sent; FencedError when this producer was opened again elsewhere or the handle was closed.
        After a cancellation the batch may count or not: check `last`.
        """
        number = self._log.last + 1 if batch is None else batch
        if number <= self._log.last:
            await self._log.append([], number=number)
            return number
        await self._log.append(parts_of(rows, self.schema), number=number, mark=mark)
        return number

    async def wait_recorded(self, batch: int | None = None) -> int:
        """Wait until a batch (None: the last one) is on stable storage of a quorum, forever without one.
        Return a position up to which everything is recorded. Raises FencedError when that can no longer be
        known here: open the producer again and check `last`.
        """
        return await self._log.recorded(self._log.last if batch is None else batch)


@asynccontextmanager
async def open_producer(
    store: Store | EntryPoints, application: str, handle: str, producer: str, schema: "str | pa.Schema"
) -> AsyncIterator[Producer]:
    """Open the producer of that name for an input handle, for the duration of the `with` block.

    Any number of producers may write to a handle concurrently, each under its own name; of several with one
    name, the one opened last writes. store: of the region; or the entry points that record for all sites.
    application: the name given to `run`. schema: as in the `InputSource`, or an older or newer version of it
    (docs/inputs.md), which only readers check; for entry points without the time that they give. Leaving the
    block does not wait: what was sent and not waited for may be lost.

    Raises InputClosedError, BadNameError, SchemaError; NotEnoughAnswersError when the producer is new and a
    member of the store is unavailable; EntryRefusedError if no entry point can serve it. Waits while there is
    no quorum, or no entry point answers.
    """
    columns = parse_schema(schema)
    if isinstance(store, EntryPoints):
        check_input_name("a producer", producer)
        log = EntryLog(store.each, store.token, application, handle, producer)
        async with background_tasks() as nursery:
            await nursery.start(log.run)
            yield Producer(log, columns)
            nursery.cancel_scope.cancel()
        return
    async with await InputLog.open(store, application, handle, producer) as opened:
        yield Producer(opened, columns)


def parts_of(rows: Rows, schema: pa.Schema) -> list[tuple[int, bytes]]:
    """Return rows as parts of one batch: (rows, Arrow IPC stream). Raises SchemaError if they do not fit."""
    table = _table(rows, schema)
    count = max(1, math.ceil(table.nbytes / input_part_bytes_max))
    step = max(1, math.ceil(table.num_rows / count))
    slices = [table.slice(at, step) for at in range(0, table.num_rows, step)] or [table]
    return [(one.num_rows, arrow_stream(one)) for one in slices]


def _table(rows: Rows, schema: pa.Schema) -> pa.Table:
    try:
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            return pa.Table.from_batches([batch_of_result(rows, schema)])
        listed = list(rows)
        return pa.Table.from_batches([batch_of_rows(listed, range(len(listed)), schema)])
    except UserFault as fault:
        at = "" if fault.row is None else f"row {fault.row}: "
        remedy = f" ({fault.remedy})" if fault.remedy else ""
        raise SchemaError(f"these rows do not fit {schema_text(schema)}: {at}{fault}{remedy}") from fault


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
