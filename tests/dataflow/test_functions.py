"""User functions on rows and batches: what they may return, and how a fault is reported."""

import random
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dataflow import Graph, LogSink
from dataflow.errors import SchemaError, UserFault
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.operators.functions import FilterSpec, FlatMapSpec, MapSpec
from dataflow.schema import parse_schema
from dataflow.sources.file_source import FileSource
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.test_region_in_one_thread import rows_shown, write_files

SIDES = (("odd", parse_schema("line string")), ("lengths", parse_schema("n bigint")))
LINES = pa.record_batch({"line": pa.array(["a b", "", "c"])})


def opened(spec: OperatorSpec) -> Operator:
    output = spec.output_schema([LINES.schema])
    return spec.open(OperatorContext("r", "op", 0, 1, b"", (LINES.schema,), output))


def run(spec: OperatorSpec, batch: pa.RecordBatch = LINES) -> list[dict]:
    return [row for made in opened(spec).process(batch) for row in made.to_pylist()]


def test_a_row_function_of_map_returns_a_dict_a_tuple_or_one_value() -> None:
    two = parse_schema("n bigint, s string")
    expected = [{"n": 3, "s": "a b"}, {"n": 0, "s": ""}, {"n": 1, "s": "c"}]
    assert run(MapSpec(lambda r: {"s": r["line"], "n": len(r["line"])}, "row", two)) == expected
    assert run(MapSpec(lambda r: (len(r["line"]), r["line"]), "row", two)) == expected
    assert run(MapSpec(lambda r: r["line"].upper(), "row")) == [{"line": "A B"}, {"line": ""}, {"line": "C"}]


def test_a_row_function_of_flat_map_returns_or_yields_any_number_of_rows() -> None:
    words = parse_schema("word string")

    def generate(row: dict):
        yield from row["line"].split()

    expected = [{"word": "a"}, {"word": "b"}, {"word": "c"}]
    assert run(FlatMapSpec(lambda r: r["line"].split(), "row", words)) == expected
    assert run(FlatMapSpec(generate, "row", words)) == expected
    assert run(FlatMapSpec(lambda r: None, "row", words)) == []


def test_filters_keep_rows_in_order() -> None:
    assert run(FilterSpec(lambda r: r["line"])) == [{"line": "a b"}, {"line": "c"}]
    by_batch = FilterSpec(lambda b: pc.greater(pc.binary_length(b.column("line")), 1), "batch")
    assert run(by_batch) == [{"line": "a b"}]


@pytest.mark.parametrize(
    "result",
    [
        lambda b: pa.record_batch({"n": pa.array([1, 2], pa.int64())}),
        lambda b: pa.table({"n": pa.chunked_array([[1], [2]])}),
        lambda b: {"n": [1, 2]},
        lambda b: pa.array([1, 2], pa.int32()),
        lambda b: pa.chunked_array([[1], [2]]),
    ],
)
def test_a_batch_function_returns_a_batch_a_table_a_dict_or_an_array(result) -> None:
    assert run(FlatMapSpec(result, "batch", parse_schema("n bigint"))) == [{"n": 1}, {"n": 2}]


N, S = pa.array([1, 2], pa.int64()), pa.array(["a", "b"])
COLUMNS = {
    "as in the schema": {"n": N, "s": S},
    "in another order": {"s": S, "n": N},
    "of fewer bits": {"n": N.cast(pa.int32()), "s": S},
    "of large text": {"n": N, "s": S.cast(pa.large_string())},
    "of a dictionary": {"n": N, "s": S.dictionary_encode()},
}


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("form", [pa.record_batch, pa.table, dict])
def test_in_whatever_form_a_batch_function_returns_columns_the_batch_has_the_schema(form, columns) -> None:
    schema = parse_schema("n bigint, s string")
    for spec in (MapSpec, FlatMapSpec):
        operator = opened(spec(lambda _: form(COLUMNS[columns]), "batch", schema))
        (batch,) = operator.process(LINES[:2])
        assert batch.schema.equals(schema)
        assert batch.to_pylist() == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]


