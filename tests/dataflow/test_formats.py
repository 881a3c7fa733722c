"""Records of JSON and CSV: rows do not depend on blocks, positions are exact, and what is no row is named."""

import bz2
import gzip
import json
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow import FileSource, Graph, LogSink, SchemaError, consistent, limits
from dataflow.errors import InputChangedError, InputReadError, InputRowError
from dataflow.handle import RegionHandle
from dataflow.local import run_local
from dataflow.outputs import collect_output
from dataflow.schema import parse_schema, schema_text
from dataflow.sources.base import Positions, SourceBatch
from dataflow.sources.file_source import FileReader, reader_of
from dataflow.sources.formats import CsvFormat, Head, JsonFormat, RecordFormat
from dataflow.sources.input_files import COMPRESSED
from tests.dataflow.s3_sources import Reading

COLUMNS = "a bigint, b string"
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
JSON = JsonFormat(SCHEMA)
CSV = CsvFormat(SCHEMA, header=False)
NAMED = Head(columns=("a", "b"))

_json_lines = st.one_of(
    st.builds(
        lambda a, b: json.dumps({"a": a, "b": b, "c": [a]}, ensure_ascii=False),
        st.integers(-9, 9),
        st.text(max_size=5),
    ),
    st.sampled_from(
        ["", "  ", "\r", "{}", "null", '{"a":', "1}", '{"a":1} {"a":2}', '{"a":"x"}', '{"a":1.5}', "}{"]
    ),
    st.text('{}":,a1 \\\r', max_size=8),
).map(str.encode) | st.sampled_from([b'{"b":"\xff"}', b'{"b":"\xed\xa0\x80"}'])
_csv_parts = st.lists(
    st.sampled_from(
        [b"1", b",", b'"', b"\n", b"\r", b"\r\n", b"x", b'2,"y\nz"\n', b'3,""\n', b"\xff", "é".encode()]
    ),
    max_size=20,
).map(b"".join)
_blocks = {
    "json": (JSON, st.lists(_json_lines, max_size=8).map(b"\n".join)),
    "csv": (CSV, _csv_parts),
}


def read_of(records: RecordFormat, data: bytes, want: int) -> tuple[list[Any], list[tuple[int, int]]]:
    """What reading in blocks of about `want` bytes finds: rows with their positions, and bad records."""
    rows, bad, at = list[Any](), list[tuple[int, int]](), 0
    while at < len(data):
        size = want
        while not (end := records.whole(data[at : at + size])) and at + size < len(data):
            size += 1
        end = end or len(data) - at
        found = records.decode(data[at : at + end], NAMED)
        rows += zip((found.begins + at).tolist(), found.rows.to_pylist(), strict=True)
        bad += [(at + one.begin, at + one.end) for one in found.bad]
        at += end
    return rows, bad


@pytest.mark.parametrize("kind", _blocks)
@settings(max_examples=150)
@given(data=st.data(), want=st.integers(1, 30))
def test_rows_and_bad_records_do_not_depend_on_the_blocks(kind: str, data: st.DataObject, want: int) -> None:
    records, blocks = _blocks[kind]
    block = data.draw(blocks)
    assert read_of(records, block, want) == read_of(records, block, len(block) + 1)


@pytest.mark.parametrize("block", [b',"\n', b'1,"a""\n', b'"","\n","'])
def test_a_newline_in_a_quote_that_is_open_ends_no_record(block: bytes) -> None:
    assert CSV.whole(block) == 0


@given(
    st.lists(
        st.tuples(st.none() | st.integers(-99, 99), st.none() | st.text('ab",\r\n é', max_size=6)), max_size=9
    )
)
def test_quoted_fields_come_back_with_nulls_and_empty_strings(rows: list[tuple[Any, Any]]) -> None:
    quoted = [(a, "" if b is None else '"' + b.replace('"', '""') + '"') for a, b in rows]
    text = "".join(f"{'' if a is None else a},{b}\r\n" for a, b in quoted)
    found = CSV.decode(text.encode(), NAMED)
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == rows
    assert not found.bad


