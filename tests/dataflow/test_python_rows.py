"""Rows for functions of rows: the values that pyarrow would give, and of the same types."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.values.python_rows import micros_of_time, rows_of, time_reader

TIMES = st.datetimes() | st.none()


def same(batch: pa.RecordBatch) -> None:
    found, wanted = rows_of(batch), batch.to_pylist()
    assert found == wanted
    assert [[type(value) for value in row.values()] for row in found] == [
        [type(value) for value in row.values()] for row in wanted
    ]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+02:00"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@given(times=st.lists(st.integers(-(2**40), 2**40) | st.none()))
def test_times_are_those_of_arrow(unit: str, zone: str | None, times: list[int | None]) -> None:
    column = pa.array(times, pa.int64()).cast(pa.timestamp(unit, zone))
    small = (
        column if unit != "s" else pa.array([t and t % 2**37 for t in times]).cast(pa.timestamp(unit, zone))
    )
    same(pa.RecordBatch.from_arrays([small], names=["at"]))


@given(st.lists(TIMES))
def test_any_time_that_python_has_returns(times: list[datetime | None]) -> None:
    for zone in (None, UTC):
        given_times = [time and time.replace(tzinfo=zone) for time in times]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(given_times, pa.timestamp("us", zone and "UTC"))], ["at"]
        )
        assert [row["at"] for row in rows_of(batch)] == given_times
        same(batch)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_time_beyond_those_of_python_is_refused_as_arrow_refuses_it(unit: str, zone: str | None) -> None:
    per_s = {"s": 1, "ms": 1_000, "us": 1_000_000}[unit]
    begin, last = ((day - date(1970, 1, 1)).days * 86_400 for day in (date.min, date.max))
    near = [second * per_s + at for second in (begin, last, last + 86_400) for at in (-1, 0, 1)]
    for number in [*near, 2**62, -(2**62), 2**63 - 1, 1 - 2**63]:
        column = pa.array([0, number]).cast(pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
        batch = pa.RecordBatch.from_arrays([column], names=["at"])
        try:
            batch.to_pylist()
        except Exception as error:
            with pytest.raises(type(error)):
                rows_of(batch)
        else:
            same(batch)


ZONES = [None, "UTC", "Europe/Berlin", "+02:00"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@given(seconds=st.integers(-(2**35), 2**37), rest=st.integers(0, 999_999))
def test_one_time_is_read_as_arrow_reads_it(unit: str, zone: str | None, seconds: int, rest: int) -> None:
    per_s = {"s": 1, "ms": 1_000, "us": 1_000_000}[unit]
    number = seconds * per_s + rest % per_s
    found, wanted = time_reader(pa.timestamp(unit, zone))(number), pa.scalar(number, pa.timestamp(unit, zone))
    assert found == wanted.as_py()
    assert (found.tzinfo, found.fold) == (wanted.as_py().tzinfo, wanted.as_py().fold)


@pytest.mark.parametrize("zone", ZONES)
@given(time=st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False))
def test_a_time_has_the_microseconds_that_arrow_gives_it(zone: str | None, time: datetime) -> None:
    assert micros_of_time(time) == pa.scalar(time, pa.timestamp("us", zone)).cast(pa.int64()).as_py()


def test_the_zone_is_the_same_object_that_arrow_gives() -> None:
    column = pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC"))
    (row, _) = rows_of(pa.RecordBatch.from_arrays([column], ["at"]))
    assert row["at"].tzinfo is column[0].as_py().tzinfo
    assert row["at"].utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -5], pa.int64()),
        (["a", None, "ä"], pa.string()),
        ([b"a", b""], pa.binary()),
        ([1.5, None, float("inf")], pa.float64()),
        ([True, None], pa.bool_()),
        ([[1], [], None], pa.list_(pa.int32())),
        ([{"a": 1}, None], pa.struct([("a", pa.int8())])),
    ],
)
def test_other_values_are_those_of_arrow(values: list[Any], kind: pa.DataType) -> None:
    same(pa.RecordBatch.from_arrays([pa.array(values, kind), pa.array(range(len(values)))], ["a", "b"]))


def test_a_slice_is_only_its_rows() -> None:
    column = pa.array([*range(8)], pa.timestamp("ms"))
    same(pa.RecordBatch.from_arrays([column], ["at"]).slice(3, 2))


def test_a_batch_without_rows_or_columns_has_none() -> None:
    assert rows_of(pa.RecordBatch.from_arrays([pa.array([], pa.timestamp("us"))], ["at"])) == []
    assert rows_of(pa.RecordBatch.from_arrays([], [])) == []
