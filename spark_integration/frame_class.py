"""`frame`: a DataFrame whose stateful calls run in a region; all its other calls stay Spark's.

    events = dos.frame(spark.readStream.schema(schema).json("/data/events"))
    sold = events.withWatermark("at", "10 minutes")
    sold = sold.groupBy(F.window("at", "1 hour"), "shop").agg(F.sum("price"))
    query = sold.writeStream.option("checkpointLocation", "/ckpt/sold").toTable("sold")

Each call is also made on Spark's own DataFrame, the *shadow*, which never starts: its analysis gives errors,
names and types. Calls before the first stateful call are Spark's, at once. A stateful call is divided
(`stateful.py`). Calls after it are recorded, and made on the output of the region, which `through` runs: on
the stream, or in the output mode "complete" on the table of each micro-batch.

`METHODS` has each public name of `DataFrame` in one class. A name that it lacks is refused, because what the
parent class has under it would return nothing, or run in Spark.
"""

# ruff: noqa: N802, N803, SLF001  # names of Spark; the functions of this file make the methods of its class

import functools
import inspect
import logging
import re
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, cast, overload

from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.group import GroupedData
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import NumericType, StructType

from dataflow.handle import check_option_values
from dataflow.operators.spark_functions import ProcessorTakes
from dataflow.schema import quoted
from dos_client.urls import parse_store_url
from dos_protocol.names import check_name, is_name
from spark_integration.catalyst import check_output_mode
from spark_integration.core.dividing import FrameError, digest
from spark_integration.frames import each_batch, through
from spark_integration.joins import stream_join
from spark_integration.sessions import need_own_session
from spark_integration.stateful import (
    WATERMARK,
    Mode,
    StatefulCall,
    applied_with_state,
    check_columns,
    deduplicated,
    divided,
    expressions_of,
    refuse_below,
    transformed,
)
from spark_integration.versions import PROCESSOR_OF_ROWS, need_pyspark

if TYPE_CHECKING:
    from pyspark.sql._typing import ColumnOrNameOrOrdinal

    from spark_integration.frame_methods import FrameMethods  # no module, but types for the class below
else:
    FrameMethods = DataFrame

logger = logging.getLogger("dos.spark_integration")

STORE_CONF: Final = "spark.dos.store"
WORKERS_CONF: Final = "spark.dos.workers"


class MethodClass(Enum):
    """What becomes of a call."""

    STATEFUL = auto()
    """It runs in a region."""
    ROW = auto()
    """Row by row: Spark's, at once or on the result."""
    TWO_SIDED = auto()
    """With another DataFrame: like `ROW` if at most one of them is a stream."""
    WHOLE = auto()
    """Of the whole table: Spark's; on a stream refused, except `OF_TABLES`."""
    TIME = auto()
    """Spark's, at once: the region reads the delay."""
    INFORM = auto()
    """Of names and types: those of the shadow."""
    ACTION = auto()
    """On the result, which runs the region, if there is one; refused on a stream with a stateful call."""
    VIEW = auto()
    """Makes a table of SQL. As `ACTION`, but refused on each stream: SQL on it has the state of Spark."""
    OWN = auto()
    """Defined in the class."""
    REFUSED = auto()


def _methods() -> dict[str, MethodClass]:
    names = {
        MethodClass.STATEFUL: "agg distinct dropDuplicates dropDuplicatesWithinWatermark drop_duplicates"
        " groupBy groupby",
        MethodClass.ROW: "alias coalesce drop dropna fillna filter hint mapInArrow mapInPandas melt observe"
        " repartition repartitionById repartitionByRange replace sample select selectExpr"
        " sortWithinPartitions to toDF unpivot where withColumn withColumnRenamed withColumns"
        " withColumnsRenamed withMetadata",
        MethodClass.TWO_SIDED: "crossJoin exceptAll intersect intersectAll join lateralJoin nearestByJoin"
        " subtract union unionAll unionByName zip",
        MethodClass.WHOLE: "crosstab describe freqItems limit offset orderBy sampleBy sort summary transpose"
        " zipWithIndex",
        MethodClass.TIME: "withWatermark",
        MethodClass.INFORM: "colRegex columns dtypes isStreaming metadataColumn printSchema schema"
        " sparkSession",
        MethodClass.ACTION: "approxQuantile cache checkpoint collect corr count cov"
        " executionInfo exists first foreach foreachPartition head inputFiles isEmpty isLocal"
        " localCheckpoint mergeInto pandas_api persist plot rdd sameSemantics"
        " scalar semanticHash show storageLevel tail take toArrow toJSON toLocalIterator toPandas unpersist"
        " writeTo",
        MethodClass.VIEW: "asTable createGlobalTempView createOrReplaceGlobalTempView"
        " createOrReplaceTempView createTempView registerTempTable",
        MethodClass.OWN: "explain na randomSplit stat transform write writeStream",
        MethodClass.REFUSED: "cube groupingSets rollup",
    }
    return {name: kind for kind, text in names.items() for name in text.split()}


