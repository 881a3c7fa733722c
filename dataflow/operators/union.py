"""union: several streams of one schema as one. Within a step the inputs come in the order the user named
them.

Batches wait for the end of the step, so that the order does not depend on how a step was cut into batches.
Every row is given on once: consistent inputs make consistent outputs (replication-transparency IV-D).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dataflow.core.plan import Kind
from dataflow.errors import SchemaError
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec
from dataflow.schema import schema_text


@dataclass(frozen=True, slots=True)
class UnionSpec(OperatorSpec):
    """All inputs have the same columns."""

    kind: ClassVar[Kind] = Kind.UNION

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        for schema in inputs[1:]:
            if not schema.equals(inputs[0]):
                raise SchemaError(
                    f"a union has inputs of one schema, not ({schema_text(inputs[0])}) and "
                    f"({schema_text(schema)}); "
                    "map one of them"
                )
        return inputs[0]

    def open(self, context: OperatorContext) -> Operator:
        return UnionOperator(len(context.inputs))


class UnionOperator(Operator):
    """Holds the rows of each input until the end of the step."""

    def __init__(self, inputs: int) -> None:
        self._held: list[list[pa.RecordBatch]] = [[] for _ in range(inputs)]

    def process_of(self, index: int, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        self._held[index].append(batch)
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        batches = [batch for held in self._held for batch in held]
        self.reset()
        return batches

    def reset(self) -> None:
        self._held = [[] for _ in self._held]
