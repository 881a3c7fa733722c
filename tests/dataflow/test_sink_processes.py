"""Sinks that show rows at the commit, in a region of real processes that are killed or stopped."""

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from checkpoint.core.region import RegionState
from dataflow import FileSource, Graph, ParquetSink
from dataflow.sinks.sql import SqlSink, make_tables, writers
from tests.dataflow.support import true_counts
from tests.dataflow.test_region_processes import (
    WAIT_S,
    finished,
    hurry,
    kill_both_in_turn,
    running,
    unhurried,
)
from tests.support.polling import until
from tests.support.postgres import postgres_server

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


# EVIDENCE-OF: P-7
def test_killed_workers_leave_no_trace_in_files_and_tables(shared_store: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"in{index}.txt" for index in range(3)]
    for path in paths:
        text = "".join(f"word{number % 700} and{number % 7} {path.stem}\n" for number in range(4_000))
        path.write_text(text)
    url = f"sqlite:///{tmp_path / 'rows.db'}"
    graph = Graph("counted")
    lines = graph.source("lines", FileSource(paths, repeat=4))
    slow = partial(unhurried, tmp_path / "out.hurry")
    words = lines.flat_map("words", slow, schema="word string", takes="batch")
    counts = words.key_by("by_word", "word").count("counts")
    counts.sink("files", ParquetSink(tmp_path / "files"))
    counts.sink("rows", SqlSink(url, "seen"))
    counts.sink("totals", SqlSink(url, "totals", key="word"))
    with running(graph, shared_store, tmp_path) as (control, watch):
        kill_both_in_turn(control, watch)
        hurry(tmp_path / "out")
        assert finished(control), control.status
    truth = dict(true_counts(paths, 4))
    files = sorted((tmp_path / "files").glob("part-*.parquet"))
    in_files = [
        (row["word"], row["count"]) for path in files for row in pq.ParquetFile(path).read().to_pylist()
    ]
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        in_table = [tuple(row) for row in connection.execute(sa.text("SELECT word, count FROM seen"))]
        totals = dict(tuple(row) for row in connection.execute(sa.text("SELECT word, count FROM totals")))
    engine.dispose()
    assert len(set(in_files)) == len(in_files), "no count of a word comes twice"
    assert sorted(in_files) == sorted(in_table), "both hold the same rows"
    assert dict(sorted(in_files)) == truth
    assert totals == truth
    assert not [*(tmp_path / "files").glob("_*.staging/*")], "nothing waits at the end"


def test_when_stop_has_returned_a_table_has_all_rows_of_the_last_checkpoint(
    shared_store: str, tmp_path: Path
) -> None:
    """The database takes its time to show rows, so that the order to stop arrives before they are visible."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "lines.txt").write_text("one\n" * 100)
    with postgres_server() as server:
        engine = sa.create_engine(server.url, poolclass=sa.NullPool)
        make_tables(engine, writers)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION pause() RETURNS trigger AS"
                " 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END' LANGUAGE plpgsql;"
                " CREATE TRIGGER pause BEFORE UPDATE OF shown_number ON dos_sink_writers"
                " FOR EACH ROW EXECUTE FUNCTION pause()"
            )
        graph = Graph("stopped")
        lines = graph.source("lines", FileSource(tmp_path / "input", watch=True))
        lines.sink("table", SqlSink(server.url, "stopped"))
        with running(graph, shared_store, tmp_path, checkpoint_interval=600.0) as (control, _):
            until(lambda: sum(one.rows_in for one in control.status.workers) == 100, "all is read", WAIT_S)
            control.stop()
            assert control.status.state is RegionState.STOPPED
            with engine.connect() as connection:
                assert connection.scalar(sa.text("SELECT count(*) FROM stopped")) == 100
