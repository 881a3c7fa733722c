"""Edit the state of a stopped region, and begin a region with a given state.

    edit = await edit_state(store, graph, {"counts": [{"word": "the", "count": 7}]}, name="wordcount")

Which rows an operator could have is its own rule (`OperatorSpec.edited`). In the end it reads the rows, and
must have the same rows then. Everything is validated before anything is claimed or written;
`checkpoint/maintenance/editing.py` writes.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import trio

from checkpoint import (
    AT_ITS_END,
    Checkpoint,
    Edit,
    Layout,
    RegionSpec,
    SplitPosition,
    begins_latest,
    born_with,
    check_continues,
    edit_target,
    even_layout,
    graph_change,
    result_uids,
    rows_made_of,
    rows_to_add,
)
from checkpoint.chains.manifest_log import ManifestView, StoreHost, last_checkpoints_of, read_manifest
from checkpoint.chains.state_blocks import (
    StateFold,
    encode_block,
    make_block,
    newest_rows,
    state_version_of,
    with_columns,
)
from checkpoint.chains.state_store import blocks_at
from checkpoint.errors import EditRefusedError, NoRegionError, RestoreRefusedError
from checkpoint.key_hash import HASH_COLUMN
from checkpoint.limits import workers_default, workers_max
from checkpoint.maintenance.editing import (
    EncodedRows,
    FirstPart,
    begin_region,
    edit_stopped,
    has_steps,
    region_exists,
)
from checkpoint.requests.client import requester
from checkpoint.runtime import checkpoint_named, wall_time_ms
from dataflow.core.event_time import UNKNOWN, Watermark
from dataflow.core.plan import OperatorKind
from dataflow.errors import UserFault, nearest
from dataflow.graph.builder import Graph, GraphPart, parts_named, parts_of
from dataflow.graph.plan import GraphPlan
from dataflow.operators.apply import same_rows
from dataflow.operators.base import OperatorContext
from dataflow.sources.base import Positions, SourceSpec
from dataflow.sources.prefetched import PrefetchedSource, Reading
from dataflow.sources.stored import InputSource
from dataflow.state.given_rows import GivenRows, GivenTable, given_rows, refuse
from dataflow.state.row_table import one_batch
from dataflow.values.columns import one_array
from dataflow.values.python_rows import columns_of_frame
from dos_client import Store
from journal import parse_segment_name

FIRST: Final = "first"
LATEST: Final = "latest"
Begins: TypeAlias = "str | Mapping[str, Any]"


def _refuse(source: str, rule: str, remedy: str) -> EditRefusedError:
    return EditRefusedError(f"source {source!r}: {rule}", remedy=remedy)


async def first_positions(
    store: Store, region: str, application: str, plan: GraphPlan, given: Mapping[str, Begins], workers: int
) -> list[dict[str, Positions]]:
    """Return for each worker where its sources begin. Raises EditRefusedError unless every source of the
    graph is given, with positions that exist; and what reading an input raises.
    """
    # Positions have the digest of everything before them, so an input handle is read up to the position. It
    # is registered as a consumer first: otherwise what the region will read could be trimmed meanwhile.
    sources = {name: spec for name, spec in plan.specs.items() if isinstance(spec, SourceSpec)}
    for name in given:
        if name not in sources:
            raise _refuse(
                name,
                f"the graph has no such source{nearest(name, sources)}; it has {', '.join(sources)}",
                "give the positions of the sources of the graph",
            )
    for name in sources:
        if name not in given:
            raise _refuse(
                name,
                "it is not stated where it begins",
                f"add {{{name!r}: 'first'}} if the state contains nothing of its input",
            )
    found: list[dict[str, Positions]] = [{} for _ in range(workers)]
    for name, spec in sources.items():
        all_positions = await _positions(store, region, application, name, spec, given[name])
        if all_positions:
            for worker in range(workers):
                found[worker][name] = spec.redeal([all_positions], worker, workers)
    return found


async def _positions(
    store: Store, region: str, application: str, name: str, spec: SourceSpec, given: Begins
) -> Positions:
    if given == FIRST:
        return {}
    if given == LATEST and isinstance(spec, PrefetchedSource) and not spec.why_endless():
        origin = spec.origin(store, Reading(application, region, name))
        await origin.register(region, name)
        return dict(await origin.latest())
    if isinstance(given, str):
        why = spec.why_endless() if given == LATEST else ""
        raise _refuse(
            name,
            f"{given!r} is not a position of a {type(spec).__name__}{why and f', because {why}'}",
            "give 'first', or the position of each split as a checkpoint has it",
        )
    if isinstance(spec, InputSource):
        return await _of_input(store, region, application, name, spec, given)
    return {split: _as_stored(name, split, at) for split, at in given.items()}


def _as_stored(source: str, split: str, at: Any) -> SplitPosition:
    try:
        return at if isinstance(at, SplitPosition) else msgspec.convert(at, SplitPosition)
    except msgspec.ValidationError as error:
        raise _refuse(
            source,
            f"the position of split {split!r} is {at!r}, without its digest ({error})",
            "give a SplitPosition, as `dos checkpoint show --json` has it",
        ) from error


async def _of_input(
    store: Store, region: str, application: str, name: str, spec: InputSource, wanted: Mapping[str, Any]
) -> Positions:
    origin = spec.origin(store, Reading(application))
    await origin.register(region, name)
    _check_splits(name, await origin.splits(), wanted)
    found = {}
    for split, at in wanted.items():
        if isinstance(at, int):
            if (position := await _reach(store, application, spec, name, split, at)) is not None:
                found[split] = position
        else:
            found[split] = _as_stored(name, split, at)
    return found


def _check_splits(name: str, splits: Sequence[str], wanted: Mapping[str, Any]) -> None:
    if missing := sorted(set(splits) - wanted.keys()):
        raise _refuse(
            name, f"producer {missing[0]!r} has no position", "give the position of each producer, 0 to begin"
        )
    if unknown := sorted(wanted.keys() - set(splits)):
        known = ", ".join(splits) or "none"
        raise _refuse(name, f"it has no producer {unknown[0]!r}; it has {known}", "correct the name")


async def _reach(
    store: Store, application: str, spec: InputSource, name: str, split: str, at: int
) -> SplitPosition | None:
    """Return the position `at`, the end of a committed part; None for the beginning."""
    if at == 0:
        return None
    retained = InputSource(spec.name, spec.schema, begin="retained").origin(store, Reading(application))
    follower = retained.follower(split, SplitPosition(0))
    end = 0
    try:
        async with aclosing(follower.poll()) as pieces:
            async for piece in pieces:
                end = piece.end
                if end == at:
                    return SplitPosition(end, piece.digest)
    finally:
        follower.close()
    raise _refuse(
        name,
        f"no part of producer {split!r} ends at position {at}; what is recorded ends at {end}",
        "give a position that a region or a producer has stated",
    )


StateRows: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]] | Any"
"""Rows of a state table: an Arrow table or batch, a pandas DataFrame, or a list of dicts."""


@dataclass(frozen=True, slots=True)
class TableEdit:
    """The numbers of keys that an edit changed in the state of one operator."""

    added: int
    changed: int
    deleted: int
    unchanged: int
    """Rows that equal the stored ones, and deletions of keys that have no state."""

    def __str__(self) -> str:
        return (
            f"{self.added} added, {self.changed} changed, {self.deleted} deleted, {self.unchanged} unchanged"
        )


class PlannedEdit(NamedTuple):
    """`tables`: operator -> what changes; `rows`: worker -> (operator, encoded block) of what it gets."""

    tables: dict[str, TableEdit]
    rows: dict[int, list[tuple[str, bytes]]]


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


_TABLES: Final = {
    "time": "its watermarks follow from the input",
    "late": "it counts late rows",
    "ahead": "it counts rows that were dropped",
    "nulls": "it counts rows that were dropped",
}


class EditedTable:
    """The table of an operator into which a person writes, and the operator's rules."""

    def __init__(self, plan: GraphPlan, name: str, region: str, uids: Mapping[str, str]) -> None:
        """Raises EditRefusedError if the state of this operator of the graph cannot be edited. uids: as
        `Checkpoint.uids`.
        """
        operator, tilde, table = name.partition("~")
        editable = [one for one, spec in plan.specs.items() if not spec.not_edited]
        known = f"operators whose state can be edited: {', '.join(editable) or 'none'}"
        spec = plan.specs.get(operator)
        if spec is None:
            refuse(name, f"the region has no such operator{nearest(operator, plan.specs)}; {known}")
        if tilde:
            why = _TABLES.get(table, "the rows of this table wait for event time, or belong to another one")
            refuse(name, f"this table cannot be edited: {why}", remedy=f"edit another table; {known}")
        if spec.not_edited:
            rule = f"its state ({spec.kind.value}) cannot be edited: {spec.not_edited}"
            refuse(name, rule, remedy=f"edit another operator; {known}")
        self.name = name
        self.everywhere = spec.kind is OperatorKind.CONTROL
        """Whether every worker has all rows."""
        self._spec = spec
        inputs, output = plan.inputs_of(operator), plan.schemas[operator]
        self._context = OperatorContext(
            region,
            operator,
            0,
            1,
            bytes(16),
            inputs,
            output,
            broadcast={},
            result_uids=result_uids(operator, uids),
        )
        self.schema = self._through_the_operator([]).schema
        """Of its blocks."""

    def _through_the_operator(self, blocks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return the state of a new instance of the operator that has read these blocks."""
        operator = self._spec.open(self._context)
        try:
            table = operator.tables()[""]
            for block in blocks:
                table.restore(block)
            return table.snapshot()
        finally:
            operator.close()

    def edited(
        self, given: GivenTable, stored: pa.RecordBatch | None, watermark: Watermark
    ) -> tuple[TableEdit, pa.RecordBatch]:
        """Return what the given rows change, and the changed rows as a block. Raises EditRefusedError."""
        rows = given_rows(self.name, self.schema, given, stored)
        edit, block = _changes(rows, self._spec.edited(rows, self._context, watermark))
        try:
            read = self._through_the_operator([block])
        except (UserFault, pa.ArrowException, ValueError, TypeError, IndexError, OverflowError) as error:
            refuse(self.name, f"it cannot read the rows: {error}", remedy="correct the values")
        if not _same_table(read, block, rows.in_other_form):
            refuse(
                self.name,
                "it reads other rows than were written",
                remedy="write values as `dos-state` has them",
            )
        return edit, block


def _changes(rows: GivenRows, values: Mapping[str, pa.Array]) -> tuple[TableEdit, pa.RecordBatch]:
    exists = rows.at >= 0
    same = exists & ~rows.deleted
    if values and exists.any():
        before = rows.stored.select(list(values)).take(pa.array(np.where(exists, rows.at, 0)))
        after = pa.RecordBatch.from_arrays(
            list(values.values()), schema=pa.schema([rows.schema.field(name) for name in values])
        )
        same &= same_rows(before, after)
    changed = exists & ~rows.deleted & ~same
    added, deleted = ~exists & ~rows.deleted, exists & rows.deleted
    written = added | changed | deleted
    kept, gone = pa.array(np.flatnonzero(written)), pa.array(rows.deleted[written])
    block = make_block(
        rows.schema,
        [key.take(kept) for key in rows.keys],
        rows.hashes[written],
        [pc.if_else(gone, pa.scalar(None, one.type), one.take(kept)) for one in values.values()],
        rows.deleted[written],
    )
    counts = [int(np.count_nonzero(one)) for one in (added, changed, deleted, ~written)]
    return TableEdit(*counts), block


def _by_worker(block: pa.RecordBatch, layout: Layout, *, everywhere: bool) -> Mapping[int, pa.RecordBatch]:
    """Return the rows of each worker: those whose hash it owns, or all of them on every worker."""
    if not block.num_rows:
        return {}
    if everywhere:
        return dict.fromkeys(layout.workers, block)
    lasts, owners = layout.upper_bounds()
    at = np.searchsorted(np.array(lasts, np.uint64), block.column(HASH_COLUMN).to_numpy(), "left")
    owner = np.array(owners)[at]
    return {worker: block.filter(pa.array(owner == worker)) for worker in sorted(set(owner.tolist()))}


def _same_table(one: pa.RecordBatch, other: pa.RecordBatch, ignored: Collection[str]) -> bool:
    """Whether two blocks have the same rows that are not deleted, without regard to some value columns."""
    left, right = newest_rows([one]), newest_rows([other])
    if left.schema != right.schema or left.num_rows != right.num_rows:
        return False
    names = [name for name in left.schema.names if name not in ignored]
    return bool(same_rows(left.select(names), right.select(names)).all())


def edited_tables(
    plan: GraphPlan,
    region: str,
    tables: Mapping[str, GivenTable],
    uids: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, EditedTable]:
    """Return the table of each operator of an edit. uids: as `Checkpoint.uids`. Raises EditRefusedError."""
    return {name: EditedTable(plan, name, region, uids) for name in tables}


async def stored_state(
    store: Store, region: str, checkpoint: Checkpoint, edited: Mapping[str, EditedTable]
) -> StoredState:
    """Read the state of these operators in a checkpoint. Raises EditRefusedError for another version."""
    watermarks: dict[str, Watermark] = {}
    blocks: dict[str, list[pa.RecordBatch]] = {}
    for worker, part in sorted(checkpoint.workers.items()):
        fold = StateFold()
        wanted = {checkpoint.stored_table(table): table for one in edited for table in (one, f"{one}~time")}
        async with aclosing(blocks_at(store, region, worker, part.state)) as stored:
            async for block in stored:
                if (table := wanted.get(block.operator)) is not None:
                    decoded = await trio.to_thread.run_sync(block.decoded)
                    fold.add(table, _of_graph(edited[table], decoded) if table in edited else decoded)
        for name in fold.operators():
            rows = fold.take(name)
            assert rows is not None, "it has blocks"
            operator = name.partition("~")[0]
            if name != operator:
                marks = [watermarks.get(operator, UNKNOWN), *rows.column("mark").to_pylist()]
                watermarks[operator] = max(marks)
            elif not (edited[name].everywhere and name in blocks):  # equal on all workers
                blocks.setdefault(name, []).append(rows)
    return StoredState(
        {name: one_batch(parts, parts[0].schema) for name, parts in blocks.items()}, watermarks
    )


def _of_graph(edited: EditedTable, block: pa.RecordBatch) -> pa.RecordBatch:
    """Return a stored block with the columns of the graph. Raises EditRefusedError for another version."""
    stored = block.schema
    try:
        return with_columns(block, edited.schema)
    except ValueError:
        refuse(
            edited.name,
            f"its state is stored in version {state_version_of(stored)} ({_listed(stored)}), and that of the"
            f" graph has version {state_version_of(edited.schema)} ({_listed(edited.schema)})",
            remedy="run the region with this graph until it has migrated all of its state, and stop it",
        )


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def planned(
    edited: Mapping[str, EditedTable], tables: Mapping[str, GivenTable], stored: StoredState, layout: Layout
) -> PlannedEdit:
    """Return what an edit changes. CPU-heavy: call it in a thread. Raises EditRefusedError."""
    edits: dict[str, TableEdit] = {}
    rows: dict[int, list[tuple[str, bytes]]] = {}
    for name, one in edited.items():
        watermark = stored.watermarks.get(name, UNKNOWN)
        edits[name], block = one.edited(tables[name], stored.blocks.get(name), watermark)
        for worker, part in _by_worker(block, layout, everywhere=one.everywhere).items():
            rows.setdefault(worker, []).extend((name, data) for data in encode_block(part))
    return PlannedEdit(edits, rows)


async def plan_edit(
    store: Store, region: str, checkpoint: Checkpoint, plan: GraphPlan, tables: Mapping[str, GivenTable]
) -> PlannedEdit:
    """Return what an edit of a checkpoint changes. Raises GraphChangeRefusedError for another graph,
    EditRefusedError, and what reading a chain raises.
    """
    change = graph_change(checkpoint, plan.operators, region=region)
    edited = edited_tables(plan, region, tables, change.uids)
    if new := sorted(edited.keys() & set(change.new)):
        raise EditRefusedError(
            f"operator {new[0]!r} is not in checkpoint {checkpoint.number}, so that has no state to edit",
            remedy="run this graph until its first checkpoint, stop it, and edit the state then",
        )
    state = await stored_state(store, region, checkpoint, edited)
    done = await trio.to_thread.run_sync(planned, edited, tables, state, checkpoint.layout)
    rows = {
        worker: [(checkpoint.stored_table(table), data) for table, data in of_worker]
        for worker, of_worker in done.rows.items()
    }
    return done._replace(rows=rows)


_CHAINS_OF_ATTEMPTS = {"state", "steps"}
"""The chains that a call of `bootstrap_state` leaves which did not complete."""


@dataclass(frozen=True, slots=True)
class StateEdit:
    """What an edit changed."""

    region: str
    base: int
    """The checkpoint whose state was edited; 0 for a region that begins with a given state."""
    checkpoint: int | None
    """The checkpoint with the edited state; None if nothing was written (`dry_run`, or the state has these
    rows).
    """
    tables: dict[str, TableEdit] = field(default_factory=dict)
    """Operator -> what changed."""

    def __str__(self) -> str:
        listed = "; ".join(f"{name}: {one}" for name, one in self.tables.items())
        if self.checkpoint is None:
            return f"region {self.region}: nothing was written to checkpoint {self.base}; {listed}"
        back = f". While it is retained, `dos region restore --to checkpoint:{self.base}` takes this back"
        return f"region {self.region}, checkpoint {self.checkpoint}: {listed}{back if self.base else ''}"


async def edit_state(
    store: Store,
    graph: Graph,
    tables: Mapping[str, StateRows],
    *,
    name: str | None = None,
    to: str = "",
    savepoint: str = "",
    why: str = "",
    allow_republish: bool = False,
    dry_run: bool = False,
) -> StateEdit:
    """Write rows into the state of a stopped region. The next `run` begins with it.

    Keys that are not given stay as they are. Rows with a column `_deleted` that is set delete their keys.
    Rows that equal the stored ones are not written.

    - `graph`, `name`: as given to `run`. If the graph has several regions, the operators belong to one.
    - `tables`: operator -> rows.
    - `to`: the checkpoint whose state is edited, as for `dos region restore --to`; default: the last one.
    - `savepoint`: the name of a savepoint that holds that checkpoint, so that the edit can be taken back.
    - `why`: a note, which is recorded with the edit.
    - `allow_republish`: as for `run(restore=...)`, if `to` is an older checkpoint.
    - `dry_run`: only validate, and return what would change.

    A driver that still runs the region is superseded and ends. Output that was made stays; a log branches, as
    for a restore. Raises EditRefusedError, RestoreRefusedError, SavepointRefusedError,
    GraphChangeRefusedError, NoRegionError, with nothing changed; RegionFencedError if a driver claimed the
    region meanwhile: it may then be edited or not, as when this is cancelled; GraphError; and what reading
    the store raises.
    """
    given = {operator: as_table(operator, rows) for operator, rows in tables.items()}
    application = name or graph.name
    part = _part_of(graph, application, given, await last_checkpoints_of(store, application))
    plan, region = part.graph.plan(), part.name
    named = checkpoint_named(to) if to else ""

    async def plan_for(checkpoint: Checkpoint) -> PlannedEdit:
        return await plan_edit(store, region, checkpoint, plan, given)

    view = await read_manifest(store, region)
    kept = view.kept
    if not kept:
        raise RestoreRefusedError(f"region {region!r} has committed no checkpoint")
    target = edit_target(kept, named, region=region)
    first = await plan_for(target)  # what is refused leaves a driver that runs alone
    if dry_run or not first.rows:
        return StateEdit(region, target.number, None, first.tables)
    done: list[tuple[Checkpoint, PlannedEdit]] = []

    async def rows_for(checkpoint: Checkpoint) -> tuple[EncodedRows, Edit]:
        final = first if checkpoint == target else await plan_for(checkpoint)
        done.append((checkpoint, final))
        return final.rows, _note(final, why)

    record = await edit_stopped(
        StoreHost(store), region, rows_for, to=named, savepoint=savepoint, allow_republish=allow_republish
    )
    ((base, final),) = done
    return StateEdit(region, base.number, record.number, final.tables)


def _note(plan: PlannedEdit, why: str) -> Edit:
    counts = {
        name: {"added": one.added, "changed": one.changed, "deleted": one.deleted}
        for name, one in plan.tables.items()
    }
    return Edit(by=requester(), wall_time_ms=wall_time_ms(), why=why, tables=counts)


def _part_of(
    graph: Graph, application: str, tables: Mapping[str, object], regions: Mapping[str, Checkpoint]
) -> GraphPart:
    parts = [part for part in parts_named(graph, application, regions) if part.settings is not None]
    owners = {
        operator: part
        for operator in tables
        for part in parts
        if operator.partition("~")[0] in part.graph.plan().specs
    }
    names = {part.name for part in owners.values()}
    if len(names) > 1:
        listed = ", ".join(f"{operator!r} of {part.name}" for operator, part in owners.items())
        raise EditRefusedError(
            f"the operators belong to several regions ({listed}), which have separate checkpoints",
            remedy="edit each region with a call of its own",
        )
    if not parts:
        raise EditRefusedError(
            f"graph {graph.name!r} has no consistent region", remedy="edit the state of a region"
        )
    return next((part for part in parts if part.name in names), parts[0])


async def bootstrap_state(
    store: Store,
    graph: Graph,
    tables: Mapping[str, StateRows],
    positions: Mapping[str, Begins],
    *,
    name: str | None = None,
    workers: int = workers_default,
    why: str = "",
) -> StateEdit:
    """Create a region whose first checkpoint has this state. The next `run` of that name begins with it.

    - `graph`, `name`, `why`: as for `edit_state`. The graph is one region.
    - `tables`: operator -> rows; other operators begin without state.
    - `positions`: where each source begins: `"first"`; `"latest"`, as for `begins` of `run`; for an input
      handle the position of each producer; or for any source that of each split as a checkpoint has it.
    - `workers`: their number in the first checkpoint. A later `run` may change it.

    Raises EditRefusedError, with nothing changed but registers and claims, for rows and positions that are
    not valid, and if the region exists; RegionFencedError as `edit_state`; GraphError, ValueError; and what
    reading the store raises. A call that failed or was cancelled can be repeated, until the region has its
    checkpoint.
    """
    if not 0 < workers <= workers_max:
        raise ValueError(f"a region has 1 to {workers_max} workers, got {workers}")
    given = {operator: as_table(operator, rows) for operator, rows in tables.items()}
    application = name or graph.name
    parts = parts_of(graph, application)
    if len(parts) > 1 or parts[0].settings is None:
        raise EditRefusedError(
            f"graph {graph.name!r} is not one consistent region", remedy="bootstrap each region separately"
        )
    region, plan = parts[0].name, parts[0].graph.plan()
    for operator, spec in plan.specs.items():
        if spec.keeps_files:
            raise EditRefusedError(
                f"operator {operator!r} keeps files, which a first checkpoint cannot give it",
                remedy="begin such a region without a given state",
            )
    edited, layout = edited_tables(plan, region, given), even_layout(workers)
    first = await trio.to_thread.run_sync(planned, edited, given, NO_STATE, layout)
    await _check_new(store, region)
    sources = await first_positions(store, region, application, plan, positions, workers)
    stored = plan.stored()
    record = await begin_region(
        StoreHost(store),
        region,
        {worker: FirstPart(sources[worker], first.rows.get(worker, [])) for worker in layout.workers},
        layout=layout,
        operators=stored["operators"],
        irrevocable=stored["irrevocable"],
        edit=_note(first, why),
    )
    return StateEdit(region, 0, record.number, first.tables)


def collected(tables: Mapping[str, Any]) -> dict[str, StateRows]:
    """Return rows of operators, those of Spark as Arrow tables. It waits for Spark."""
    return {name: rows.toArrow() if hasattr(rows, "toArrow") else rows for name, rows in tables.items()}


def _made(given: Mapping[str, Any]) -> dict[str, GivenTable]:
    """Return the rows of `bootstrap`. Raises EditRefusedError, also for what a function raises."""
    found: dict[str, GivenTable] = {}
    for name, rows in given.items():
        try:
            made = rows() if callable(rows) else rows
            ((_, table),) = collected({name: made}).items()
        except Exception as error:
            raise EditRefusedError(
                f"operator {name!r}: its rows for bootstrap were not made: {type(error).__name__}: {error}",
                remedy="correct the function, and start the program again: nothing was changed",
            ) from error
        found[name] = as_table(name, table)
    return found


async def add_first_rows(
    store: Store, part: GraphPart, spec: RegionSpec, last: Checkpoint
) -> Checkpoint | None:
    """Record the rows with which new operators of a program begin (`bootstrap=`) beside the state of the last
    checkpoint of the region, and return that record. None: none begins so.

    Raises EditRefusedError, with nothing claimed; GraphChangeRefusedError, with no segment left, if `last` is
    not the last one under the claim; and as `edit_state`.
    """
    # An edit of the state of operators that the graph of `last` lacks: a program that has that graph
    # continues from the record as from `last`. The first checkpoint of the new graph follows it, so it has
    # these rows.
    if not (new := rows_to_add(spec, last)):
        return None
    plan, options = part.graph.plan(), spec.graph_options
    given = await trio.to_thread.run_sync(_made, {name: options.bootstrap[name] for name in new})
    edited = edited_tables(plan, part.name, given)
    first = await trio.to_thread.run_sync(planned, edited, given, NO_STATE, last.layout)
    note = _note(first, f"bootstrap of {', '.join(new)}")

    def decide(claimed: Checkpoint | None) -> None:
        assert claimed is not None, "a manifest that had a checkpoint has one"
        check_continues(spec, claimed, rows_to_add(spec, claimed).values())
        assert claimed.layout == last.layout, "both have the state of one checkpoint"

    async def rows_for(checkpoint: Checkpoint) -> tuple[EncodedRows, Edit]:
        # Of the record that follows: its number is in the uids with which the graph comes after it.
        born = born_with(part.name, checkpoint.number + 1)
        rows = {
            worker: [(f"{born}{name}", data) for name, data in of_worker]
            for worker, of_worker in first.rows.items()
        }
        uids = tuple(sorted(f"{born}{name}" for name in new))
        made_of = rows_made_of(spec, checkpoint)
        return rows, msgspec.structs.replace(note, bootstraps=uids, made_of=made_of)

    return await edit_stopped(StoreHost(store), part.name, rows_for, decide=decide)


async def begin_at_latest(store: Store, part: GraphPart, spec: RegionSpec) -> Checkpoint | None:
    """Create the region of a program in which sources begin at their end, with a checkpoint of where that is
    now, and return it. None: another program has begun it meanwhile. Raises as `bootstrap_state`.
    """
    # Without the checkpoint, a crash before the first one would skip what was read and shown before it.
    plan, workers, latest = part.graph.plan(), spec.first_workers, begins_latest(spec)
    sources = [name for name, one in plan.specs.items() if isinstance(one, SourceSpec)]
    given = {name: LATEST if name in latest else FIRST for name in sources}
    positions = await first_positions(store, part.name, spec.application, plan, given, workers)
    layout, stored = even_layout(workers), plan.stored()
    try:
        return await begin_region(
            StoreHost(store),
            part.name,
            {worker: FirstPart(positions[worker], []) for worker in layout.workers},
            layout=layout,
            operators=stored["operators"],
            irrevocable=stored["irrevocable"],
            edit=Edit(by=requester(), wall_time_ms=wall_time_ms(), why=f"{', '.join(latest)}: {AT_ITS_END}"),
        )
    except EditRefusedError:
        if (await read_manifest(store, part.name)).last is None:
            raise
        return None


async def _check_new(store: Store, region: str) -> None:
    """Raise EditRefusedError if the region has a checkpoint, recorded steps or output."""
    # Before anything is claimed: a claim would end a driver that runs.
    try:
        view: ManifestView | None = await read_manifest(store, region)
    except NoRegionError:
        view = None
    if view is not None and view.last is not None:
        raise region_exists(region, f"it has committed checkpoint {view.last.number}")
    if view is not None and view.unproved:
        raise region_exists(region, view.unproved)
    for directory in await store.list_directories(f"{region}.w"):
        found = await store.inspect(directory)
        names = {name for objects in found.answers.values() for name in objects}
        chains = {parsed.chain for name in names if (parsed := parse_segment_name(name)) is not None}
        if others := sorted(chains - _CHAINS_OF_ATTEMPTS):
            raise region_exists(region, f"{directory} has {others[0]!r}")
        if await has_steps(store, directory):
            raise region_exists(region, f"{directory} has recorded steps")
