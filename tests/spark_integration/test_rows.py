"""Record batches on their way to Spark: all rows, in order, and not in small pieces."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_integration.core.row_filter import ColumnCondition
from spark_integration.reading import decoding
from spark_integration.reading.decoding import BatchShaper

N = pa.schema([("n", pa.int64())])
ALONE, TOGETHER, BYTES = 16, 64, 8 * 1024


@given(st.lists(st.integers(0, 40)))
def test_small_batches_are_put_together_and_large_ones_go_as_they_are(sizes: list[int]) -> None:
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    given_ = [
        pa.RecordBatch.from_arrays([pa.array(range(begin, begin + size), pa.int64())], schema=N)
        for begin, size in zip(begins, sizes, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "BATCH_ROWS_ALONE", ALONE)
        patch.setattr(decoding, "BATCH_ROWS", TOGETHER)
        patch.setattr(decoding, "BATCH_BYTES", BYTES)
        found = list(BatchShaper(N, [ColumnCondition("n", ">=", (3,))], "here").shape(given_))
    assert [n for batch in found for n in batch.column(0).to_pylist()] == list(range(3, sum(sizes)))
    counts = [batch.num_rows for batch in found]
    assert all(counts), "no batch is empty"
    assert all(count <= TOGETHER + ALONE for count in counts)
    large = [size - max(0, 3 - begin) for begin, size in zip(begins, sizes, strict=True)]
    left = list(counts)
    for size in (size for size in large if size >= ALONE):
        assert size in left
        left.remove(size)
    small = [one < ALONE for one in counts]
    assert not any(one and other for one, other in pairwise(small)), "nor two small ones"
