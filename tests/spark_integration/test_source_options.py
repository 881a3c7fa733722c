"""The options of the source and sink `dos` and of the inspection formats: each as users write it, and refused
by name.
"""

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource
from pyspark.sql.types import LongType, StructField, StructType

from dos_client.errors import BadUrlError
from dos_protocol.errors import BadNameError, DosError
from spark_integration.core.offsets import (
    SplitPoint,
    Starting,
    StartingKind,
    offset_of,
    parse_starting,
    points_of,
)
from spark_integration.core.options import (
    OPTIONS,
    SINK_OPTIONS,
    ObjectContent,
    ReadGuarantee,
    check_batch,
    check_streaming,
    parse_checkpoints,
    parse_journal,
    parse_options,
    parse_sink_options,
    parse_state,
)
from spark_integration.core.row_filter import ColumnCondition, check_filter, parse_filter, passing
from spark_integration.data_source import DosSource
from spark_integration.errors import (
    BadOptionError,
    MalformedOffsetError,
    column_difference,
)
from spark_integration.reading.readers import comparison_of
from tests.spark_integration.sink_process import SCHEMA

GOOD = {"path": "dos://h1,h2,h3/words", "output": "counts"}
STORE, WHAT = "ab" * 16, "output words/counts"


def test_options_are_distinguished_without_regard_to_case() -> None:
    options = parse_options({**GOOD, "MAXROWSperTrigger": "10", "Read": "SYNCED", "failondataloss": "False"})
    assert (options.servers, options.directory, options.output) == (
        "dos://h1:9999,h2:9999,h3:9999",
        "words",
        "counts",
    )
    assert (options.rows_max, options.read, options.fail_on_data_loss) == (10, ReadGuarantee.SYNCED, False)
    assert options.what == WHAT


def test_of_objects_the_url_may_name_one() -> None:
    options = parse_options({"path": "dos://h/logs/a.log", "content": "lines"})
    assert (options.directory, options.object, options.content) == ("logs", "a.log", ObjectContent.LINES)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("colums", "columns"),
        ("maxrowpertrigger", "maxRowsPerTrigger"),
        ("startingOffsets", "startingOffset"),
        ("format", None),
        ("zzz", None),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest_right_one(wrong: str, near: str | None) -> None:
    with pytest.raises(BadOptionError, match=f"no option '{wrong}'") as refused:
        parse_options({**GOOD, wrong: "1"})
    assert (f"did you mean {near!r}?" in str(refused.value)) is (near is not None)
    assert all(name in str(refused.value) for name in OPTIONS)


