"""`through`: passes the rows of DataFrames through a region; its output is a DataFrame again.

    import spark_integration as dos

    counts = dos.through(lines, graph, workers=2, store="dos://h1,h2,h3")

A stream is carried to the workers inside the micro-batches of its query (`batches.py`). For any other
DataFrame three parts are connected, each of which is exactly-once alone: the sink `dos` (`writing/`) into an
input handle of the region, the region, and the source `dos` (`reading/`) on its output.
"""

import atexit
import functools
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from checkpoint import BatchAsked, GraphOptions, check_repeated, graph_change, refused_before_claim
from checkpoint.chains.input_log import InputHandle
from checkpoint.chains.manifest_log import read_manifest
from checkpoint.errors import NoRegionError
from checkpoint.link import ports_of
from dataflow.blocking import close_input
from dataflow.errors import nearest
from dataflow.graph.builder import Graph, parts_of
from dataflow.handle import RegionHandle, RegionOptions
from dataflow.schema import parse_schema
from dataflow.sinks.log import LogSink
from dataflow.sources.base import SourceSpec
from dataflow.sources.batches import BatchSource
from dataflow.sources.stored import InputSource
from dos_client.blocking import open_store
from dos_client.urls import parse_url
from dos_protocol.errors import DosError
from spark_integration import limits
from spark_integration.batches import REFUSALS, Desk, DrivenRegion, carried
from spark_integration.catalyst import session_settings, stateful_parts
from spark_integration.core.session_checks import SparkMaster
from spark_integration.data_source import NAME, register
from spark_integration.errors import (
    NotEnoughSlotsError,
    SchemaMismatchError,
    column_difference,
)
from spark_integration.runner import (
    CheckedRun,
    UsedStore,
    check_run,
    choose_store,
    lacks_slot,
    start_checked,
    wait_for_slots,
)
from spark_integration.sessions import master_of
from spark_integration.spark_api import spark_schema

logger = logging.getLogger("dos.spark_integration")


class GraphEnds(NamedTuple):
    """`schemas`: handle of a source that receives rows -> its columns; `sink`, `columns`: of the output."""

    schemas: Mapping[str, pa.Schema]
    sink: str
    columns: pa.Schema

    @property
    def handles(self) -> list[str]:
        return list(self.schemas)


def ends_of(graph: Graph, given: Mapping[str, pa.Schema], *, output: str | None) -> GraphEnds:
    """Return the ends of a graph for rows with these columns. given: handle -> columns; '': the only source.
    output: the sink; None if there is only one. Raises GraphError, SchemaMismatchError; DosError if an end
    does not exist, or several do.
    """
    plan = graph.plan()
    sources = {name: spec for name, spec in plan.specs.items() if isinstance(spec, InputSource)}
    sinks = {name for name, spec in plan.specs.items() if isinstance(spec, LogSink)}
    schemas: dict[str, pa.Schema] = {}
    for name, columns in given.items():
        entry = sources[_chosen(graph.name, name or None, list(sources), "InputSource", "into")]
        if not columns.equals(entry.schema):
            source_text = f"the InputSource {entry.name!r} of graph {graph.name!r}"
            raise SchemaMismatchError(
                column_difference(columns, entry.schema, source_text),
                remedy=f"give it the columns of the DataFrame: InputSource({entry.name!r}, df.schema)",
            )
        schemas[entry.name] = entry.schema
    sink = _chosen(graph.name, output, sorted(sinks), "LogSink", "output")
    nodes, specs = graph.nodes()
    (above,) = next(spec.inputs for spec in specs if spec.name == sink)
    out = plan.schemas[nodes[above].name]
    assert out is not None, "an operator with consumers has columns"
    return GraphEnds(schemas, sink, out)


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


PRODUCER = "through"
STREAM_SLOTS = 1
"""The task that carries the micro-batches of a stream holds one while it runs."""


