"""Planning on the driver: the columns, and which task reads what.

`columns_of` and `plan_batch` open the store, query it, and close it. If there are rows, errors in the columns
are raised here, before a task runs.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import pyarrow as pa

from dos_protocol.errors import DosError
from spark_integration.core.options import ObjectContent, SourceOptions
from spark_integration.core.row_filter import ColumnCondition, check_filter
from spark_integration.errors import BadOptionError, NoSchemaError
from spark_integration.reading.decoding import schema_in
from spark_integration.reading.opening import opened, origin_of
from spark_integration.reading.origin import Origin
from spark_integration.reading.ranges import DosPartition, partitions_of
from spark_integration.reading.rows import check_columns, chosen

Planned = TypeVar("Planned")


def columns_of(options: SourceOptions) -> pa.Schema:
    """Return the columns of a DataFrame without a user-defined schema.

    Raises NoSchemaError if nothing defines them, NothingThereError, SchemaMismatchError.
    """
    with opened(options) as store:
        existing = store.portal.call(existing_columns, origin_of(store, options), options)
        if existing is None:
            raise NoSchemaError(f"the columns of {options.what} are unknown, because it has no rows yet")
        extra = origin_of(store, options).extra()
    return chosen(existing, extra, options.columns)


def check_once(columns: Sequence[str], names: Sequence[str]) -> None:
    """Raise BadOptionError if the option `columns` and .schema(...) differ."""
    if columns and "*" not in columns and list(dict.fromkeys(columns)) != list(names):
        raise BadOptionError(
            f"the option 'columns' is {', '.join(columns)}, but .schema(...) is {', '.join(names)}:"
            f" give only one of the two"
        )


async def existing_columns(origin: Origin, options: SourceOptions) -> pa.Schema | None:
    """Return the columns of the first existing rows; None if there are none."""
    for split in await origin.splits():
        async with aclosing(origin.first_rows(split)) as samples:
            async for data in samples:
                return schema_in(data, options, split)
    return None


async def check_against(
    origin: Origin, options: SourceOptions, wanted: pa.Schema, comparisons: Sequence[ColumnCondition]
) -> None:
    """Check that the existing rows have those columns. Raises SchemaMismatchError, FilterError."""
    existing = await existing_columns(origin, options)
    if options.content is ObjectContent.JSON:  # values are converted to the requested type, or the task fails
        check_filter(comparisons, wanted)
    elif existing is not None:
        every = pa.schema(
            [*existing, *(field for field in origin.extra() if field.name not in existing.names)]
        )
        check_columns(wanted, every, options.what)
        check_filter(comparisons, every)


async def on_one_line(origin: Origin, plan: Callable[[int], Awaitable[Planned]]) -> Planned:
    """Return what `plan` returns for the present line of history of a region's output.

    If a restore of the region began another line meanwhile, it is planned again, also after an error. So no
    plan has output of two lines. Raises what `plan` raises on one line, and what reading the manifest raises.
    """
    while True:
        line = await origin.line()
        try:
            planned = await plan(line)
        except DosError:
            if await origin.line(fresh=True) == line:
                raise
            continue
        if await origin.line() == line:
            return planned


def plan_batch(
    options: SourceOptions, wanted: pa.Schema, comparisons: Sequence[ColumnCondition]
) -> list[DosPartition]:
    """Return the partitions of everything that exists now."""

    async def plan(origin: Origin) -> list[DosPartition]:
        await check_against(origin, options, wanted, comparisons)
        return await planned_partitions(origin, options)

    with opened(options) as store:
        return store.portal.call(plan, origin_of(store, options))


async def planned_partitions(origin: Origin, options: SourceOptions) -> list[DosPartition]:
    """Return the partitions of everything that exists now, of one line of history."""

    async def plan(_line: int) -> list[DosPartition]:
        found = []
        for split in await origin.splits():
            found += partitions_of(split, await origin.all_ranges(split), options.partition_bytes)
        return found

    return await on_one_line(origin, plan)
