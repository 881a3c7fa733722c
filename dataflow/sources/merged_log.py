"""The output of several replicas of a region as one source: each row once, from the replica that is first.

This file contains the description only. `dataflow/merging` reads the replicas, passes each row once, and
records it in the region's own store, as an input with marks; `sources/prefetched.py` reads that.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from checkpoint.chains.input_reading import InputHandle
from dataflow.merging.order import MergeOrder, ReplicaPlace, merge_order
from dataflow.merging.recording import MergeRecorder
from dataflow.merging.replica_stream import consumer_name
from dataflow.operators.base import OperatorContext
from dataflow.sources.prefetched import PrefetchedReader, PrefetchedSource, Reading, owner_by_name
from dos_client import Store, open_store


@dataclass(frozen=True, slots=True, init=False)
class MergedLogSource(PrefetchedSource):
    """Reads the output of the `LogSink` named `sink` from replicas of its region at several sites.

        MergedLogSource(
            "out",
            "at timestamp, load double",
            region="board.joined",
            sites={"purdue": "dos://p1,p2,p3", "osu": "dos://o1,o2,o3"},
        )

    A row that several replicas give is passed once, when the first of them gives it. A replica that is
    silent, slow, cut off, restored to an older checkpoint or replaced delays nothing that another one has,
    and doubles nothing.

    schema: the columns of its rows. region: the region of the sink, which has this name at each site. sites:
    site -> URL of its store. time: the column with the event time, or several, of which the latest counts, as
    in `LogSink(time=...)`; with one, use `event_time(..., marks=True)`. compare: compares rows of replicas,
    "all", or one second of event time in n; "off" compares none. on_missing: what follows if no replica that
    can be reached has all rows: "wait", or "accept", which continues without them. on_difference: what
    follows if replicas give different rows, or run different graphs: "stop", which fails the region, or
    "detach", which continues with those that agree, if they are more than half of at least three.

    Raises BadNameError, SchemaError.
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
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "schema", order.schema)
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "order", order)

    @property
    def time(self) -> str | None:
        """The column for `event_time(..., marks=True)`; None if there are several: a row may have one of them
        below a mark.
        """
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

    def detail(self) -> str:
        return f"merged log {self.sink}"


def handle_of(source: str) -> str:
    """Return the input handle in which the rows of a merged source are recorded."""
    return source.replace(".", "-")
