"""A graph for every kind of operator, source and sink of the package, and a worker in one thread to run it.

In each graph the operator `made` is of that kind. A new kind must be added to `GRAPHS`.
"""

import importlib
import inspect
import mmap
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import trio

import dataflow
from checkpoint import Failed
from checkpoint.core.records.layout import even_layout
from dataflow import (
    CallSink,
    Count,
    CountWindow,
    FileSink,
    FileSource,
    Graph,
    InputSource,
    IteratorSource,
    JournaledFileSink,
    LogSink,
    LogSource,
    MergedLogSource,
    ParquetSink,
    RateSource,
    S3Sink,
    Stream,
    Tumbling,
    TwoPhaseOutput,
    TwoPhaseSink,
    UserOperator,
)
from dataflow.limits import WorkerLimits
from dataflow.operators.base import OperatorSpec
from dataflow.sinks.sql import SqlSink
from dataflow.sources.prefetched import PrefetchBuffer, PrefetchedSource
from dataflow.state.operator_directory import Handover
from dataflow.worker import journals
from dataflow.worker.circuit_thread import (
    CircuitCall,
    CircuitIncarnation,
    CircuitLoop,
    Inbox,
    RestoreCircuit,
    ToCircuit,
)
from dataflow.worker.companion import RunningOperator
from dataflow.worker.failures import failure_of, first_error
from dataflow.worker.messages import CheckpointTaken, CircuitFailed, Shared
from dataflow.worker.spec import Identity
from tests.support.s3 import BUCKET

ROWS = [
    {"t": datetime(2026, 1, 1, 0, minute, tzinfo=UTC), "k": "ab"[minute % 2], "x": minute}
    for minute in range(9)
]


# --- one graph for each kind -----------------------------------------------------------------------


def rows_from(split: str, at: int) -> Iterator[tuple[int, dict[str, Any]]]:
    del split
    return ((number + 1, ROWS[number]) for number in range(at, len(ROWS)))


def _of_rows(graph: Graph, name: str = "rows") -> Stream:
    return graph.source(name, IteratorSource(rows_from, "t timestamp, k string, x bigint"))


def _keyed(made: Callable[..., Stream]) -> Callable[[Graph, Path], Stream]:
    def graph(graph: Graph, folder: Path) -> Stream:
        del folder
        timed = _of_rows(graph).event_time("timed", "t", lateness=timedelta(0))
        return made(timed.key_by("by", "k"))

    return graph


def _plain(made: Callable[[Stream], Stream]) -> Callable[[Graph, Path], Stream]:
    return lambda graph, folder: made(_of_rows(graph))


def _source(spec: Callable[[Path], Any]) -> Callable[[Graph, Path], Stream]:
    return lambda graph, folder: graph.source("made", spec(folder))


def _sink(spec: Callable[[Path], Any]) -> Callable[[Graph, Path], Stream]:
    def graph(graph: Graph, folder: Path) -> Stream:
        stream = _of_rows(graph)
        stream.sink("made", spec(folder))
        return stream

    return graph


class Kept(UserOperator):
    """Has a state and one input."""

    schema = "x bigint"
    state = "x bigint"

    def process(self, batch: pa.RecordBatch) -> list[int]:
        return batch.column("x").to_pylist()

    def checkpoint(self) -> list[int]:
        return [1]

    def reset(self, state: pa.RecordBatch) -> None:
        del state


class Processor:
    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timer_values: Any) -> list[Any]:
        return [(key[0], len(list(rows)))]


class Nowhere(TwoPhaseOutput):
    def stage(self, transaction: str, batch: pa.RecordBatch) -> None:
        del transaction, batch

    def prepare(self, transaction: str) -> None:
        del transaction

    def commit(self, transaction: str) -> None:
        del transaction

    def staged(self) -> list[str]:
        return []

    def abort(self, transaction: str) -> None:
        del transaction


class NowhereSink(TwoPhaseSink):
    def open_output(self, context: Any) -> Nowhere:
        del context
        return Nowhere()


def _side(graph: Graph, folder: Path) -> Stream:
    del folder
    timed = _of_rows(graph).event_time("timed", "t", lateness=timedelta(0))
    made = timed.sort("made", "t")
    made.side_output("late", "late").sink("late_out", CallSink(print))
    return made


