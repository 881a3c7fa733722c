"""Writes rows into the state of a region that no driver runs, and begins a region with a given state.

`core/records/lines.py` has the records; the caller has validated the rows. Take the manifest over; claim the
directory of each worker that gets rows; append them as blocks at checkpoint X; append record E to the
manifest. **Its acknowledgement is the commit.** After a crash before it, the blocks are named by no record,
and the next driver continues beside them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple, TypeAlias

import msgspec

from checkpoint import limits
from checkpoint.chains.manifest_log import ManifestClaimPort, ManifestHost
from checkpoint.chains.state_store import STATE_CHAIN, StateStore
from checkpoint.chains.steps_log import STEPS_CHAIN, StepsLog
from checkpoint.core.graph_change import OperatorNote
from checkpoint.core.records.layout import Layout
from checkpoint.core.records.lines import edit_target, edited, first_record, refuse_republishing
from checkpoint.core.records.manifest import (
    Checkpoint,
    Edit,
    SplitPosition,
    WorkerCheckpoint,
    check_checkpoint,
)
from checkpoint.core.region import worker_directory
from checkpoint.errors import EditRefusedError, RegionFencedError
from checkpoint.maintenance.stopped_region import append_record, hold_manifest
from dos_protocol.errors import FencedError
from journal import Op, inspect_whole, read_records
from journal.ports import StorePort

EncodedRows: TypeAlias = Mapping[int, Sequence[tuple[str, bytes]]]
"""Worker -> (operator, encoded block) of the rows that it gets."""


async def edit_stopped(
    host: ManifestHost,
    region: str,
    rows_for: Callable[[Checkpoint], Awaitable[tuple[EncodedRows, Edit]]],
    *,
    to: str = "",
    savepoint: str = "",
    allow_republish: bool = False,
    decide: Callable[[Checkpoint | None], None] = lambda _: None,
) -> Checkpoint:
    """Write rows into the state of a region that no driver runs, at the checkpoint that `to` names ("": the
    last one), and return the record.

    rows_for: returns the rows for that checkpoint; may raise: then nothing changed but the claim. savepoint,
    allow_republish: as for `edited`, `restore_stopped`. decide: as for `hold_manifest`. Raises
    EditRefusedError, RestoreRefusedError, SavepointRefusedError, with nothing changed; RegionFencedError: it
    may be edited or not, as when this is cancelled; and as `hold_manifest`.
    """
    async with hold_manifest(host, region, above_terms=True, decide=decide) as held:
        kept, incarnation = held.opened.kept, held.opened.incarnation
        target = edit_target(kept, to, region=region)
        if not allow_republish:
            refuse_republishing(kept[-1], target)
        rows, edit = await rows_for(target)
        # Before any block is written, so that a refusal changes nothing.
        edited(kept, target, incarnation, {}, edit, savepoint=savepoint)  # refuses the savepoint's name
        number = kept[-1].number + 1
        parts = {
            worker: await _with_rows(host, region, worker, target, incarnation, number, of_worker)
            for worker, of_worker in sorted(rows.items())
        }
        record = edited(kept, target, incarnation, parts, edit, savepoint=savepoint)
        check_checkpoint(record, before=kept[-1])
        await append_record(held, region, record)
        return record


async def _with_rows(
    host: ManifestHost,
    region: str,
    worker: int,
    target: Checkpoint,
    incarnation: int,
    number: int,
    rows: Sequence[tuple[str, bytes]],
) -> WorkerCheckpoint:
    """Append the rows of one worker to its state chain, and return its part with the new position."""
    part = target.workers[worker]
    async with _claimed(host, region, worker, incarnation) as claim:
        state = await StateStore.open(
            claim, version=target.number, at=part.state, generation=host.record.generation
        )
        try:
            at = await state.commit(number, rows)
            return msgspec.structs.replace(part, state=at, floors={**part.floors, STATE_CHAIN: state.floor})
        finally:
            await state.aclose()


class FirstPart(NamedTuple):
    """The state with which one worker of a new region begins."""

    sources: dict[str, dict[str, SplitPosition]]
    rows: Sequence[tuple[str, bytes]]


async def begin_region(
    host: ManifestHost,
    region: str,
    parts: Mapping[int, FirstPart],
    *,
    layout: Layout,
    operators: dict[str, OperatorNote],
    irrevocable: Mapping[str, str],
    edit: Edit,
) -> Checkpoint:
    """Create a region whose checkpoint 1 has a given state and given positions of its input; return the
    record.

    Raises EditRefusedError, with nothing changed but claims, if the region has committed or recorded
    anything; RegionFencedError; and as `hold_manifest`. If it is cancelled or fails, the call can be
    repeated.
    """
    async with hold_manifest(host, region) as held:
        if held.opened.kept:
            raise region_exists(region, f"it has committed checkpoint {held.opened.kept[-1].number}")
        incarnation = held.opened.incarnation
        checkpoints = {
            worker: await _first(host, region, worker, incarnation, part, len(parts))
            for worker, part in sorted(parts.items())
        }
        record = first_record(
            checkpoints,
            incarnation,
            layout=layout,
            operators=operators,
            irrevocable=irrevocable,
            edit=edit,
        )
        check_checkpoint(record)
        await append_record(held, region, record)
        return record


def region_exists(region: str, why: str) -> EditRefusedError:
    """Return the error for a region that cannot begin with a given state, because it exists."""
    return EditRefusedError(
        f"region {region!r} exists: {why}",
        remedy="choose another name, or edit the state of the region with edit_state",
    )


async def has_steps(store: StorePort, directory: str) -> bool:
    """Whether a worker has recorded a step in its directory. Claims nothing. Raises what reading raises."""
    chain = await inspect_whole(store, directory, STEPS_CHAIN)
    async with aclosing(read_records(store, chain, directory=directory)) as records:
        async for _, record in records:
            if record.op is Op.DIVISION:
                return True
    return False


async def _first(
    host: ManifestHost, region: str, worker: int, incarnation: int, part: FirstPart, workers: int
) -> WorkerCheckpoint:
    """Begin the chains of one worker, with its rows."""
    async with _claimed(host, region, worker, incarnation) as claim:
        generation = host.record.generation
        steps = await StepsLog.open(claim, after_step=0, workers=workers, generation=generation)
        try:
            if steps.last_step or steps.of_others:
                raise region_exists(region, f"its worker {worker} has recorded steps")
            state = await StateStore.open(claim, version=0, at=None, generation=generation)
            try:
                return WorkerCheckpoint(
                    state=await state.commit(1, part.rows),
                    steps=await steps.synced(0),
                    sources=part.sources,
                    floors={STATE_CHAIN: state.floor, STEPS_CHAIN: steps.floor},
                )
            finally:
                await state.aclose()
        finally:
            await steps.aclose()


@asynccontextmanager
# A worker that claims it in a later incarnation belongs to a driver: nothing counts then.
async def _claimed(
    host: ManifestHost, region: str, worker: int, incarnation: int
) -> AsyncIterator[ManifestClaimPort]:
    """Hold a worker's directory in the incarnation of the held manifest. Raises RegionFencedError."""
    directory = worker_directory(region, worker)
    try:
        while (claim := await host.claim(directory, incarnation, limits.claim_patience_s)) is None:
            pass
        try:
            yield claim
        finally:
            await claim.aclose()
    except FencedError as error:
        raise RegionFencedError(
            f"a driver took region {region!r} over before its state was changed: the region is not stopped"
        ) from error
