"""User functions on threads: at once, in order, and nothing under way when `process` returns."""

import random
import threading
from pathlib import Path

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

NUMBERS = pa.record_batch({"n": pa.array(range(100), pa.int64())})
wait_s = 60


def opened(spec: OperatorSpec) -> Operator:
    output = spec.output_schema([NUMBERS.schema])
    return spec.open(OperatorContext("r", "op", 0, 1, b"", (NUMBERS.schema,), output))


def run(spec: OperatorSpec) -> list[int]:
    operator = opened(spec)
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

    assert run(MapSpec(meet, threads=4)) == list(range(100))
    assert not meeting.broken


def test_results_keep_the_order_of_the_rows_though_the_last_is_done_first() -> None:
    last = threading.Event()

    def backwards(row: dict) -> dict:
        if row["n"] == 0:
            assert last.wait(wait_s)
        if row["n"] == 99:
            last.set()
        return row

    assert run(MapSpec(backwards, threads=2)) == list(range(100))


def test_each_kind_of_function_gives_the_same_with_threads() -> None:
    assert run(FilterSpec(lambda row: row["n"] % 3 == 0, threads=3)) == list(range(0, 100, 3))
    twice = FlatMapSpec(lambda row: [row["n"]] * 2, "row", parse_schema("n bigint"), threads=3)
    assert run(twice) == [n for n in range(100) for _ in range(2)]
    batches = MapSpec(lambda batch: {"n": pc.add(batch.column("n"), 1)}, "batch", threads=5)
    assert run(batches) == list(range(1, 101))


def test_of_several_faults_the_first_row_is_reported_and_nothing_is_begun_after_it() -> None:
    asked = []

    def bad(row: dict) -> dict:
        asked.append(row["n"])
        return 1 // (row["n"] % 50 != 37) and row

    operator = opened(MapSpec(bad, threads=2))
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
