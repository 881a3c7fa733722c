"""An input handle as a source: rows that producers write into the store.

This file contains the description only; `sources/prefetched.py` reads the rows, `dataflow/producing.py`
writes them.

Each producer is a split. A producer that is added later is read from then on. The source ends when the handle
is closed and everything recorded before is read.

A handle in an entry store is read by one worker: the watermark is the least mark of all producers, and a
worker that reads some of them cannot know when another one begins (`checkpoint/core/entry.py`, rule 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from checkpoint import check_input_name
from checkpoint.chains.input_reading import InputHandle
from dataflow.core.determinism import ReplicaProblem
from dataflow.errors import SchemaError
from dataflow.operators.base import OperatorContext
from dataflow.operators.event_time import check_time_column
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import (
    PrefetchedReader,
    PrefetchedSource,
    Reading,
    check_begin,
    owner_by_name,
)
from dos_client import Store, parse_url


@dataclass(frozen=True, slots=True, init=False)
class InputSource(PrefetchedSource):
    """Reads the input handle `name` of this application.

        InputSource("orders", "item string, price bigint")

    schema: the columns of the rows; producers must use the same schema. begin: where a region that has no
    checkpoint yet begins. "first": at the first row of each producer; it fails if rows were trimmed.
    "retained": at the oldest row that is retained.

    entry: the URL of the entry store, if entry points record the rows (`dos input serve --site`). One worker
    then reads all of them. time: the column with the times that the entry points gave or checked; use
    `event_time(..., time, marks=True)` below. late: read the rows that were late, instead of all others.
    application: of the handle, if it is not that of the reader.

    Raises BadNameError, SchemaError.
    """

    what: ClassVar[str] = "input"
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
        object.__setattr__(self, "begin", check_begin(begin))
        object.__setattr__(self, "name", check_input_name("an input handle", name))
        object.__setattr__(self, "schema", parse_schema(schema))
        object.__setattr__(self, "store_url", entry)
        object.__setattr__(self, "time", time if entry and not late else None)
        object.__setattr__(self, "late", late)
        object.__setattr__(self, "application", application)
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

    def detail(self) -> str:
        return f"input {self.name}"
