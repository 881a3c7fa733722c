"""How often sinks show a row under each delivery: counted, with crashes."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpoint import Recovery
from checkpoint.core.region import ResetReport
from dataflow import (
    CallSink,
    FileSink,
    FileSource,
    Graph,
    GraphError,
    IteratorSource,
    LogSink,
    ParquetSink,
    autonomous,
    consistent,
)
from dataflow.core.regions import DELIVERIES, Delivery
from dataflow.limits import WorkerLimits
from dataflow.sinks.base import SinkSpec
from dataflow.sinks.sql import SqlSink
from tests.dataflow.region_in_one_thread import OneThreadRegion
from tests.dataflow.support import rows_of
from tests.dataflow.test_region_processes import finished, kill, running

ROWS = 40


def numbers(split: str, position: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for n in range(position, ROWS):
        yield n + 1, {"id": f"{split}{n}"}


def graph_to(sink: SinkSpec, delivery: Delivery | None) -> Graph:
    """Two workers, an exchange, a sink."""
    graph = Graph("delivered")
    rows = graph.source("rows", IteratorSource(numbers, "id string", splits=("a", "b"), poll_s=1e-9))
    rows.annotate(consistent(delivery=delivery))
    rows.key_by("by", "id").count("counts").sink("out", sink)
    return graph


def run(sink: SinkSpec, delivery: Delivery | None, seed: int, *, resets: bool = True) -> OneThreadRegion:
    """To the end, with all workers thrown back again and again."""
    rng = random.Random(seed)
    region = OneThreadRegion(graph_to(sink, delivery), 2, rng.randrange)
    region.restore()
    for _ in range(8):
        for _ in range(rng.randrange(50)):
            region.turn()
        if rng.random() < 0.4:
            region.request_checkpoint()
        elif resets:
            region.restore()
    region.finish()
    return region


ALL = {f"{split}{n}" for split in "ab" for n in range(ROWS)}


def judged(shown: list[Counter[str]], delivery: Delivery) -> None:
    """Whether it was what was promised, and no more than that."""
    times = {count for counts in shown for count in (*counts.values(), *([0] if ALL - set(counts) else []))}
    assert set().union(*shown) <= ALL
    if delivery == "exactly-once":
        assert times == {1}
    elif delivery == "at-least-once":
        assert min(times) == 1
        assert max(times) > 1, "no row came twice: nothing was tried"
    else:
        assert times == {0, 1}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_rows_of_files_exist_as_often_as_was_promised(delivery: Delivery, tmp_path: Path) -> None:
    shown = []
    for seed in range(4):
        run(FileSink(tmp_path / str(seed)), delivery, seed)
        shown.append(Counter(str(row[0]) for _, row in rows_of(tmp_path / str(seed))))
    judged(shown, delivery)


@pytest.mark.parametrize("delivery", ["at-most-once", "at-least-once"])
def test_a_function_is_called_as_often_as_was_promised(delivery: Delivery) -> None:
    shown = []
    for seed in range(4):
        called: list[str] = []
        run(CallSink(lambda row, called=called: called.append(row["id"])), delivery, seed)
        shown.append(Counter(called))
    judged(shown, delivery)


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_what_waits_for_its_checkpoint_is_visible_once_or_not_at_all(
    delivery: Delivery, tmp_path: Path
) -> None:
    shown = []
    for seed in range(4):
        run(ParquetSink(tmp_path / str(seed)), delivery, seed)
        files = (tmp_path / str(seed)).glob("part-*.parquet")
        shown.append(Counter(row for file in files for row in pq.read_table(file)["id"].to_pylist()))
    judged(shown, "at-most-once" if delivery == "at-most-once" else "exactly-once")


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_without_a_failure_every_row_exists_once(delivery: Delivery, tmp_path: Path) -> None:
    run(FileSink(tmp_path), delivery, 1, resets=False)
    assert Counter(row[0] for _, row in rows_of(tmp_path)) == Counter(ALL)


def test_at_most_once_nothing_is_visible_before_it_is_durable_that_it_was_read() -> None:
    called: list[str] = []
    region = OneThreadRegion(graph_to(CallSink(called.append), "at-most-once"), 2, lambda _: 0)
    region.restore()
    for side in region.sides:
        while side.run is not None and side.run.advance():
            pass
    assert called == []
    while region.turn() and not called:
        pass
    assert called
    assert all(1 in side.divisions for side in region.sides)
    region.close()


def test_a_half_row_that_a_dying_worker_wrote_is_taken_away(tmp_path: Path) -> None:
    region = OneThreadRegion(graph_to(FileSink(tmp_path), "at-least-once"), 1, lambda _: 0)
    region.restore()
    region.request_checkpoint(all_workers=True)
    while region.checkpoint is None:
        region.turn()
    part = tmp_path / "part-w0000.tsv"
    before = part.read_text()
    with part.open("a") as file:
        file.write("a whole row\t1\nhalf a r")
    region.restore()
    region.close()
    assert part.read_text() == before + "a whole row\t1\n"


def held_back(go: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first 2,000 numbers pass; the others when it is said."""
    while int(batch["line"][-1].as_py()) >= 2_000 and not go.exists():
        time.sleep(0.01)
    return batch