@pytest.mark.parametrize(
    ("records", "data", "rows", "reasons"),
    [
        (JSON, b'{"a":\n1}\n{"a":2}', [2], ["not an object in one line"] * 2),
        (JSON, b'{"a":1} {"a":2}\n{"a":3}\n', [3], ["2 rows in one record"]),
        (JSON, b"null\n[1]\n\n", [], ["not an object in one line"] * 2),
        (
            JSON,
            b'{"a":"1"}\n{"a":4}\n',
            [4],
            ["column 'a' is bigint, found a JSON string"],
        ),
        (JSON, b'{"a":1,"b":"\xff"}\n', [], ["not UTF-8 at its byte 12"]),
        (CSV, b'1,"x\ny"\n2,z', [1, 2], []),
        (CSV, b"1,x\n2\n3,y\n", [1, 3], ["expected 2 columns, got 1: 2"]),
        (CSV, b"1,a\rb\n2,c\r\n", [2], ["a carriage return outside of quotes"]),
        (CSV, b'1,x\n2,"open\n3,y\n', [1], ["a quote that is not closed"]),
        (CSV, b'1,a"b\n2,c"d\n', [1, 2], []),
    ],
    ids=[
        *("an object in two lines", "two objects in a line", "no object", "another type", "no UTF-8"),
        *("newline in quotes", "a column is missing", "carriage return", "open quote", "quote in a field"),
    ],
)
def test_what_is_no_row_is_put_aside_with_its_reason(
    records: RecordFormat, data: bytes, rows: list[int], reasons: list[str]
) -> None:
    found = records.decode(data, NAMED)
    assert found.rows.column("a").to_pylist() == rows
    assert [one.reason for one in found.bad] == reasons
    assert not {*found.begins.tolist()} & {one.begin for one in found.bad}


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        ("date", '"2026-01-31"', date(2026, 1, 31)),
        ("date", "20454", "column 'a' is date, found a JSON number"),
        ("date", '"31.1.2026"', "column 'a' is date: "),
        ("timestamp_ntz", '"2026-01-31T12:00:00"', datetime(2026, 1, 31, 12)),  # noqa: DTZ001
        ("timestamp_ntz", '"2026-01-31T12:00:00+02:00"', "column 'a' is timestamp_ntz: "),
        ("array<date>", '["2026-01-31", null]', [date(2026, 1, 31), None]),
        ("struct<d:date>", '{"d": 7}', "column 'a.d' is string, found a JSON number"),
        ("tinyint", "300", "column 'a' is tinyint: "),
        ("struct<n:bigint>", '{"n": {}}', "column 'a.n' is number, found a JSON object"),
    ],
    ids=["date", "days", "another date", "time", "zone", "dates", "within", "large", "another value"],
)
def test_a_value_of_json_is_what_its_text_is_or_named(kind: str, value: str, found: Any) -> None:
    records = JsonFormat(parse_schema(f"b string, a {kind}"))
    decoded = records.decode(f'{{"a": {value}}}\n{{"b": "x"}}\n'.encode(), Head())
    if isinstance(found, str):
        (bad,) = decoded.bad
        assert bad.reason.startswith(found)
    else:
        assert decoded.rows.column("a").to_pylist() == [found, None]


def test_lines_that_end_with_carriage_returns_alone_are_refused_and_not_taken_for_a_header(
    tmp_path: Path,
) -> None:
    """pyarrow ends the header there, so that all rows would be part of it."""
    (tmp_path / "a.csv").write_bytes(b"a,b\r1,x\r2,y\r")
    (tmp_path / "b.csv").write_bytes(b"a,b\r1,x\n2,y\n")
    for name in ("a.csv", "b.csv"):
        source = FileSource(tmp_path / name, format="csv", schema=COLUMNS)
        with pytest.raises(InputReadError, match="its header has a carriage return outside of quotes"):
            reader_of(source, 0, 1).read(1000)


_naive = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001
_typed: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal(9,2)": st.decimals(-(10**6), 10**6, places=2),
    "date": st.dates(),
    "timestamp": _naive.map(lambda at: at.replace(tzinfo=UTC)),
    "timestamp_ntz": _naive,
    "string": st.text(max_size=4),
}
_nested = {f"array<{kind}>": st.lists(st.none() | values, max_size=2) for kind, values in _typed.items()} | {
    f"struct<x:{kind}>": st.fixed_dictionaries({"x": st.none() | values}) for kind, values in _typed.items()
}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def _field(value: Any) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(_plain(value))
    return '"' + text.replace('"', '""') + '"' if isinstance(value, str) else text


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_values_of_each_type_come_back_from_json_and_csv(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([*_typed, *_nested]), min_size=1, max_size=4))
    columns = {f"c{index}": kind for index, kind in enumerate(kinds)}
    row = {name: st.none() | (_typed | _nested)[kind] for name, kind in columns.items()}
    rows = data.draw(st.lists(st.fixed_dictionaries(row), min_size=1, max_size=4))
    schema = parse_schema(", ".join(f"{name} {kind}" for name, kind in columns.items()))
    text = "".join(json.dumps(_plain(row), ensure_ascii=data.draw(st.booleans())) + "\n" for row in rows)
    found = JsonFormat(schema).decode(text.encode(), Head())
    assert (found.rows.to_pylist(), found.bad) == (rows, [])
    flat = [name for name, kind in columns.items() if kind in _typed]
    if flat:
        schema = parse_schema(", ".join([*(f"{name} {columns[name]}" for name in flat), "end bigint"]))
        records = CsvFormat(schema, header=False)
        text = "".join(",".join([*(_field(row[name]) for name in flat), "1"]) + "\n" for row in rows)
        found = records.decode(text.encode(), Head(columns=(*flat, "end")))
        assert found.rows.select(flat).to_pylist() == [{name: row[name] for name in flat} for row in rows]
        assert found.bad == []


