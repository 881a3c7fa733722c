"""Edit the state of a stopped region, and begin a region with a given state.

    async with open_store("dos://h1,h2,h3") as store:
        edit = await edit_state(store, graph, {"counts": [{"word": "the", "count": 7}]}, name="wordcount")

`planning.py` validates the rows; `checkpoint/maintenance/editing.py` writes them. `dos.edit_state` and
`dos.bootstrap_state` are the same calls for plain threads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from checkpoint import Checkpoint, Edit, edit_target, even_layout
from checkpoint.chains.manifest_reading import ManifestView, read_manifest
from checkpoint.coordinator.manifest_host import StoreHost
from checkpoint.errors import EditRefusedError, NoRegionError, RestoreRefusedError
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
from dataflow.editing.planning import (
    NO_STATE,
    PlannedEdit,
    StateRows,
    as_table,
    plan_edit,
    planned,
    rules_for,
)
from dataflow.editing.positions import Begins, first_positions
from dataflow.graph.builder import Graph
from dataflow.graph.parts import GraphPart, parts_of
from dos_client import Store
from journal import parse_segment_name

_CHAINS_OF_ATTEMPTS = {"state", "steps"}
"""The chains that a call of `bootstrap_state` leaves which did not complete."""


@dataclass(frozen=True, slots=True)
class TableEdit:
    """What an edit changed in the state of one operator, in keys."""

    added: int
    changed: int
    deleted: int
    unchanged: int
    """Rows that equal the stored ones, and deletions of keys that have no state."""

    def __str__(self) -> str:
        return (
            f"{self.added} added, {self.changed} changed, {self.deleted} deleted, {self.unchanged} unchanged"
        )


@dataclass(frozen=True, slots=True)
class StateEdit:
    """What an edit changed."""

    region: str
    base: int
    """The checkpoint whose state was edited; 0 for a region that begins with a given state."""
    checkpoint: int | None
    """The checkpoint with the edited state. None if nothing was written: for `dry_run`, or because the state
    already has these rows.
    """
    tables: dict[str, TableEdit] = field(default_factory=dict)
    """Operator -> what changed."""

    def __str__(self) -> str:
        listed = "; ".join(f"{name}: {one}" for name, one in self.tables.items())
        if self.checkpoint is None:
            return f"region {self.region}: nothing was written to checkpoint {self.base}; {listed}"
        back = f". While it is retained, `dos region restore --to checkpoint:{self.base}` takes this back"
        return f"region {self.region}, checkpoint {self.checkpoint}: {listed}{back if self.base else ''}"


def _edit_of(region: str, base: int, checkpoint: int | None, plan: PlannedEdit) -> StateEdit:
    tables = {
        name: TableEdit(one.added, one.changed, one.deleted, one.unchanged)
        for name, one in plan.tables.items()
    }
    return StateEdit(region, base, checkpoint, tables)


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
    Rows that equal the stored ones are not written; if no row differs, nothing is.

    - `graph`, `name`: as given to `run`. If the graph has several regions, the operators belong to one.
    - `tables`: operator -> rows.
    - `to`: the checkpoint whose state is edited, as for `dos region restore --to`; default: the last one.
    - `savepoint`: the name of a savepoint that holds that checkpoint, so that the edit can be taken back.
    - `why`: a note. It is recorded with the edit.
    - `allow_republish`: as for `run(restore=...)`, if `to` is an older checkpoint.
    - `dry_run`: only validate, and return what would change.

    A driver that still runs the region is superseded and ends. Output that was made stays; a log branches, as
    for a restore.

    Raises EditRefusedError, RestoreRefusedError, SavepointRefusedError, FingerprintMismatchError,
    NoRegionError, with nothing changed; RegionFencedError if a driver claimed the region meanwhile: it may
    then be edited or not, as when this is cancelled; GraphError; and what reading the store raises.
    """
    given = {operator: as_table(operator, rows) for operator, rows in tables.items()}
    part = _part_of(graph, name or graph.name, given)
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
        return _edit_of(region, target.number, None, first)
    done: list[tuple[Checkpoint, PlannedEdit]] = []

    async def rows_for(checkpoint: Checkpoint) -> tuple[EncodedRows, Edit]:
        final = first if checkpoint == target else await plan_for(checkpoint)
        done.append((checkpoint, final))
        return final.rows, _note(final, why)

    record = await edit_stopped(
        StoreHost(store), region, rows_for, to=named, savepoint=savepoint, allow_republish=allow_republish
    )
    ((base, final),) = done
    return _edit_of(region, base.number, record.number, final)


def _note(plan: PlannedEdit, why: str) -> Edit:
    return Edit(by=requester(), wall_time_ms=wall_time_ms(), why=why, tables=plan.counts)


def _part_of(graph: Graph, application: str, tables: Mapping[str, object]) -> GraphPart[Graph]:
    """Return the region of a graph that has these operators. Raises EditRefusedError."""
    parts = [part for part in parts_of(graph, application) if part.settings is not None]
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

    - `graph`, `name`: as for `run`. The graph is one region.
    - `tables`: operator -> rows; other operators begin without state.
    - `positions`: where each source begins: `"begin"`, for an input handle `"end"` or the position of each
      producer, or for any source the position of each split as a checkpoint has it.
    - `workers`: their number in the first checkpoint. A later `run` may change it.
    - `why`: a note. It is recorded with the checkpoint.

    Raises EditRefusedError, with nothing changed but registers and claims, for rows and positions that are
    not valid, and if the region exists; RegionFencedError if a driver claimed the region meanwhile;
    GraphError, ValueError; and what reading the store raises. A call that failed or was cancelled can be
    repeated, until the region has its checkpoint.
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
    rules, layout = rules_for(plan, region, given), even_layout(workers)
    first = await trio.to_thread.run_sync(planned, rules, given, NO_STATE, layout)
    await _check_new(store, region)
    sources = await first_positions(store, region, application, plan, positions, workers)
    stored = plan.stored()
    record = await begin_region(
        StoreHost(store),
        region,
        {worker: FirstPart(sources[worker], first.rows.get(worker, [])) for worker in layout.workers},
        layout=layout,
        operators=stored["operators"],
        fingerprint=stored["graph_fingerprint"],
        irrevocable=stored["irrevocable"],
        edit=_note(first, why),
    )
    return _edit_of(region, 0, record.number, first)


async def _check_new(store: Store, region: str) -> None:
    """Raise EditRefusedError if the region has a checkpoint, or has recorded steps or output without one.

    Checked before anything is claimed, because a claim would end a driver that runs.
    """
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


__all__ = ["StateEdit", "TableEdit", "bootstrap_state", "edit_state"]