@pytest.mark.process
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(
    ("recovery", "delivery"),
    [("global", "at-most-once"), ("global", "at-least-once"), *(("local", one) for one in DELIVERIES)],
)
def test_killed_workers_show_rows_as_often_as_was_promised(
    recovery: Recovery, delivery: Delivery, shared_store: str, tmp_path: Path
) -> None:
    """Exactly once with global recovery is counted in test_region_processes.py."""
    path, count = tmp_path / "in", 5_000
    path.write_text("".join(f"{n}\n" for n in range(count)))
    graph = Graph("delivered")
    lines = graph.source("lines", FileSource(path, repeat=2)).annotate(consistent(delivery=delivery))
    held = lines.map("held", partial(held_back, tmp_path / "go"), takes="batch")
    held.key_by("by", "line").sink("out", FileSink(tmp_path / "out"))
    small = WorkerLimits(step_bytes_max=2048, batch_bytes_max=2048)
    options: dict[str, Any] = {"checkpoint_interval": 600.0, "worker_limits": small, "recovery": recovery}
    with running(graph, shared_store, tmp_path, **options) as (control, watch):
        lost_part = tmp_path / "out" / "part-w0000.tsv"  # what it shows is what comes again
        while not lost_part.exists() or not lost_part.stat().st_size:
            assert not control.wait(0.01), control.status
        kill(control, 0, wipe=True)
        (tmp_path / "go").touch()
        assert finished(control), control.status
        lost = [event for event in watch.events if isinstance(event, ResetReport) and event.worker == 0]
        assert (lost[0].term > lost[0].incarnation) == (recovery == "local")
    shown = Counter(int(row[0] or 0) for _, row in rows_of(tmp_path / "out"))
    assert set(shown) <= set(range(count))
    if delivery == "at-most-once":
        assert max(shown.values()) <= 2, "the file is read twice"
        assert shown.total() > count, "most are there"
    elif delivery == "at-least-once":
        assert set(shown) == set(range(count))
        assert min(shown.values()) >= 2
        assert max(shown.values()) > 2, "what was shown before comes again"
    else:
        assert shown == dict.fromkeys(range(count), 2)


@pytest.mark.parametrize(
    ("sink", "delivery", "said"),
    [
        (CallSink(print), "exactly-once", "a CallSink calls a function immediately"),
        (
            SqlSink("sqlite:///x", "t", key="id"),
            "exactly-once",
            "a SqlSink with key= makes rows visible immediately",
        ),
        (FileSink("x", truncate_on_reset=False), "exactly-once", "leaves rows in its files"),
        (
            LogSink(publish="step"),
            "at-most-once",
            'publish="step" compares .* use LogSink\\(publish="checkpoint"\\)',
        ),
    ],
)
def test_a_sink_that_cannot_deliver_so_is_refused_with_a_remedy(
    sink: SinkSpec, delivery: Delivery, said: str
) -> None:
    with pytest.raises(GraphError, match=f"sink 'out' is in a region with delivery='{delivery}'.*{said}"):
        graph_to(sink, delivery).plan()
    graph_to(sink, "at-least-once").plan()
    graph_to(sink, None).plan()


def test_a_delivery_is_one_of_three_and_the_same_for_a_region(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"delivery is 'at-most-once' or .*, got 'twice'"):
        consistent(delivery="twice")  # type: ignore[arg-type]
    graph = graph_to(FileSink(tmp_path), "at-least-once")
    graph.annotate("by", consistent())
    with pytest.raises(GraphError, match="differ in delivery 'at-least-once' and None; give both the same"):
        graph.plan()


def test_explain_says_how_often_each_sink_shows_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for delivery in (None, *DELIVERIES[:2]):
        graph = graph_to(FileSink(tmp_path), delivery)
        counts = graph.stream("counts")
        counts.sink("log", LogSink())
        counts.sink("called", CallSink(print))
        counts.map("apart", dict).annotate(autonomous).sink("seen", CallSink(print))
        graph.explain()
        lines = capsys.readouterr().out.splitlines()
        found = [line.rpartition(", ")[2] for line in lines if " sink from " in line]
        best, called = delivery or "exactly-once", delivery or "at-least-once"
        waits = "at-most-once" if delivery == "at-most-once" else "exactly-once"
        assert found == [best, waits, called, "at-most-once"]
        assert lines[2].endswith(f", delivery {delivery}" if delivery else "resets in a row")