LARGE = 2**63


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize(
    ("values", "inferred"),
    [
        (["1", str(LARGE), "9007199254740993"], "decimal(38,0)"),
        (["1", str(LARGE - 1)], "bigint"),
        ([f"-{LARGE + 1}", "-0"], "decimal(38,0)"),
        (["1.5", str(LARGE)], "double"),
        (["1e3"], "double"),
        (["9" * 39], None),
    ],
    ids=["beyond 64 bits", "64 bits", "negative", "fractions", "exponents", "beyond decimals"],
)
def test_integers_are_not_rounded_by_inference(
    kind: Any, values: list[str], inferred: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    rows = "".join(f'{{"b":"","a":{one}}}\n' if kind == "json" else f"x,{one}\n" for one in values)
    path.write_text(rows if kind == "json" else f"b,a\n{rows}")
    if inferred is None:
        with pytest.raises(SchemaError, match="column 'a' has integers of more than 38 digits"):
            FileSource(path, format=kind)
        return
    source = FileSource(path, format=kind)
    assert schema_text(source.output_schema(())) == f"b string, a {inferred}"
    batch = reader_of(source, 0, 1).read(1000)
    assert batch is not None
    expected = [float(one) if inferred == "double" else int(one) for one in values]
    assert batch.batch.column("a").to_pylist() == expected


def numbered(kind: str, text: str, count: int = 40) -> bytes:
    """A file of as many bytes for each text of one letter."""
    rows = [(number, f"{text}{number:02}") for number in range(count)]
    if kind == "csv":
        return ("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows)).encode()
    if kind == "json":
        return "".join(f'{{"a":{a},"b":"{b}"}}\n' for a, b in rows).encode()
    table, sink = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]}), pa.BufferOutputStream()
    if kind == "parquet":
        pq.write_table(table, sink, row_group_size=3, compression="none", use_dictionary=False)
    else:
        pyarrow.feather.write_feather(table, sink, chunksize=3, compression="uncompressed")
    return bytes(sink.getvalue())


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "arrow"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_file_that_is_rewritten_in_place_between_two_steps_is_refused(
    kind: Any, steps: int, tmp_path: Path
) -> None:
    """Its descriptor stays open, and would read the rest of one file after the beginning of another."""
    path = tmp_path / "a"
    path.write_bytes(numbered(kind, "x"))
    reader = reader_of(FileSource(path, format=kind, schema=COLUMNS), 0, 1)
    for _ in range(steps):
        assert reader.read(30) is not None
        reader.take_division()
    with path.open("r+b") as file:
        file.write(numbered(kind, "y"))
    with pytest.raises(InputChangedError):
        reader.read(1 << 20)


def test_a_file_that_is_rewritten_while_its_last_step_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(numbered("csv", "x"))
    reader = reader_of(FileSource(path, format="csv", schema=COLUMNS), 0, 1)
    whole = reader._whole

    def rewritten(*arguments: Any) -> Any:
        found = whole(*arguments)
        with path.open("r+b") as file:
            file.write(numbered("csv", "y"))
        return found

    with mock.patch.object(reader, "_whole", rewritten), pytest.raises(InputChangedError):
        reader.read(1 << 20)


