"""Values of Python and types of columns, each against each; and an oracle for what a column gives back."""

# ruff: noqa: DTZ001, DTZ901 - times without a zone are what is tested
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa

from dataflow.schema import parse_schema

EAST = timezone(timedelta(hours=2))
NOON = datetime(2024, 5, 1, 12, 0, 0, 250_000)
MIDNIGHT = datetime(2024, 5, 1)
FIRST, LAST = datetime.min, datetime.max


class Color(IntEnum):
    RED = 3


class Word(StrEnum):
    A = "a"


class SparkRow(tuple):
    __fields__ = ("b", "a")


KINDS: list[pa.DataType] = [
    *(field.type for field in parse_schema(
        "a tinyint, b smallint, c int, d bigint, e float, f double, g decimal(5,2), h decimal(38,0),"
        "i boolean,"
        "j string, k binary, l date, m timestamp, n timestamp_ntz, o array<int>, p array<string>,"
        "q array<decimal(5,2)>, r struct<a:bigint,b:double>, s map<string,bigint>, t array<timestamp>,"
        "u array<struct<a:bigint,b:string>>, v map<int,array<float>>,"
        "w struct<a:bigint not null>, x array<double>"
    )),
    pa.uint8(), pa.uint64(), pa.float16(), pa.timestamp("s"),
    pa.timestamp("ns", "UTC"),
    pa.timestamp("us", "Asia/Tokyo"),
    pa.large_string(), pa.binary(2), pa.time64("us"), pa.time32("s"), pa.duration("us"), pa.duration("ns"),
    pa.list_(pa.int64(), 2), pa.large_list(pa.int64()), pa.dictionary(pa.int32(), pa.string()), pa.null(),
    pa.map_(pa.list_(pa.int8()), pa.string()), pa.date64(),
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 127, 128, 255, 256, -32_769, 2**24, 2**24 + 1, 2**31, 2**53, 2**53 + 1,
    -(2**63), 2**63, 2**64 - 1, 2**64, 10**38, 10**5000, Color.RED,
    0.0, -0.0, 0.1, 0.5, 1.0, 1.5, 2.7, 19.99, 1e300, 2.0**60, math.inf, -math.inf, math.nan,
    Decimal("2.7"), Decimal("2.70"), Decimal("1.005"), Decimal("2.000"), Decimal("1E+2"), Decimal("1E+400"),
    Decimal("-0"),
    Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1E-7"), Decimal("999.99"),
    Decimal("1000"), Fraction(1, 2), 1j,
    "", "a", "ab", "1", "false", "2024-05-01", "é", "\ud800", Word.A, b"", b"a", b"ab", bytearray(b"ab"),
    b"\xff",
    date(2024, 5, 1), date(1, 1, 1), NOON, MIDNIGHT, NOON.replace(tzinfo=UTC), NOON.replace(tzinfo=EAST),
    MIDNIGHT.replace(tzinfo=UTC), MIDNIGHT.replace(tzinfo=EAST), datetime.min, datetime.max,
    datetime.min.replace(tzinfo=EAST),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-2))), datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), datetime(1970, 1, 1, 0, 0, 5),
    time(1, 2, 3), time(1, 2, 3, 4), time(1, 2, tzinfo=UTC), timedelta(seconds=5),
    timedelta(microseconds=7), timedelta.max,
    [], [1], [1.7], [1, None], ["a"], ["ab", None], [NOON], [1, 2], [True], [Decimal("1.5")], (1, 2),
    {1, 2}, [[1], [2]], [0.5, 1],
    [{"a": 1, "b": "x"}], [{"a": 1}], [{"a": 1, "b": "x", "c": 2}],
    {}, {"a": 1}, {"a": 1, "b": 0.5}, {"a": 1, "B": 0.5}, {"a": 1, "b": 0.5, "c": 0}, {"a": 1.5, "b": 0.5},
    {"a": None},
    {"a": True}, {1: [0.5]}, {1: [0.1]}, {None: 1}, [("a", 1)], [("a", 1), ("a", 2)], [("a", 1, 2)],
    ("a", 1), (1, 0.5),
    SparkRow((0.5, 1)), [([1], "x")],
    np.int64(5), np.int64(300), np.float32(0.1), np.float64(1.5), np.bool_(True), np.str_("a"),
    np.array([1, 2]), np.array([1.5]),
    np.datetime64("2024-05-01T12:00"), np.datetime64("2024-05-01"), np.datetime64("NaT"),
    np.timedelta64(5, "s"),
    np.datetime64(1, "ns"), pd.Timestamp(NOON), pd.Timestamp(1), pd.Timestamp(NOON, tz="UTC"),
    pd.Timedelta(7, "ns"), pd.NaT, pd.NA,
    pa.scalar(5), pa.scalar("a"), range(2), object, "x" * 300,
]  # fmt: skip