METHODS: Final = _methods()
"""Public name of DataFrame -> what becomes of a call."""

OF_TABLES: Final = frozenset({"limit", "offset", "orderBy", "sort"})
"""Calls of the whole table that Spark makes on a stream in the output mode "complete"."""


@dataclass(frozen=True)
class _Settings:
    name: str | None
    store: str | None
    workers: int | None
    options: Mapping[str, Any]

    def through(self, spark: SparkSession) -> dict[str, Any]:
        """Return arguments of `through`; what is omitted comes from the session."""
        workers: int | str | None = self.workers
        if workers is None:
            workers = spark.conf.get(WORKERS_CONF, None)
        if isinstance(workers, str) and not workers.isdecimal():
            raise TypeError(f"the conf {WORKERS_CONF} must be a whole number, got {workers!r:.60}")
        return {
            "store": self.store if self.store is not None else spark.conf.get(STORE_CONF, None),
            "workers": None if workers is None else int(workers),
            **self.options,
        }


class _Recorded(NamedTuple):
    """A call after the stateful one, and the shadow on which it was made."""

    name: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    shadow: DataFrame


class _Call:
    """A stateful call, and in a batch the output of its region, which runs once for all frames made of it."""

    def __init__(self, divided: StatefulCall) -> None:
        self.divided = divided
        self._lock = threading.Lock()
        self._output: DataFrame | None = None

    def output(self, settings: _Settings) -> DataFrame:
        """Return the output of the region of a batch; run it before if that was not done."""
        with self._lock:
            if self._output is None:
                need_own_session(self.divided.shadow.sparkSession, f"running {self.divided.name}")
                # No name: a region that has one returns its old output for other rows.
                graph = self.divided.graph(settings.name or self.divided.name, None)
                given = settings.through(self.divided.shadow.sparkSession)
                self._output = through(self.divided.before, graph, **given)
            return self._output


def frame(
    df: DataFrame,
    *,
    name: str | None = None,
    store: str | None = None,
    workers: int | None = None,
    **run_options: Any,
) -> "RegionFrame":
    """Return a DataFrame whose stateful calls run in a region; all its other calls stay Spark's.

        sold = dos.frame(orders).groupBy("shop").agg(F.sum("price") / F.count("*"))
        sold.show()

    Names, types and errors are those of Spark. Stateful is what keeps rows or results between rows:
    `dropDuplicates`, `dropDuplicatesWithinWatermark`, `distinct`, the inner join of two streams, and
    `groupBy` with `agg` (`avg`, `bool_and`, `bool_or`, `count`, `count_if`, `max`, `min`, `sum`,
    `approx_count_distinct`), `applyInPandasWithState`, `transformWithState` or `transformWithStateInPandas`.
    What a region does not compute is refused with FrameError, at the call; nothing falls back to state of
    Spark.

    - In a batch, an action or `write` runs the region once, with the rows of that time. A stream starts it
      with `writeStream.start()`; the query has the attribute `dos`. In the output mode "complete" the sink is
      the console, memory (a temporary view), or `foreachBatch`.
    - `name`: of the region of a stream; default: `queryName`, or a name made from `checkpointLocation`.
      Without a checkpointLocation the region is temporary, as the checkpoint of the query is.
    - `store`, `workers`: as for `run`; default: the confs `spark.dos.store` and `spark.dos.workers` of the
      session. `run_options`: as for `through`.

    On Spark Connect a frame is divided and explained; what would run its region raises ConnectSessionError,
    and so does a stateful call above another one. SQL text (`F.expr`) is accepted in arguments of aggregates.

    Raises TypeError for what is no DataFrame, and for an option that does not exist or has another type;
    BadNameError, BadUrlError; FrameError if a stream keeps state in Spark already. Nothing is started.
    """
    if isinstance(df, RegionFrame):
        raise TypeError("this is a frame already")
    if not isinstance(df, DataFrame) and not type(df).__module__.startswith("pyspark.sql.connect."):
        raise TypeError(f"the first argument is a DataFrame of Spark, got {type(df).__name__}")
    if name is not None:
        check_name(name)
    if store is not None:
        parse_store_url(store)
    own = inspect.signature(through).parameters
    check_option_values({"workers": workers, **{one: run_options[one] for one in run_options.keys() - own}})
    if df.isStreaming and (parts := _stateful_parts(df)):
        raise FrameError(
            f"the stream keeps state in Spark already ({parts[0]})",
            remedy="make a frame of the stream before that call: dos.frame(spark.readStream...)",
        )
    return RegionFrame(df, _Settings(name, store, workers, run_options))


def _stateful_parts(df: DataFrame) -> list[str]:
    return expressions_of(df.sparkSession).stateful_parts(df)


