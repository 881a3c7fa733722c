"""The output of another region as a source: an output log (`LogSink`) read from the store.

This file contains the description only; `sources/prefetched.py` reads the rows, and
`checkpoint/chains/output_following.py` determines which rows of a log are visible.

Each worker of the other region writes a log, which is a split here. The source ends when that region has
processed all of its input. Two regions connected in this way stay independent: each has its own checkpoints
and is reset alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from checkpoint import output_chain
from checkpoint.chains.output_follower import OnRewind
from checkpoint.chains.output_following import PublishedOutput
from dataflow.core.determinism import ReplicaProblem
from dataflow.errors import SchemaError
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import PrefetchedSource, check_begin
from dos_client import Store
from dos_protocol.names import check_name


@dataclass(frozen=True, slots=True, init=False)
class LogSource(PrefetchedSource):
    """Reads the output of the `LogSink` named `sink`.

        LogSource("sold", "item string, count bigint", region="shop.sales")

    schema: the columns of its rows. region: the region of the sink, as named in `run`; None: another region
    of the same graph. begin: where a region that has no checkpoint yet begins. "first": at the first row; it
    fails if rows were trimmed. "retained": at the oldest row that is retained. on_rewind: what follows if
    the other region is restored to an older checkpoint, and output is taken back that was read here. "fail":
    this region fails with OutputRewoundError, so that it can be restored as well. "follow": it continues with
    the output of the new line of history; what it made of the rows that were taken back stays.

    Raises BadNameError, SchemaError.
    """

    what: ClassVar[str] = "log"
    sink: str
    schema: pa.Schema
    region: str | None
    begin: str
    on_rewind: OnRewind

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
        object.__setattr__(self, "on_rewind", on_rewind)
        object.__setattr__(self, "begin", check_begin(begin))
        check_name(output_chain(sink))
        if region is not None:
            check_name(region)
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "schema", parse_schema(schema))
        object.__setattr__(self, "region", region)

    def of_region(self, region: str) -> "LogSource":
        """Return a copy that reads the sink of this region."""
        return LogSource(self.sink, self.schema, region=region, begin=self.begin, on_rewind=self.on_rewind)

    def origin(self, store: Store, application: str) -> PublishedOutput:
        del application
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
        return f"log {self.sink}"