@pytest.mark.parametrize("takes", ["row", "batch", "pandas"])
def test_a_flat_map_that_returns_none_gives_no_rows(takes: Any) -> None:
    assert run(FlatMapSpec(lambda given: None, takes, parse_schema("n bigint"))) == []


@pytest.mark.parametrize("takes", ["batch", "pandas"])
def test_a_map_of_batches_that_returns_none_is_refused(takes: Any) -> None:
    with pytest.raises(UserFault, match="not NoneType"):
        run(MapSpec(lambda given: None, takes, parse_schema("n bigint")))


@pytest.mark.parametrize(
    ("spec", "words", "row"),
    [
        (MapSpec(lambda r: 1 / len(r["line"]), "row", parse_schema("x double")), "ZeroDivisionError", 1),
        (MapSpec(lambda r: (1, 2, 3), "row", parse_schema("a int, b int")), "3 values; the schema has 2", 0),
        (MapSpec(lambda r: {"x": 1}, "row", parse_schema("a int")), "columns 'x'; the schema says 'a'", 0),
        (MapSpec(lambda r: 1, "row", parse_schema("a int, b int")), "dict or a tuple of 2", 0),
        (
            MapSpec(lambda r: 1 if r["line"] else "no", "row", parse_schema("a int")),
            "whole numbers from -2147483648 to 2147483647; it was given str 'no'",
            1,
        ),
        (FlatMapSpec(lambda r: r["line"], "row", parse_schema("w string")), "wrap it in a list", 0),
        (FilterSpec(lambda r: r["nope"]), "KeyError", 0),
        (MapSpec(lambda b: b.slice(1), "batch"), "one row for each; it got 3 and returned 2", None),
        (FlatMapSpec(lambda b: "x", "batch", parse_schema("w string")), "not str", None),
        (
            FlatMapSpec(lambda b: {"x": [1]}, "batch", parse_schema("w string")),
            "'x'; the schema says 'w'",
            None,
        ),
        (
            FlatMapSpec(lambda b: {"n": ["x"]}, "batch", parse_schema("n int")),
            "column 'n' is int, which holds whole numbers",
            None,
        ),
        (FilterSpec(lambda b: [1, 2, 3], "batch"), "is boolean, which holds True and False; it was given", 0),
        (FilterSpec(lambda b: [True], "batch"), "one boolean for each of 3 rows, not 1", None),
    ],
)
def test_a_fault_names_the_rule_and_the_row(spec: OperatorSpec, words: str, row: int | None) -> None:
    with pytest.raises(UserFault) as caught:
        run(spec)
    assert words in str(caught.value)
    assert caught.value.row == row


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("why"), KeyError("why"), MemoryError("why"), RecursionError("why")]
)
@pytest.mark.parametrize("takes", ["row", "batch", "pandas"])
@pytest.mark.parametrize("kind", [MapSpec, FlatMapSpec, FilterSpec])
def test_the_users_exception_is_named_and_kept_as_the_cause(
    kind: type[OperatorSpec], takes: str, error: Exception
) -> None:
    def fail(_: Any) -> Any:
        raise error

    with pytest.raises(UserFault, match=f"{type(error).__name__}: .?why") as caught:
        run(kind(fail, takes))  # type: ignore[call-arg]
    assert caught.value.__cause__ is error
    assert caught.value.row == (0 if takes == "row" else None)


def test_a_pandas_function_takes_a_frame_and_gives_one_or_a_series() -> None:
    two = parse_schema("n bigint, s string")
    expected = [{"n": 3, "s": "a b"}, {"n": 0, "s": ""}, {"n": 1, "s": "c"}]
    sized = MapSpec(lambda f: pd.DataFrame({"s": f["line"], "n": f["line"].str.len()}), "pandas", two)
    assert run(sized) == expected
    upper = MapSpec(lambda f: f["line"].str.upper(), "pandas")
    assert run(upper) == [{"line": "A B"}, {"line": ""}, {"line": "C"}]
    assert run(FilterSpec(lambda f: f["line"].str.len() > 0, "pandas")) == [{"line": "a b"}, {"line": "c"}]
    words = FlatMapSpec(lambda f: f["line"].str.split(" ").explode(), "pandas", parse_schema("w string"))
    assert run(words) == [{"w": "a"}, {"w": "b"}, {"w": ""}, {"w": "c"}]