def _broadcast(graph: Graph, folder: Path) -> Stream:
    del folder
    table = graph.broadcast_table("made", _of_rows(graph, "others"), "k")
    return _of_rows(graph).map("map", lambda row, table: row["x"], schema="x bigint", broadcast=table)


WINDOW = Tumbling("t", timedelta(minutes=2))
GRAPHS: Mapping[str, Callable[[Graph, Path], Stream]] = {
    "MapSpec": _plain(lambda rows: rows.map("made", lambda row: row["x"], schema="x bigint")),
    "FlatMapSpec": _plain(lambda rows: rows.flat_map("made", lambda row: [row["x"]], schema="x bigint")),
    "FilterSpec": _plain(lambda rows: rows.filter("made", lambda row: True)),
    "UnionSpec": lambda graph, _: _of_rows(graph).union("made", _of_rows(graph, "others")),
    "KeyBySpec": _plain(lambda rows: rows.key_by("made", "k").dedup("one")),
    "EventTimeSpec": _plain(lambda rows: rows.event_time("made", "t", lateness=timedelta(0))),
    "ApplySpec": _plain(lambda rows: rows.apply("made", Kept())),
    "TimedApplySpec": _plain(
        lambda rows: rows.event_time("timed", "t", lateness=timedelta(0)).apply("made", Kept())
    ),
    "SortSpec": _side,
    "SideOutputSpec": _side,
    "DedupSpec": _keyed(lambda keyed: keyed.dedup("made")),
    "WindowDedupSpec": _keyed(lambda keyed: keyed.dedup("made", WINDOW)),
    "CountSpec": _plain(lambda rows: rows.key_by("by", "k").count("made")),
    "AggregateSpec": _keyed(lambda keyed: keyed.aggregate("made", n=Count())),
    "WindowSpec": _keyed(lambda keyed: keyed.aggregate("made", WINDOW, n=Count())),
    "CountWindowSpec": _keyed(lambda keyed: keyed.aggregate("made", CountWindow("t", 2), n=Count())),
    "TopKSpec": _keyed(lambda keyed: keyed.top_k("made", WINDOW, 1, by="x")),
    "JoinSpec": lambda graph, _: (
        _of_rows(graph)
        .event_time("timed", "t", lateness=timedelta(0))
        .key_by("by", "k")
        .join(
            "made",
            _of_rows(graph, "others").event_time("timed2", "t", lateness=timedelta(0)).key_by("by2", "k"),
            times=("t", "t"),
            within=timedelta(minutes=1),
            suffix="_r",
        )
    ),
    "MapStateSpec": _keyed(
        lambda keyed: keyed.map_state(
            "made", lambda row, state: [row["x"]], state="n bigint", schema="x bigint", time="t"
        )
    ),
    "GroupStateSpec": _keyed(
        lambda keyed: keyed.apply_in_pandas_with_state(
            "made", lambda key, frames, state: [], "x bigint", "n bigint", "append", time="t"
        )
    ),
    "ProcessorSpec": _keyed(
        lambda keyed: keyed.transform_with_state(
            "made", Processor(), "k string, n bigint", "append", "none", time="t"
        )
    ),
    "BroadcastStateSpec": _broadcast,
    "FileSource": _source(lambda folder: FileSource([folder / "in.txt"])),
    "FileSource(watch=True)": _source(lambda folder: FileSource(folder / "inputs", watch=True)),
    "IteratorSource": _source(lambda _: IteratorSource(rows_from, "t timestamp, k string, x bigint")),
    "RateSource": _source(lambda _: RateSource(1e4)),
    "InputSource": _source(lambda _: InputSource("given", "x bigint")),
    "MergedLogSource": _source(
        lambda _: MergedLogSource("shown", "at timestamp", region="another", sites={"here": "dos://h1:1"})
    ),
    "LogSource": _source(lambda _: LogSource("shown", "x bigint", region="another")),
    "CallSink": _sink(lambda _: CallSink(lambda row: None)),
    "FileSink": _sink(lambda folder: FileSink(folder / "out")),
    "JournaledFileSink": _sink(lambda _: JournaledFileSink()),
    "LogSink": _sink(lambda _: LogSink()),
    "ParquetSink": _sink(lambda folder: ParquetSink(folder / "parquet")),
    "SqlSink": _sink(lambda folder: SqlSink(f"sqlite:///{folder}/db", "rows")),
    "NowhereSink": _sink(lambda _: NowhereSink()),
    "S3Sink": _sink(lambda folder: S3Sink(f"s3://{BUCKET}/{folder.parent.name}/{folder.name}")),
}

