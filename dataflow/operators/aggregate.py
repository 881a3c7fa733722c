"""aggregate: aggregates over all rows of each key since the start.

Emits (key, results) once per step for each key that had rows in it. The aggregates are defined in
`dataflow.operators.aggregates`; time windows are in `windows.py`.

The last row emitted for a key does not depend on the order of the input rows or on their division into steps
(replication-transparency IV-F, with one window that never ends, so no punctuation is needed).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.aggregates import (
    Aggregate,
    check_aggregates,
    check_are_aggregates,
    open_all,
    result_fields,
)
from dataflow.operators.base import Operator, OperatorContext, OperatorSpec, ReplicaProblem, StateTable
from dataflow.state.accumulators import Accumulator
from dataflow.state.keyed_table import KeyedTable
from dataflow.worker.partitioning import hashes_of


@dataclass(frozen=True, slots=True)
class AggregateSpec(OperatorSpec):
    """Aggregates by the key of the upstream keyed stream. `aggregates` holds (result name, aggregate)
    pairs.
    """

    kind: ClassVar[OperatorKind] = OperatorKind.AGGREGATE
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]

    def __post_init__(self) -> None:
        check_are_aggregates(dict(self.aggregates))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        named = dict(self.aggregates)
        check_aggregates(named, self.keys, inputs[0])
        keys = [inputs[0].field(name) for name in self.keys]
        results = result_fields(named, inputs[0])
        try:
            KeyedTable(pa.schema(keys), open_all(named, inputs[0]))
        except ValueError as error:
            raise SchemaError(str(error)) from None
        return pa.schema([*keys, *results])

    def detail(self) -> str:
        results = ", ".join(f"{name} {aggregate}" for name, aggregate in self.aggregates)
        return f"key ({', '.join(self.keys)}) results ({results})"

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> ReplicaProblem:
        del inputs
        return ReplicaProblem(
            "has no window, and emits a row for each key in each step",
            "give it a window, Tumbling or Sliding",
        )

    def open(self, context: OperatorContext) -> "AggregateOperator":
        assert context.output is not None
        return AggregateOperator(self, context.inputs[0], context.output)


class AggregateOperator(Operator):
    """Runs the aggregates. All state per key is in the keyed table."""

    def __init__(self, spec: AggregateSpec, columns: pa.Schema, output: pa.Schema) -> None:
        self._keys = spec.keys
        self._output = output
        self._aggregated_columns = [aggregate.column for _, aggregate in spec.aggregates]
        self._accumulators: Sequence[Accumulator] = open_all(dict(spec.aggregates), columns)
        self._table = KeyedTable(pa.schema([columns.field(name) for name in spec.keys]), self._accumulators)

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        slots = self._table.find_or_add([batch.column(name) for name in self._keys], hashes_of(batch))
        for column, accumulator in zip(self._aggregated_columns, self._accumulators, strict=True):
            accumulator.update(slots, None if column is None else batch.column(column))
        return ()

    def end_step(self) -> Sequence[pa.RecordBatch]:
        touched = self._table.take_touched()
        if not len(touched):
            return ()
        results = [accumulator.results(touched) for accumulator in self._accumulators]
        return [pa.RecordBatch.from_arrays([*self._table.keys(touched), *results], schema=self._output)]

    def tables(self) -> Mapping[str, StateTable]:
        return {"": self._table}

    def counters(self) -> dict[str, int]:
        held = sum(accumulator.bytes_held for accumulator in self._accumulators)
        return {"keys": len(self._table), "state_bytes": self._table.bytes_held + held}