BAD: list[tuple[dict[str, str], type[DosError], str]] = [
    ({"output": "x"}, BadOptionError, "no URL was given"),
    ({**GOOD, "path": "dos://h"}, BadOptionError, "names a store but nothing in it"),
    ({**GOOD, "path": "hdfs://h/x"}, BadUrlError, "a URL must begin with dos://"),
    (
        {"path": "dos://h/x"},
        BadOptionError,
        "exactly one of the options output, input, content is required, not none",
    ),
    ({**GOOD, "input": "x"}, BadOptionError, "not 'output' and 'input'"),
    ({**GOOD, "path": "dos://h/words/x"}, BadOptionError, "must end with the name of the region"),
    ({**GOOD, "objects": "*"}, BadOptionError, "requires 'content'"),
    ({"path": "dos://h/d/o", "content": "lines", "objects": "*"}, BadOptionError, "names the object 'o'"),
    ({"path": "dos://h/d", "content": "parket"}, BadOptionError, "must be one of lines, .* not 'parket'"),
    ({**GOOD, "read": "commited"}, BadOptionError, r"\(did you mean 'committed'\?\)"),
    (
        {**GOOD, "maxBytesPerTrigger": "0"},
        BadOptionError,
        "'maxBytesPerTrigger' must be a whole number from 1, not '0'",
    ),
    ({**GOOD, "partitionBytes": "many"}, BadOptionError, "not 'many'"),
    ({**GOOD, "failOnDataLoss": "no"}, BadOptionError, "must be true or false, not 'no'"),
    ({**GOOD, "consumer": "a b"}, BadNameError, "'a b'"),
    ({**GOOD, "consumerRetainSeconds": "-1"}, BadOptionError, "must be seconds from 0 to .* not '-1'"),
    ({"path": "dos://h/d", "content": "lines", "consumer": "q"}, BadOptionError, "requires 'input' or"),
    ({**GOOD, "onRewind": "ignore"}, BadOptionError, "must be one of fail, follow, not 'ignore'"),
    ({"path": "dos://h/x", "input": "in", "onRewind": "follow"}, BadOptionError, "requires 'output'"),
    ({**GOOD, "columns": "a,,b"}, BadOptionError, "names separated by commas"),
    ({**GOOD, "token": "a", "tokenFile": "b"}, BadOptionError, "exclude each other"),
    ({**GOOD, "output": "a/b"}, BadNameError, "a/b"),
    ({"path": "dos://h/shop", "input": "o", "read": "synced"}, BadOptionError, "only committed batches"),
    ({**GOOD, "startingOffset": "yesterday"}, MalformedOffsetError, "'yesterday' is of no known form"),
    ({**GOOD, "startingOffset": "step:x"}, MalformedOffsetError, "write earliest, latest, step:120"),
    ({**GOOD, "startingOffset": "time:2026-01-31T12:00:00"}, MalformedOffsetError, "not a time with a zone"),
    ({**GOOD, "startingOffset": "{"}, MalformedOffsetError, "is not valid JSON"),
    ({**GOOD, "startingOffset": '{"version": 1}'}, MalformedOffsetError, "missing required field"),
    ({**GOOD, "filter": "a = "}, BadOptionError, "expected a value"),
    ({**GOOD, "filter": "a = 1 OR b = 2"}, BadOptionError, "expected AND instead of 'OR'"),
]


@pytest.mark.parametrize(("given", "error", "text"), BAD)
def test_an_option_that_cannot_be_is_refused_by_name(
    given: dict[str, str], error: type[DosError], text: str
) -> None:
    with pytest.raises(error, match=text):
        parse_options(given)


def test_what_is_for_streams_is_refused_in_a_batch_and_the_other_way_round() -> None:
    given = {**GOOD, "startingoffset": "latest"}
    with pytest.raises(BadOptionError, match=r"'startingOffset' is for spark.readStream"):
        check_batch(given)
    with pytest.raises(BadOptionError, match="merely synced may be rolled back"):
        check_streaming(parse_options({**GOOD, "read": "synced"}))
    check_streaming(parse_options(given))