class Through:
    """What runs for a DataFrame that `through` returned: its attribute `dos`."""

    def __init__(self, close: Callable[[], None], region: RegionHandle | None, desk: Desk | None) -> None:
        self._close = close
        self._region = region
        self._desk = desk

    @property
    def region(self) -> RegionHandle | None:
        """The handle of the region, as `run` returns it. None for a stream before the first micro-batch."""
        return self._region if self._desk is None else self._desk.region

    def exception(self) -> Exception | None:
        """Return the error with which the region ended; None if there is none."""
        return None if self.region is None else self.region.exception()

    def stop(self) -> None:
        """Stop the region after a last checkpoint. The same `through` continues there."""
        if self._desk is not None:
            self._desk.stop()
        elif self._region is not None:
            self._region.stop()
        self._close()

    def end(self) -> None:
        """Stop the region, and give back what only a query could need, which has ended."""
        try:
            self.stop()
        finally:
            if self._desk is not None:
                self._desk.close()


def through(
    df: DataFrame | Mapping[str, DataFrame],
    graph: Graph,
    *,
    store: str | None = None,
    into: str | None = None,
    output: str | None = None,
    data_dir: str | Path | None = None,
    tick: bool = False,
    coordinator_address: str | None = None,
    insecure: bool = False,
    spare_slots: int = 0,
    standby: int = 0,
    **options: Unpack[RegionOptions],
) -> DataFrame:
    """Run a graph on the rows of a DataFrame, and return the graph's output as a DataFrame.

    The result is a stream if `df` is one. Each row is processed exactly once, whatever fails.

        source = InputSource("lines", df.schema)  # of the graph; and a LogSink at its other end

    - If `df` is a stream, the region works inside the micro-batches of the query that you start on the
      result. That query has the only checkpoint and the only trigger. A repeated micro-batch gets the output
      that was recorded: with a sink that is idempotent by batch (parquet, foreachBatch, `dos`) each row
      counts once end to end. The region starts with the first micro-batch, and runs until `stop()` or the
      end of the driver. One query drives a region. Write with the output mode `append`: what an aggregate
      emits in a micro-batch is decided by its own `emit=`.
    - Otherwise `through` returns when the region has processed all rows; the result is its complete output.
      Without a `name` each call is a separate region. With a name, a call that was interrupted continues, and
      one that had finished returns the same output again.

    The result has an attribute `dos` (`Through`) with the region's handle and `stop()`.

    - `df`: or for several inputs a DataFrame for each, all streams or none: {"orders": a, "payments": b}.
    - `into`, `output`: the operators where rows enter and leave, if the graph has several.
    - `tick`: of a stream: a micro-batch begins every second even if no row comes, so that timers of
      processing time fire.
    - all others: as for `run`. In addition to the slots of the workers one is needed for the stream.

    Raises before anything is started: TypeError, GraphError, SchemaMismatchError, DosError if rows have no
    place to enter or leave, or a source of the graph gets no rows; and as `run`. A batch call that fails
    later stops what it has started; rows that were recorded stay. An error of a stream ends its query.
    """
    given = _given(df, graph, into)
    frames = list(given.values())
    spark, streams = frames[0].sparkSession, frames[0].isStreaming
    master_of(spark)
    if any(frame.isStreaming != streams for frame in frames):
        raise DosError(
            "of the DataFrames some are streams and some are not: make all of them streams, or none"
        )
    ends = ends_of(graph, {name: parse_schema(frame.schema) for name, frame in given.items()}, output=output)
    application = options.get("name") or (graph.name if streams else f"{graph.name}-{uuid.uuid4().hex[:8]}")
    if len(parts_of(graph, application)) > 1:
        raise DosError(
            f"graph {graph.name!r} consists of several regions: start it with `run`, and write into its input"
            f" with format({NAME!r})"
        )
    options["name"] = application
    inputs = dict(zip(ends.handles, frames, strict=True))
    if streams:
        settings = {name: session_settings(frame) for name, frame in inputs.items()}
        graph = fed_by_batches(graph, ends.handles, settings)
    checked = check_run(
        spark,
        graph,
        options,
        coordinator_address=coordinator_address,
        insecure=insecure,
        standby=standby,
    )
    try:
        wait_for_slots(checked, spare_slots + STREAM_SLOTS)
    except NotEnoughSlotsError as error:
        raise NotEnoughSlotsError(f"{error}; the stream needs one slot besides the workers'") from error
    token = options.get("token", b"")
    used = _store(checked.master, store, data_dir, token)
    try:
        if streams:
            return _streamed(checked, used, inputs, ends, tick=tick, spare_slots=spare_slots)
        return _at_once(checked, used, inputs, ends, spare_slots=spare_slots)
    except BaseException:
        used.close()
        raise


