"""key_by, union and side outputs: operators that pass rows on unchanged, to a worker or another stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import pyarrow as pa

from dataflow.core.plan import OperatorKind
from dataflow.errors import SchemaError
from dataflow.operators.base import HASH_COLUMN, WEIGHT_COLUMN, Operator, OperatorContext, OperatorSpec
from dataflow.operators.event_time import NullRule, OnNullKey, check_choice, null_side_outputs
from dataflow.schema import schema_text, type_text
from dataflow.state.key_index import key_column, normalized_key


@dataclass(frozen=True, slots=True)
class KeyBySpec(OperatorSpec):
    """The key columns, in order, and the rule for rows in which one of them is null."""

    kind: ClassVar[OperatorKind] = OperatorKind.KEY_BY
    keys: tuple[str, ...]
    on_null: OnNullKey = "group"

    def __post_init__(self) -> None:
        check_choice(self.on_null, get_args(OnNullKey))

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if not self.keys:
            raise SchemaError("key_by needs at least one column, for example key_by('by_word', 'word')")
        if len(set(self.keys)) != len(self.keys):
            raise SchemaError(f"a key column may be named only once, not {', '.join(map(repr, self.keys))}")
        for name in self.keys:
            if name not in inputs[0].names:
                raise SchemaError(
                    f"key column {name!r} does not exist; the columns are {', '.join(inputs[0].names)}"
                )
            try:
                key_column(inputs[0].field(name).type)
            except SchemaError as error:
                raise SchemaError(f"key column {name!r}: {error}") from None
        return inputs[0]

    def detail(self) -> str:
        return f"key ({', '.join(self.keys)})"

    def side_output_schemas(self, inputs: Sequence[pa.Schema]) -> Mapping[str, pa.Schema]:
        return null_side_outputs(self.on_null, inputs[0])

    def replica_problem(self, inputs: Sequence[pa.Schema]) -> None:
        del inputs  # every row once, or by its own nulls not at all

    def open(self, context: OperatorContext) -> "KeyOperator":
        """Return the operator that rows pass before they are sent. The circuit runs the exchange itself."""
        del context
        instead = (
            "write key_by(..., on_null='drop') or 'side' to exclude such rows, or 'group' to treat null as a"
            " key"
        )
        return KeyOperator("key column", self.on_null, self.keys, instead)


class KeyOperator(NullRule):
    """Applies the rule for null keys, and normalizes the keys of the other rows."""

    def process(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        batch = self.without_nulls(batch)
        for name in self.columns:
            given = batch.column(name)
            key = normalized_key(given)
            if key is not given:
                at = batch.schema.get_field_index(name)
                batch = batch.set_column(at, batch.schema.field(at), key)
        return [batch]


def check_keyed_alike(keys: Sequence[Sequence[pa.DataType]]) -> None:
    """Raise SchemaError if streams keyed by these types do not bring equal keys to the same worker."""
    other = next((kinds for kinds in keys if list(kinds) != list(keys[0])), None)
    if other is not None:
        listed = [", ".join(map(type_text, kinds)) for kinds in (keys[0], other)]
        raise SchemaError(
            f"all inputs must be keyed by columns of the same types, not ({listed[0]}) and ({listed[1]});"
            " cast one of them with a map before key_by"
        )


def wire_schema(keyed: pa.Schema, merge_columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns on an exchange: those that consumers need, `_weight` if merged, and `_hash`."""
    fields = list(keyed) if merge_columns is None else [keyed.field(name) for name in merge_columns]
    if merge_columns is not None:
        fields.append(pa.field(WEIGHT_COLUMN, pa.int64()))
    return pa.schema([*fields, pa.field(HASH_COLUMN, pa.uint64())])


@dataclass(frozen=True, slots=True)
class UnionSpec(OperatorSpec):
    """Several streams of one schema as one, within a step in the order in which the user named them."""

    # Batches wait in the circuit for the end of the step, so that the order does not depend on how the step
    # was divided into batches (replication-transparency IV-D).
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
