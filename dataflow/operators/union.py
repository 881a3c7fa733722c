"""union: several streams of one schema as one. Within a step the inputs follow each other in the order the
user named them.

Batches wait in the circuit for the end of the step, so that the order does not depend on how the step was
divided into batches. They keep the split that they came from. Every row is passed on once: consistent inputs
give consistent outputs (replication-transparency IV-D).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.schema import schema_text


@dataclass(frozen=True, slots=True)
class UnionSpec(OperatorSpec):
    """A union. All inputs must have the same columns."""

    kind: ClassVar[OperatorKind] = OperatorKind.UNION

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        for schema in inputs[1:]:
            if not schema.equals(inputs[0]):
                raise SchemaError(
                    f"the inputs of a union must have one schema, not ({schema_text(inputs[0])}) and "
                    f"({schema_text(schema)}); convert one of them with a map"
                )
        return inputs[0]

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # every row of every input once

    def open(self, context: OperatorContext) -> Operator:
        del context
        return Operator()