class RegionFrame(FrameMethods):
    """A DataFrame whose stateful calls run in a region (`frame`)."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> "RegionFrame":
        return object.__new__(cls)  # that of DataFrame makes one of Spark

    def __init__(
        self,
        shadow: DataFrame,
        settings: _Settings,
        call: _Call | None = None,
        recorded: tuple[_Recorded, ...] = (),
    ) -> None:
        self._shadow = shadow
        self._settings = settings
        self._call = call
        self._recorded = recorded

    # --- the result ---

    def df(self, outputMode: str = "append") -> DataFrame:  # as in `DataStreamWriter`
        """Return the result as a DataFrame of Spark. If there is a stateful call, this runs its region, in a
        batch once for all frames made from it; on a stream it starts the region. In the mode "update" the
        rows are new values of groups, not new groups. Raises FrameError for the mode "complete".
        """
        if self._call is None:
            return self._shadow
        if self.isStreaming:
            mode = self._checked_mode(outputMode)
            if mode == "complete":
                raise FrameError(
                    "a DataFrame of a stream has no whole tables",
                    remedy="write them with frame.writeStream, for example in foreachBatch",
                )
            return self._result(mode, self._settings.name)
        return self._finished(self._call.output(self._settings))

    def _finished(self, output: DataFrame) -> DataFrame:
        """Return the result, computed by Spark on the output of the region."""
        assert self._call is not None
        result = self._call.divided.after(output)
        rebinding = expressions_of(result.sparkSession).rebinding()
        for one in self._recorded:
            given = (*one.arguments, *one.options.values())
            others = [value for value in given if isinstance(value, DataFrame)]
            rebinding.add(one.shadow, result)
            arguments = rebinding.rebound(one.arguments, others)
            options = rebinding.rebound(dict(one.options), others)
            result = getattr(result, one.name)(*arguments, **options)
        check_columns(self._call.divided.name, result, self._shadow)
        return result

    def named(self, name: str) -> "RegionFrame":
        """Name the last stateful call: its state is found again under this name. Raises FrameError."""
        if self._call is None:
            raise FrameError("this frame has no stateful call that could be named")
        named = self._call.divided.named(name)
        named.empty_output()  # no operator may have this name
        return RegionFrame(self._shadow, self._settings, _Call(named), self._recorded)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print what Spark does before the region, the region, and what Spark does after it. Runs nothing."""
        if self._call is None:
            self._shadow.explain(extended, mode)
            return
        print("== Spark, before the region ==")  # as `explain` of Spark
        for before in self._call.divided.before.values():
            before.explain(extended, mode)
        calls = [*self._call.divided.below, self._call.divided]
        region = "\n".join(call.describe() for call in calls)
        print(f"== Region ==\n{region}\n\n== Spark, after the region ==")
        self._preview().explain(extended, mode)

    def _preview(self) -> DataFrame:
        """Return the result of a region without rows."""
        assert self._call is not None
        return self._finished(self._call.divided.empty_output())

    # --- calls ---

    def groupBy(self, *cols: "ColumnOrNameOrOrdinal | Sequence[ColumnOrNameOrOrdinal]") -> "FrameGroupedData":
        return FrameGroupedData(self, cols)

    groupby = groupBy

    def agg(self, *exprs: Column | dict[str, str]) -> "RegionFrame":
        return self.groupBy().agg(*exprs)

    def distinct(self) -> "RegionFrame":
        if self.isStreaming:
            _not_yet("distinct of a stream")
        return self._deduplicated(None, self._shadow.distinct())

    def dropDuplicates(self, subset: Sequence[str] | None = None) -> "RegionFrame":
        return self._deduplicated(subset, self._shadow.dropDuplicates(subset))

    drop_duplicates = dropDuplicates

    def _deduplicated(self, subset: Any, shadow: DataFrame, *, within: bool = False) -> "RegionFrame":
        call = deduplicated(self._shadow, subset, shadow, self._below, within=within)
        return RegionFrame(shadow, self._settings, _Call(call))

    def _joined(
        self, args: tuple[Any, ...], options: Mapping[str, Any], streams: list[DataFrame]
    ) -> "RegionFrame":
        """Return the join of this stream with another one."""
        left, right = streams
        need_own_session(self.sparkSession, "a join of two streams")
        if parts := _stateful_parts(right):
            raise FrameError(
                f"the other stream of the join keeps state in Spark ({parts[0]})",
                remedy="pass the DataFrame before that call",
            )
        shadow = left.join(*args, **options)
        return RegionFrame(shadow, self._settings, _Call(stream_join(left, right, shadow)))

    @property
    def _below(self) -> StatefulCall | None:
        """The stateful call above which another one would be."""
        return None if self._call is None else self._call.divided

    def dropDuplicatesWithinWatermark(self, subset: Any = None) -> "RegionFrame":
        if not self.isStreaming:
            raise FrameError(
                "dropDuplicatesWithinWatermark of a batch: Spark has it for streams only",
                remedy="use dropDuplicates",
            )
        return self._deduplicated(subset, self._shadow.dropDuplicatesWithinWatermark(subset), within=True)

    def transform(self, func: Callable[..., DataFrame], *args: Any, **kwargs: Any) -> "RegionFrame":
        result = func(self, *args, **kwargs)
        if not isinstance(result, RegionFrame):
            raise FrameError(
                f"the function of transform returned {type(result).__name__}, not a frame: what follows would"
                " keep its state in Spark",
                remedy="return what it makes of its argument, or call transform of frame.df()",
            )
        return result

    def randomSplit(self, weights: list[float], seed: int | None = None) -> list[DataFrame]:
        if self._call is not None:
            _refuse_stream(self, "randomSplit")
        return [RegionFrame(one, self._settings) for one in self.df().randomSplit(weights, seed)]

    @property
    def na(self) -> Any:
        return type(self._shadow.na)(self)

    @property
    def stat(self) -> Any:
        return type(self._shadow.stat)(self)

    @property
    def write(self) -> DataFrameWriter:
        if self._call is None:
            return self._shadow.write
        _refuse_stream(self, "write")
        return FrameWriter(lambda: self.df().write)

    @property
    def writeStream(self) -> DataStreamWriter:
        if not self.isStreaming or self._call is None:
            return self._shadow.writeStream
        return FrameStreamWriter(self)

    @overload
    def __getitem__(self, item: int | str) -> Column: ...
    @overload
    def __getitem__(self, item: Column | list[Any] | tuple[Any, ...]) -> "RegionFrame": ...
    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, Column):
            return self.filter(item)
        if isinstance(item, (list, tuple)):
            return self.select(*item)
        return self._shadow[item]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a dos frame is not a DataFrame of Spark ({name}): pass frame.df()")
        return getattr(self._shadow, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._shadow.columns})

    def __repr__(self) -> str:
        return f"RegionFrame[{', '.join(f'{name}: {kind}' for name, kind in self._shadow.dtypes)}]"

    def _repr_html_(self) -> None:
        """None: a notebook that shows a frame must not run it."""

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._shadow.columns)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        _refuse_stream(self, "__arrow_c_stream__")
        return self.df().__arrow_c_stream__(requested_schema)

    # --- calls that Spark makes: defined by `_define_methods`, with types in `frame_methods.pyi` ---

    def _made(self, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> "RegionFrame":
        """Return the frame after a call that Spark makes, at once or on the result."""
        result = getattr(self._shadow, name)(*arguments, **options)
        keeps = self.isStreaming and METHODS[name] is not MethodClass.WHOLE
        if keeps and len(parts := _stateful_parts(result)) > len(_stateful_parts(self._shadow)):
            # `select` of an aggregate function is an aggregation, too.
            raise FrameError(
                f"{name} of a stream would keep state in Spark ({parts[0]})", remedy="use agg or groupBy"
            )
        if self._call is None:
            return RegionFrame(result, self._settings)
        recorded = _Recorded(name, arguments, options, self._shadow)
        return RegionFrame(result, self._settings, self._call, (*self._recorded, recorded))

    def _checked_mode(self, mode: str) -> Mode:
        """Return the output mode. Raises what Spark raises for it, and FrameError."""
        checked = _MODES.get(mode.lower())
        if checked is None:
            self._shadow.writeStream.outputMode(mode)  # Spark's error
            raise FrameError(f"the output mode {mode!r} is unknown")
        need_own_session(self.sparkSession, "starting a region")
        check_output_mode(self._shadow, checked)
        names = {one.name for one in self._recorded}
        if checked != "complete" and names & OF_TABLES:
            raise FrameError(
                f"{min(names & OF_TABLES)} of a stream needs its whole table, which the output mode"
                f" {checked!r} does not have",
                remedy='use the output mode "complete", or call it in foreachBatch',
            )
        if checked == "complete" and "observe" in names:
            # It would be in no progress of the query.
            raise FrameError("observe of whole tables of a stream", remedy="call it before the stateful call")
        return checked

    def _output(self, mode: Mode, name: str | None) -> DataFrame:
        """Start the region of a stream, and return its output with the attribute `dos`."""
        assert self._call is not None
        divided = self._call.divided
        self._preview()  # names and types are compared before anything starts
        used = name or f"{divided.name}-{uuid.uuid4().hex[:8]}"
        settings = self._settings.through(divided.shadow.sparkSession)
        return through(divided.before, divided.graph(used, mode), name=used, **settings)

    def _result(self, mode: Mode, name: str | None) -> DataFrame:
        """Start the region of a stream, and return its result with the attribute `dos`."""
        output: Any = self._output(mode, name)
        try:
            result: Any = self._finished(output)
        except BaseException:
            output.dos.end()
            raise
        result.dos = output.dos
        return result


# --- the other methods of the class ------------------------------------------------------------------------


def _not_yet(name: str) -> NoReturn:
    raise FrameError(
        f"{name} is not computed through a frame",
        remedy="call it on the DataFrame of Spark, frame.df(), or use a graph with dos.through",
    )


def _refuse_stream(frame: RegionFrame, name: str) -> None:
    if frame.isStreaming:
        raise FrameError(
            f"{name} of a stream: start it with writeStream", remedy="frame.writeStream...start()"
        )


def _plain(name: str, value: Any) -> Any:
    """Return a frame in the arguments as the DataFrame of Spark, which keeps no state."""
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(name, one) for one in value)
    if not isinstance(value, RegionFrame):
        return value
    if value._call is not None:
        raise FrameError(
            f"{name} with a frame that has a stateful call", remedy="pass its result: other.df()"
        )
    return value._shadow


