"""The inputs of an operator that a user writes: their names, what it needs of each, their order in a step.

Rules of this file: what has to do with several inputs; the user's methods are called by `apply.py`.

Theory (docs/decisions/0150). How rows of one input lie between those of another depends on who was faster,
and no replay repeats it. So rows of an operator with several inputs wait for the end of the step (as in
`union.py`), and come input by input, in the order in which it names them. What is promised of all inputs is
the smallest of their marks (replication-transparency IV-A); unlike below a union, an input on which nothing
ever came counts: what such an operator says at a mark it cannot take back when that input begins after all.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from dataflow.core.event_time import IDLE, UNKNOWN, Watermark
from dataflow.errors import SchemaError, nearest
from dataflow.operators.event_time import WatermarkTable
from dataflow.operators.user_operator import Columns, UserOperator
from dataflow.schema import parse_schema, type_text


def inputs_of(operator: UserOperator) -> tuple[str, ...]:
    """The names of its inputs, in order. The one of an operator that gives none is ''."""
    return tuple(operator.needs) if isinstance(operator.needs, Mapping) else ("",)


def check_inputs(operator: UserOperator, given: Sequence[str] | None) -> None:
    """Whether it was given the streams that it declares, by name. None: one stream, without a name.

    Raises SchemaError.
    """
    who, names = type(operator).__name__, inputs_of(operator)
    if names != ("",) and not (names and all(isinstance(name, str) and name for name in names)):
        raise SchemaError(
            f"{who} names its inputs in needs, and ({_listed(names)}) are no names; write"
            " needs = {'left': 'column type, ...', 'right': '...'}"
        )
    if given is None:
        if len(names) > 1:
            raise SchemaError(
                f"{who} has inputs {_listed(names)}, and one was given; write {_call(who, names)}"
            )
        return
    if names == ("",):
        raise SchemaError(
            f"{who} gives its input no name; write stream.apply('name', {who}()), or needs = {{'left': ...}}"
        )
    for name in given:
        if name not in names:
            raise SchemaError(
                f"{who} has no input {name!r}{nearest(name, names)}, it has {_listed(names)}; write"
                f" {_call(who, names)}"
            )
    missing = [name for name in names if name not in given]
    if missing:
        raise SchemaError(f"{who} needs input {_listed(missing)} too; write {_call(who, names)}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _call(who: str, names: Sequence[str]) -> str:
    return f"graph.apply('name', {who}(), {', '.join(f'{name}=...' for name in names)})"


def check_needs(operator: UserOperator, inputs: Sequence[pa.Schema]) -> None:
    """Whether each input has the columns that it needs. Raises SchemaError, which names input and column."""
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
                f"it needs column {field.name!r}{nearest(field.name, given.names)}, and its input has"
                f" {', '.join(given.names)}"
            )
        found = given.field(field.name).type
        if not found.equals(field.type):
            raise SchemaError(
                f"it needs column {field.name!r} as {type_text(field.type)}, and its input has it as"
                f" {type_text(found)}; map it before"
            )


def parsed(what: str, columns: Columns) -> pa.Schema:
    """A schema of a declaration. Raises SchemaError, which names the declaration."""
    try:
        return parse_schema(columns)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error}") from None


class BufferedRows:
    """The rows of a step, until all of them are in."""

    def __init__(self, inputs: int) -> None:
        self._held: list[list[pa.RecordBatch]] = [[] for _ in range(inputs)]

    def put(self, index: int, batch: pa.RecordBatch) -> None:
        """Rows of an input came."""
        self._held[index].append(batch)

    def take(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All of them: (input, batch), the first input first. None are left."""
        held, self._held = self._held, [[] for _ in self._held]
        for index, batches in enumerate(held):
            for batch in batches:
                yield index, batch


class CombinedWatermark:
    """How far all inputs are, from how far each is."""

    def __init__(self, inputs: int) -> None:
        self.each = WatermarkTable(inputs)
        self._before = UNKNOWN

    def of_all(self) -> Watermark:
        """What every input has promised."""
        return min(self.each.watermarks)

    def reach(self, watermark: Watermark, index: int) -> tuple[bool, bool]:
        """Told of each input at the end of a step, in order: whether it is further than before, and, with the
        last, whether all together are.
        """
        if index == 0:
            self._before = self.of_all()
        moved = self.each.reach(watermark, index)
        is_last = index == len(self.each.watermarks) - 1
        return moved, is_last and self.of_all() != self._before

    def promised(self, watermark: Watermark) -> Watermark:
        """What is promised of the output, when `watermark` is promised of the inputs together."""
        return watermark if len(self.each.watermarks) == 1 or watermark == IDLE else self.of_all()
