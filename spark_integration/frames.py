"""`through`: a DataFrame goes into a region, and what the region makes of it comes out as a DataFrame.

    import spark_integration as dos

    counts = dos.through(lines, graph, workers=2, store="dos://h1,h2,h3", checkpoint="/data/wordcount-in")

Rules of this file: it joins what is there already, and each joint is exactly once by itself: the sink `dos`
(`writing/`) into an input handle of the region, the region, and the source `dos` (`reading/`) on its output.
"""

import atexit
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from checkpoint.chains.input_reading import InputHandle
from checkpoint.core.region import RegionEvent, StateChanged
from checkpoint.core.region import RegionState as State
from dataflow.blocking import close_input
from dataflow.graph.builder import Graph
from dataflow.graph.parts import parts_of
from dataflow.schema import parse_schema
from dos_client.blocking import open_store
from dos_client.urls import parse_url
from spark_integration.core.slots import SparkMaster
from spark_integration.data_source import NAME, register
from spark_integration.errors import NoCheckpointError, NoSuchEndError, NotEnoughSlotsError
from spark_integration.graph_ends import GraphEnds, ends_of
from spark_integration.handle import RegionHandle
from spark_integration.runner import run
from spark_integration.sessions import master_of
from spark_integration.stores import UsedStore, choose_store

log = logging.getLogger("dos.spark_integration")
PRODUCER = "through"
CHECKPOINT_CONF = "spark.sql.streaming.checkpointLocation"
STREAM_SLOTS = 1
"""The micro-batches that feed the region, and those that read its output, take turns in it."""


class Through:
    """What runs behind a DataFrame that `through` gave: its attribute `dos`.

    `region`: the handle of the region, as `run` gives it. `feed`: the streaming query that writes into it;
    None if the DataFrame that went in was no stream.
    """

    def __init__(self, region: RegionHandle, feed: Any, close: Callable[[], None]) -> None:
        self.region = region
        self.feed = feed
        self._close = close
        if feed is not None:
            threading.Thread(target=self._watch, name=f"dos-{region.name}-feed", daemon=True).start()

    def exception(self) -> Exception | None:
        """Why nothing more comes out: the feed's error, or the region's; None while all is well."""
        failure: Exception | None = None if self.feed is None else self.feed.exception()
        return failure or self.region.exception()

    def stop(self) -> None:
        """Stop the feed, then the region, after a last cut. The same call of `through` goes on from there."""
        if self.feed is not None:
            self.feed.stop()
        self.region.stop()
        self._close()

    def _watch(self) -> None:
        """Says that the feed has failed to whoever reads the log: its own query is not the one they see."""
        try:
            self.feed.awaitTermination()
        except Exception as error:
            log.error("%s gets no more rows, its feed has failed: %s", self.region.name, error)


def through(
    df: DataFrame,
    graph: Graph,
    *,
    workers: int = 2,
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
    """Run a graph on the rows of a DataFrame; the output of the graph as a DataFrame, a stream if that is
    one. Each row goes in once, and what comes out is exactly once, whatever dies.

        source = InputSource("lines", df.schema)  # of the graph; and a LogSink at its other end

    The DataFrame that is returned has an attribute `dos` (`Through`): the region's handle, the query that
    feeds it, and `stop()`.

    - A stream: the region is fed by a query of its own, named `NAME.feed`, and both run until they are
      stopped or the driver ends. Called again with the same name, store and checkpoint it goes on. What is
      returned is read as any stream, with a checkpoint of its own.
    - No stream: returns when the region has processed all rows, and has all its output. Without a `name` each
      call is a region of its own; with one, a call that was interrupted goes on, and one that was done
      gives the same output again.

    workers, store, name, token, data_dir, and `more`: as `run` has them. It takes a slot for the stream
    beside those of the workers. checkpoint: where Spark keeps how far a stream was read, a directory for
    this alone; where the session has `spark.sql.streaming.checkpointLocation`, it may be left out. into,
    output: the operators where rows enter and come out, where the graph has several. trigger: of the feed,
    as keyword arguments of `DataStreamWriter.trigger`.

    Raises before anything is started: GraphError, NoSuchEndError, SchemaMismatchError, NoCheckpointError, and
    as `run`. A call that fails later ends what it has started; what was recorded stays.
    """
    spark = df.sparkSession
    master = master_of(spark)
    ends = ends_of(graph, parse_schema(df.schema), into=into, output=output)
    if df.isStreaming and checkpoint is None and spark.conf.get(CHECKPOINT_CONF, None) is None:
        raise NoCheckpointError("df is a stream, and no checkpoint was named for it")
    application = name or (graph.name if df.isStreaming else f"{graph.name}-{uuid.uuid4().hex[:8]}")
    if len(parts_of(graph, application)) > 1:
        raise NoSuchEndError(
            f"graph {graph.name!r} is several regions: start it with `run`, and write into its input with"
            f" format({NAME!r})"
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
    """Knows when the region's workers are all at work for the first time, or when there is no hope."""

    def __init__(self) -> None:
        self._decided = threading.Event()

    def __call__(self, event: RegionEvent) -> None:
        if isinstance(event, StateChanged) and (event.state is State.RUNNING or event.state.is_end):
            self._decided.set()

    def wait(self, region: RegionHandle) -> None:
        """Raises what `exception()` of the region gives."""
        self._decided.wait()
        if not region.isActive:
            region.awaitTermination()


def _store(master: SparkMaster, store: str | None, data_dir: str | Path | None, token: bytes) -> UsedStore:
    """The store; one of our own lives until the end of this process, because its rows are still read."""
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
    told = options.pop("on_event", None)

    def on_event(event: RegionEvent) -> None:
        running(event)
        if told is not None:
            told(event)

    options["spare_slots"] = options.get("spare_slots", 0) + STREAM_SLOTS
    try:
        region = run(spark, graph, on_event=on_event, **options)
    except NotEnoughSlotsError as error:
        raise NotEnoughSlotsError(f"{error}; the stream needs one slot beside the workers'") from error
    assert isinstance(region, RegionHandle), "the graph is one region"
    return region


class _Joined:
    """The joints of one region: its way in, and its way out."""

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
        """The query that writes a stream into the region."""
        writing = df.writeStream.format(NAME).queryName(f"{self._application}.feed")
        writing = writing.options(input=self._ends.handle, producer=PRODUCER, **self._options)
        if checkpoint is not None:
            writing = writing.option("checkpointLocation", str(checkpoint))
        if trigger:
            writing = writing.trigger(**trigger)
        return writing.start(self._path)

    def feed_all(self, df: DataFrame) -> None:
        """Write all rows, once, and say that no more will come; nothing, if that was said before."""
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
        """All output."""
        return self._reader(self._spark.read).load(self._path)

    def output_stream(self) -> DataFrame:
        """The output as it comes."""
        return self._reader(self._spark.readStream).load(self._path)

    def _reader(self, reader: Any) -> Any:
        schema = from_arrow_schema(self._ends.columns)
        return reader.format(NAME).options(output=self._ends.sink, **self._options).schema(schema)