def test_a_token_comes_from_a_file_and_a_file_that_is_missing_is_reported(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("secret\nnot this\n")
    source = DosSource({**GOOD, "tokenFile": str(tmp_path / "token")})
    assert source._options.token == b"secret"
    with pytest.raises(BadOptionError, match="cannot read the file of the option 'tokenFile'"):
        DosSource({**GOOD, "tokenFile": str(tmp_path / "none")})


# --- offsets ----------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=9), st.tuples(*[st.integers(0, 2**62)] * 4).map(SplitPoint._make)))
def test_points_return_from_an_offset(points: dict[str, SplitPoint]) -> None:
    offset = offset_of(STORE, WHAT, points)
    assert points_of(offset, STORE, WHAT) == points
    otherwise = offset_of(STORE, WHAT, dict(reversed(points.items())))
    assert json.dumps(otherwise) == json.dumps(offset), "Spark takes offsets for equal if their texts are"


OFFSETS: list[tuple[dict[str, Any], SplitPoint]] = [
    ({"epoch": 3, "size": 4096}, SplitPoint(3, 4096, line=0, step=0)),
    ({"epoch": 3, "size": 4096, "line": 1, "step": 40}, SplitPoint(3, 4096, line=1, step=40)),
]


@pytest.mark.parametrize(("stored", "point"), OFFSETS)
def test_the_texts_of_offsets_are_these(stored: dict[str, Any], point: SplitPoint) -> None:
    """The stored texts are in checkpoints of queries: they never change."""
    offset = {"version": 1, "store": STORE, "what": WHAT, "splits": {"w0000": stored}}
    assert points_of(offset, STORE, WHAT) == {"w0000": point}
    assert offset_of(STORE, WHAT, {"w0000": point}) == offset


def test_an_offset_of_another_store_or_source_is_refused() -> None:
    offset = offset_of(STORE, WHAT, {"w0000": SplitPoint(1, 10)})
    with pytest.raises(MalformedOffsetError, match=f"belongs to store {STORE}, but this is store cd"):
        points_of(offset, "cd" * 16, WHAT)
    with pytest.raises(MalformedOffsetError, match="to output words/counts, but this query reads input a/b"):
        points_of(offset, STORE, "input a/b")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "version 2"),
        ({"splits": {"w0000": {"epoch": -1, "size": 0}}}, "negative point for 'w0000'"),
        ({"splits": {"w0000": {"size": "x", "epoch": 1}}}, r"\$.splits\[...\].size"),
        ({"splits": 7}, "splits"),
        ({"index": 7}, "unknown field"),
    ],
)
def test_an_offset_that_is_none_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedOffsetError, match=text):
        points_of({**offset_of(STORE, WHAT, {}), **change}, STORE, WHAT)


@pytest.mark.parametrize(
    ("text", "starting"),
    [
        ("earliest", Starting(StartingKind.EARLIEST)),
        ("LATEST", Starting(StartingKind.LATEST)),
        ("step:120", Starting(StartingKind.STEP, 120)),
        ("checkpoint:7", Starting(StartingKind.CHECKPOINT, 7)),
        (
            "time:2026-01-31T12:00:00+01:00",
            Starting(StartingKind.TIME, int(datetime(2026, 1, 31, 11, tzinfo=UTC).timestamp() * 1000)),
        ),
    ],
)
def test_a_beginning_is_said_by_name_step_checkpoint_or_time(text: str, starting: Starting) -> None:
    assert parse_starting(text) == starting


# --- filters ----------------------------------------------------------------------------------------------

TABLE = pa.RecordBatch.from_pylist(
    [
        {"n": 1, "s": "a", "d": 1.5, "t": True, "day": date(2026, 1, 1)},
        {"n": None, "s": None, "d": float("nan"), "t": None, "day": None},
        {"n": 3, "s": "it's", "d": None, "t": False, "day": date(2026, 2, 1)},
    ],
    pa.schema(
        [("n", pa.int64()), ("s", pa.string()), ("d", pa.float64()), ("t", pa.bool_()), ("day", pa.date32())]
    ),
)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("n = 1", [0]),
        ("n <> 1", [2]),
        ("n > 0 AND n < 3", [0]),
        ("n IN (1, 2)", [0]),
        ("n not in (1, 2)", [2]),
        ("s = 'it''s'", [2]),
        ("s IS NULL", [1]),
        ("s is not null", [0, 2]),
        ("d >= 1", [0, 1]),
        ("d < 2", [0]),
        ("t = false", [2]),
        ("day > '2026-01-15'", [2]),
        ("`n` == 3", [2]),
    ],
)
def test_a_filter_means_what_it_means_in_sql(text: str, passed: list[int]) -> None:
    comparisons = parse_filter(text)
    check_filter(comparisons, TABLE.schema)
    assert [one["s"] for one in passing(TABLE, comparisons).to_pylist()] == [
        TABLE.column("s")[index].as_py() for index in passed
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("m = 1", r"column 'm'.* the columns are n, s, d, t, day"),
        ("n = 'one'", "column 'n', which is bigint, with 'one'"),
        ("n = 1.5", "column 'n', which is bigint, with 1.5"),
        ("s = 1", "column 's', which is string, with 1"),
        ("t = 1", "column 't', which is boolean, with 1"),
        ("n = true", "column 'n', which is bigint, with True"),
        ("day = 'soon'", "column 'day', which is date, with 'soon'"),
    ],
)
def test_a_filter_that_does_not_fit_the_columns_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadOptionError, match=said):
        check_filter(parse_filter(text), TABLE.schema)