def same(value: Any, read: Any) -> bool:  # noqa: C901 - a table
    """Whether a value that was written and one that was read are the same, by the rule in the docs."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        value = value.item()
    if value is None or value is pd.NA or value is pd.NaT or _is_nat(value):
        return read is None
    if read is None:
        return False
    if isinstance(value, bool) or isinstance(read, bool):
        return type(value) is type(read) and value == read
    if isinstance(value, (int, float, Decimal)):
        return isinstance(read, (int, float, Decimal)) and _same_number(value, read)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        value = pd.Timestamp(value) if isinstance(value, np.datetime64) else pd.Timedelta(value)
    if isinstance(value, date) and isinstance(read, date):
        return _same_time(value, read)
    if isinstance(value, np.ndarray):
        value = list(value)
    if isinstance(read, dict) and isinstance(value, (dict, list, tuple)):
        names = getattr(value, "__fields__", None)
        if names is not None:
            value = dict(zip(names, value, strict=True))
        if isinstance(value, tuple):
            value = dict(zip(read, value, strict=False)) if len(value) == len(read) else {}
        pairs = list(value.items()) if isinstance(value, dict) else [*value]
        return len(pairs) == len(read) and all(key in read and same(one, read[key]) for key, one in pairs)
    if isinstance(read, list) and isinstance(value, (list, tuple, dict)):
        value = [*value.items()] if isinstance(value, dict) else value
        return len(value) == len(read) and all(map(same, value, read))
    if isinstance(value, (bytes, bytearray)):
        return isinstance(read, bytes) and bytes(value) == read
    if isinstance(value, tuple) and isinstance(read, tuple):
        return all(map(same, value, read))
    kinds = (str, time, timedelta)
    return any(isinstance(value, kind) and isinstance(read, kind) for kind in kinds) and value == read


def _is_nat(value: Any) -> bool:
    return isinstance(value, np.datetime64) and bool(np.isnat(value))


def _same_number(value: Any, read: Any) -> bool:
    if value != value or read != read or math.inf in (abs(value), abs(read)):
        return repr(value) == repr(read)
    return Fraction(value) == Fraction(read)


def _same_time(value: date, read: date) -> bool:
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day) if isinstance(read, datetime) else value
    elif not isinstance(read, datetime):
        return value.tzinfo is None and value == datetime(read.year, read.month, read.day)
    if not isinstance(value, datetime) or not isinstance(read, datetime):
        return value == read
    if getattr(value, "nanosecond", 0) != getattr(read, "nanosecond", 0):
        return False
    if read.tzinfo is None:
        return value.tzinfo is None and value == read
    return (value if value.tzinfo else value.replace(tzinfo=UTC)) - read == timedelta(0)


def shape(value: Any) -> Any:
    """A value with the types of all of its parts, in their order."""
    if isinstance(value, dict):
        return "dict", [(shape(key), shape(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [shape(one) for one in value]
    return type(value), repr(value), getattr(value, "tzinfo", None)
