"""A sink that calls a function of the user with what comes, as it comes: a dashboard, a socket, an alarm.

Rules of this file: the call, and what a fault of it is told as. What was done cannot be taken back: so in a
consistent region a row may be seen again after a reset (at least once), outside of any region a row is
seen at most once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from dataflow.core.delivery import Delivery
from dataflow.errors import DeliveryError, SchemaError
from dataflow.operators.base import OperatorContext, UserFault
from dataflow.operators.functions import Takes
from dataflow.operators.python_rows import rows_of
from dataflow.sinks.base import SinkSpec, SinkWriter, not_once_only


@dataclass(frozen=True, slots=True)
class CallSink(SinkSpec):
    """Calls `function` with each row (a dict), or with takes="batch" each `pa.RecordBatch`; what it returns
    is not looked at. Raises SchemaError for what is no function.

        CallSink(lambda row: print(row["item"]))
    """

    runs_outside: ClassVar[bool] = True
    function: Callable[..., Any]
    takes: Takes = "row"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SchemaError(f"a CallSink takes a function, not {type(self.function).__name__}")
        if self.takes not in ("row", "batch"):
            raise SchemaError(f"takes is 'row' or 'batch', not {self.takes!r}")

    def check_input(self, schema: pa.Schema) -> None:
        """Everything may be handed to a function."""

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """What was done cannot be taken back."""
        if wanted == "exactly-once":
            raise DeliveryError(
                "calls a function as rows come, and after a reset again", remedy=not_once_only
            )
        return wanted or "at-least-once"

    def open(self, context: OperatorContext) -> "CallWriter":
        del context
        return CallWriter(self.function, by_row=self.takes == "row")


class CallWriter(SinkWriter):
    """Keeps nothing: there is nothing to prepare, and nothing to go back to."""

    def __init__(self, function: Callable[..., Any], *, by_row: bool) -> None:
        self._function = function
        self._by_row = by_row

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        calls = rows_of(batch) if self._by_row else [batch]
        for index, given in enumerate(calls):
            try:
                self._function(given)
            except (Exception, SystemExit) as error:
                text = f"{type(error).__name__}: {error}"
                raise UserFault(text, row=index if self._by_row else None) from error
        return ()

    def prepare(self, cut: int) -> None:
        del cut

    def sync(self) -> None:
        """Nothing waits to be written."""

    def reset_to(self, prepared: Any | None) -> None:
        """What was done stays done."""