def test_nothing_changes_on_the_way_through_pandas() -> None:
    large = pa.record_batch({"line": pa.array([2**62 + 1, None, -1], pa.int64())})
    spec = MapSpec(lambda frame: frame, "pandas", large.schema)
    operator = spec.open(OperatorContext("r", "op", 0, 1, b"", (large.schema,), large.schema))
    (made,) = operator.process(large)
    assert made.equals(large)


def test_a_pandas_function_that_returns_something_else_is_reported() -> None:
    with pytest.raises(UserFault, match="the columns are 'x'; the schema says 'line'"):
        run(MapSpec(lambda frame: frame.rename(columns={"line": "x"}), "pandas"))
    with pytest.raises(UserFault, match="a map must return one row for each; it got 3 and returned 2"):
        run(MapSpec(lambda frame: frame.head(2), "pandas"))


def sided(spec: OperatorSpec, batch: pa.RecordBatch = LINES) -> dict[str, list[dict]]:
    """The output, as "", and the side outputs."""
    operator = opened(spec)
    try:
        made = {"": [row for part in operator.process(batch) for row in part.to_pylist()]}
        for port, _ in SIDES:
            made[port] = [row for part in operator.take_side_output(port) for row in part.to_pylist()]
            assert operator.take_side_output(port) == [], "taken once"
        return made
    finally:
        operator.close()


def aside(row: dict, emit: Any) -> Any:
    emit("lengths", len(row["line"]))
    if row["line"]:
        yield row
    else:
        emit("odd", row)


ASIDE = {
    "": [{"line": "a b"}, {"line": "c"}],
    "odd": [{"line": ""}],
    "lengths": [{"n": 3}, {"n": 0}, {"n": 1}],
}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_function_of_rows_puts_rows_on_side_outputs_in_their_order(threads: int) -> None:
    spec = FlatMapSpec(aside, "row", LINES.schema, threads=threads, side_outputs=SIDES)
    assert sided(spec) == ASIDE
    keep = FilterSpec(lambda row, emit: [*aside(row, emit)], threads=threads, side_outputs=SIDES)
    assert sided(keep) == ASIDE
    many = pa.record_batch({"line": [str(n) for n in range(100)]})
    assert sided(spec, many)["lengths"] == [{"n": len(str(n))} for n in range(100)]


def test_a_function_of_batches_puts_batches_on_side_outputs() -> None:
    def split(batch: pa.RecordBatch, emit: Any) -> pa.RecordBatch:
        emit("lengths", pa.table({"n": pc.utf8_length(batch.column("line"))}))
        empty = pc.equal(batch.column("line"), "")
        emit("odd", batch.filter(empty))
        return batch.filter(pc.invert(empty))

    assert sided(FlatMapSpec(split, "batch", LINES.schema, side_outputs=SIDES)) == ASIDE


@pytest.mark.parametrize("threads", [1, 3])
def test_a_wrong_row_on_a_side_output_is_told_with_the_row_that_it_was_made_of(threads: int) -> None:
    def wrong(row: dict, emit: Any) -> dict:
        if row["line"] == "c":
            emit("lengths", "many")
        return row

    operator = opened(MapSpec(wrong, "row", threads=threads, side_outputs=SIDES))
    with pytest.raises(UserFault, match="side output 'lengths': column 'n' is bigint") as caught:
        operator.process(LINES)
    assert caught.value.row == 2
    operator.close()


def test_an_unknown_side_output_is_told_with_the_nearest() -> None:
    spec = MapSpec(lambda row, emit: emit("length", 1), "row", side_outputs=SIDES)
    with pytest.raises(
        UserFault, match=r"no side output 'length' \(did you mean 'lengths'\?\); declared are"
    ):
        opened(spec).process(LINES)