@pytest.mark.parametrize(
    ("spark", "ours"),
    [
        (datasource.EqualTo(("n",), 1), ColumnCondition("n", "=", (1,))),
        (datasource.Not(datasource.In(("s",), ("a", "b"))), ColumnCondition("s", "in", ("a", "b"), True)),
        (datasource.IsNotNull(("n",)), ColumnCondition("n", "is null", negated=True)),
        (datasource.Not(datasource.IsNotNull(("n",))), ColumnCondition("n", "is null")),
        (datasource.StringStartsWith(("s",), "a"), ColumnCondition("s", "starts", ("a",))),
        (datasource.EqualTo(("day",), date(2026, 1, 1)), ColumnCondition("day", "=", (date(2026, 1, 1),))),
        (datasource.GreaterThan(("d",), 1.0), None),
        (datasource.EqualTo(("n",), 1 << 63), None),
        (datasource.EqualTo(("n",), "1"), None),
        (datasource.EqualTo(("n", "x"), 1), None),
        (datasource.EqualNullSafe(("n",), 1), None),
        (datasource.In(("n",), (1, None)), None),
        (datasource.EqualTo(("day",), datetime(2026, 1, 1, tzinfo=UTC)), None),
    ],
)
def test_of_sparks_own_filters_those_are_taken_that_mean_the_same(
    spark: Any, ours: ColumnCondition | None
) -> None:
    assert comparison_of(spark, TABLE.schema) == ours


GOOD_SINK = {"path": "dos://h1,h2/shop", "input": "orders"}
ROWS = StructType([StructField("n", LongType())])


def test_options_are_distinguished_without_regard_to_case_and_sparks_own_are_let_through() -> None:
    given = {**GOOD_SINK, "Producer": "till", "BATCH": "7", "checkpointlocation": "/c", "queryName": "q"}
    options = parse_sink_options(given)
    assert (options.servers, options.application, options.input) == (
        "dos://h1:9999,h2:9999",
        "shop",
        "orders",
    )
    assert (options.producer, options.batch, options.what) == ("till", 7, "input shop/orders")


@pytest.mark.parametrize("wrong", [f"{name[:-1]}{name[-1]}x" for name in SINK_OPTIONS])
def test_an_option_that_there_is_not_is_named_with_the_nearest_right_one(wrong: str) -> None:
    with pytest.raises(BadOptionError, match=rf"no option '{wrong}'; did you mean '{wrong[:-1]}'"):
        parse_sink_options({**GOOD_SINK, wrong: "1"})


