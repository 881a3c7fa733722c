"""Checkpoints as JSON values: one row, one in full, the difference of two, what a restore takes back. Pure.

Names are spelled as in `progress.py`. Values that need the store (the state that changed) are added by the
caller.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from checkpoint.core.graph_change import fingerprint
from checkpoint.core.records.lines import republished
from checkpoint.core.records.manifest import (
    BatchNote,
    ChainDamage,
    Checkpoint,
    Edit,
    SavepointNote,
    SplitPosition,
    WorkerCheckpoint,
    slowest,
)
from journal import Position


def checkpoint_row(
    checkpoint: Checkpoint,
    retained: Container[int] | None = None,
    savepoints: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return one row of a list of checkpoints. retained, savepoints: those now; None: no such column."""
    known: dict[str, Any] = {} if retained is None else {"retained": checkpoint.number in retained}
    if savepoints is not None:
        known["savepoints"] = sorted(name for name, held in savepoints.items() if held == checkpoint.number)
    return known | {
        "checkpoint": checkpoint.number,
        "step": checkpoint.step,
        "incarnation": checkpoint.incarnation,
        "timeMs": checkpoint.wall_time_ms,
        "driver": checkpoint.driver,
        "final": checkpoint.final,
        "rolledBackTo": checkpoint.rolled_back_to,
        "line": checkpoint.line,
        "edit": _edit(checkpoint.edit),
        "batch": None if checkpoint.batch is None else batch_json(checkpoint.batch),
        "stateBytes": sum(part.state.size for part in checkpoint.workers.values()),
        "workerStateBytes": [checkpoint.workers[index].state.size for index in sorted(checkpoint.workers)],
        "splits": sum(
            len(splits) for part in checkpoint.workers.values() for splits in part.sources.values()
        ),
        "phaseSeconds": _rounded(slowest(checkpoint.phases_s.values())),
    }


def _edit(edit: Edit | None) -> dict[str, Any] | None:
    if edit is None:
        return None
    return {"by": edit.by, "timeMs": edit.wall_time_ms, "why": edit.why, "tables": edit.tables}


def batch_json(batch: BatchNote) -> dict[str, Any]:
    """Return the last batch of the query that drives a region."""
    return {
        "query": batch.query,
        "number": batch.number,
        "plannedMicroseconds": batch.time_us,
        "rows": batch.rows,
        "afterStep": batch.after_step,
        "step": batch.step,
    }


def savepoint_row(
    name: str, checkpoint: Checkpoint, note: SavepointNote, held_bytes: int, needs: bool | None = None
) -> dict[str, Any]:
    """Return one row of a list of savepoints. held_bytes: of the objects that only this one keeps. needs:
    whether its fork still needs it; None: there is no such fork.
    """
    return {
        "savepoint": name,
        "checkpoint": checkpoint.number,
        "step": checkpoint.step,
        "timeMs": checkpoint.wall_time_ms,
        "madeBy": note.by or None,
        "madeMs": note.wall_time_ms or None,
        "why": note.why,
        "stateBytes": checkpoint_row(checkpoint)["stateBytes"],
        "restoreBytes": sum(part.restore_bytes for part in checkpoint.workers.values()),
        "heldBytes": held_bytes,
        "fork": note.fork or None,
        "forkState": _fork_state(needs) if note.fork else None,
    }


def _fork_state(needs: bool | None) -> str:
    """Return whether a fork still needs its savepoint, as `forking.needs_original` says, in one word."""
    return "missing" if needs is None else "needed" if needs else "unneeded"


