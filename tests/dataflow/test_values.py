"""The one rule for values: every value against every type, at every border, and what is read back.

The oracle (`same`) compares what was written with what is read, and knows nothing of the code. `TAKEN` is the
table of docs/operators.md.
"""

import math
from collections.abc import Iterator
from datetime import UTC, date, time
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import UserFault
from dataflow.schema import parse_schema
from dataflow.values.columns import column_of, fitted_column, taker
from dataflow.values.kinds import values_of
from dataflow.values.python_rows import batch_of_result
from tests.dataflow.sample_values import (
    EAST,
    FIRST,
    KINDS,
    LAST,
    MIDNIGHT,
    NOON,
    VALUES,
    Color,
    SparkRow,
    Word,
    same,
    shape,
)


def read_back(value: Any, kind: pa.DataType) -> Any:
    """What is read after a column took the value. Raises UserFault."""
    (read,) = values_of(column_of([value], pa.field("c", kind)))
    return read


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_a_column_takes_is_read_back_the_same_and_all_else_is_refused_by_name(kind: pa.DataType) -> None:
    take = taker(pa.field("c", kind), "state 'c'")
    for value in VALUES:
        try:
            read = read_back(value, kind)
        except UserFault as fault:
            refused = fault
            with pytest.raises(UserFault):
                take(value)
            assert (refused.row, "column 'c'" in str(refused), bool(refused.remedy)) == (0, True, True)
            continue
        assert same(value, read), (value, kind, read)
        assert shape(take(value)) == shape(read), (value, kind)
        assert shape(read_back(read, kind)) == shape(read), (value, kind)
        for several in ([value, read], [None, value], [read, None, value]):
            column = column_of(several, pa.field("c", kind))
            assert [shape(one) for one in values_of(column)] == [
                shape(None if one is None else read) for one in several
            ], (several, kind)


TAKEN: dict[str, list[Any]] = {
    "tinyint": [0, 127, Color.RED, 1.0, Decimal("2.000"), np.int64(5), None],
    "bigint": [2**53 + 1, -(2**63), 2.0**60],
    "float": [0.5, 2**24, np.float32(0.1), math.nan, -math.inf, Decimal("0.5")],
    "double": [0.1, 2**53, 1e300, math.nan, math.inf, Decimal("0.5"), np.float32(0.1)],
    "decimal(5,2)": [Decimal("2.7"), Decimal("1E+2"), 3, 1.5, 999],
    "boolean": [True, False, np.bool_(True)],
    "string": ["é", "", Word.A],
    "binary": [b"\xff", bytearray(b"a")],
    "date": [date(1, 1, 1), MIDNIGHT],
    "timestamp": [NOON, NOON.replace(tzinfo=EAST), date(2024, 5, 1), LAST, pd.Timestamp(NOON)],
    "timestamp_ntz": [NOON, date(2024, 5, 1), FIRST],
    "array<int>": [[], [1, None], (1, 2), np.array([1, 2])],
    "struct<a:bigint,b:double>": [{"b": 1, "a": 1}, (1, 0.5), SparkRow((0.5, 1))],
    "map<string,bigint>": [{"a": 1}, [("a", 1)], {}],
}
REFUSED: dict[str, list[Any]] = {
    "tinyint": [128, 1.5, True, "1", math.nan, Decimal("2.7")],
    "bigint": [1.5, Decimal("2.7"), 2**63, "1", b"1", NOON, True],
    "float": [0.1, 1e300, 2**24 + 1, True, "0.5"],
    "double": [2**53 + 1, True, "nan", Decimal("0.1")],
    "decimal(5,2)": [Decimal("1.005"), 0.1, 1000, math.nan, True, "1"],
    "boolean": [0, 1, "false", 0.5],
    "string": [1, b"a", math.nan, "\ud800", NOON],
    "binary": ["a", [1]],
    "date": [NOON, MIDNIGHT.replace(tzinfo=UTC), 5, "2024-05-01"],
    "timestamp": [1_700_000_000, 1.5, "2024-05-01", pd.Timestamp(1), time(1)],
    "timestamp_ntz": [NOON.replace(tzinfo=UTC), 5],
    "array<int>": [[1.7], 1, {1, 2}, [True]],
    "array<string>": ["ab", [1], {"a": 1}],
    "struct<a:bigint,b:double>": [{"a": 1}, {"a": 1, "B": 0.5}, {"a": 1, "b": 0.5, "c": 0}, (1,), [("a", 1)]],
    "map<string,bigint>": [{None: 1}, [("a", 1), ("a", 2)], {"a": 1.5}, "a"],
    "struct<a:bigint not null>": [{"a": None}],
}


