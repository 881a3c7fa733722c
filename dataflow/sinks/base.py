"""What every sink is: output that can be cut back to a point, and shown only up to one.

The life of a sink: `process` and `end_step` for each step; at a cut `prepare` (everything up to here is
handed to the operating system; say what is needed to come back), then, from another thread while the next
step runs, `sync`; upon the commit `publish`; after a failure `reset_to` what the cut says.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa

from dataflow.core.delivery import Delivery
from dataflow.core.plan import OperatorKind
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dos_protocol.digests import digest64

not_once_only: Final = (
    'take a LogSink, a ParquetSink or a sink of two phases; or say consistent(delivery="at-least-once")'
)
"""What to do about a sink whose rows are seen at once, where they are to be seen exactly once."""


class OutputOwner(msgspec.Struct, frozen=True):
    """Whose output something is: one sink of one region of one store. A run that resumes has the same."""

    region: str
    store: str
    sink: str

    @property
    def digest(self) -> int:
        """Part of the names of what it writes."""
        return digest64(msgspec.json.encode([self.region, self.store, self.sink]))


def owner_of(context: OperatorContext) -> OutputOwner:
    """The owner of what this sink writes."""
    return OutputOwner(context.region, context.store_id.hex(), context.operator)


class SinkWriter(Operator):
    """A running sink on one worker."""

    @abstractmethod
    def prepare(self, cut: int) -> Any:
        """Everything of this step is written; returns JSON that `reset_to` understands.

        cut: the number that `publish` will name. It may come again after a reset, for another try.
        """

    @abstractmethod
    def sync(self) -> None:
        """What was prepared is on stable storage. Called from another thread, never during `reset_to` or
        `close`.
        """

    def publish(self, cut: int) -> None:
        """The cut is committed: what was prepared for it, and for cuts before it, may be shown. May come
        twice, and when the next cut is prepared already.
        """

    @abstractmethod
    def reset_to(self, prepared: Any | None) -> None:
        """Come back to what `prepare` returned for a cut, None: to the beginning. What lies past it goes
        away.
        """


class SinkSpec(OperatorSpec):
    """The description of a sink."""

    kind: ClassVar[OperatorKind] = OperatorKind.SINK
    runs_outside: ClassVar[bool] = False
    """Whether it needs no cuts to show its output."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> None:
        self.check_input(inputs[0])

    def check_input(self, schema: pa.Schema) -> None:
        """Raises SchemaError if rows of this schema cannot be written."""

    def check_place(self, owner: OutputOwner) -> None:
        """Raise SinkOwnedError if the place where rows go holds output of another owner, which these rows
        would be added to. Changes nothing. The driver calls it before any worker starts; workers check again
        when they open the place. Here: nothing, for sinks whose place is the region's own.

        Raises OSError and whatever else the place raises if it cannot be read from here.
        """
        del owner

    def delivers(self, wanted: Delivery | None) -> Delivery:
        """How often a reader sees a row, in a consistent region that promises `wanted` (None: its best).
        Raises DeliveryError, with what to do instead. Here: rows are seen when their cut is committed.
        """
        return "at-most-once" if wanted == "at-most-once" else "exactly-once"

    @abstractmethod
    def open(self, context: OperatorContext) -> SinkWriter:
        """A writer of this worker's part, not yet opened: `reset_to` comes first."""