def test_a_file_of_a_list_that_grows_while_it_is_read_continues(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(numbered("csv", "x"))
    reader = reader_of(FileSource(path, format="csv", schema=COLUMNS), 0, 1)
    found = []
    for number in range(30):
        if (batch := reader.read(30)) is not None:
            found += batch.batch.column("a").to_pylist()
        reader.take_division()
        if number < 3:
            with path.open("a") as file:
                file.write(f"{40 + number},x\n")
    assert found == [*range(43)]


def latin(path: Path) -> Path:
    path.write_bytes("größe,b\n1,x\n".encode("latin-1"))
    return path


# --- readers ------------------------------------------------------------------------------------------------


def rows_of(batches: Sequence[SourceBatch | None]) -> list[Any]:
    return [row for batch in batches if batch for row in batch.batch.to_pylist()]


def bad_of(batches: Sequence[SourceBatch | None]) -> list[Any]:
    return [row for batch in batches if batch for bad in batch.bad for row in bad.to_pylist()]


def read_all(reader: FileReader, bytes_max: int) -> list[SourceBatch | None]:
    batches = []
    while not reader.exhausted:
        batches.append(reader.read(bytes_max))
    return batches


def compress(suffix: str, data: bytes) -> bytes:
    if suffix == ".zst":
        target = pa.BufferOutputStream()
        with pa.CompressedOutputStream(target, "zstd") as file:
            file.write(data)
        return bytes(target.getvalue())
    return gzip.compress(data) if suffix == ".gz" else bz2.compress(data) if suffix == ".bz2" else data


@pytest.mark.parametrize("kind", ["json", "csv"])
@settings(max_examples=30)
@given(data=st.data(), bytes_max=st.integers(1, 60), suffix=st.sampled_from(["", *COMPRESSED]))
def test_a_reader_continues_from_any_position_with_the_same_rows_and_bad_records(
    kind: str, data: st.DataObject, bytes_max: int, suffix: str
) -> None:
    texts = data.draw(st.lists(_blocks[kind][1], min_size=1, max_size=3))
    header = kind == "csv" and data.draw(st.booleans())
    with TemporaryDirectory() as directory:
        paths = [Path(directory, f"f{index}{suffix}") for index in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(compress(suffix, (b"\xef\xbb\xbfb,c,a\n" if header else b"") + text))
        options = {"header": header} if kind == "csv" else {}
        source = FileSource(paths, format=kind, schema=COLUMNS, on_bad="side", repeat=2, **options)  # type: ignore[arg-type]
        reader = reader_of(source, 0, 1)
        steps, positions, divisions = [], [reader.positions()], []
        while not reader.exhausted:
            steps.append([reader.read(bytes_max)])
            divisions.append(reader.take_division())
            positions.append(reader.positions())
        start = data.draw(st.integers(0, len(steps)))
        until = data.draw(st.integers(start, len(steps)))
        twin = reader_of(source, 0, 1)
        twin.reset_to(positions[start])
        for step in range(start, until):
            again = [*twin.replay(divisions[step])]
            assert (rows_of(again), bad_of(again)) == (rows_of(steps[step]), bad_of(steps[step]))
            assert twin.take_division() == divisions[step]
            assert twin.positions() == positions[step + 1]
        rest = read_all(twin, 1 + bytes_max // 2)
        later = [batch for step in steps[until:] for batch in step]
        assert (rows_of(rest), bad_of(rest)) == (rows_of(later), bad_of(later))
        for one in (reader, twin):
            one.close()


def test_columns_are_found_by_the_header_and_rows_are_named_by_file_and_byte(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('b,other,a\nx,0,1\n"y\nz",0,2\nw,0,3\n')
    (tmp_path / "b.csv").write_text("a,b\n4,v\n")
    source = FileSource(tmp_path / "*.csv", format="csv", schema=COLUMNS)
    reader = reader_of(source, 0, 1)
    batch = reader.read(1000)
    assert batch is not None
    assert rows_of([batch]) == [
        dict(zip("ab", row, strict=True)) for row in [(1, "x"), (2, "y\nz"), (3, "w"), (4, "v")]
    ]
    assert [reader.describe(batch, row) for row in range(4)] == [
        *(f"file '{tmp_path}/a.csv', byte {at}" for at in (10, 16, 26)),
        f"file '{tmp_path}/b.csv', byte 4",
    ]
    (tmp_path / "c.csv").write_text("id,b\n5,u\n")
    other = reader_of(FileSource(tmp_path / "*.csv", format="csv", schema=COLUMNS), 0, 1)
    with pytest.raises(InputReadError, match=r"c\.csv': its header does not have the column 'a', but 'id'"):
        other.read(1000)


def test_a_header_that_changed_far_before_the_position_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "1,2\n" * 100_000)
    source = FileSource(path, format="csv", schema="a bigint, b bigint")
    reader = reader_of(source, 0, 1)
    reader.read(300_000)
    with path.open("r+b") as file:
        file.write(b"b,a\n")
    with pytest.raises(InputChangedError, match="expected a header with digest"):
        reader_of(source, 0, 1).reset_to(reader.positions())


def test_a_bad_record_stops_the_reader_with_file_line_byte_and_reason(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,"x\ny"\nz,w\n')
    reader = reader_of(FileSource(tmp_path / "a.csv", format="csv", schema=COLUMNS), 0, 1)
    with pytest.raises(InputRowError, match=r"a\.csv', line 4, byte 12: .*invalid value 'z': 'z,w'.*on_bad="):
        reader.read(1000)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("on_bad", ["drop", "side"])
def test_bad_records_are_counted_or_are_rows_of_the_side_output(
    on_bad: Any, tmp_path: Path, shared_store: str
) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a":1}\nnull\n{"a":"x"}\n{"a":2}\n')
    graph = Graph("formats")
    source = FileSource(tmp_path / "a.json", format="json", schema="a bigint", on_bad=on_bad)
    rows = graph.source("rows", source).annotate(consistent(period=1))
    rows.sink("out", LogSink())
    if on_bad == "side":
        rows.side_output("bad", "bad").sink("bad_out", LogSink())
    name = f"formats_{on_bad}"
    control = run_local(graph, name=name, store=shared_store, workers=2, standby=0)
    assert isinstance(control, RegionHandle)
    assert control.wait(120)
    assert control.exception() is None, control.status.reason
    found = collect_output(shared_store, name, "out")
    assert found is not None
    assert sorted(found.column("a").to_pylist()) == [1, 2]
    assert control.status.dropped == ({"bad": {"rows": 2}} if on_bad == "drop" else {})
    if on_bad == "side":
        bad = collect_output(shared_store, name, "bad_out")
        assert bad is not None
        assert [(row["line"], row["byte"], row["data"]) for row in bad.to_pylist()] == [
            (2, 8, b"null\n"),
            (3, 13, b'{"a":"x"}\n'),
        ]


@pytest.mark.parametrize(
    ("name", "text", "options", "schema"),
    [
        (
            "a.json",
            '\n{"n":1,"t":"2026-01-01T00:00:00Z","l":[{"x":1.5}],"z":null}\n',
            {},
            "n bigint, t timestamp, l array<struct<x:double>>, z string",
        ),
        (
            "a.csv",
            "n,t,day,b,s\n1,2026-01-01T10:00:00,2026-01-01,true,x\n",
            {},
            "n bigint, t timestamp_ntz, day date, b boolean, s string",
        ),
        ("a.csv", "n;s\n1;x\n", {"delimiter": ";"}, "n bigint, s string"),
    ],
)
def test_a_schema_is_inferred_from_the_first_file_and_then_fixed(
    name: str, text: str, options: Any, schema: str, tmp_path: Path
) -> None:
    (tmp_path / f"0{name}").write_text("")
    (tmp_path / name).write_text(text)
    kind: Any = name.split(".")[1]
    source = FileSource(tmp_path / "*", format=kind, **options)
    assert schema_text(source.output_schema([])) == schema
    assert rows_of(read_all(reader_of(source, 0, 1), 1000))


@pytest.mark.parametrize("header", [b"a,b", b"a,b\n", b"\xef\xbb\xbfa,b\r\n"])
def test_a_file_with_a_header_only_has_no_rows(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(header)
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbfb,a\r\nx,1\r\n")
    source = FileSource(tmp_path / "*.csv", format="csv", schema=COLUMNS)
    assert rows_of(read_all(reader_of(source, 0, 1), 1000)) == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: FileSource(path, format="json"), "no file has a row yet.*pass the columns"),
        (
            lambda path: FileSource(path, format="xml"),  # type: ignore[arg-type]
            "format must be one of 'text', 'json', 'csv'",
        ),
        (lambda path: FileSource(path, schema="a bigint"), "schema and on_bad are for records"),
        (lambda path: FileSource(path.parent, format="json"), r"is a directory; write '.*/\*' for its files"),
        (lambda path: FileSource(latin(path), format="csv"), "can't decode byte 0xf6"),
        (
            lambda path: FileSource(path, format="json", schema="a bigint", header=True),
            'are for format="csv"',
        ),
        (
            lambda path: FileSource(path, format="csv", schema="a array<bigint>"),
            "CSV conversion to list.* not supported",
        ),
        (
            lambda path: FileSource(path, format="json", schema="a map<string,bigint>"),
            "JSON conversion to map.* not supported",
        ),
        (
            lambda path: FileSource(path, format="csv", schema="a bigint", delimiter="\n"),
            "delimiter must be one",
        ),
        (lambda path: FileSource(path, format="csv", delimiter="||"), "delimiter must be one"),
    ],
)
def test_what_cannot_be_read_is_refused_when_the_source_is_made(
    make: Callable[[Path], FileSource], message: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(SchemaError, match=message):
        make(tmp_path / "empty")


# --- row groups: Parquet, Arrow files and streams -----------------------------------------------------------

GROUPED = ["parquet", "arrow", "arrows"]
_tables = st.lists(
    st.tuples(st.none() | st.integers(-9, 9), st.none() | st.text("abé", max_size=3)), max_size=12
)
_FILE = pa.schema([("b", pa.string()), ("other", pa.float64()), ("a", pa.int32())])


def write_groups(form: str, path: Path, rows: list[Any], group: int, *, encoded: bool = False) -> Any:
    """Write a file of row groups; encoded: with dictionaries, which differ between record batches. Return the
    format that reads it.
    """
    table = pa.Table.from_pylist([{"a": a, "b": b, "other": 0.5} for a, b in rows], _FILE)
    write_table(form, path, table, group, encoded=encoded)
    return form.removesuffix("s")


def write_table(form: str, path: Path, table: pa.Table, group: int, *, encoded: bool = False) -> None:
    if form == "parquet":
        pq.write_table(table, path, row_group_size=group, use_dictionary=encoded)
        return
    parts = [table.slice(at, group) for at in range(0, table.num_rows, group)]
    if encoded:
        whole = table.set_column(0, "b", table["b"].combine_chunks().dictionary_encode())
        table = whole if form == "arrow" else table.set_column(0, "b", table["b"].dictionary_encode())
        parts = [
            (whole if form == "arrow" else table).slice(at, group) for at in range(0, table.num_rows, group)
        ]
        if form == "arrows":  # another dictionary for each batch: a file cannot have that
            parts = [
                part.set_column(0, "b", part["b"].cast(pa.string()).combine_chunks().dictionary_encode())
                for part in parts
            ]
    new = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with path.open("wb") as file, new(file, table.schema, options=options) as writer:
        for part in parts:
            writer.write_table(part)


@pytest.mark.parametrize("form", GROUPED)
@settings(max_examples=40)
@given(
    st.lists(_tables, min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(1, 2000),
    st.booleans(),
    st.data(),
)
def test_a_reader_of_row_groups_continues_from_any_of_them(
    form: str, tables: list[list[Any]], group: int, bytes_max: int, encoded: bool, data: st.DataObject
) -> None:
    part_bytes = data.draw(st.sampled_from([100, 700, limits.file_part_bytes]))
    with TemporaryDirectory() as directory, mock.patch.object(limits, "file_part_bytes", part_bytes):
        paths = [Path(directory, f"f{index}") for index in range(len(tables))]
        for path, rows in zip(paths, tables, strict=True):
            kind = write_groups(form, path, rows, group, encoded=encoded)
        reader = reader_of(source := FileSource(paths, format=kind, schema=COLUMNS), 0, 1)
        steps, positions, divisions = [], [reader.positions()], []
        while not reader.exhausted:
            steps.append([reader.read(bytes_max)])
            divisions.append(reader.take_division())
            positions.append(reader.positions())
        read = [batch for step in steps for batch in step]
        assert rows_of(read) == [{"a": a, "b": b} for rows in tables for a, b in rows]
        assert sum(batch.bytes_read for batch in read if batch) == sum(path.stat().st_size for path in paths)
        start = data.draw(st.integers(0, len(steps)))
        until = data.draw(st.integers(start, len(steps)))
        twin = reader_of(source, 0, 1)
        twin.reset_to(positions[start])
        for step in range(start, until):
            assert rows_of(twin.replay(divisions[step])) == rows_of(steps[step])
            assert twin.take_division() == divisions[step]
            assert twin.positions() == positions[step + 1]
        assert rows_of(read_all(twin, bytes_max + 99)) == rows_of([b for step in steps[until:] for b in step])
        for one in (reader, twin):
            one.close()


@pytest.mark.parametrize("form", GROUPED)
@settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=3), st.integers(1, 5), st.booleans(), st.data())
def test_parts_of_files_are_read_once_by_all_workers_and_by_others_after_a_rescale(
    form: str, sizes: list[int], group: int, watch: bool, data: st.DataObject
) -> None:
    part_bytes = data.draw(st.integers(200, 3000))
    with TemporaryDirectory() as directory, mock.patch.object(limits, "file_part_bytes", part_bytes):
        for index, size in enumerate(sizes):
            rows = [(100 * index + number, "x" * number) for number in range(size)]
            kind = write_groups(form, Path(directory, f"f{index}"), rows, group)
        end = Path(directory, "END")
        end.touch()
        source = (
            FileSource(directory, watch=True, until=end, format=kind, schema=COLUMNS)
            if watch
            else FileSource(f"{directory}/f*", format=kind, schema=COLUMNS)
        )
        if not watch and any(
            Path(directory, f"f{index}").stat().st_size > part_bytes for index in range(len(sizes))
        ):
            assert len(source.pieces) > len(source.paths)
        clock, found, bytes_read = count(0, 10), list[Any](), 0
        positions: list[Positions] = [{}]
        for last in (False, False, True):
            workers = data.draw(st.integers(1, 4))
            dealt = [source.redeal(positions, worker, workers) for worker in range(workers)]
            positions = []
            for worker, begin in enumerate(dealt):
                reader = reader_of(source, worker, workers, lambda: next(clock))
                reader.reset_to(begin)
                steps = count() if last else range(data.draw(st.integers(0, 4)))
                for _ in takewhile(lambda _: not reader.exhausted, steps):  # noqa: B023 - ends before the next
                    batch = reader.read(1000 if last else 1) if reader.has_input else None
                    reader.take_division()
                    found += rows_of([batch])
                    bytes_read += batch.bytes_read if batch else 0
                assert not last or reader.backlog_bytes == 0
                positions.append(reader.positions())
                reader.close()
        rows = sorted(100 * index + number for index, size in enumerate(sizes) for number in range(size))
        assert sorted(row["a"] for row in found) == rows
        assert bytes_read <= sum(path.stat().st_size for path in Path(directory).iterdir())


def test_a_file_that_another_worker_finds_replaced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "file_part_bytes", 500)
    path = tmp_path / "f"
    write_groups("parquet", path, [(number, "x") for number in range(20)], group=2)
    source = FileSource(path, format="parquet")
    first = reader_of(source, 0, 2)
    assert first.read(1)
    write_groups("parquet", path, [(-number, "x") for number in range(20)], group=2)
    with pytest.raises(InputChangedError, match="the file that was divided into parts"):
        reader_of(source, 1, 2).read(1)
    watching = Reading(FileSource(tmp_path, watch=True, format="parquet", schema=COLUMNS))
    assert watching.reader.has_input
    assert watching.reader.read(1)
    watching.reader.take_division()
    write_groups("parquet", path, [(number, "y") for number in range(21)], group=2)
    watching.now += 10
    with pytest.raises(InputChangedError, match="the file that was read, found another one"):
        _ = watching.reader.has_input


@pytest.mark.parametrize("form", GROUPED)
def test_a_value_that_does_not_fit_is_a_bad_row_with_its_number(form: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    kind = write_groups(form, path, [(1, "x"), (300, "y"), (2, "z"), (-200, "w")], group=3)
    source = FileSource(path, format=kind, schema="a tinyint", on_bad="side")
    reader = reader_of(source, 0, 1)
    batches = read_all(reader, 1)
    assert rows_of(batches) == [{"a": 1}, {"a": 2}]
    begin = reader_of(source, 0, 1)
    first = begin.read(1)
    assert first is not None
    assert begin.describe(first, 1) == f"file '{path}', " + (
        "row 3" if form == "parquet" else "byte 0, row 3"
    )
    (second,) = [at.position for name, at in begin.positions().items() if name]
    assert [(row["line"], row["byte"], row["data"]) for row in bad_of(batches)] == [
        (2, 0, b"{'a': 300}"),
        (4 if form == "parquet" else 1, second, b"{'a': -200}"),
    ]
    with pytest.raises(InputRowError, match=r"f', line 2, byte 0: Integer value 300 not in range"):
        reader_of(FileSource(path, format=kind, schema="a tinyint"), 0, 1).read(1)


ODD = {
    "dictionary": (pa.array(["x", None]).dictionary_encode(), "string", ["x", None]),
    "large": (pa.array(["x", None], pa.large_string()), "string", ["x", None]),
    "view": (pa.array(["x", None], pa.string_view()), "string", ["x", None]),
    "bytes": (pa.array([b"ab", None], pa.binary(2)), "binary", [b"ab", None]),
    "decimal": (
        pa.array([Decimal("1.23")] * 2, pa.decimal256(30, 2)),
        "decimal(30,2)",
        [Decimal("1.23")] * 2,
    ),
    "uint64": (pa.array([1, 1 << 63], pa.uint64()), "decimal(20,0)", [Decimal(1), Decimal(1 << 63)]),
    "half": (pa.array([1.5, None], pa.float16()), "float", [1.5, None]),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), "array<int>", [[1, 2], None]),
    "null": (pa.nulls(2), "string", [None, None]),
    "uuid": (pa.array([b"0123456789abcdef"] * 2, pa.uuid()), "binary", [b"0123456789abcdef"] * 2),
    "nested": (
        pa.array(
            [{"a": [{"b": 1}]}, None], pa.struct([("a", pa.large_list(pa.struct([("b", pa.uint8())])))])
        ),
        "struct<a:array<struct<b:smallint>>>",
        [{"a": [{"b": 1}]}, None],
    ),
    "map": (
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
        "map<string,tinyint>",
        [[("k", 1)], None],
    ),
    "time": (
        pa.array([1_000, None], pa.timestamp("ns", "Europe/Berlin")),
        "timestamp",
        [datetime(1970, 1, 1, 0, 0, 0, 1, UTC), None],
    ),
    "day": (pa.array([0, None], pa.date64()), "date", [date(1970, 1, 1), None]),
    "a.b": (pa.array([1, 2]), "bigint", [1, 2]),
}