def _given(df: object, graph: object, into: str | None) -> dict[str, DataFrame]:
    """Return the arguments of `through` by input. Raises TypeError."""
    if not isinstance(graph, Graph):
        raise TypeError(f"the second argument of through is a Graph, got {type(graph).__name__}")
    given = df if isinstance(df, Mapping) else {into or "": df}
    for name, one in given.items():
        if not isinstance(one, DataFrame) and not type(one).__module__.startswith("pyspark.sql.connect."):
            of = f" for the input {name!r}" if isinstance(df, Mapping) else ""
            raise TypeError(
                f"the first argument of through is a DataFrame of Spark, or one for each input, got"
                f" {type(one).__name__}{of}"
            )
    if not given:
        raise TypeError("the first argument of through names no input: pass a DataFrame")
    return dict(given)


_DESKS: "weakref.WeakSet[Desk]" = weakref.WeakSet()
"""Of the streams of this driver."""


def each_batch(function: Callable[[DataFrame, int], object]) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that calls this one, and then makes sure that the micro-batch was
    processed.

    A function may use its DataFrame and yet not evaluate it, for example in a join with an empty table, or at
    no row of some condition. The region has then not seen the micro-batch, and refuses the next one
    (`BatchGapError`).

        counts.writeStream.foreachBatch(dos.each_batch(write)).start()

    Raises what the function raises.
    """

    @functools.wraps(function)
    def call(df: DataFrame, batch: int) -> None:
        function(df, batch)
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not any(desk.has_processed(query, batch) for desk in _DESKS):
            df.isEmpty()

    return call


def fed_by_batches(
    graph: Graph, handles: Sequence[str], settings: Mapping[str, str] = MappingProxyType({})
) -> Graph:
    """Return the graph with sources that batches feed in place of the InputSources of these handles.
    settings: handle -> `BatchSource.settings`. Raises DosError for a graph with another source.
    """
    nodes = []
    for node in graph.nodes()[0]:
        names = tuple(above if isinstance(above, str) else above.name for above in node.inputs)
        spec = node.spec
        if isinstance(spec, InputSource) and spec.name in handles:
            spec = BatchSource(spec.schema, handles.index(spec.name), settings.get(spec.name, ""))
        elif isinstance(spec, SourceSpec):
            # Its rows would be in no batch: what a repeated batch gets would depend on when it is repeated.
            raise DosError(
                f"source {node.name!r} of graph {graph.name!r} gets no rows of a stream",
                remedy='pass a stream for each source: through({"HANDLE": df, ...}, graph)',
            )
        nodes.append(replace(node, spec=spec, inputs=names))
    return Graph.of(graph.name, nodes, graph.annotations)


def _streamed(
    checked: CheckedRun,
    used: UsedStore,
    inputs: Mapping[str, DataFrame],
    ends: GraphEnds,
    *,
    tick: bool,
    spare_slots: int,
) -> DataFrame:
    for name, df in inputs.items():
        _refuse_aggregate(name, df)

    def start(key: bytes, asked: BatchAsked) -> RegionHandle:
        if not checked.options.get("restore"):
            _refuse_before_claim(used.url, checked, ends.sink, asked)
        wait_for_slots(checked, spare_slots)  # the task that asks for the region has its own
        region = start_checked(checked, used.url, spare_slots=spare_slots, job_key=key)
        assert isinstance(region, RegionHandle), "the graph is one region"
        return region

    desk = Desk(
        checked.application,
        start,
        functools.partial(lacks_slot, checked),
        host=checked.listen_host,
        ports=ports_of(checked.options.get("port_range")),
    )
    _DESKS.add(desk)
    region = DrivenRegion(
        name=checked.application,
        host=checked.host,
        desk_port=desk.port,
        key=desk.key,
        store_url=used.url,
        token=checked.options.get("token", b""),
        sink=ends.sink,
        read_alone_s=limits.READ_ALONE_S,
    )
    schemas = [ends.schemas[handle] for handle in ends.handles]
    frame = carried(list(zip(inputs.values(), schemas, strict=True)), region, ends.columns, tick=tick)
    frame.dos = Through(used.close, None, desk)
    return frame


def _refuse_before_claim(url: str, checked: CheckedRun, sink: str, asked: BatchAsked) -> None:
    """Raise what a task would be answered with, if the region cannot be driven by its query: its start would
    fence the driver that runs it. Raises GraphChangeRefusedError for another graph that does not fit, or
    whose sink has nothing of a batch that Spark has not committed.
    """
    region = checked.application
    try:
        with open_store(url, token=checked.options.get("token", b""), client=f"{region}.batches") as store:
            view = store.portal.call(read_manifest, store.store, region)
    except NoRegionError:
        return
    except DosError as error:  # the claim waits for the store
        logger.info("the manifest of region %s cannot be read before it is claimed: %s", region, error)
        return
    if view.unproved:
        return  # a record that may be the last one would decide: under the claim it is known
    if (refused := refused_before_claim(region, view.kept, asked)) is not None:
        raise REFUSALS[refused.problem](refused.text, remedy=refused.remedy)
    if view.last is not None:
        operators, options = checked.parts[0].graph.plan().operators, GraphOptions.of(checked.options)
        change = graph_change(view.last, operators, region=region, options=options)
        check_repeated(region, view.kept, asked, sink, change.uids)


def _refuse_aggregate(name: str, df: DataFrame) -> None:
    """Raise DosError for a stream that is aggregated: with the modes update and complete it has a group in
    many micro-batches, and the region would count it each time.
    """
    if "Aggregate" in stateful_parts(df):
        raise DosError(
            f"the stream for {name!r} is an aggregate, whose groups come again when they change",
            remedy="aggregate in the graph, or write the aggregate to a table and read that as a stream",
        )


def _at_once(
    checked: CheckedRun,
    used: UsedStore,
    inputs: Mapping[str, DataFrame],
    ends: GraphEnds,
    *,
    spare_slots: int,
) -> DataFrame:
    token = checked.options.get("token", b"")
    joined = _Joined(checked.spark, used.url, checked.application, ends, token)
    region = start_checked(checked, used.url, spare_slots=spare_slots + STREAM_SLOTS)
    assert isinstance(region, RegionHandle), "the graph is one region"
    try:
        for handle, df in inputs.items():
            joined.feed_all(handle, df)
        region.awaitTermination()
        frame = joined.output()
    except BaseException:
        region.stop()
        raise
    frame.dos = Through(used.close, region, None)
    return frame


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

    def feed_all(self, handle: str, df: DataFrame) -> None:
        """Write all rows once and close the input, unless it was closed before."""
        with open_store(parse_url(self._url), token=self._token, client="driver") as store:
            log = InputHandle(store.store, self._application, handle)
            if store.portal.call(log.ends) is not None:
                return
            writing = df.write.format(NAME).mode("append")
            writing.options(input=handle, producer=PRODUCER, batch="1", **self._options).save(self._path)
            close_input(store, self._application, handle)

    def output(self) -> DataFrame:
        reader = self._spark.read.format(NAME).options(output=self._ends.sink, **self._options)
        return reader.schema(spark_schema(self._ends.columns)).load(self._path)