def _row(name: str) -> Any:
    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> RegionFrame:
        return self._made(name, args, kwargs)

    return call


def _two_sided(name: str) -> Any:
    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> RegionFrame:
        args = tuple(_plain(name, one) for one in args)
        kwargs = {key: _plain(name, one) for key, one in kwargs.items()}
        others = [one for one in (*args, *kwargs.values()) if isinstance(one, DataFrame)]
        streams = [one for one in (self._shadow, *others) if one.isStreaming]
        if name == "join" and len(streams) == 2 and self._call is None:
            return self._joined(args, kwargs, streams)
        if name.startswith("union"):
            has_watermark = any(WATERMARK in field.metadata for one in streams for field in one.schema.fields)
            allowed = not streams or (self._call is None and not has_watermark)
            remedy = "call it before withWatermark and before the stateful call"
        else:
            # On two streams, or as a set, it keeps rows in Spark.
            allowed = not streams or (len(streams) == 1 and name in ("join", "crossJoin", "lateralJoin"))
            remedy = (
                "join a stream with a DataFrame that is no stream; two streams in a graph with dos.through"
            )
        if not allowed:
            raise FrameError(f"{name} of streams is not computed through a frame", remedy=remedy)
        return self._made(name, args, kwargs)

    return call


def _whole(name: str) -> Any:
    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> RegionFrame:
        if self.isStreaming and (self._call is None or name not in OF_TABLES):
            raise FrameError(
                f"{name} of a stream needs its whole table, which is not kept",
                remedy="call it in foreachBatch, on the rows of a micro-batch",
            )
        return self._made(name, args, kwargs)

    return call