@pytest.mark.parametrize("form", GROUPED)
@pytest.mark.parametrize("kind", ODD)
def test_columns_of_every_type_have_one_that_a_schema_names(form: str, kind: str, tmp_path: Path) -> None:
    column, type_text, values = ODD[kind]
    write_table(form, tmp_path / "f", pa.table({"n": [1, 2], kind: column}), group=1)
    source = FileSource(tmp_path / "f", format=form.removesuffix("s"))  # type: ignore[arg-type]
    name = kind if kind.isalnum() else f"`{kind}`"
    assert schema_text(source.output_schema([])) == f"n bigint, {name} {type_text}"
    assert [row[kind] for row in rows_of(read_all(reader_of(source, 0, 1), 1))] == values


@pytest.mark.parametrize("form", GROUPED)
def test_a_time_that_would_lose_nanoseconds_is_a_bad_row_and_a_type_without_a_name_is_refused(
    form: str, tmp_path: Path
) -> None:
    kind: Any = form.removesuffix("s")
    write_table(form, tmp_path / "f", pa.table({"t": pa.array([1, 2_000], pa.timestamp("ns"))}), group=2)
    batches = read_all(reader_of(FileSource(tmp_path / "f", format=kind, on_bad="side"), 0, 1), 1)
    assert rows_of(batches) == [{"t": datetime(1970, 1, 1, 0, 0, 0, 2)}]  # noqa: DTZ001
    (bad,) = bad_of(batches)
    assert "would lose data" in bad["reason"]
    write_table(form, tmp_path / "f", pa.table({"d": pa.array([1], pa.duration("s"))}), group=1)
    with pytest.raises(SchemaError, match=r"'d' has the type duration\[s\], which no schema names"):
        FileSource(tmp_path / "f", format=kind)


