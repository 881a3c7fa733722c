"""Edits of state: the records of a region whose state was written by hand. Pure.

An edit is a restore (`lines.py`) whose state has other rows: the record E has the positions of checkpoint X,
except for the state chains of the workers that got rows. These chains continue at their positions in X, and
their rows in E are blocks with the number of E. **The acknowledgement of E is the commit.** Before it, no
record names the blocks, so they are what a worker left that died before its vote.

A region whose first state is given (`first_record`) has E as its checkpoint 1, at step 0.
"""

from collections.abc import Mapping, Sequence

import msgspec

from checkpoint.core.records.even_layout import Layout
from checkpoint.core.records.lines import find_target, restored
from checkpoint.core.records.manifest import (
    Checkpoint,
    Edit,
    SavepointNote,
    WorkerCheckpoint,
    in_its_version,
    savepoint_why_problem,
)
from checkpoint.core.savepoints import savepoint_problem
from checkpoint.errors import EditRefusedError, SavepointRefusedError


def edit_target(kept: Sequence[Checkpoint], to: str, *, region: str) -> Checkpoint:
    """Return the retained checkpoint whose state is edited: as `find_target` names it, "" for the last one.

    Raises RestoreRefusedError, and EditRefusedError for a fork that has no state of its own yet.
    """
    target = kept[-1] if kept and not to else find_target(kept, to, region=region)
    if target.in_origin and target.origin is not None:
        raise EditRefusedError(
            f"the state of checkpoint {target.number} is still in the chains of region"
            f" {target.origin.region!r}, of which {region!r} is a fork",
            remedy=f"run {region!r} until its first checkpoint of its own, stop it, and edit it then",
        )
    return target


def edited(
    kept: Sequence[Checkpoint],
    target: Checkpoint,
    incarnation: int,
    parts: Mapping[int, WorkerCheckpoint],
    edit: Edit,
    *,
    savepoint: str = "",
) -> Checkpoint:
    """Return the record of an edit of `target`, one of the retained checkpoints `kept`, oldest first.

    parts: the parts of the workers that got rows. savepoint: the name of a savepoint of `target` that the
    record creates, "" for none. A program that requested a restore before does not repeat it (`Rewind.by`):
    that would undo the edit. Raises SavepointRefusedError.
    """
    last = kept[-1]
    by = last.rewinds[-1].by if last.rewinds else ""
    record = restored(kept, target, incarnation, by=by)
    rewind = msgspec.structs.replace(record.rewinds[-1], edited=edit.by)
    record = msgspec.structs.replace(
        record,
        workers={**record.workers, **parts},
        rewinds=(*record.rewinds[:-1], rewind),
        edit=edit,
    )
    if savepoint:
        record = _with_savepoint(record, savepoint, target, [checkpoint.number for checkpoint in kept], edit)
    return in_its_version(record)


def _with_savepoint(
    record: Checkpoint, name: str, target: Checkpoint, retained: Sequence[int], edit: Edit
) -> Checkpoint:
    problem = savepoint_why_problem(edit.why) or savepoint_problem(
        name, target.number, record.savepoints, retained
    )
    if problem:
        raise SavepointRefusedError(problem)
    note = SavepointNote(by=edit.by, wall_time_ms=edit.wall_time_ms, why=edit.why or "before an edit")
    return msgspec.structs.replace(
        record,
        savepoints={**record.savepoints, name: target.number},
        notes={name: note, **record.notes},
    )


def first_record(
    parts: Mapping[int, WorkerCheckpoint],
    incarnation: int,
    *,
    layout: Layout,
    operators: dict[str, str],
    fingerprint: str,
    irrevocable: Mapping[str, str],
    edit: Edit,
) -> Checkpoint:
    """Return checkpoint 1 of a region that begins with a given state, at step 0."""
    checkpoint = Checkpoint(
        number=1,
        step=0,
        incarnation=incarnation,
        final=False,
        wall_time_ms=0,
        workers=dict(parts),
        layout=layout,
        fingerprint=fingerprint,
        operators=operators,
        retained=(1,),
        irrevocable=dict(irrevocable),
        edit=edit,
    )
    return in_its_version(checkpoint)
