"""Sinks outside of the store that a graph gives up: what the checkpoint before has of them is shown, what
followed is taken back, and no earlier incarnation completes or aborts anything.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from checkpoint import Restore
from checkpoint.core.records.layout import even_layout, rebalanced
from dataflow import FileSink, Graph, InputSource, LogSink, ParquetSink, S3Sink, blocking
from dataflow.errors import SinkFencedError, SinkOwnedError
from dataflow.operators.base import OperatorContext
from dataflow.sinks.base import SinkSpec, SinkWriter
from dataflow.sinks.sql import SqlSink
from dataflow.worker.circuit import Circuit
from dataflow.worker.layout_change import LayoutChange, RemovedOutput, removed_outputs
from dos_client.blocking import open_store as open_blocking
from tests.checkpoint.manifest_samples import a_checkpoint, worker_checkpoint
from tests.dataflow.s3_sinks import SCHEMA, bucket, rows, service, voted
from tests.dataflow.test_changed_graphs import ROWS, send
from tests.dataflow.test_region_processes import finished, running
from tests.support.s3 import BUCKET
from tests.support.s3_rows import ids_in, uploads

__all__ = ["bucket", "service"]

SINKS = ("audit", "copy", "lines")


def sinks_in(folder: Path) -> dict[str, Any]:
    return {
        "audit": ParquetSink(folder / "audit"),
        "copy": SqlSink(f"sqlite:///{folder}/copy.db", "copied"),
        "lines": FileSink(folder / "lines"),
    }


def graph_of(version: int, folder: Path) -> Graph:
    """Version 2 has another directory under the name of the first sink, no other sink outside of the store,
    and one source less.
    """
    graph = Graph("rows")
    rows = graph.source("rows", InputSource("rows", ROWS))
    if version == 1:
        rows = rows.union("both", graph.source("old", InputSource("old", ROWS)))
    rows.sink("out", LogSink())
    if version == 1:
        for name, sink in sinks_in(folder).items():
            rows.sink(name, sink)
    else:
        rows.sink("audit", ParquetSink(folder / "fresh"))
    return graph


def numbers_in(folder: Path, sink: str) -> list[int]:
    """Return what readers find there."""
    if sink == "copy":
        engine = sa.create_engine(f"sqlite:///{folder}/copy.db")
        with engine.connect() as connection:
            return sorted(connection.scalars(sa.text("select n from copied")))
    if sink == "lines":
        texts = [path.read_text() for path in (folder / "lines").glob("part-*.tsv")]
        return sorted(int(line.split("\t")[1]) for text in texts for line in text.splitlines())
    return sorted(
        one for path in (folder / sink).glob("part-*.parquet") for one in pq.read_table(path)["n"].to_pylist()
    )


DRIVER = """
import os, signal, sys
from pathlib import Path
from checkpoint.coordinator.shell import RegionShell
from dataflow.local import run_local
from tests.dataflow.test_removed_sinks import graph_of

store, name, folder = sys.argv[1:]
perform, committed = RegionShell._perform, []

def perform_or_die(shell, effect):
    if type(getattr(effect, "message", effect)).__name__ == "Committed":
        committed.append(effect)
        if len(committed) > 6:  # two workers, three checkpoints
            os.kill(os.getpid(), signal.SIGKILL)
    perform(shell, effect)

