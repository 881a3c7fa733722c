"""Which rows of a merged output belong to a micro-batch: the same ones in every order of rows and marks."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.merged_rows import RowsByTime
from spark_integration.core.offsets import BatchLimits

COLUMNS = pa.schema([("at", pa.int64()), ("text", pa.string())])
Row = tuple[int, str]
ROWS = st.lists(st.tuples(st.integers(1, 12), st.text("abc", max_size=30)), max_size=25)
LIMITS = st.builds(BatchLimits, st.none() | st.integers(1, 6), st.none() | st.integers(1, 120))


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"at": at, "text": text} for at, text in rows], COLUMNS)


def rows_in(batches: list[pa.RecordBatch]) -> list[Row]:
    return [(row["at"], row["text"]) for batch in batches for row in batch.to_pylist()]


def give(held: RowsByTime, rows: list[Row], mark: int) -> None:
    if rows:
        held.add(batch_of(rows), np.array([at for at, _ in rows], np.int64))
    held.set_mark(mark)


def history(data: st.DataObject, rows: list[Row], begin: int) -> list[tuple[list[Row], int]]:
    """(rows, mark) in some order in which every row comes before the mark that passes it."""
    left = data.draw(st.permutations([row for row in rows if row[0] > begin]))
    found, mark = [], begin
    for higher in data.draw(st.lists(st.integers(begin, 12), max_size=4).map(sorted)):
        ahead = data.draw(st.integers(0, len(left)))
        now = [row for index, row in enumerate(left) if row[0] <= higher or index < ahead]
        left = [row for index, row in enumerate(left) if row[0] > higher and index >= ahead]
        mark = max(mark, higher)
        found.append((now, mark))
    return [*found, (left, 13)]


def read(
    held: RowsByTime, steps: list[tuple[list[Row], int]], limits: BatchLimits, batches: dict[int, int]
) -> dict[tuple[int, int], list[Row]]:
    """Micro-batches, as many after each step as `batches` has for it, and all of them after the last one."""
    found = {}
    at = held.begin
    for number, (rows, mark) in enumerate(steps):
        give(held, rows, mark)
        left = batches.get(number, 1) if number < len(steps) - 1 else 1000
        while left and (end := held.end_of_batch(at, limits)) > at:
            above = at
            found[at, end] = rows_in(held.between(at, end))
            assert rows_in(held.between(at, end)) == found[at, end], "it can be asked again"
            held.release(end)
            at, left = end, left - 1
            held.release(above)  # a release that arrives late gives nothing back
            assert held.begin == at
    assert held.complete_bytes == 0
    return found


@given(rows=ROWS, limits=LIMITS, data=st.data())
def test_micro_batches_have_each_row_once_and_those_of_their_times(
    rows: list[Row], limits: BatchLimits, data: st.DataObject
) -> None:
    batches = data.draw(st.dictionaries(st.integers(0, 4), st.integers(0, 3)))
    found = read(RowsByTime(0), history(data, rows, 0), limits, batches)
    ends = [0, *(end for _, end in found)]
    assert list(found) == list(pairwise(ends))
    for (above, upto), got in found.items():
        assert Counter(got) == Counter(row for row in rows if above < row[0] <= upto)
        assert [at for at, _ in got] == sorted(at for at, _ in got)
        times = {at for at, _ in got}
        assert upto in times
        if len(times) > 1 and limits.rows is not None:
            assert len(got) <= limits.rows
    assert sum(map(len, found.values())) == len(rows)


@given(rows=ROWS, limits=LIMITS, data=st.data())
def test_a_reader_that_begins_later_finds_the_same_rows_in_the_same_micro_batch(
    rows: list[Row], limits: BatchLimits, data: st.DataObject
) -> None:
    found = read(RowsByTime(0), history(data, rows, 0), limits, {})
    for (above, upto), got in found.items():
        again = RowsByTime(above)
        for part, mark in history(data, rows, above):
            give(again, part, mark)
        assert Counter(rows_in(again.between(above, upto))) == Counter(got)


def test_a_micro_batch_ends_at_the_target_and_with_what_the_mark_has_passed() -> None:
    held = RowsByTime(0)
    give(held, [(at, "") for at in (5, 1, 3, 2, 4, 9)], 4)
    assert held.end_of_batch(0, BatchLimits()) == 4
    assert held.end_of_batch(0, BatchLimits(), upto=3) == 3
    assert held.end_of_batch(3, BatchLimits(), upto=3) == 3
    assert held.end_of_batch(0, BatchLimits(rows=2)) == 2
    give(held, [], 8)
    assert held.end_of_batch(4, BatchLimits(rows=10)) == 5
    assert held.complete_bytes