def _time(name: str) -> Any:
    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> RegionFrame:
        if self._call is not None:
            raise FrameError(
                f"{name} after a stateful call: the region has its own watermark",
                remedy="call it before, on the stream",
            )
        return self._made(name, args, kwargs)

    return call


def _inform(name: str, parent: Any) -> Any:
    if isinstance(parent, property):
        return property(lambda self: getattr(self._shadow, name), doc=parent.__doc__)

    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._shadow, name)(*args, **kwargs)

    return call


def _view(name: str, parent: Any) -> Any:
    action = _action(name, parent)

    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> Any:
        if self.isStreaming:
            raise FrameError(
                f"{name} of a stream: SQL that groups its rows would keep them in the state of Spark",
                remedy=f"group on the frame; or write frame.df().{name} if that is what you want",
            )
        return action(self, *args, **kwargs)

    return call


def _action(name: str, parent: Any) -> Any:
    def checked(self: RegionFrame) -> DataFrame:
        if self._call is None:
            return self._shadow
        _refuse_stream(self, name)
        return self.df()

    if isinstance(parent, property):

        def get(self: RegionFrame) -> Any:
            if self._call is not None:
                # Completers and debuggers evaluate properties, and this one would run a region.
                raise FrameError(
                    f"{name} is not a property of a frame with a stateful call",
                    remedy=f"write frame.df().{name}",
                )
            return getattr(self._shadow, name)

        return property(get, doc=parent.__doc__)

    def call(self: RegionFrame, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_plain(name, one) for one in args)
        result = getattr(checked(self), name)(*args, **kwargs)
        return RegionFrame(result, self._settings) if isinstance(result, DataFrame) else result

    return call