@pytest.mark.parametrize("form", GROUPED)
def test_files_without_a_row_group_or_with_other_types_are_read_with_the_schema(
    form: str, tmp_path: Path
) -> None:
    kind: Any = form.removesuffix("s")
    empty = pa.table({"a": pa.array([], pa.int64())})
    if form == "parquet":
        pq.ParquetWriter(tmp_path / "0", empty.schema).close()
    else:
        write_table(form, tmp_path / "0", empty, group=1)
    write_table(form, tmp_path / "1", pa.table({"a": pa.array([1], pa.int8()), "b": ["x"]}), group=1)
    write_table(form, tmp_path / "2", pa.table({"b": ["x"], "a": pa.array([2.0, 2.5])[:1]}), group=1)
    source = FileSource(tmp_path / "*", format=kind)
    assert rows_of(read_all(reader_of(source, 0, 1), 1)) == [{"a": 1}, {"a": 2}]
    assert rows_of(read_all(reader_of(source, 0, 1), 1 << 20)) == [{"a": 1}, {"a": 2}]
    write_table(form, tmp_path / "3", pa.table({"a": ["text"]}), group=1)
    with pytest.raises(InputRowError, match=r"3', line 1, byte 0: Failed to parse string: 'text'"):
        read_all(reader_of(FileSource(tmp_path / "3", format=kind, schema="a bigint"), 0, 1), 1)


