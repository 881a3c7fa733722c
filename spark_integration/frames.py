"""`through`: passes the rows of a DataFrame through a region; its output is a DataFrame again.

    import spark_integration as dos

    counts = dos.through(lines, graph, workers=2, store="dos://h1,h2,h3", checkpoint="/data/wordcount-in")

It connects three existing parts, each of which is exactly-once alone: the sink `dos` (`writing/`) into an
input handle of the region, the region, and the source `dos` (`reading/`) on its output.
"""

import atexit
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from checkpoint import RegionEvent, StateChanged
from checkpoint import RegionState as State
from checkpoint.chains.input_log import InputHandle
from dataflow.blocking import close_input
from dataflow.errors import nearest
from dataflow.graph.builder import Graph, parts_of
from dataflow.handle import RegionHandle
from dataflow.schema import parse_schema
from dataflow.sinks.log import LogSink
from dataflow.sources.stored import InputSource
from dos_client.blocking import open_store
from dos_client.urls import parse_url
from dos_protocol.errors import DosError
from spark_integration.core.session_checks import SparkMaster
from spark_integration.data_source import NAME, register
from spark_integration.errors import (
    NotEnoughSlotsError,
    SchemaMismatchError,
    column_difference,
)
from spark_integration.runner import UsedStore, choose_store, run
from spark_integration.sessions import master_of
from spark_integration.spark_api import spark_schema


class GraphEnds(NamedTuple):
    """`handle`: of the source that receives the rows; `sink` and `columns`: of the output."""

    handle: str
    sink: str
    columns: pa.Schema


def ends_of(graph: Graph, given: pa.Schema, *, into: str | None, output: str | None) -> GraphEnds:
    """Return the ends of a graph for rows with the columns `given`. `into`, `output`: the names of the
    operators; None if there is only one. Raises GraphError, SchemaMismatchError; DosError if an end
    does not exist, or several do.
    """
    plan = graph.plan()
    sources = {name: spec for name, spec in plan.specs.items() if isinstance(spec, InputSource)}
    sinks = {name for name, spec in plan.specs.items() if isinstance(spec, LogSink)}
    entry = sources[_chosen(graph.name, into, list(sources), "InputSource", "into")]
    if not given.equals(entry.schema):
        source_text = f"the InputSource {entry.name!r} of graph {graph.name!r}"
        raise SchemaMismatchError(
            column_difference(given, entry.schema, source_text),
            remedy=f"declare it with the columns of the DataFrame: InputSource({entry.name!r}, df.schema)",
        )
    sink = _chosen(graph.name, output, sorted(sinks), "LogSink", "output")
    nodes, specs = graph.nodes()
    (above,) = next(spec.inputs for spec in specs if spec.name == sink)
    columns = plan.schemas[nodes[above].name]
    assert columns is not None, "an operator with consumers has columns"
    return GraphEnds(entry.name, sink, columns)


def _chosen(graph: str, name: str | None, names: list[str], kind: str, argument: str) -> str:
    known = ", ".join(map(repr, names)) or "none"
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        raise DosError(
            f"graph {graph!r} has {len(names)} operators of kind {kind} ({known}), but exactly one is needed:"
            + (f" select one with {argument}=" if names else f" add one, {kind}(...)")
        )
    if name not in names:
        raise DosError(f"graph {graph!r} has no {kind} named {name!r}{nearest(name, names)}; it has {known}")
    return name


logger = logging.getLogger("dos.spark_integration")
PRODUCER = "through"
CHECKPOINT_CONF = "spark.sql.streaming.checkpointLocation"
STREAM_SLOTS = 1
"""The micro-batches that feed the region and those that read its output share this slot."""


class Through:
    """What runs for a DataFrame that `through` returned: its attribute `dos`.

    `region`: the handle of the region, as `run` returns it. `feed`: the streaming query that writes into the
    region; None if the input DataFrame is not a stream.
    """

    def __init__(self, region: RegionHandle, feed: Any, close: Callable[[], None]) -> None:
        self.region = region
        self.feed = feed
        self._close = close
        if feed is not None:
            threading.Thread(target=self._watch, name=f"dos-{region.name}-feed", daemon=True).start()

    def exception(self) -> Exception | None:
        """Return why there is no further output: the error of the feed or the region; None if none."""
        failure: Exception | None = None if self.feed is None else self.feed.exception()
        return failure or self.region.exception()

    def stop(self) -> None:
        """Stop the feed, then the region after a last checkpoint. The same `through` continues there."""
        if self.feed is not None:
            self.feed.stop()
        self.region.stop()
        self._close()

    def _watch(self) -> None:
        # Users see the query that reads the output, not the feed's: without a log line it would just be
        # silent.
        try:
            self.feed.awaitTermination()
        except Exception as error:
            logger.error("%s: no more rows are read, because its feed failed: %s", self.region.name, error)


