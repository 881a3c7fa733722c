"""The inputs of a user's operator: their names, their required columns, and their order in a step.

`apply.py` calls the user's methods.

Theory (docs/decisions/0150). How the rows of one input interleave with those of another depends on timing,
and a replay does not repeat it. Rows of an operator with several inputs therefore wait for the end of the
step (as in `union.py`) and are processed input by input, in the order in which the operator names them. The
watermark of all inputs is the minimum of theirs (replication-transparency IV-A). Unlike downstream of a
union, an input that never had a row counts: if that input started later, the operator could not retract what
it emitted at a watermark.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from dataflow.core.event_time import IDLE, UNKNOWN, Watermark
from dataflow.errors import SchemaError, nearest
from dataflow.operators.event_time import WatermarkTable
from dataflow.operators.user_operator import Columns, UserOperator
from dataflow.schema import parse_schema, type_text


def inputs_of(operator: UserOperator) -> tuple[str, ...]:
    """Return the names of its inputs, in order. The name is '' if the operator names no inputs."""
    return tuple(operator.needs) if isinstance(operator.needs, Mapping) else ("",)


def check_inputs(operator: UserOperator, given: Sequence[str] | None) -> None:
    """Raise SchemaError unless the given stream names are those that the operator declares. None: one unnamed
    stream.
    """
    class_name, names = type(operator).__name__, inputs_of(operator)
    if names != ("",) and not (names and all(isinstance(name, str) and name for name in names)):
        raise SchemaError(
            f"{class_name} must name its inputs in needs, and ({_listed(names)}) are not names; write"
            " needs = {'left': 'column type, ...', 'right': '...'}"
        )
    if given is None:
        if len(names) > 1:
            raise SchemaError(
                f"{class_name} has inputs {_listed(names)}, got one stream; write {_call(class_name, names)}"
            )
        return
    if names == ("",):
        raise SchemaError(
            f"{class_name} does not name its input; write stream.apply('name', {class_name}()),"
            " or needs = {'left': ...}"
        )
    for name in given:
        if name not in names:
            raise SchemaError(
                f"{class_name} has no input {name!r}{nearest(name, names)}, it has {_listed(names)}; write"
                f" {_call(class_name, names)}"
            )
    missing = [name for name in names if name not in given]
    if missing:
        raise SchemaError(
            f"{class_name} also needs input {_listed(missing)}; write {_call(class_name, names)}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _call(class_name: str, names: Sequence[str]) -> str:
    return f"graph.apply('name', {class_name}(), {', '.join(f'{name}=...' for name in names)})"


def check_needs(operator: UserOperator, inputs: Sequence[pa.Schema]) -> None:
    """Raise SchemaError, which names input and column, unless each input has the columns that it needs."""
    needs = operator.needs if isinstance(operator.needs, Mapping) else {"": operator.needs}
    for (name, columns), given in zip(needs.items(), inputs, strict=True):
        try:
            _check_columns(columns, given)
        except SchemaError as error:
            raise SchemaError(f"input {name!r}: {error}" if name else str(error)) from None


def _check_columns(needs: Columns, given: pa.Schema) -> None:
    if isinstance(needs, str) and not needs:
        return
    for field in parsed("needs", needs):
        if field.name not in given.names:
            raise SchemaError(
                f"it needs column {field.name!r}{nearest(field.name, given.names)}, but its input has"
                f" {', '.join(given.names)}"
            )
        found_type = given.field(field.name).type
        if not found_type.equals(field.type):
            raise SchemaError(
                f"it needs column {field.name!r} as {type_text(field.type)}, but its input has it as"
                f" {type_text(found_type)}; convert it with a map before"
            )


def parsed(what: str, columns: Columns) -> pa.Schema:
    """Parse the schema of a declaration. Raises SchemaError, which names the declaration."""
    try:
        return parse_schema(columns)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error}") from None


class BufferedRows:
    """The rows of a step, until all of them have arrived."""

    def __init__(self, inputs: int) -> None:
        self._batches: list[list[pa.RecordBatch]] = [[] for _ in range(inputs)]

    def put(self, index: int, batch: pa.RecordBatch) -> None:
        """Add rows of an input."""
        self._batches[index].append(batch)

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Remove and yield all rows as (input, batch), in the order of the inputs."""
        held, self._batches = self._batches, [[] for _ in self._batches]
        for index, batches in enumerate(held):
            for batch in batches:
                yield index, batch


class CombinedWatermark:
    """The watermarks of the inputs, and their minimum."""

    def __init__(self, inputs: int) -> None:
        self.each = WatermarkTable(inputs)
        self._before = UNKNOWN

    def of_all(self) -> Watermark:
        """Return the watermark of all inputs together."""
        return min(self.each.watermarks)

    def reach(self, watermark: Watermark, index: int) -> tuple[bool, bool]:
        """Advance the watermark of one input. Called for each input at the end of a step, in order.

        Returns whether that input advanced and, for the last input, whether the minimum advanced in this
        step.
        """
        if index == 0:
            self._before = self.of_all()
        moved = self.each.reach(watermark, index)
        is_last = index == len(self.each.watermarks) - 1
        return moved, is_last and self.of_all() != self._before

    def promised(self, watermark: Watermark) -> Watermark:
        """Return the watermark of the output when `watermark` is that of the inputs together."""
        return watermark if len(self.each.watermarks) == 1 or watermark == IDLE else self.of_all()