def test_the_table_in_the_docs_is_what_columns_take() -> None:
    for declared, values in TAKEN.items():
        for value in values:
            (kind,) = parse_schema(f"c {declared}").types
            assert same(value, read_back(value, kind)), (declared, value)
    for declared, values in REFUSED.items():
        for value in values:
            (kind,) = parse_schema(f"c {declared}").types
            with pytest.raises(UserFault, match="column 'c'"):
                read_back(value, kind)


def test_a_fault_names_the_place_in_a_nested_value_and_shows_a_value_whose_repr_fails() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError

    (field,) = parse_schema("c array<struct<a:bigint,b:map<string,int>>>")
    with pytest.raises(
        UserFault, match=r"column 'c'\[1\]\.b\[str 'x'\] is int, which holds .* given float 1.5"
    ):
        column_of([[{"a": 1, "b": {}}, {"a": 1, "b": {"x": 1.5}}]], field)
    with pytest.raises(UserFault, match="given Bad that cannot be shown"):
        column_of([[Bad()]], field)


def arrow_columns() -> Iterator[pa.Array]:
    """One column of Arrow for each kind, of all values that it takes."""
    for kind in KINDS:
        taken = []
        for value in VALUES:
            try:
                taken.append(read_back(value, kind))
            except UserFault:
                continue
        yield pa.array(taken, kind)


def test_a_column_of_arrow_is_taken_as_its_values_are() -> None:
    columns = list(arrow_columns())
    for column in columns:
        for kind in KINDS:
            for at in range(len(column)):
                one = column.slice(at, 1)
                try:
                    (value,) = values_of(one)
                except (ValueError, OverflowError):
                    continue
                try:
                    expected = shape(read_back(value, kind))
                except UserFault:
                    with pytest.raises(UserFault):
                        fitted_column(one, pa.field("c", kind))
                    continue
                (read,) = values_of(fitted_column(one, pa.field("c", kind)))
                assert shape(read) == expected, (one.type, kind, value)


@given(data=st.data())
def test_any_number_is_held_exactly_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in KINDS if pa.types.is_primitive(kind)]))
    numbers = (
        st.integers() | st.floats() | st.decimals(allow_nan=False) | st.floats(width=32) | st.integers(0, 300)
    )
    values = data.draw(st.lists(numbers | st.none(), max_size=4))
    try:
        read = values_of(column_of(values, pa.field("c", kind)))
    except UserFault as fault:
        with pytest.raises(UserFault):
            read_back(values[fault.row or 0], kind)
    else:
        assert all(map(same, values, read)), (values, kind, read)


def test_a_null_in_a_column_of_arrow_that_is_not_null_is_refused_with_its_row() -> None:
    field = pa.field("c", pa.int64(), nullable=False)
    for column in (pa.array([1, None]), pa.chunked_array([[1], [None]]), pa.array([1, None], pa.int8())):
        with pytest.raises(UserFault, match="column 'c' is bigint, which holds no null") as caught:
            fitted_column(column, field)
        assert caught.value.row == 1
    with pytest.raises(UserFault, match="which holds no null"):
        batch_of_result(pa.record_batch([pa.array([1, None])], schema=pa.schema([field])), pa.schema([field]))