RegionShell._perform = perform_or_die
options = {"workers": 2, "checkpoint_interval": 0.3, "standby": 0}
run_local(graph_of(1, Path(folder)), name=name, store=store, logs=folder, **options).awaitTermination()
"""


# --- each kind of sink, through the circuit ----------------------------------------------------------------

Place = tuple[SinkSpec, Callable[[], list[int]], Callable[[], int]]
"""A sink, the ids that its readers see, and how many transactions of any writer are staged."""


def parquet(folder: Path) -> Place:
    def ids() -> list[int]:
        return [
            one for path in folder.glob("part-*.parquet") for one in pq.read_table(path)["id"].to_pylist()
        ]

    return ParquetSink(folder), ids, lambda: len([*folder.glob("*.staging/*")])


def files(folder: Path) -> Place:
    def ids() -> list[int]:
        texts = [path.read_text() for path in folder.glob("part-*.tsv")]
        return [int(line.split("\t")[0]) for text in texts for line in text.splitlines()]

    return FileSink(folder), ids, lambda: 0


def table(folder: Path, **options: Any) -> Place:
    url = f"sqlite:///{folder}.db"

    def asked(query: str) -> list[int]:
        with sa.create_engine(url).connect() as connection:
            return [*connection.scalars(sa.text(query))]

    staged = "select count(distinct transaction_name) from dos_sink_staged"
    return SqlSink(url, "sold", **options), lambda: asked("select id from sold"), lambda: asked(staged)[0]


def objects_of(folder: Path) -> Place:
    prefix = folder.name
    return S3Sink(f"s3://{BUCKET}/{prefix}"), lambda: ids_in(prefix), lambda: len(uploads(prefix))


KINDS: Final[dict[str, Callable[[Path], Place]]] = {
    "ParquetSink": parquet,
    "FileSink": files,
    "SqlSink": table,
    "S3Sink": objects_of,
}
WITH_KEY: Final = {"SqlSink with a key": lambda folder: table(folder, key="id")}


def writes(sink: SinkSpec, incarnation: int, prepared: Any = None, uid: str = "_1f-audit") -> SinkWriter:
    """Return a writer of worker 3."""
    context = OperatorContext("shop", "audit", 3, 4, bytes(16), (SCHEMA,), None, incarnation, uid=uid)
    writer = sink.open(context)
    writer.reset_to(prepared)
    return writer


def add(writer: SinkWriter, *ids: int) -> None:
    writer.process(rows(*ids))
    writer.end_step()


def completed(sink: SinkSpec, prepared: Any, incarnation: int) -> None:
    """Complete the output as worker 0 of a graph without the sink does."""
    graph = Graph("g")
    graph.source("rows", InputSource("rows", ROWS)).sink("out", LogSink())
    circuit = Circuit(
        graph.plan(), region="shop", worker=0, workers=1, store_id=bytes(16), layout=even_layout(1),
        incarnation=incarnation,
    )  # fmt: skip
    removed = RemovedOutput("audit", "_1f-audit", sink, SCHEMA, {3: {"audit": prepared}})
    circuit.complete_removed(removed, 1)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_checkpoint_has_is_shown_and_the_rest_is_taken_back(tmp_path: Path, kind: str) -> None:
    """Any number of times: the region may die before the next checkpoint."""
    sink, seen, staged = KINDS[kind](tmp_path / f"{kind}-1")
    old = writes(sink, 1)
    add(old, 1, 2)
    checkpoint = voted(old, 1)
    add(old, 3)
    voted(old, 2)  # its checkpoint was not committed
    add(old, 4)
    old.close()
    for incarnation in (2, 3):
        completed(sink, checkpoint, incarnation)
        assert (sorted(seen()), staged()) == ([1, 2], 0)


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("kind", [*KINDS, *WITH_KEY])
def test_an_earlier_incarnation_completes_and_aborts_nothing_of_a_later_one(
    tmp_path: Path, kind: str
) -> None:
    """A driver was superseded while it completed the output: the other program has the sink, and runs."""
    sink, seen, _ = {**KINDS, **WITH_KEY}[kind](tmp_path / f"{kind}-2")
    old = writes(sink, 1)
    add(old, 1, 2)
    checkpoint = voted(old, 1)
    old.close()
    later = writes(sink, 3, checkpoint)
    later.publish(1)
    add(later, 3)
    second = voted(later, 2)
    if kind == "FileSink":  # its lock is held as long as it is open
        later.close()
    else:
        add(later, 4)
    with suppress(SinkFencedError):
        completed(sink, checkpoint, 2)
    if kind == "FileSink":
        later = writes(sink, 3, second)
        add(later, 4)
    later.publish(2)
    voted(later, 3)
    later.publish(3)
    later.close()
    assert sorted(seen()) == [1, 2, 3, 4]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("kind", [*KINDS, *WITH_KEY])
def test_a_start_that_is_never_committed_does_not_keep_the_place_of_a_new_sink(
    tmp_path: Path, kind: str
) -> None:
    """Its workers open the sink and vote. Then the former program continues, so the sink comes again with
    another uid.
    """
    sink, seen, _ = {**KINDS, **WITH_KEY}[kind](tmp_path / f"{kind}-3")
    failed = writes(sink, 5)
    voted(failed, 9)
    failed.close()
    later = writes(sink, 7, uid="_2a-audit")
    add(later, 1)
    voted(later, 10)
    later.publish(10)
    later.close()
    assert seen() == [1]
    with pytest.raises(SinkOwnedError, match="belongs to sink '_2a-audit'"):
        writes(sink, 8)


def test_the_heir_of_a_worker_completes_what_it_had_of_a_removed_sink() -> None:
    graph = Graph("g")
    graph.source("rows", InputSource("rows", ROWS)).sink("out", LogSink())
    plan = graph.plan()
    sink = ParquetSink("/data/audit")
    before = Graph("g")
    both = before.source("rows", InputSource("rows", ROWS))
    both.sink("out", LogSink())
    both.sink("audit", sink)
    last = a_checkpoint(
        operators=before.plan().operators,
        uids={"audit": "_1f-audit"},
        layout=even_layout(3),
        workers={worker: worker_checkpoint(sinks={"_1f-audit": {"of": worker}}) for worker in range(3)},
    )

    def of(worker: int) -> Sequence[RemovedOutput]:
        order = Restore(
            job="g", incarnation=5, epoch=5, checkpoint=4, worker=worker, restore=last, peers=(),
            layout=rebalanced(last.layout, range(2)), begins=True, removed={"audit": "_1f-audit"},
        )  # fmt: skip
        return removed_outputs(order, LayoutChange.of(order, plan), {"audit": sink})

    ((first,), (second,)) = of(0), of(1)
    assert (first.spec, first.uid, first.columns.names) == (sink, "_1f-audit", ["key", "n"])
    completes = {**first.completes, **second.completes}
    assert completes == {worker: {"audit": {"of": worker}} for worker in range(3)}
    assert not first.completes.keys() & second.completes.keys()


# --- a region ----------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_sinks_are_removed_whose_rows_are_prepared_and_not_shown(shared_store: str, tmp_path: Path) -> None:
    """The driver dies when a checkpoint is committed and nobody knows. One of the workers leaves."""
    name = tmp_path.name
    with open_blocking(shared_store) as client, ExitStack() as drivers:
        command = [sys.executable, "-c", DRIVER, shared_store, name, str(tmp_path)]
        process = drivers.enter_context(subprocess.Popen(command))
        drivers.callback(process.kill)
        sent = 0
        while process.poll() is None:
            send(client, name, range(sent, sent + 5))
            sent += 5
        assert process.returncode == -signal.SIGKILL
        prepared = {sink: numbers_in(tmp_path, sink) for sink in SINKS}
        removed = {**sinks_in(tmp_path), "old": None}
        with running(graph_of(2, tmp_path), shared_store, tmp_path, workers=1, removed=removed) as (
            control,
            _,
        ):
            send(client, name, range(sent, sent + 5))
            blocking.close_input(client, name, "rows")
            assert finished(control), control.status
        shown = {sink: numbers_in(tmp_path, sink) for sink in SINKS}
        assert shown["audit"] == shown["copy"] == shown["lines"]
        assert len(prepared["audit"]) < len(shown["audit"]), "some rows were prepared"
        assert sorted(shown["audit"] + numbers_in(tmp_path, "fresh")) == list(range(sent + 5))
        assert not [*tmp_path.glob("audit/*.staging/*")]
        with sa.create_engine(f"sqlite:///{tmp_path}/copy.db").connect() as connection:
            assert connection.scalar(sa.text("select count(*) from dos_sink_staged")) == 0
