"""Every sink refuses a place where another run has written, before any worker starts."""

import re
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpoint.core.region import RegionState
from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    JournaledFileSink,
    LogSink,
    ParquetSink,
    S3Sink,
    TwoPhaseSink,
    sinks,
)
from dataflow.errors import SinkOwnedError
from dataflow.handle import RegionHandle
from dataflow.local import run_local
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import OutputOwner, SinkSpec, SinkWriter
from dataflow.sinks.sql import SqlSink
from dataflow.testing.sink_check import SinkCheckError, check_refuses_other_run
from tests.dataflow.s3_sinks import voted
from tests.dataflow.test_parquet_sink import SCHEMA, ids_in, opened, rows
from tests.dataflow.test_sql_sink import opened as opened_table
from tests.dataflow.test_sql_sink import rows_in, told

Made = tuple[SinkSpec, Callable[[], Iterable[int]]]
_numbers = count(1)
OTHER = OutputOwner("other", "00" * 16, "out")


def files(place: Path) -> Made:
    return FileSink(place), lambda: [
        int(line.split("\t")[0])
        for path in place.glob("part-*.tsv")
        for line in path.read_text().splitlines()
    ]


def parquet(place: Path) -> Made:
    return ParquetSink(place), lambda: ids_in(place)


def table(place: Path, key: str = "") -> Made:
    place.mkdir(exist_ok=True)
    url = f"sqlite:///{place / 'rows.db'}"
    name = f"t{next(_numbers)}"
    return SqlSink(url, name, key=key or ()), lambda: [row[0] for row in rows_in(url, name)]


def keyed_table(place: Path) -> Made:
    return table(place, "id")


REFUSE: dict[type[SinkSpec], list[Callable[[Path], Made]]] = {
    FileSink: [files],
    ParquetSink: [parquet],
    SqlSink: [table, keyed_table],
}
HAVE_NO_PLACE = {
    JournaledFileSink: "its files are in the store, in the directories of the region's own workers",
    S3Sink: "it has a place, in a bucket: test_s3_sink.py makes one and checks it",
    LogSink: "its log is in the store, under the region's own name: another run of that name resumes it",
    CallSink: "it calls a function, and what that does is the user's",
    TwoPhaseSink: "the base of sinks of one's own; its example is in docs/sources-and-sinks.md",
}


# EVIDENCE-OF: P-7
@pytest.mark.parametrize("made", [one for several in REFUSE.values() for one in several])
def test_a_place_that_another_run_wrote_is_refused_and_the_run_itself_continues(
    made: Callable[[Path], Made], tmp_path: Path
) -> None:
    check_refuses_other_run(lambda _: made(tmp_path / "place"))


def test_every_sink_is_in_one_of_the_two_tables() -> None:
    def below(kind: type[SinkSpec]) -> set[type[SinkSpec]]:
        return {kind, *(found for one in kind.__subclasses__() for found in below(one))}

    ours = [kind for kind in below(SinkSpec) - {SinkSpec} if kind.__module__.startswith(sinks.__name__)]
    assert {kind.__name__ for kind in ours} == {kind.__name__ for kind in (*REFUSE, *HAVE_NO_PLACE)}


@pytest.mark.process
@pytest.mark.parametrize("made", [files, parquet, table])
def test_a_region_whose_sink_would_add_to_other_rows_fails_before_any_worker_starts(
    made: Callable[[Path], Made], shared_store: str, tmp_path: Path
) -> None:
    sink, visible = made(tmp_path / "place")
    check_refuses_other_run(lambda _: (sink, visible))
    before = sorted(visible())
    (tmp_path / "rows.txt").write_text("8\n9\n")
    graph = Graph("again")
    lines = graph.source("lines", FileSource(tmp_path / "rows.txt"))
    ids = lines.map("ids", lambda row: (int(row["line"]), "again"), schema="id bigint, text string")
    ids.sink("out", sink)
    logs = tmp_path / "logs"
    control = run_local(graph, name=f"{tmp_path.name}-again", store=shared_store, logs=logs, standby=0)
    assert control.wait(60)
    assert isinstance(control, RegionHandle)
    assert isinstance(control.exception(), SinkOwnedError)
    assert control.status.state is RegionState.FAILED
    assert not logs.exists(), "no worker was started"
    assert sorted(visible()) == before


