"""side: a side output of an operator (for example its late rows) as a stream of its own. Rows pass
unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec


@dataclass(frozen=True, slots=True)
class SideOutputSpec(OperatorSpec):
    """The side output `port` of its input. The graph determines its columns."""

    kind: ClassVar[OperatorKind] = OperatorKind.SIDE
    port: str

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def detail(self) -> str:
        return f"port ({self.port})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # the operator above it decides what it emits

    def open(self, context: OperatorContext) -> "SideOutputOperator":
        del context
        return SideOutputOperator()


class SideOutputOperator(Operator):
    """Passes rows on. Stateless."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        return [batch]
