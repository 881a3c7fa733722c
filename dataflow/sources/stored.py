"""The sources whose rows are in a store: input handles, output logs, merged output logs of replicas.

A source begins with what existed first or with what is retained, and finds splits that are added later.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from checkpoint import check_input_name, output_chain
from checkpoint.chains.input_log import InputHandle
from checkpoint.chains.output_reading import OnRewind, PublishedOutput
from dataflow.core.regions import ReplicaProblem
from dataflow.errors import SchemaError
from dataflow.merging.merge import MergeOrder, ReplicaPlace, consumer_name, merge_order
from dataflow.merging.recording import MergeRecorder
from dataflow.operators.base import OperatorContext, set_fields
from dataflow.operators.event_time import check_time_column
from dataflow.schema import parse_schema
from dataflow.sources.base import owner_by_name
from dataflow.sources.prefetched import (
    PrefetchedReader,
    PrefetchedSource,
    Reading,
    check_begin,
)
from dos_client import Store, open_store, parse_url
from dos_protocol.names import check_name


@dataclass(frozen=True, slots=True, init=False)
class InputSource(PrefetchedSource):
    """Reads the input handle `name` of this application.

        InputSource("orders", "item string, price bigint")

    schema: of the rows; producers may have an older or a newer one (docs/inputs.md). begin: where a region
    without a checkpoint begins: "first", at the first row of each producer, which fails if rows were trimmed;
    "retained", at the oldest row that is retained. entry: the URL of the entry store, if entry points record
    the rows (`dos input serve --site`). One worker then reads all of them. time: the column with the times
    that the entry points gave or checked; use `event_time(..., time, marks=True)` below. late: read the rows
    that were late, instead of all others. application: of the handle, if it is not that of the reader. Raises
    BadNameError, SchemaError.
    """

    what: ClassVar[str] = "input"
    columns_stay: ClassVar[Literal["all", "old", "none"]] = "old"
    times_rise: ClassVar[bool] = True  # entry points stamp them so
    name: str
    schema: pa.Schema
    begin: str
    store_url: str  # type: ignore[misc]
    time: str | None
    late: bool
    application: str

    def __init__(
        self,
        name: str,
        schema: "str | pa.Schema",
        *,
        begin: str = "first",
        entry: str = "",
        time: str = "at",
        late: bool = False,
        application: str = "",
    ) -> None:
        set_fields(
            self,
            begin=check_begin(begin),
            name=check_input_name("an input handle", name),
            schema=parse_schema(schema),
            store_url=entry,
            time=time if entry and not late else None,
            late=late,
            application=application,
        )
        if late and not entry:
            raise SchemaError("only entry points find rows late: pass entry='dos://...' too")
        if entry:
            parse_url(entry)
            check_time_column(time, self.schema)

    def open(self, context: OperatorContext) -> PrefetchedReader:
        here = not self.store_url or self.owner("", context.workers) == context.worker
        label = f"{self.what} {context.operator!r}"
        return PrefetchedReader(self.schema, label, is_read_here=here, late=self.late)

    def origin(self, store: Store, reader: Reading) -> InputHandle:
        retained = self.begin == "retained"
        application, time = self.application or reader.application, self.time or ""
        return InputHandle(store, application, self.name, from_retained=retained, time=time)

    def owner(self, split: str, workers: int) -> int:
        # One worker reads all of an entry store: the watermark is the least mark of all producers, and a
        # worker that reads some of them cannot know when another one begins
        # (checkpoint/core/records/inputs.py, rule
        # 4).
        return owner_by_name(self.name if self.store_url else split, workers)

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if not self.store_url:
            return ReplicaProblem(
                "reads rows that only this site has",
                "let entry points record them, and use InputSource(..., entry='dos://...')",
            )
        if self.begin == "first":
            return None
        return ReplicaProblem(
            f"has begin={self.begin!r}, and what is retained depends on when a replica starts",
            'use begin="first"',
        )

    def why_endless(self) -> str:
        return "its entry points mark the times of its rows from the first one on" if self.store_url else ""

    def detail(self) -> str:
        of = f" of {self.application}" if self.application else ""
        entries = " from entry points" if self.store_url else ""
        return f"InputSource {self.name}{of}{entries}{' late rows' if self.late else ''}"


@dataclass(frozen=True, slots=True, init=False)
class LogSource(PrefetchedSource):
    """Reads the output of the `LogSink` named `sink`.

        LogSource("sold", "item string, count bigint", region="shop.sales")

    schema: the columns of its rows. region: the region of the sink, as named in `run`; None: another region
    of the same graph. begin: as for `InputSource`. on_rewind: what follows if the other region is restored to
    an older checkpoint, and output is taken back that was read here. "fail": this region fails with
    OutputRewoundError, so that it can be restored as well. "follow": it continues with the output of the new
    line of history; what it made of the rows that were taken back stays. Raises BadNameError, SchemaError.
    """

    what: ClassVar[str] = "log"
    columns_stay: ClassVar[Literal["all", "old", "none"]] = "old"
    sink: str
    schema: pa.Schema
    region: str | None
    begin: str
    on_rewind: OnRewind
    within: bool
    """Whether the region is one of the same graph: its name then begins with that of the application."""

    def __init__(
        self,
        sink: str,
        schema: "str | pa.Schema",
        *,
        region: str | None = None,
        begin: str = "first",
        on_rewind: OnRewind = "fail",
    ) -> None:
        if on_rewind not in ("fail", "follow"):
            raise SchemaError(f"on_rewind must be 'fail' or 'follow', not {on_rewind!r}")
        set_fields(self, on_rewind=on_rewind, begin=check_begin(begin))
        check_name(output_chain(sink))
        if region is not None:
            check_name(region)
        set_fields(self, sink=sink, schema=parse_schema(schema), region=region, within=False)

    def of_region(self, region: str) -> "LogSource":
        """Return a copy that reads the sink of this region of the same graph."""
        one = LogSource(self.sink, self.schema, region=region, begin=self.begin, on_rewind=self.on_rewind)
        set_fields(one, within=True)
        return one

    def origin(self, store: Store, reader: Reading) -> PublishedOutput:
        del reader
        if self.region is None:
            raise SchemaError(
                f"the region of log {self.sink!r} is not given; write LogSource(..., region=...)"
            )
        from_retained = self.begin == "retained"
        return PublishedOutput(
            store, self.region, self.sink, from_retained=from_retained, on_rewind=self.on_rewind
        )

    def owner(self, split: str, workers: int) -> int:
        return int(split[1:]) % workers

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "is a LogSource, which reads one replica of a region and has no rows while that one fails",
            "use MergedLogSource, which reads all of them",
        )

    def detail(self) -> str:
        return f"LogSource {self.sink}{'' if self.within or not self.region else f' of {self.region}'}"


@dataclass(frozen=True, slots=True, init=False)
class MergedLogSource(PrefetchedSource):
    """Reads the output of the `LogSink` named `sink` from replicas of its region at several sites.

        MergedLogSource(
            "out", "at timestamp", region="board.joined", sites={"purdue": "dos://p1,p2", "osu": "dos://o1,o2"}
        )

    A row that several replicas give is passed once, when the first of them gives it. A replica that is
    silent, slow, cut off, restored to an older checkpoint or replaced delays nothing that another one has,
    and doubles nothing.

    schema: the columns of its rows. region: of the sink, which has this name at each site. sites: site -> URL
    of its store. time: the column with the event time, or several, of which the latest counts, as in
    `LogSink(time=...)`; with one, use `event_time(..., marks=True)`. compare: compares rows of replicas,
    "all", or one second of event time in n; "off" compares none. on_missing: what follows if no replica that
    can be reached has all rows: "wait", or "accept", which continues without them. on_difference: what
    follows if replicas give different rows, or run different graphs: "stop", which fails the region, or
    "detach", which continues with those that agree, if they are more than half of at least three. Raises
    BadNameError, SchemaError.
    """

    what: ClassVar[str] = "merged log"
    sink: str
    schema: pa.Schema
    region: str
    order: MergeOrder

    def __init__(
        self,
        sink: str,
        schema: "str | pa.Schema",
        *,
        region: str,
        sites: Mapping[str, str],
        time: "str | Sequence[str]" = "at",
        compare: "str | int" = 16,
        on_missing: str = "wait",
        on_difference: str = "stop",
    ) -> None:
        order = merge_order(
            sites,
            region,
            sink,
            schema,
            time=time,
            compare=compare,
            on_missing=on_missing,
            on_difference=on_difference,
        )
        set_fields(self, sink=sink, schema=order.schema, region=region, order=order)

    @property
    def time(self) -> str | None:
        """The column for `event_time(..., marks=True)`; None for several: one of them may be below a mark."""
        return self.order.time[0] if len(self.order.time) == 1 else None

    def open(self, context: OperatorContext) -> PrefetchedReader:
        here = self.owner("", context.workers) == context.worker
        return PrefetchedReader(self.schema, f"{self.what} {context.operator!r}", is_read_here=here)

    def origin(self, store: Store, reader: Reading) -> InputHandle:
        return InputHandle(store, reader.region, handle_of(reader.name))

    def recorder(
        self, store: Store, reader: Reading, token: bytes, report: Callable[[Mapping[str, int]], None]
    ) -> MergeRecorder:
        """Return what records the rows that `origin` reads. report: see `MergeRecorder`."""
        consumer = consumer_name(reader.region, reader.name, store.record.store_id)

        def connect(place: ReplicaPlace) -> AbstractAsyncContextManager[Store]:
            return open_store(place.url, token=token, client=consumer)

        handle = handle_of(reader.name)
        return MergeRecorder(
            store, reader.region, handle, self.order, consumer=consumer, connect=connect, report=report
        )

    def owner(self, split: str, workers: int) -> int:
        del split
        return owner_by_name(self.sink, workers)

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # all replicas read the same rows with the same times

    def why_endless(self) -> str:
        return "what was not read yet is merged only when it is read"

    def detail(self) -> str:
        return f"MergedLogSource {self.sink} of {self.region}"


def handle_of(source: str) -> str:
    """Return the input handle in which the rows of a merged source are recorded."""
    return source.replace(".", "-")