NOT_HERE = {
    "BatchSource": "a coordinator feeds it: `driven_region.py`, and `driven.py` of the shells",
    "BroadcastSpec": "the circuit runs it, not an operator",
    "SideOutputSpec": "the operator above it has its rows",
}


def kinds() -> Iterator[type[OperatorSpec]]:
    """Yield every kind of operator, source and sink of the package."""
    for folder in (dataflow.operators, dataflow.sources, dataflow.sinks):
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            for found in vars(importlib.import_module(module.name)).values():
                is_kind = inspect.isclass(found) and issubclass(found, OperatorSpec)
                if is_kind and found.__module__ == module.name and not inspect.isabstract(found):
                    yield found


# --- one worker in one thread ------------------------------------------------------------------------


class OneWorker:
    """A circuit that gets the orders of a whole life: restore, run, a checkpoint, its commit. `page`: the
    memory that its companion would read.
    """

    def __init__(self, graph: Graph, folder: Path) -> None:
        self.plan = graph.plan()
        self.posted: list[Any] = []
        self.page = mmap.mmap(-1, mmap.PAGESIZE)
        self._running = RunningOperator(self.page)
        self._folder = folder
        self.loop = CircuitLoop(
            self.plan,
            Identity("region", 0, str(folder)),
            worker_limits=WorkerLimits(),
            inbox=Inbox(),
            shared=Shared(incarnation=1, running=self._running),
            post=self.posted.append,
        )

    def live(self, checkpoint: int = 0) -> list[Failed]:
        """Run until everything is done or something failed. Return the failures that were reported.
        checkpoint: the one before which this worker did not exist.
        """
        specs = self.plan.specs.items()
        feeds = {name: PrefetchBuffer() for name, spec in specs if isinstance(spec, PrefetchedSource)}
        for feed in feeds.values():
            feed.known(())
        files = {}
        for name, spec in specs:
            if spec.keeps_files:
                (self._folder / name).mkdir(exist_ok=True)
                files[name] = Handover(self._folder / name, 1 << 30)
        self._turn(RestoreCircuit(1, 0, checkpoint, None, even_layout(1), b"s" * 16, feeds))
        self._call(CircuitIncarnation.loaded, files)
        self._call(CircuitIncarnation.start, ())
        self._turn(None, times=4)
        self._call(CircuitIncarnation.request_checkpoint, 1, final=False)
        self._turn(None, times=6)
        for taken in [one for one in self.posted if isinstance(one, CheckpointTaken)]:
            trio.run(self._make_durable, taken)
        self._call(CircuitIncarnation.publish, 1, final=False, step=1)
        self.loop.drop()
        return [one.report for one in self.posted if isinstance(one, CircuitFailed)]

    async def _make_durable(self, taken: CheckpointTaken) -> None:
        """Call the sinks as the link thread does."""
        try:
            async with trio.open_nursery() as nursery:
                for name, writer in taken.writers.items():
                    nursery.start_soon(journals.synced, name, writer, self._running)
            taken.voted(self._running)
        except Exception as error:
            self.posted.append(CircuitFailed(1, failure_of(first_error(error))))

    def _call(self, method: Callable[..., None], *arguments: Any, **named: Any) -> None:
        self._turn(CircuitCall(1, method, arguments, named))

    def _turn(self, message: ToCircuit | None, times: int = 1) -> None:
        for _ in range(times):
            if not any(isinstance(one, CircuitFailed) for one in self.posted):
                self.loop.turn(message)
            assert self.named() == ("", ""), "while a worker waits, its companion names nobody"

    def named(self) -> tuple[str, str]:
        """What the companion reports: the operator, and the sinks that make a checkpoint durable."""
        return RunningOperator.read(self.page)[0], RunningOperator.read_sinks(self.page)


def made_folder(folder: Path) -> Path:
    """Make what the sources read."""
    (folder / "inputs").mkdir(parents=True)
    for path in (folder / "in.txt", folder / "inputs" / "a.txt"):
        path.write_text("one\ntwo\n")
    return folder


def graph_of(kind: str, folder: Path) -> Graph:
    graph = Graph("failures")
    stream = GRAPHS[kind](graph, folder)
    stream.sink("end", CallSink(lambda row: None))
    return graph
