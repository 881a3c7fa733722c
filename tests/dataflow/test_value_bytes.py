"""Values of a declared state become bytes and come back as Arrow would give them."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.errors import SchemaError
from dataflow.state.disk_value_store import ValueBytes
from dataflow.values.kinds import values_of

NINETEEN_HUNDRED = datetime(1900, 1, 1)  # noqa: DTZ001 - of a column without a zone
_ints = st.integers(-(2**63), 2**63 - 1)
_times = st.timedeltas(timedelta(0), timedelta(110_000)).map(lambda since: NINETEEN_HUNDRED + since)
_aware = _times.map(lambda time: time.replace(tzinfo=UTC))
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), _ints),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.string(), _texts),
    (pa.large_string(), _texts),
    (pa.binary(), st.binary(max_size=5)),
    (pa.timestamp("us", "UTC"), _aware),
    (pa.timestamp("ms", "Europe/Zurich"), _aware.map(lambda time: time.replace(microsecond=0))),
    (pa.timestamp("us"), _times),
    (pa.timestamp("ns"), _times),
    (pa.timestamp("s"), _times.map(lambda time: time.replace(microsecond=0))),
    (pa.date32(), st.dates(date(1, 1, 1))),
    (pa.time32("s"), _times.map(lambda time: time.time().replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(timedelta(-9_999), timedelta(9_999))),
    (pa.decimal128(12, 2), st.decimals(-9_999, 9_999, places=2)),
    (pa.list_(pa.string()), st.lists(_texts | st.none(), max_size=3)),
    (pa.list_(pa.timestamp("us", "UTC")), st.lists(_aware, max_size=2)),
    (pa.struct([("n", pa.int64()), ("s", pa.string())]), st.fixed_dictionaries({"n": _ints, "s": _texts})),
    (pa.struct([("d", pa.decimal128(5, 1))]), st.just({"d": Decimal("1.5")})),
    (pa.map_(pa.string(), pa.int64()), st.dictionaries(_texts, _ints, max_size=2)),
    (pa.list_(pa.struct([("n", pa.int64())])), st.lists(st.fixed_dictionaries({"n": _ints}), max_size=2)),
    (pa.null(), st.none()),
]


@given(data=st.data())
def test_what_returns_is_what_arrow_gives_one_by_one_and_all_together(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=4), label="kinds")
    columns = pa.schema([(f"c{place}", KINDS[kind][0]) for place, kind in enumerate(drawn)])
    one = st.fixed_dictionaries({f"c{place}": st.none() | KINDS[kind][1] for place, kind in enumerate(drawn)})
    values = data.draw(st.lists(one, max_size=4), label="values")
    arrays = [pa.array([value[field.name] for value in values], field.type) for field in columns]
    expected = [
        dict(zip(columns.names, row, strict=True)) for row in zip(*map(values_of, arrays), strict=True)
    ]

    made = ValueBytes(columns)
    rows = made.of_values(values)
    assert rows == made.of_columns(arrays)
    assert repr([made.value(row) for row in rows]) == repr(expected)
    for found, array in zip(made.columns(rows), arrays, strict=True):
        assert found.equals(array)


def test_where_there_is_no_value_columns_are_null() -> None:
    made = ValueBytes(pa.schema([("n", pa.int64()), ("d", pa.decimal128(5, 1)), ("at", pa.date32())]))
    (row,) = made.of_values([{"n": 1, "d": Decimal("1.5"), "at": date(2024, 5, 1)}])
    assert [column.to_pylist() for column in made.columns([None, row])] == [
        [None, 1],
        [None, Decimal("1.5")],
        [None, date(2024, 5, 1)],
    ]


@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("a", kind)])])
def test_a_dictionary_is_refused_by_the_columns_name(wrap: Any) -> None:
    kind = wrap(pa.dictionary(pa.int32(), pa.string()))
    with pytest.raises(SchemaError, match=r"state column 'tag' of type .* cannot be kept on disk: declare"):
        ValueBytes(pa.schema([("tag", kind)]))
