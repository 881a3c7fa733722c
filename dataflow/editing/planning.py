"""What an edit changes: rows, compared with the stored state of a checkpoint, as blocks for each worker.

Everything is validated here, before anything is claimed or written. Reads the store without a claim.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import trio

from checkpoint import Checkpoint, Layout, check_fingerprint
from checkpoint.chains.state_blocks import StateFold, encode_block, state_version_of
from checkpoint.chains.state_reading import blocks_at
from dataflow.core.event_time import UNKNOWN, Watermark
from dataflow.editing.rows import EditedRows, GivenTable, by_worker, edited_rows, given_rows, refuse
from dataflow.editing.rules import EditRules
from dataflow.editing.tables import rules_of
from dataflow.errors import UserFault
from dataflow.graph.plan import GraphPlan
from dataflow.operators.frames import columns_of_frame
from dataflow.values.columns import one_array
from dos_client import Store

StateRows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]] | Any"
"""Rows of a state table: an Arrow table or batch, a pandas DataFrame, or a list of dicts."""


class PlannedEdit(NamedTuple):
    """`tables`: operator -> what changes; `rows`: worker -> (operator, encoded block) of what it gets."""

    tables: dict[str, EditedRows]
    rows: dict[int, list[tuple[str, bytes]]]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Operator -> how many keys are added, changed and deleted."""
        return {
            name: {"added": one.added, "changed": one.changed, "deleted": one.deleted}
            for name, one in self.tables.items()
        }


class StoredState(NamedTuple):
    """The state of the operators of an edit in a checkpoint: a block of each, and the watermarks."""

    blocks: Mapping[str, pa.RecordBatch]
    watermarks: Mapping[str, Watermark]


NO_STATE = StoredState({}, {})


def as_table(operator: str, given: StateRows) -> GivenTable:
    """Return rows with their values unchanged. Raises EditRefusedError for anything else."""
    if isinstance(given, (pa.Table, pa.RecordBatch)):
        columns = zip(given.schema.names, map(one_array, given.columns), strict=True)
        return GivenTable([*columns], given.num_rows)
    if type(given).__module__.partition(".")[0] == "pandas":
        try:
            return GivenTable([*columns_of_frame(given).items()], len(given))
        except (UserFault, pa.ArrowException, TypeError, ValueError) as error:
            refuse(operator, f"its rows are no table: {error}", remedy="give an Arrow table with a schema")
    if not (isinstance(given, Sequence) and all(isinstance(row, Mapping) for row in given)):
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        refuse(
            operator, f"its rows are a {kind}", remedy="give a DataFrame, an Arrow table, or a list of dicts"
        )
    names = dict.fromkeys(name for row in given for name in row)
    return GivenTable([(name, [row.get(name) for row in given]) for name in names], len(given))


def rules_for(plan: GraphPlan, region: str, tables: Mapping[str, GivenTable]) -> dict[str, EditRules]:
    """Return the rules of each operator of an edit. Raises EditRefusedError."""
    return {name: rules_of(plan, name, region) for name in tables}


async def stored_state(
    store: Store, region: str, checkpoint: Checkpoint, rules: Mapping[str, EditRules]
) -> StoredState:
    """Read the state of these operators in a checkpoint.

    Raises EditRefusedError if it is of another version than the graph's, and what reading a state chain
    raises.
    """
    watermarks: dict[str, Watermark] = {}
    blocks: dict[str, list[pa.RecordBatch]] = {}
    for worker, part in sorted(checkpoint.workers.items()):
        fold, wanted = StateFold(), {*rules, *(f"{name}~time" for name in rules)}
        async with aclosing(blocks_at(store, region, worker, part.state)) as stored:
            async for block in stored:
                if block.operator in wanted:
                    decoded = await trio.to_thread.run_sync(block.decoded)
                    if block.operator in rules:
                        _check_version(rules[block.operator], decoded.schema)
                    fold.add(block.operator, decoded)
        for name in fold.operators():
            rows = fold.take(name)
            assert rows is not None, "it has blocks"
            operator = name.partition("~")[0]
            if name != operator:
                marks = [watermarks.get(operator, UNKNOWN), *rows.column("mark").to_pylist()]
                watermarks[operator] = max(marks)
            elif not (rules[name].everywhere and name in blocks):  # equal on all workers
                blocks.setdefault(name, []).append(rows)
    return StoredState({name: _joined(parts) for name, parts in blocks.items()}, watermarks)


def _check_version(rules: EditRules, stored: pa.Schema) -> None:
    if not stored.equals(rules.schema, check_metadata=True):
        refuse(
            rules.name,
            f"its state is stored in version {state_version_of(stored)} ({_listed(stored)}), and that of the"
            f" graph has version {state_version_of(rules.schema)} ({_listed(rules.schema)})",
            remedy="run the region with this graph until it has migrated all of its state, and stop it",
        )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(parts).combine_chunks()
    return table.to_batches()[0] if table.num_rows else parts[0]


def planned(
    rules: Mapping[str, EditRules], tables: Mapping[str, GivenTable], stored: StoredState, layout: Layout
) -> PlannedEdit:
    """Return what an edit changes. CPU-heavy: call it in a thread. Raises EditRefusedError."""
    edits: dict[str, EditedRows] = {}
    rows: dict[int, list[tuple[str, bytes]]] = {}
    for name, one in rules.items():
        given = given_rows(name, one.schema, one.hashed, tables[name], stored.blocks.get(name))
        one.complete(given, stored.watermarks.get(name, UNKNOWN))
        edits[name] = edited_rows(given)
        one.check_read(edits[name])
        for worker, block in by_worker(edits[name].rows, layout, everywhere=one.everywhere).items():
            rows.setdefault(worker, []).extend((name, data) for data in encode_block(block))
    return PlannedEdit(edits, rows)


async def plan_edit(
    store: Store, region: str, checkpoint: Checkpoint, plan: GraphPlan, tables: Mapping[str, GivenTable]
) -> PlannedEdit:
    """Return what an edit of a checkpoint changes.

    Raises FingerprintMismatchError for another graph, EditRefusedError, and what reading a chain raises.
    """
    stored = plan.stored()
    check_fingerprint(
        checkpoint.operators,
        stored["operators"],
        region=region,
        checkpoint=checkpoint.number,
        older=stored["older_operators"],
    )
    rules = rules_for(plan, region, tables)
    state = await stored_state(store, region, checkpoint, rules)
    return await trio.to_thread.run_sync(planned, rules, tables, state, checkpoint.layout)
