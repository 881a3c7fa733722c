"""The output of several replicas of a region as one source: each row once, from the replica that is first.

This file contains the description only. `dataflow/merging` reads the replicas, passes each row once, and
records it in the region's own store, as an input with marks; `sources/prefetched.py` reads that.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from checkpoint import check_input_name, output_chain
from checkpoint.chains.input_reading import InputHandle
from dataflow.errors import SchemaError
from dataflow.merging.recording import MergeOrder, MergeRecorder
from dataflow.merging.replica_stream import ReplicaPlace
from dataflow.operators.base import OperatorContext
from dataflow.operators.event_time import check_time_column
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import PrefetchedReader, PrefetchedSource, Reading, owner_by_name
from dos_client import Store, open_store, parse_url
from dos_protocol.names import check_name


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
    in `LogSink(time=...)`; with one, use `event_time(..., marks=True)` below. compare: compares the rows of
    replicas, "all", or one second of event time in n; "off" compares none. on_missing: what follows if no
    replica that can be reached has all rows: "wait", or "accept", which continues without them.

    Raises BadNameError, SchemaError.
    """

    what: ClassVar[str] = "merged log"
    sink: str
    schema: pa.Schema
    region: str
    sites: tuple[tuple[str, str], ...]
    times: tuple[str, ...]
    compare: int
    on_missing: str

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
    ) -> None:
        check_name(output_chain(sink))
        check_name(region)
        times = (time,) if isinstance(time, str) else tuple(time)
        every = {"all": 1, "off": 0}.get(compare, compare) if isinstance(compare, str) else compare
        if not isinstance(every, int) or every < 0:
            raise SchemaError(f"compare must be 'all', 'off' or a number above 0, not {compare!r}")
        if on_missing not in ("wait", "accept"):
            raise SchemaError(f"on_missing must be 'wait' or 'accept', not {on_missing!r}")
        if not sites:
            raise SchemaError("a merged log needs at least one site: sites={'purdue': 'dos://...'}")
        for site, url in sites.items():
            check_input_name("a site", site)
            parse_url(url)
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "schema", parse_schema(schema))
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "sites", tuple(sorted(sites.items())))
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "compare", every)
        object.__setattr__(self, "on_missing", on_missing)
        for column in times:
            check_time_column(column, self.schema)

    @property
    def time(self) -> str | None:
        """The column for `event_time(..., marks=True)`; None if there are several: a row may have one of them
        below a mark.
        """
        return self.times[0] if len(self.times) == 1 else None

    def open(self, context: OperatorContext) -> PrefetchedReader:
        here = self.owner("", context.workers) == context.worker
        return PrefetchedReader(self.schema, f"{self.what} {context.operator!r}", is_read_here=here)

    def origin(self, store: Store, reader: Reading) -> InputHandle:
        return InputHandle(store, reader.region, handle_of(reader.name))

    def recorder(self, store: Store, reader: Reading, token: bytes) -> MergeRecorder:
        """Return what records the rows that `origin` reads."""
        places = tuple(ReplicaPlace(site, url, self.region, self.sink) for site, url in self.sites)
        order = MergeOrder(places, self.schema, self.times, self.compare, self.on_missing == "accept")
        here = store.record.store_id.hex()[:8]
        consumer = f"{reader.region}.{reader.name}.{here}"

        def connect(place: ReplicaPlace) -> AbstractAsyncContextManager[Store]:
            return open_store(place.url, token=token, client=consumer)

        handle = handle_of(reader.name)
        return MergeRecorder(store, reader.region, handle, order, consumer=consumer, connect=connect)

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