@pytest.mark.parametrize(
    ("changed", "kind", "said"),
    [
        ({"path": "dos://h1"}, BadOptionError, "names a store but nothing in it"),
        ({"path": "dos://h1/shop/orders"}, BadOptionError, "must end with the name of an application"),
        ({"path": "shop"}, BadUrlError, "shop"),
        ({"input": ""}, BadOptionError, "'input' is empty"),
        ({"input": "a.b"}, BadNameError, "the name of an input handle consists of letters"),
        ({"producer": "a.b"}, BadNameError, "the name of a producer consists of letters"),
        ({"producer": "p" * 120}, BadNameError, "p"),
        ({"batch": "0"}, BadOptionError, "'batch' must be a whole number from 1"),
        ({"token": "a", "tokenFile": "b"}, BadOptionError, "exclude each other"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, str], kind: type[DosError], said: str) -> None:
    with pytest.raises(kind, match=said):
        parse_sink_options({**GOOD_SINK, **changed})


def test_nowhere_and_nothing_to_write_to_are_reported() -> None:
    with pytest.raises(BadOptionError, match="no target was given"):
        parse_sink_options({"input": "orders"})
    with pytest.raises(BadOptionError, match="the option 'input' is required"):
        parse_sink_options({"path": GOOD_SINK["path"]})


def test_a_store_is_not_overwritten_and_a_stream_numbers_on_its_own() -> None:
    with pytest.raises(BadOptionError, match=r"a store only grows.*mode\(\"append\"\)"):
        DosSource(GOOD_SINK).writer(ROWS, overwrite=True)
    with pytest.raises(BadOptionError, match="a store only grows"):
        DosSource(GOOD_SINK).streamWriter(ROWS, overwrite=True)
    with pytest.raises(BadOptionError, match="micro-batches have their own numbers"):
        DosSource({**GOOD_SINK, "batch": "1"}).streamWriter(ROWS, overwrite=False)


def test_options_that_are_right_for_writing_alone_are_refused_where_it_reads_and_the_other_way_round() -> (
    None
):
    with pytest.raises(BadOptionError, match="the source dos has no option 'producer'"):
        DosSource({**GOOD_SINK, "producer": "till"}).schema()
    with pytest.raises(BadOptionError, match="dos, when writing, has no option 'read'"):
        DosSource({**GOOD_SINK, "read": "committed"}).writer(ROWS, overwrite=False)
    with pytest.raises(BadOptionError) as both:
        DosSource({**GOOD_SINK, "producr": "till"})
    assert "did you mean 'producer'?" in both.value.__notes__[0]


def test_columns_that_differ_are_named_with_both_types() -> None:
    wanted = "the columns do not match those of x, n bigint, text string: "
    renamed = SCHEMA.set(0, SCHEMA.field("n").with_name("m"))
    assert (
        column_difference(renamed, SCHEMA, "x")
        == f"{wanted}'m' (bigint) does not exist there; 'n' is missing"
    )
    retyped = SCHEMA.set(0, SCHEMA.field("n").with_type(pa.string()))
    assert column_difference(retyped, SCHEMA, "x") == f"{wanted}'n' is string, but bigint there"
    turned = pa.schema([SCHEMA.field("text"), SCHEMA.field("n")])
    assert column_difference(turned, SCHEMA, "x") == f"{wanted}their order differs"


PARSERS = {"journal": parse_journal, "checkpoints": parse_checkpoints, "state": parse_state}


def test_options_that_are_wrong_are_named() -> None:
    def refused(error: type[Exception], text: str, kind: str, path: str, **options: str) -> None:
        with pytest.raises(error, match=text):
            PARSERS[kind]({"path": path, **{name.rstrip("_"): value for name, value in options.items()}})

    state = "dos://h/words"
    refused(
        BadOptionError,
        r"the source dos-state has no option 'operater'; did you mean 'operator'\?",
        "state",
        state,
        operater="x",
    )
    refused(
        BadOptionError,
        "the source dos-checkpoints has no option 'output'",
        "checkpoints",
        state,
        output="x",
    )
    refused(
        BadOptionError,
        r"the source dos-journal has no option 'form'; did you mean 'from'\?",
        "journal",
        state,
        form="1",
    )
    refused(BadOptionError, "the option 'operator' is required", "state", state)
    refused(
        BadOptionError,
        "option 'checkpoint' must be a whole number from 1, not 'last'",
        "state",
        state,
        operator="c",
        checkpoint="last",
    )
    refused(
        BadOptionError,
        r"option 'since' \(3\) must be before",
        "state",
        state,
        operator="c",
        checkpoint="3",
        since="3",
    )
    refused(BadOptionError, "at most 1024", "state", state, operator="c", tasksPerWorker="5000")
    refused(BadOptionError, "names an object", "checkpoints", "dos://h/words/x")
    refused(BadOptionError, "names a store but nothing in it", "checkpoints", "dos://h")
    refused(BadOptionError, "names a directory but no journal", "journal", state)
    refused(BadOptionError, "must be a logical offset", "journal", f"{state}/c", from_="step:3")
    refused(BadOptionError, "is after option 'to'", "journal", f"{state}/c", from_="9", to="3")
    refused(BadUrlError, "words", "checkpoints", "words")