def test_the_kit_finds_a_sink_that_adds_to_the_rows_of_another_run(tmp_path: Path) -> None:
    def fresh(_: str) -> Made:
        return ParquetSink(tmp_path, shared=True), lambda: ids_in(tmp_path)

    with pytest.raises(SinkCheckError, match="check_place of another run raised no SinkOwnedError"):
        check_refuses_other_run(fresh)


def test_a_sink_that_shares_its_place_is_told_to(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [7]}), tmp_path / "of_a_program.parquet")
    with pytest.raises(SinkOwnedError, match=r"has of_a_program\.parquet but no _region\.json.*shared=True"):
        ParquetSink(tmp_path).check_place(OTHER)
    ParquetSink(tmp_path, shared=True).check_place(OTHER)
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    told(url, "CREATE TABLE sold (id integer)")
    SqlSink(url, "sold").check_place(OTHER)
    told(url, "INSERT INTO sold VALUES (7)")
    with pytest.raises(SinkOwnedError, match="table 'sold' holds rows, but no sink is recorded"):
        SqlSink(url, "sold").check_place(OTHER)
    SqlSink(url, "sold", shared=True).check_place(OTHER)


def test_files_and_tables_that_an_earlier_version_wrote_are_still_their_regions(tmp_path: Path) -> None:
    """It left no mark: the digest of the owner in the names is what tells."""
    writer = opened(tmp_path)
    writer.reset_to(None)
    writer.process(rows(1))
    writer.prepare(1)
    writer.sync()
    writer.publish(1)
    writer.close()
    (tmp_path / "_region.json").unlink()
    ParquetSink(tmp_path).check_place(OutputOwner("r", bytes(16).hex(), "out"))
    with pytest.raises(SinkOwnedError, match=r"has part-\w+.* but no _region\.json"):
        ParquetSink(tmp_path).check_place(OTHER)
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    sink = SqlSink(url, "seen", key="id")
    mine = OutputOwner("seen", bytes(16).hex(), "out")
    told(url, "CREATE TABLE seen (id bigint primary key)")
    told(url, "INSERT INTO seen VALUES (1)")
    told(url, "CREATE TABLE dos_sink_writers (writer varchar(64) primary key, incarnation bigint)")
    told(url, f"INSERT INTO dos_sink_writers VALUES ('{mine.digest:016x}-w0000', 1)")
    sink.check_place(mine)
    with pytest.raises(SinkOwnedError):
        sink.check_place(OTHER)


def with_a_row(sink: SqlSink, writer: SinkWriter | None = None) -> None:
    """A worker stages its first row, with which it marks the table."""
    writer = writer or opened_table(sink)
    writer.process(rows(1))
    writer.end_step()
    voted(writer, 1)
    writer.close()


def test_two_regions_that_begin_at_once_cannot_both_have_a_table(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    sink = SqlSink(url, "sold")
    sink.check_place(OTHER)
    sink.check_place(OutputOwner("mine", "00" * 16, "out"))
    context = OperatorContext("late", "out", 0, 1, bytes(16), (SCHEMA,), None, 1)
    late = sink.open(context)
    late.reset_to(None)
    with_a_row(sink)
    with pytest.raises(SinkOwnedError, match="table 'sold' belongs to"):
        sink.check_place(OTHER)
    with pytest.raises(SinkOwnedError, match="table 'sold' belongs to"):
        with_a_row(sink, late)
    late.close()


def test_who_owns_a_table_is_said_in_a_sentence_and_what_it_says_to_do_helps(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    sink = SqlSink(url, "sold")
    with_a_row(sink)
    with pytest.raises(SinkOwnedError) as refused:
        sink.check_place(OutputOwner("sold", "00" * 16, "totals"))
    assert re.fullmatch(
        r"table 'sold' belongs to sink 'out' of region 'sold' since 20\d\d-\d\d-\d\d \S+,"
        r" not to sink 'totals' of region 'sold'",
        refused.value.args[0],
    )
    with pytest.raises(SinkOwnedError, match=f"of store {'00' * 16} since .* of region 'mine' of store ab"):
        sink.check_place(OutputOwner("mine", "ab", "out"))
    told(url, refused.value.remedy.partition("table, and ")[2])
    sink.check_place(OTHER)