# --- user functions on threads ------------------------------------------------------------------------------


NUMBERS = pa.record_batch({"n": pa.array(range(100), pa.int64())})
wait_s = 60


def threaded(spec: OperatorSpec) -> Operator:
    output = spec.output_schema([NUMBERS.schema])
    return spec.open(OperatorContext("r", "op", 0, 1, b"", (NUMBERS.schema,), output))


def run_threaded(spec: OperatorSpec) -> list[int]:
    operator = threaded(spec)
    try:
        return [value for made in operator.process(NUMBERS) for value in made.column("n").to_pylist()]
    finally:
        operator.close()


def test_so_many_threads_are_in_the_function_at_once() -> None:
    meeting = threading.Barrier(4)

    def meet(row: dict) -> dict:
        if row["n"] % 25 == 0:  # one in each quarter of the batch
            meeting.wait(wait_s)
        return row

    assert run_threaded(MapSpec(meet, threads=4)) == list(range(100))
    assert not meeting.broken


def test_results_keep_the_order_of_the_rows_though_the_last_is_done_first() -> None:
    last = threading.Event()

    def backwards(row: dict) -> dict:
        if row["n"] == 0:
            assert last.wait(wait_s)
        if row["n"] == 99:
            last.set()
        return row

    assert run_threaded(MapSpec(backwards, threads=2)) == list(range(100))


def test_each_kind_of_function_gives_the_same_with_threads() -> None:
    assert run_threaded(FilterSpec(lambda row: row["n"] % 3 == 0, threads=3)) == list(range(0, 100, 3))
    twice = FlatMapSpec(lambda row: [row["n"]] * 2, "row", parse_schema("n bigint"), threads=3)
    assert run_threaded(twice) == [n for n in range(100) for _ in range(2)]
    batches = MapSpec(lambda batch: {"n": pc.add(batch.column("n"), 1)}, "batch", threads=5)
    assert run_threaded(batches) == list(range(1, 101))


def test_of_several_faults_the_first_row_is_reported_and_nothing_is_begun_after_it() -> None:
    asked = []

    def bad(row: dict) -> dict:
        asked.append(row["n"])
        return 1 // (row["n"] % 50 != 37) and row

    operator = threaded(MapSpec(bad, threads=2))
    with pytest.raises(UserFault, match="ZeroDivisionError") as caught:
        operator.process(NUMBERS)
    assert caught.value.row == 37
    under_way = len(asked)
    operator.close()
    assert len(asked) == under_way, "a thread continued after the fault was reported"


@pytest.mark.parametrize("threads", [0, 257])
def test_the_number_of_threads_has_its_limits(threads: int) -> None:
    with pytest.raises(SchemaError, match=f"threads must be 1 to 256, not {threads}"):
        MapSpec(lambda row: row, threads=threads)


def test_output_published_by_step_is_made_again_as_it_was_by_threads(tmp_path: Path) -> None:
    """A checkpoint never lies between a row and what became of it, whatever the threads do."""
    rng = random.Random(7)
    lines = ["\n".join(" ".join(rng.choices(["a", "b", "cc"], k=5)) for _ in range(40)) for _ in range(3)]
    paths = write_files(tmp_path, lines)
    graph = Graph("threads")
    words = graph.source("lines", FileSource(paths)).flat_map(
        "words", lambda row: row["line"].split(), schema="word string", threads=3
    )
    words.key_by("by_word", "word").count("counts").sink("shown", LogSink(publish="step"))
    region = OneThreadRegion(graph, 2, rng.randrange)
    # raises OutputDiffersError, which says what was made otherwise
    region.run_with_trouble(rng, rounds=6, turns=60, checkpoints=0.4)
    last: dict[str, int] = {}
    for row in (row for side in region.sides for row in rows_shown(side.shown)):
        last[row["word"]] = row["count"]
    true = {word: sum(text.split().count(word) for text in lines) for word in ("a", "b", "cc")}
    assert last == true
