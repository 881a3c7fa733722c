"""The output of another region as a source: an output log (`LogSink`) read where it is written.

Rules of this file: the description only. How it is read is `sources/prefetched.py`'s; what is shown of a log is
`checkpoint/chains/output_following.py`'s.

A split is the log of one worker of that region. The source is at its end when that region has processed all
its input. So two regions are joined, and stay apart: each has its own cuts, and is reset alone.
"""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from checkpoint.chains.output_following import PublishedOutput
from checkpoint.core.outputs import output_chain
from dataflow.errors import SchemaError
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import PrefetchedSource
from dos_client import Store
from dos_protocol.names import check_name


@dataclass(frozen=True, slots=True, init=False)
class LogSource(PrefetchedSource):
    """Reads what the sink `sink`, a `LogSink`, puts out.

        LogSource("sold", "item string, count bigint", region="shop.sales")

    schema: of its rows. region: whose sink it is, the name that `run` was given; None: another region of the
    same graph. Raises BadNameError, SchemaError.
    """

    what: ClassVar[str] = "log"
    sink: str
    schema: pa.Schema
    region: str | None

    def __init__(self, sink: str, schema: "str | pa.Schema", *, region: str | None = None) -> None:
        check_name(output_chain(sink))
        if region is not None:
            check_name(region)
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "schema", parse_schema(schema))
        object.__setattr__(self, "region", region)

    def of_region(self, region: str) -> "LogSource":
        """The same, of that region's sink."""
        return LogSource(self.sink, self.schema, region=region)

    def origin(self, store: Store, application: str) -> PublishedOutput:
        del application
        if self.region is None:
            raise SchemaError(f"whose log {self.sink!r} is must be said; write LogSource(..., region=...)")
        return PublishedOutput(store, self.region, self.sink)

    def owner(self, split: str, workers: int) -> int:
        return int(split[1:]) % workers

    def detail(self) -> str:
        return f"log {self.sink}"
