"""A sink that calls a user's function immediately: for a dashboard, a socket, an alarm.

A call cannot be undone: in a consistent region a row may come again after a reset (at least once); outside of
any region it is delivered at most once.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from dataflow.core.regions import Delivery
from dataflow.errors import DeliveryError, SchemaError, UserFault
from dataflow.operators.base import OperatorContext
from dataflow.operators.functions import Takes
from dataflow.sinks.base import SinkSpec, SinkWriter, exactly_once_remedy
from dataflow.values.python_rows import FAULTS, end_forked_child, rows_of
from dos_protocol.errors import text_of


@dataclass(frozen=True, slots=True)
class CallSink(SinkSpec):
    """Calls `function` with each row (a dict) or, with takes="batch", with each `pa.RecordBatch`. Raises
    SchemaError if it is not callable.

        CallSink(lambda row: print(row["item"]))
    """

    runs_outside: ClassVar[bool] = True
    function: Callable[..., Any]
    takes: Takes = "row"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SchemaError(f"a CallSink needs a function, not {type(self.function).__name__}")
        if self.takes not in ("row", "batch"):
            raise SchemaError(f"takes must be 'row' or 'batch', not {self.takes!r}")

    @property
    def leaves_rows(self) -> bool:
        return False  # a call is over, and cannot be undone

    def detail(self) -> str:
        return "CallSink"

    def check_input(self, schema: pa.Schema) -> None:
        """Accept any schema."""

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """Return at-least-once: calls cannot be undone. Raises DeliveryError for exactly-once."""
        if wanted == "exactly-once":
            raise DeliveryError(
                "calls a function immediately, and again after a reset", remedy=exactly_once_remedy
            )
        return wanted or "at-least-once"

    def open(self, context: OperatorContext) -> "CallWriter":
        del context
        return CallWriter(self.function, by_row=self.takes == "row")


class CallWriter(SinkWriter):
    """Calls the function. Stateless: there is nothing to prepare or to reset."""

    def __init__(self, function: Callable[..., Any], *, by_row: bool) -> None:
        self._function = function
        self._by_row = by_row

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        calls = rows_of(batch) if self._by_row else [batch]
        process = os.getpid()
        for index, given in enumerate(calls):
            if os.getpid() != process:
                end_forked_child()
            try:
                self._function(given)
            except FAULTS as error:
                raise UserFault(text_of(error), row=index if self._by_row else None) from error
        return ()

    def prepare(self, checkpoint: int) -> None:
        del checkpoint

    def sync(self) -> None:
        """Do nothing: no output is pending."""

    def reset_to(self, prepared: Any | None) -> None:
        """Do nothing: calls cannot be undone."""
