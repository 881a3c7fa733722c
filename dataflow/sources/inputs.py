"""An input handle as a source: rows that producers write into the store.

This file contains the description only; `sources/prefetched.py` reads the rows, `dataflow/producing.py`
writes them.

Each producer is a split. A producer that is added later is read from then on. The source ends when the handle
is closed and everything recorded before is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from checkpoint import check_input_name
from checkpoint.chains.input_reading import InputHandle
from dataflow.core.determinism import ReplicaProblem
from dataflow.schema import parse_schema
from dataflow.sources.prefetched import PrefetchedSource, check_begin, owner_by_name
from dos_client import Store


@dataclass(frozen=True, slots=True, init=False)
class InputSource(PrefetchedSource):
    """Reads the input handle `name` of this application.

        InputSource("orders", "item string, price bigint")

    schema: the columns of the rows; producers must use the same schema. begin: where a region that has no
    checkpoint yet begins. "first": at the first row of each producer; it fails if rows were trimmed.
    "retained": at the oldest row that is retained.

    Raises BadNameError, SchemaError.
    """

    what: ClassVar[str] = "input"
    times_rise: ClassVar[bool] = True  # entry points stamp them so
    name: str
    schema: pa.Schema
    begin: str

    def __init__(self, name: str, schema: "str | pa.Schema", *, begin: str = "first") -> None:
        object.__setattr__(self, "begin", check_begin(begin))
        object.__setattr__(self, "name", check_input_name("an input handle", name))
        object.__setattr__(self, "schema", parse_schema(schema))

    def origin(self, store: Store, application: str) -> InputHandle:
        return InputHandle(store, application, self.name, from_retained=self.begin == "retained")

    def owner(self, split: str, workers: int) -> int:
        return owner_by_name(split, workers)

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem | None:
        del inputs
        if self.begin == "first":
            return None
        return ReplicaProblem(
            f"has begin={self.begin!r}, and what is retained depends on when a replica starts",
            'use begin="first"',
        )

    def detail(self) -> str:
        return f"input {self.name}"