@pytest.mark.parametrize("form", GROUPED)
def test_text_that_is_not_utf8_is_a_bad_row(form: str, tmp_path: Path) -> None:
    text = pa.array([b"one", b"\xff", b"three"]).view(pa.string())
    write_table(form, tmp_path / "f", pa.table({"t": text, "n": [1, 2, 3]}), group=3)
    kind: Any = form.removesuffix("s")
    batches = read_all(reader_of(FileSource(tmp_path / "f", format=kind, on_bad="side"), 0, 1), 1)
    assert rows_of(batches) == [{"t": "one", "n": 1}, {"t": "three", "n": 3}]
    (bad,) = bad_of(batches)
    assert (bad["line"], bad["data"]) == (2, b"{'t': b'\\xff', 'n': 2}")
    assert "Invalid UTF8" in bad["reason"]


@pytest.mark.parametrize("form", GROUPED)
def test_a_schema_of_row_groups_is_inferred_and_a_file_that_does_not_fit_is_refused(
    form: str, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    kind = write_groups(form, path, [(number, "x" * 9) for number in range(2000)], group=100)
    source = FileSource(path, format=kind)
    assert schema_text(source.output_schema([])) == "b string, other double, a int"
    reader = reader_of(source, 0, 1)
    reader.read(1)
    whole = path.read_bytes()
    with pytest.raises(InputReadError, match="it does not have the column 'c', but 'b', 'other', 'a'"):
        reader_of(FileSource(path, format=kind, schema="c int"), 0, 1).read(1)
    write_groups(form, path, [(number, "x" * 9) for number in range(2000)], group=101)
    with pytest.raises(InputChangedError, match="expected a header with digest"):
        reader_of(source, 0, 1).reset_to(reader.positions())
    damaged = bytearray(whole)
    at = 40 if form == "parquet" else whole.index(b"\x28\xb5\x2f\xfd")  # a buffer that zstd has compressed
    damaged[at : at + 20] = bytes(20)
    path.write_bytes(damaged)
    with pytest.raises(InputReadError, match="has a damaged row group from byte 0 on"):
        reader_of(source, 0, 1).read(1)
    magic = b"PAR1" if form == "parquet" else b"ARROW1"
    for wrong in (
        whole[:-1],
        b"",
        magic,
        b"\xff\xff\xff\xff" + magic,
        whole + b"x",
        whole[: len(whole) // 2],
    ):
        path.write_bytes(wrong)
        with pytest.raises(InputReadError, match=r"it is n|after the end|metadata"):
            reader_of(source, 0, 1).read(1)


def test_an_arrow_stream_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    write_groups("arrows", tmp_path / "f", [(number, "x") for number in range(6)], group=3)
    data = (tmp_path / "f").read_bytes()
    ends = [index for index in range(8, len(data), 8) if data[index : index + 4] == b"\xff\xff\xff\xff"]
    assert len(ends) == 3  # two record batches, and the mark of the end
    for end in ends:
        (tmp_path / "f").write_bytes(data[:end])
        with pytest.raises(InputReadError, match="the mark of its end is missing"):
            reader_of(FileSource(tmp_path / "f", format="arrow", schema=COLUMNS), 0, 1).read(1)


def test_offsets_of_an_arrow_file_that_lead_out_of_it_are_damage(tmp_path: Path) -> None:
    with pa.ipc.new_file(str(tmp_path / "f"), pa.schema([("b", pa.string())])) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict({"b": ["one", "two"]}))
    data = (tmp_path / "f").read_bytes()
    offsets = struct.pack("<3i", 0, 3, 6)
    assert data.count(offsets) == 1
    (tmp_path / "f").write_bytes(data.replace(offsets, struct.pack("<3i", 0, 1 << 30, 6)))
    with pytest.raises(InputReadError, match="has a damaged row group"):
        reader_of(FileSource(tmp_path / "f", format="arrow", on_bad="side"), 0, 1).read(1)


def test_an_arrow_file_whose_footer_has_other_columns_than_its_stream_is_refused(tmp_path: Path) -> None:
    write_table("arrow", tmp_path / "f", pa.table({"column_x": [1]}), group=1)
    head, _, tail = (tmp_path / "f").read_bytes().rpartition(b"column_x")
    (tmp_path / "f").write_bytes(head + b"column_y" + tail)
    with pytest.raises(InputReadError, match="does not begin with the schema of its footer"):
        reader_of(FileSource(tmp_path / "f", format="arrow", schema="column_y bigint"), 0, 1).read(1)


@settings(max_examples=200)
@given(st.sampled_from(["arrow", "arrows"]), st.data())
def test_damage_anywhere_in_arrow_is_an_error_of_the_input_or_changes_values_only(
    form: str, data: st.DataObject
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "f")
        write_groups(form, path, [(number, f"x{number}") for number in range(6)], group=3, encoded=True)
        source = FileSource(path, format="arrow", schema=COLUMNS, on_bad="side")
        damaged = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged)
        try:
            rows = rows_of(read_all(reader_of(source, 0, 1), 1))
        except InputReadError:
            return
        assert len(rows) <= 6