def through(
    df: DataFrame,
    graph: Graph,
    *,
    workers: int | None = None,
    store: str | None = None,
    name: str | None = None,
    checkpoint: str | Path | None = None,
    into: str | None = None,
    output: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    token: bytes = b"",
    data_dir: str | Path | None = None,
    **more: Any,
) -> DataFrame:
    """Run a graph on the rows of a DataFrame, and return the graph's output as a DataFrame.

    The result is a stream if `df` is one. Each row is processed exactly once, whatever fails.

        source = InputSource("lines", df.schema)  # of the graph; and a LogSink at its other end

    The result has an attribute `dos` (`Through`) with the region's handle, the query that feeds the region,
    and `stop()`.

    - If `df` is a stream, the region is fed by a separate query named `NAME.feed`, and both run until
      they are stopped or the driver ends. A call with the same name, store and checkpoint continues. The
      result is read like any stream, with a checkpoint of its own.
    - Otherwise `through` returns when the region has processed all rows; the result is its complete output.
      Without a `name` each call is a separate region. With a name, a call that was interrupted continues, and
      one that had finished returns the same output again.

    - `workers`, `store`, `name`, `token`, `data_dir`, and `more`: as for `run`. In addition to the slots of
      the workers one slot is needed for the stream.
    - `checkpoint`: the directory of Spark's checkpoint of the feed, for this call alone; optional if the
      session has `spark.sql.streaming.checkpointLocation`.
    - `into`, `output`: the operators where rows enter and leave, if the graph has several.
    - `trigger`: of the feed, as keyword arguments of `DataStreamWriter.trigger`.

    Raises before anything is started: GraphError, SchemaMismatchError, DosError if rows have no place to
    enter or leave, or a stream no checkpoint directory; and as `run`. A call that fails later stops what it
    has started; rows that were recorded stay.
    """
    spark = df.sparkSession
    master = master_of(spark)
    ends = ends_of(graph, parse_schema(df.schema), into=into, output=output)
    if df.isStreaming and checkpoint is None and spark.conf.get(CHECKPOINT_CONF, None) is None:
        raise DosError(
            "df is a stream, but no checkpoint directory was given for it",
            remedy='pass through(..., checkpoint="/a/persistent/directory"), one for each graph and stream',
        )
    application = name or (graph.name if df.isStreaming else f"{graph.name}-{uuid.uuid4().hex[:8]}")
    if len(parts_of(graph, application)) > 1:
        raise DosError(
            f"graph {graph.name!r} consists of several regions: start it with `run`, and write into its input"
            f" with format({NAME!r})"
        )
    used = _store(master, store, data_dir, token)
    try:
        running = _Running()
        joined = _Joined(spark, used.url, application, ends, token)
        region = _region(
            spark, graph, running, name=application, workers=workers, store=used.url, token=token, **more
        )
        try:
            if not df.isStreaming:
                joined.feed_all(df)
                region.awaitTermination()
                frame = joined.output()
                frame.dos = Through(region, None, used.close)
                return frame
            running.wait(region)
            feed = joined.feed(df, checkpoint, trigger or {})
        except BaseException:
            region.stop()
            raise
        frame = joined.output_stream()
        frame.dos = Through(region, feed, used.close)
        return frame
    except BaseException:
        used.close()
        raise


class _Running:
    """An event handler that waits until all workers of a region run."""

    def __init__(self) -> None:
        self._decided = threading.Event()

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, StateChanged) and (event.state is State.RUNNING or event.state.is_end):
            self._decided.set()

    def wait(self, region: RegionHandle) -> None:
        """Raises the region's exception if it ended instead."""
        self._decided.wait()
        if not region.isActive:
            region.awaitTermination()


def _store(master: SparkMaster, store: str | None, data_dir: str | Path | None, token: bytes) -> UsedStore:
    """Return the store. An embedded one runs until this process ends: its rows are still read."""
    used = choose_store(
        store, one_machine=master.one_machine, master=master.url, data_dir=data_dir, token=token
    )
    closing = threading.Lock()

    def close_once() -> None:
        if closing.acquire(blocking=False):
            atexit.unregister(close_once)
            used.close()

    atexit.register(close_once)
    return UsedStore(used.url, close_once)


def _region(spark: SparkSession, graph: Graph, running: _Running, **options: Any) -> RegionHandle:
    observer = options.pop("on_event", None)

    def on_event(event: RegionEvent) -> None:
        running(event)
        if observer is not None:
            observer(event)

    options["spare_slots"] = options.get("spare_slots", 0) + STREAM_SLOTS
    try:
        region = run(spark, graph, on_event=on_event, **options)
    except NotEnoughSlotsError as error:
        raise NotEnoughSlotsError(f"{error}; the stream needs one slot besides the workers'") from error
    assert isinstance(region, RegionHandle), "the graph is one region"
    return region


class _Joined:
    def __init__(
        self, spark: SparkSession, url: str, application: str, ends: GraphEnds, token: bytes
    ) -> None:
        self._spark = spark
        self._url = url
        self._application = application
        self._ends = ends
        self._token = token
        self._path = f"{url.rstrip('/')}/{application}"
        self._options = {"token": token.decode()} if token else {}
        register(spark)

    def feed(self, df: DataFrame, checkpoint: str | Path | None, trigger: Mapping[str, Any]) -> Any:
        writing = df.writeStream.format(NAME).queryName(f"{self._application}.feed")
        writing = writing.options(input=self._ends.handle, producer=PRODUCER, **self._options)
        if checkpoint is not None:
            writing = writing.option("checkpointLocation", str(checkpoint))
        if trigger:
            writing = writing.trigger(**trigger)
        return writing.start(self._path)

    def feed_all(self, df: DataFrame) -> None:
        """Write all rows once and close the input, unless it was closed before."""
        with open_store(parse_url(self._url), token=self._token, client="driver") as store:
            handle = InputHandle(store.store, self._application, self._ends.handle)
            if store.portal.call(handle.ends) is not None:
                return
            writing = df.write.format(NAME).mode("append")
            writing.options(input=self._ends.handle, producer=PRODUCER, batch="1", **self._options).save(
                self._path
            )
            close_input(store, self._application, self._ends.handle)

    def output(self) -> DataFrame:
        return self._reader(self._spark.read).load(self._path)

    def output_stream(self) -> DataFrame:
        return self._reader(self._spark.readStream).load(self._path)

    def _reader(self, reader: Any) -> Any:
        schema = spark_schema(self._ends.columns)
        return reader.format(NAME).options(output=self._ends.sink, **self._options).schema(schema)