def _refused(name: str, why: str, remedy: str) -> Any:
    def call(_self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise FrameError(f"{name} {why}", remedy=remedy)

    return call


def _define_methods(cls: Any) -> None:
    makers: dict[MethodClass, Callable[[str, Any], Any]] = {
        MethodClass.ROW: lambda name, _: _row(name),
        MethodClass.TWO_SIDED: lambda name, _: _two_sided(name),
        MethodClass.WHOLE: lambda name, _: _whole(name),
        MethodClass.TIME: lambda name, _: _time(name),
        MethodClass.INFORM: _inform,
        MethodClass.ACTION: _action,
        MethodClass.VIEW: _view,
        MethodClass.REFUSED: lambda name, _: _refused(
            name, "is not computed by a region", "call it on the DataFrame of Spark, frame.df()"
        ),
    }
    for name, parent in vars(DataFrame).items():
        if name.startswith("_") or METHODS.get(name) in (MethodClass.STATEFUL, MethodClass.OWN):
            continue
        if name in METHODS:
            made = makers[METHODS[name]](name, parent)
        else:
            made = _refused(name, "is unknown to this version of DOS", f"write frame.df().{name}")
            made = property(made) if isinstance(parent, property) else made
        setattr(cls, name, made if isinstance(made, property) else functools.wraps(parent)(made))


_define_methods(RegionFrame)


# --- groupBy ------------------------------------------------------------------------------------------------


_DICT_NAMES: Final = {"average": "avg", "size": "count"}
"""Names that `agg` of a dict has for functions, as in Spark."""


class FrameGroupedData(GroupedData):  # type: ignore[misc]  # PySpark has no types here
    """What `groupBy` of a frame returns."""

    def __init__(self, frame: RegionFrame, cols: tuple[Any, ...]) -> None:
        self._frame = frame
        self._cols: tuple[Any, ...] = tuple(cols[0]) if len(cols) == 1 and isinstance(cols[0], list) else cols
        self._df = frame._shadow
        self.session = self._df.sparkSession
        self._own = self._df.groupBy(*self._cols)  # an unknown column is an error of Spark, here

    def __repr__(self) -> str:
        return f"RegionFrame{self._own!r}"

    def agg(self, *exprs: Column | dict[str, str]) -> RegionFrame:
        """Compute aggregates in a region. Raises FrameError for what it does not compute, and as Spark."""
        shadow = self._own.agg(*exprs)
        if len(exprs) == 1 and isinstance(exprs[0], dict):
            exprs = self._of_dict(exprs[0], shadow)
        return self._divided(exprs, shadow)

    def _of_dict(self, given: dict[str, str], shadow: DataFrame) -> tuple[Column, ...]:
        """Return the expressions of a dict in the order of Spark, which is that of a map of the JVM."""
        found = {
            self._own.agg({one: function}).columns[-1]: F.call_function(
                _DICT_NAMES.get(function.lower(), function), F.col(one)
            )
            for one, function in given.items()
        }
        return tuple(found[name] for name in shadow.columns[-len(given) :])

    def _divided(self, exprs: tuple[Column, ...], shadow: DataFrame) -> RegionFrame:
        call = _Call(divided(self._df, self._keys(), exprs, shadow, self._frame._below))
        return RegionFrame(shadow, self._frame._settings, call)

    def _keys(self) -> list[Column]:
        return [self._key(one) for one in self._cols]

    def _key(self, given: Any) -> Column:
        if isinstance(given, Column):
            return given
        return F.col(given) if isinstance(given, str) else self._df[given - 1]

    def applyInPandasWithState(
        self,
        func: Callable[..., Any],
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
    ) -> RegionFrame:
        """Call a function with all rows of a key in a micro-batch, and its state. Raises FrameError, and as
        Spark.
        """
        name = "applyInPandasWithState"
        refuse_below(name, self._frame._below)
        _refuse_processing_time(name, timeoutConf, "ProcessingTimeTimeout", "EventTimeTimeout")
        shadow = self._own.applyInPandasWithState(
            func, outputStructType, stateStructType, outputMode, timeoutConf
        )
        state = stateStructType
        if isinstance(state, str):
            state = StructType.fromDDL(state)
        keys = self._keys()
        call = applied_with_state(self._df, keys, shadow, func, state, outputMode, timeoutConf)
        return RegionFrame(shadow, self._frame._settings, _Call(call))

    def transformWithState(self, *args: Any, **options: Any) -> RegionFrame:
        """Run a StatefulProcessor, which gets rows. Raises FrameError, UnsupportedVersionError, as Spark."""
        need_pyspark(PROCESSOR_OF_ROWS, "transformWithState", "use transformWithStateInPandas")
        return self._transformed("row", *args, **options)

    def transformWithStateInPandas(self, *args: Any, **options: Any) -> RegionFrame:
        """Run a StatefulProcessor, which gets DataFrames of pandas. Raises FrameError, and as Spark."""
        return self._transformed("pandas", *args, **options)

    def _transformed(
        self,
        takes: ProcessorTakes,
        statefulProcessor: Any,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedData | None = None,
        eventTimeColumnName: str = "",
    ) -> RegionFrame:
        name = "transformWithState" if takes == "row" else "transformWithStateInPandas"
        refuse_below(name, self._frame._below)
        _refuse_processing_time(name, timeMode, "ProcessingTime", "EventTime")
        if initialState is not None:
            raise FrameError(
                f"{name} of a frame has no initial state",
                remedy="make the initial state rows of the stream, before all others",
            )
        shadow = getattr(self._own, name)(
            statefulProcessor,
            outputStructType,
            outputMode,
            timeMode,
            eventTimeColumnName=eventTimeColumnName,
        )
        call = transformed(self._df, self._keys(), shadow, statefulProcessor, outputMode, timeMode, takes)
        return RegionFrame(shadow, self._frame._settings, _Call(call))

    def count(self) -> RegionFrame:
        return self._divided((F.count(F.lit(1)),), self._own.count())

    def _numbers(self, name: str, cols: tuple[str, ...]) -> RegionFrame:
        function = getattr(F, name)
        names = cols
        if not cols:
            numeric = [field.name for field in self._df.schema if isinstance(field.dataType, NumericType)]
            names = tuple(quoted(one) for one in numeric)
        exprs = tuple(function(F.col(one)) for one in names)
        return self._divided(exprs, getattr(self._own, name)(*cols))

    def avg(self, *cols: str) -> RegionFrame:
        return self._numbers("avg", cols)

    def max(self, *cols: str) -> RegionFrame:
        return self._numbers("max", cols)

    def mean(self, *cols: str) -> RegionFrame:
        return self._numbers("mean", cols)

    def min(self, *cols: str) -> RegionFrame:
        return self._numbers("min", cols)

    def sum(self, *cols: str) -> RegionFrame:
        return self._numbers("sum", cols)


GROUPED: Final = frozenset(
    [
        *("agg", "avg", "count", "max", "mean", "min", "sum"),
        *("applyInPandasWithState", "transformWithState", "transformWithStateInPandas"),
    ]
)
"""Public names of GroupedData that a region computes. All others are refused by name."""


def _refuse_processing_time(name: str, given: str, processing: str, event: str) -> None:
    if given.lower() == processing.lower():
        raise FrameError(
            f"{name} of a frame has no time-outs and timers of processing time ({given!r})",
            remedy=f'use "{event}" with withWatermark, or "None" or "NoTimeout" without timers',
        )


def _define_grouped() -> None:
    for name in dir(GroupedData):
        if name.startswith("_") or name in GROUPED:
            continue
        remedy = f"call it on the DataFrame of Spark: frame.df().groupBy(...).{name}"
        refused = _refused(name, "of a frame is not computed by a region", remedy)
        setattr(FrameGroupedData, name, functools.wraps(getattr(GroupedData, name))(refused))


_define_grouped()


# --- writers ------------------------------------------------------------------------------------------------


class _WriterCall(NamedTuple):
    """A recorded call."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def first(self) -> Any:
        """Its only argument."""
        return (self.arguments or tuple(self.options.values()))[0]


class FrameWriter(DataFrameWriter):  # type: ignore[misc]  # PySpark has no types here
    """`write` of a frame with a stateful call: records the calls, and runs the region when one writes."""

    def __init__(self, writer: Callable[[], DataFrameWriter]) -> None:
        self._writer = writer
        self._calls: list[_WriterCall] = []

    def _end(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return getattr(_replayed(self._writer(), self._calls), name)(*args, **kwargs)


class FrameStreamWriter(DataStreamWriter):  # type: ignore[misc]  # PySpark has no types here
    """`writeStream` of a frame with a stateful call: records the calls, and starts region and query at
    `start`. In the output mode "complete" the query is a `foreachBatch`, which makes the recorded calls of
    the frame on the table of the micro-batch, and hands the result to the sink.
    """

    def __init__(self, frame: RegionFrame) -> None:
        self._frame = frame
        self._calls: list[_WriterCall] = []

    def _end(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StreamingQuery:
        bound = inspect.signature(getattr(DataStreamWriter, name)).bind(None, *args, **kwargs).arguments
        options = dict(bound.pop("options", {}))
        bound.pop("self")
        set_at_end = {key: value for key, value in bound.items() if value is not None}
        set_before = {one.name: one.first for one in self._calls if one.name in ("outputMode", "queryName")}
        mode = set_at_end.pop("outputMode", None) or set_before.get("outputMode", "append")
        query_name = set_at_end.get("queryName") or set_before.get("queryName")
        settings = {**_options_of(self._calls), **{key.lower(): value for key, value in options.items()}}
        if str(settings.get("asyncprogresstrackingenabled", "false")).lower() == "true":
            raise FrameError(
                "asyncProgressTrackingEnabled: after a restart Spark would repeat batches that the region has"
                " processed",
                remedy="leave the option out",
            )
        frame = self._frame
        region = frame._settings.name or self._region_name(settings.get("checkpointlocation"), query_name)
        used = frame._checked_mode(mode)
        calls = [one for one in self._calls if one.name != "outputMode"]
        if used == "complete":
            at_end = "a table" if name == "toTable" else set_at_end.pop("format", None)
            take = self._table_sink(at_end, settings, query_name)
            set_at_end.pop("path", None)

            def each(output: DataFrame, batch: int) -> None:
                take(frame._finished(output), batch)

            calls = [one for one in calls if one.name not in _SINKS]
            calls.append(_WriterCall("foreachBatch", (each,), {}))
            result: Any = frame._output(used, region)
        else:
            result = frame._result(used, region)
        try:
            # Of a table each micro-batch has all rows, for Spark new ones.
            writer = result.writeStream.outputMode("append" if used == "complete" else used)
            query: Any = getattr(_replayed(writer, calls), name)(**set_at_end, **options)
        except BaseException:
            result.dos.end()
            raise
        query.dos = result.dos
        threading.Thread(target=_stop_after, args=(query,), name=f"dos-{region}-end", daemon=True).start()
        return query

    def _region_name(self, place: str | None, query_name: str | None) -> str | None:
        """Return the name of the region. None: it is temporary, as the checkpoint of the query is."""
        if query_name is not None and not is_name(query_name):
            query_name = _name_of(query_name)
        if place is not None:
            return query_name or _name_of(str(place))
        below = self._frame.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        return None if below is None else query_name

    def _table_sink(
        self, at_end: str | None, settings: Mapping[str, Any], query_name: str | None
    ) -> Callable[[DataFrame, int], object]:
        """Return what takes the table of each micro-batch. at_end: the format that the last call sets. Raises
        FrameError for a sink that takes none.
        """
        frame = self._frame
        spark = frame.sparkSession
        sink, given = "format", spark.conf.get("spark.sql.sources.default")
        for one in self._calls:
            if one.name in _SINKS:
                sink, given = one.name, one.first
        if at_end is not None:
            sink, given = "format", at_end
        if sink == "foreachBatch":
            return cast("Callable[[DataFrame, int], object]", given)
        kind = str(given).lower() if sink == "format" else sink
        if kind == "console":
            rows = int(settings.get("numrows", 20))
            return functools.partial(_show, rows, str(settings.get("truncate", "true")).lower() == "true")
        if kind != "memory":
            raise FrameError(
                f"{kind!r} does not take the whole table of each micro-batch (output mode 'complete')",
                remedy="write it in foreachBatch, or use the formats console and memory",
            )
        if not query_name:
            raise FrameError("the format memory needs a name of its table", remedy="call queryName(...)")
        spark.createDataFrame([], frame.schema).createOrReplaceTempView(query_name)
        return functools.partial(_replace_view, spark, query_name)


_SINKS: Final = ("foreach", "foreachBatch", "format")
_MODES: Final[dict[str, Mode]] = {"append": "append", "update": "update", "complete": "complete"}


def _show(rows: int, truncate: bool, table: DataFrame, batch: int) -> None:
    """Print a table as the console sink of Spark does."""
    line = "-" * 43
    print(f"{line}\nBatch: {batch}\n{line}")
    table.show(rows, truncate)


def _replace_view(spark: SparkSession, name: str, table: DataFrame, _batch: int) -> None:
    """Replace the temporary view of a session by the rows of a table, as the memory sink of Spark does."""
    given, session = table._jdf, spark._jsparkSession
    # Copied: rows of a micro-batch cannot be evaluated after it.
    rows = session.createDataFrame(given.collectAsList(), given.schema())
    DataFrame(rows, spark).createOrReplaceTempView(name)


def _name_of(place: str) -> str:
    """Return the name of a region for a checkpointLocation, or for a queryName that is no name of a region:
    its last part, and a digest of the whole.
    """
    last = re.sub(r"[^A-Za-z0-9]+", "-", place.rstrip("/").rpartition("/")[2]).strip("-")
    return f"{last[:40] or 'frame'}-{digest(place)}"


def _options_of(calls: list[_WriterCall]) -> dict[str, Any]:
    """Return the options that were set, by their names in lower case."""
    found: dict[str, Any] = {}
    for one in calls:
        if one.name == "option":
            key, value = (
                inspect.signature(DataStreamWriter.option).bind(None, *one.arguments, **one.options).args[1:]
            )
            found[key.lower()] = value
        elif one.name == "options":
            found |= {key.lower(): value for key, value in one.options.items()}
    return found


def _stop_after(query: Any) -> None:
    """Stop the region after a last checkpoint when its query has ended, for whatever cause."""
    try:
        query.awaitTermination()
    except Exception as error:  # the user has it from the query
        logger.info("query %s ended: %s", query.id, error)
    try:
        query.dos.end()
    except Exception as error:  # another driver may run the region by now
        logger.warning("the region of query %s could not be stopped: %s", query.id, error)


def _replayed(writer: Any, calls: list[_WriterCall]) -> Any:
    for one in calls:
        if one.name == "foreachBatch":
            # A function that does not evaluate its DataFrame would leave out the micro-batch.
            writer = writer.foreachBatch(each_batch(one.first))
        else:
            writer = getattr(writer, one.name)(*one.arguments, **one.options)
    return writer


def _define_writer(cls: Any, parent: Any) -> None:
    """Define each public method: one that returns the writer is recorded, another one ends the recording."""

    def define(name: str, method: Any) -> None:
        returns = str(inspect.signature(method).return_annotation).strip("'\"")

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if returns != parent.__name__:
                return self._end(name, args, kwargs)
            self._calls.append(_WriterCall(name, args, kwargs))
            return self

        setattr(cls, name, functools.wraps(method)(call))

    for name in dir(parent):
        if not name.startswith("_"):
            define(name, getattr(parent, name))


_define_writer(FrameWriter, DataFrameWriter)
_define_writer(FrameStreamWriter, DataStreamWriter)