def checkpoint_full(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything that the manifest stores of a checkpoint."""
    checkpoint = checkpoint.by_name()
    return checkpoint_row(checkpoint) | {
        "parent": checkpoint.parent,
        "version": checkpoint.version,
        "fingerprint": fingerprint(checkpoint.operators),
        "operators": {name: str(note) for name, note in checkpoint.operators.items()},
        "uids": checkpoint.uids,
        "ended": [
            {
                "uid": uid,
                "sink": log.sink,
                "checkpoint": log.checkpoint,
                "state": "readable" if log.floors else "dropped" if log.ends else "taken back",
                "droppedBy": log.dropped_by or None,
                "ends": {str(worker): end.size for worker, end in sorted(log.ends.items())},
            }
            for uid, log in sorted(checkpoint.ended.items())
        ],
        "layout": {
            "shardBits": checkpoint.layout.shard_bits,
            "ranges": [
                {
                    "begin": one.begin,
                    "end": one.end,
                    "worker": one.worker,
                    "operator": one.operator,
                    "replica": one.replica,
                }
                for one in checkpoint.layout.ranges
            ],
            "splits": checkpoint.layout.splits,
        },
        "workers": [
            _worker(index, part, checkpoint.phases_s.get(index, {}))
            for index, part in sorted(checkpoint.workers.items())
        ],
    }


def checkpoint_diff(before: Checkpoint, after: Checkpoint) -> dict[str, Any]:
    """Return by how much `after` is ahead of `before`. Negative if the region went back between."""
    before, after = before.by_name(), after.by_name()
    workers = sorted(before.workers.keys() & after.workers.keys())
    return {
        "from": before.number,
        "to": after.number,
        "steps": after.step - before.step,
        "seconds": round((after.wall_time_ms - before.wall_time_ms) / 1000, 3),
        "incarnations": [before.incarnation, after.incarnation],
        "stateBytes": sum(after.workers[i].state.size - before.workers[i].state.size for i in workers),
        "workers": [
            {
                "worker": index,
                "stateBytes": after.workers[index].state.size - before.workers[index].state.size,
                "stepsBytes": after.workers[index].steps.size - before.workers[index].steps.size,
            }
            for index in workers
        ],
        "splits": _splits_between(before, after),
        "sinks": _sinks_between(before, after),
        "changed": [
            what
            for what, differs in {
                "layout": before.layout != after.layout,
                "operators": before.operators != after.operators,
                "number of workers": before.workers.keys() != after.workers.keys(),
            }.items()
            if differs
        ],
    }


def _splits_between(before: Checkpoint, after: Checkpoint) -> list[dict[str, Any]]:
    """Return the splits whose position changed, in the unit of their source."""
    old, new = _splits(before), _splits(after)
    rows = []
    for source, split in sorted(old.keys() | new.keys()):
        at, now = old.get((source, split)), new.get((source, split))
        if at != now:
            rows.append(
                {
                    "source": source,
                    "split": split,
                    "from": at.position if at else None,
                    "to": now.position if now else None,
                    "advanced": (now.position if now else 0) - (at.position if at else 0) if now else None,
                    "done": now.done if now else True,
                }
            )
    return rows


def _splits(checkpoint: Checkpoint) -> dict[tuple[str, str], SplitPosition]:
    """Return (source, split) -> position. Under an empty name a source stores how many splits are done."""
    found: dict[tuple[str, str], SplitPosition] = {}
    for index, part in sorted(checkpoint.workers.items()):
        for source, splits in part.sources.items():
            for split, at in splits.items():
                found[source, split or f"(splits done by worker {index})"] = at
    return found


def _sinks_between(before: Checkpoint, after: Checkpoint) -> list[dict[str, Any]]:
    rows = []
    for index, part in sorted(after.workers.items()):
        was = before.workers[index].sinks if index in before.workers else {}
        for sink, now in sorted(part.sinks.items()):
            if now != was.get(sink):
                rows.append({"worker": index, "sink": sink, "from": was.get(sink), "to": now})
    return rows


def _rounded(phases: Mapping[str, float]) -> dict[str, float]:
    return {phase: round(seconds, 6) for phase, seconds in phases.items()}


def _worker(index: int, part: WorkerCheckpoint, phases: dict[str, float]) -> dict[str, Any]:
    return {
        "worker": index,
        "state": _position(part.state),
        "steps": _position(part.steps),
        "directories": {name: _position(at) for name, at in part.directories.items()},
        "sources": {
            source: {
                split: {"position": at.position, "digest": f"{at.digest:016x}", "done": at.done}
                for split, at in splits.items()
            }
            for source, splits in part.sources.items()
        },
        "sinks": part.sinks,
        "phaseSeconds": _rounded(phases),
    }


def _position(position: Position) -> dict[str, Any]:
    return {"epoch": position.epoch, "size": position.size, "digest": f"{position.digest:016x}"}


def rewind_report(
    last: Checkpoint,
    target: Checkpoint,
    *,
    trimmed: Sequence[dict[str, Any]] = (),
    damaged: Sequence[ChainDamage] | None = None,
) -> dict[str, Any]:
    """Return what a restore of `target` takes back of a region whose last checkpoint is `last`.

    trimmed: rows for `trimmed_text`. damaged: the chains of `target` that do not read whole; None: not
    verified. `splits` is the input that is read again, `sinks` whose output changed, `staysVisible` sink ->
    why its rows stay.
    """
    difference = checkpoint_diff(target, last)
    return {
        "checkpoint": target.voted_as,
        "step": target.step,
        "timeMs": target.wall_time_ms,
        "last": last.number,
        "lastStep": last.step,
        "steps": difference["steps"],
        "seconds": difference["seconds"],
        "splits": difference["splits"],
        "sinks": difference["sinks"],
        "workers": [len(last.workers), len(target.workers)],
        "trimmed": list(trimmed),
        "damaged": None if damaged is None else [asdict(one) for one in damaged],
        "staysVisible": republished(last, target),
    }


def trimmed_text(source: str, split: str, needs: int, begin: int) -> str:
    """Return one row of `trimmed` as a line for people."""
    return f"not there any more: {source!r} needs split {split} from {needs:,} on, and it begins at {begin:,}"


def damaged_text(row: dict[str, Any]) -> str:
    """Return one row of `damaged` as a line for people."""
    return f"does not read whole: {ChainDamage(**row)}"


def report_text(report: dict[str, Any]) -> list[str]:
    """Return the report as lines for people."""
    before, after = report["workers"]
    back = f"{report['steps']:,} steps and {report['seconds']:,.1f} s before checkpoint {report['last']}"
    lines = [f"back to checkpoint {report['checkpoint']} at step {report['step']}: {back}"]
    if before != after:
        lines.append(f"it had {after} workers then, and has {before} now")
    for row in report["splits"]:
        advanced = row["advanced"]
        amount = "everything" if advanced is None else f"{advanced:,}"
        lines.append(f"read again: {amount} of split {row['split']} of {row['source']!r}")
    lines += [trimmed_text(**row) for row in report["trimmed"]]
    if report["damaged"] is not None:
        lines += [damaged_text(row) for row in report["damaged"]] or ["all of its chains read whole"]
    stays: dict[str, str] = report["staysVisible"]
    taken_back = sorted({row["sink"] for row in report["sinks"]} - stays.keys())
    lines += [f"taken back: what {sink!r} has written since" for sink in taken_back]
    lines += [f"not taken back: rows of {sink!r} stay and come again: {why}" for sink, why in stays.items()]
    return lines
