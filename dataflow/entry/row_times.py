"""Give the rows of a batch their time, or divide them into those on time and those that are late.

Arrow only; `checkpoint/core/records/inputs.py` decides. The time column is the first one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from checkpoint import EntrySettings, OriginTime
from checkpoint.errors import EntryRefusedError
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.event_time import check_time_column, times_of
from dataflow.producing import arrow_stream
from dataflow.schema import parse_schema


class TimedBatch(NamedTuple):
    """A batch as it is recorded. time_us: that was given to its rows, 0: they had times. late: Arrow stream
    of the rows that are late, b"" for none.
    """

    parts: list[tuple[int, bytes]]
    time_us: int
    late: bytes


def timed_batch(
    parts: Sequence[tuple[int, bytes]], settings: EntrySettings, origin: OriginTime, now_us: int
) -> TimedBatch:
    """Return a batch with its times. `origin` counts it as recorded, so it must be appended next.

    Raises EntryRefusedError if the rows do not fit the settings; `origin` is unchanged then.
    """
    tables = [_read(data) for _, data in parts]
    if settings.lateness_us is None:
        if any(settings.time in table.column_names for table in tables):
            raise EntryRefusedError(
                f"the entry points give rows their times, and these have a column {settings.time!r} already",
                remedy="send rows without it, or serve another handle with --lateness",
            )
        time_us = origin.stamp(now_us)
        return TimedBatch([_stamped(table, settings.time, time_us) for table in tables], time_us, b"")
    found = [_divided(table, settings.time, origin) for table in tables]
    late = [rows for _, rows in found if rows.num_rows]
    if not late:
        return TimedBatch(list(parts), 0, b"")
    left = [(table.num_rows, arrow_stream(table)) for table, _ in found]
    return TimedBatch(left, 0, arrow_stream(pa.concat_tables(late)))


def _read(data: bytes) -> pa.Table:
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise EntryRefusedError(f"a part of a batch is not an Arrow stream: {error}") from error


def _stamped(table: pa.Table, column: str, time_us: int) -> tuple[int, bytes]:
    field = parse_schema(f"{column} timestamp").field(0)
    times = pa.array(np.full(table.num_rows, time_us, dtype=np.int64)).cast(field.type)
    return table.num_rows, arrow_stream(table.add_column(0, field, times))


def _divided(table: pa.Table, column: str, origin: OriginTime) -> tuple[pa.Table, pa.Table]:
    try:
        check_time_column(column, table.schema)
        times = times_of(table.column(column).combine_chunks(), column)
    except (SchemaError, UserFault) as error:
        raise EntryRefusedError(f"these rows have no times: {error.args[0]}") from error
    late = pa.array(np.asarray(origin.is_late(times)))
    return table.filter(pa.compute.invert(late)), table.filter(late)