@pytest.mark.parametrize("form", GROUPED)
def test_a_file_of_row_groups_that_is_watched_is_read_when_it_is_whole(form: str, tmp_path: Path) -> None:
    kind = write_groups(form, tmp_path / "whole", [(1, "x"), (-1, "y"), (0, "z")], group=2)
    data = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    reading = Reading(FileSource(tmp_path, watch=True, format=kind, schema=COLUMNS))

    def found() -> list[Any]:
        reading.now += 10
        return rows_of([reading.reader.read(1000) if reading.reader.has_input else None])

    (tmp_path / "f").write_bytes(data[:-1])
    assert [found(), found()] == [[], []]
    # what looks like the end of a stream, -1 and 0, in the middle of one
    (tmp_path / "f").write_bytes(data[: len(data) // 2] + b"\xff\xff\xff\xff\0\0\0\0")
    assert [found(), found()] == [[], []]
    (tmp_path / "f").write_bytes(data)
    rows = [*found(), *found(), *found()]
    assert rows == [{"a": 1, "b": "x"}, {"a": -1, "b": "y"}, {"a": 0, "b": "z"}]
    assert found() == []


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_run_that_infers_other_columns_than_the_checkpoint_has_is_refused(
    tmp_path: Path, shared_store: str
) -> None:
    def graph() -> Graph:
        made = Graph("inferring")
        source = FileSource(tmp_path / "*.json", format="json")
        rows = made.source("rows", source).annotate(consistent(period=1))
        rows.filter("all", lambda row: True).sink("out", LogSink())
        return made

    (tmp_path / "b.json").write_bytes(b'{"a":1}\n')
    control = run_local(graph(), name="inferring", store=shared_store, workers=1, standby=0)
    assert isinstance(control, RegionHandle)
    assert control.wait(120)
    (tmp_path / "a.json").write_bytes(b'{"a":1.5}\n')
    control = run_local(graph(), name="inferring", store=shared_store, workers=1, standby=0)
    assert isinstance(control, RegionHandle)
    control.wait(120)
    text = str(control.exception())
    assert "b.json as json gives (a bigint), is source" in text
    assert "a.json as json gives (a double)" in text
