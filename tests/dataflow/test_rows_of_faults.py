"""The row that made a function of batches, a conversion or a function of Arrow fail is named."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dataflow import Stream
from tests.dataflow.every_kind import ROWS
from tests.dataflow.test_failures import failure_of_rows


def cast_of(batch: pa.RecordBatch) -> pa.Array:
    """Fails for the row whose `k` is no number."""
    return pc.cast(batch.column("k"), pa.int64())


def last_digit(batch: pa.RecordBatch) -> dict[str, Any]:
    """Two rows for each row, but for the seventh one a value that is no bigint."""
    return {"n": [one for x in batch.column("x").to_pylist() for one in (x, 0.5 if x == 6 else x)]}


NUMBERED = [{"t": ROWS[0]["t"], "k": "six" if x == 6 else f"{x}", "x": x} for x in range(9)]
ROW_6 = "source 'rows', split 'rows', row 6 of those from 0 to 9"


@pytest.mark.parametrize(
    ("added", "position"),
    [
        (lambda rows: rows.map("made", cast_of, schema="n bigint", takes="batch"), ROW_6),
        (lambda rows: rows.flat_map("made", last_digit, schema="n bigint", takes="batch"), ROW_6),
        (lambda rows: rows.filter("made", lambda batch: pc.greater(cast_of(batch), 0), takes="batch"), ROW_6),
        (
            lambda rows: (
                rows.event_time("timed", "t", lateness=timedelta(0))
                .map("same", lambda row: row, schema="t timestamp, k string, x bigint")
                .filter("all", lambda row: True)
                .map("made", cast_of, schema="n bigint", takes="batch")
            ),
            ROW_6,
        ),
        (
            lambda rows: rows.filter("some", lambda row: row["x"] > 3).map(
                "made", cast_of, schema="n bigint", takes="batch"
            ),
            "source 'rows', split 'rows', from 0, to split 'rows', 9, row 2 of the batch",
        ),
        (
            lambda rows: rows.key_by("by", "x").map("made", cast_of, schema="n bigint", takes="batch"),
            "step 1, rows of 'by' from worker 0, row 6 of the batch",
        ),
    ],
)
def test_the_row_of_a_batch_that_a_conversion_or_an_arrow_function_refuses_is_named(
    added: Callable[[Stream], Stream], position: str, tmp_path: Path
) -> None:
    failure = failure_of_rows(NUMBERED, added, tmp_path)
    assert (failure.kind, failure.operator, failure.position) == ("operator", "made", position)


def test_no_row_is_named_for_what_only_rows_together_cause(tmp_path: Path) -> None:
    def fail(batch: pa.RecordBatch) -> pa.Array:
        if batch.num_rows > 3:
            raise ValueError("too many")
        return batch.column("x")

    failure = failure_of_rows(
        NUMBERED, lambda rows: rows.map("made", fail, schema="n bigint", takes="batch"), tmp_path
    )
    assert failure.position == "source 'rows', split 'rows', from 0, to split 'rows', 9"
