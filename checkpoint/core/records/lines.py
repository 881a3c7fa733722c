"""Lines of history: how a region goes back to an older checkpoint, and what that takes back. Pure.

A restore appends one record to the manifest: the positions of the older checkpoint under the next number
(`restored`). Its acknowledgement is the commit; no order is sent before. It begins a new *line*: chains
continue at the positions of the record, beside what they hold of the earlier line, which nothing reads any
more and retention deletes. No chain is truncated. But files are, so a checkpoint of the earlier line whose
output was taken back cannot be restored any more.

A line has the steps of the line of the restored checkpoint (`Rewind.of`) up to `Rewind.step`, and its own
steps after that. So two lines have in common what they had where they parted (`parting`), and output that was
read on one of them after that was taken back on the other (`taken_back`).
"""

from collections.abc import Sequence

import msgspec

from checkpoint import limits
from checkpoint.core.records.manifest import Checkpoint, RetiredWorker, Rewind, in_its_version
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX
from checkpoint.errors import RestoreRefusedError
from journal import ORIGIN


def find_target(
    kept: Sequence[Checkpoint], to: str, *, region: str, even_taken_back: bool = False
) -> Checkpoint:
    """Return the retained checkpoint that `to` names: `savepoint:NAME`, `checkpoint:N`, or `time:MS`, which
    is the newest one that is not later. `kept`: all retained checkpoints, oldest first.

    Raises RestoreRefusedError; unless `even_taken_back`, also for a checkpoint of an earlier line whose
    output was taken back: files do not have it any more.
    """
    if not kept:
        raise RestoreRefusedError(f"region {region!r} has committed no checkpoint")
    kind, _, name = to.partition(":")
    if kind == "savepoint":
        target = _of_savepoint(kept, name, region)
    elif kind == "checkpoint":
        target = _of_number(kept, name, region)
    elif kind == "time" and name.isdigit():
        there = [checkpoint for checkpoint in kept if even_taken_back or not _gone(kept[-1], checkpoint)]
        return _of_time(there, name, region)
    else:
        raise RestoreRefusedError(
            f"{to!r} names no checkpoint: it must be savepoint:NAME, checkpoint:N, or a time such as"
            " 2026-01-31T12:00:00+00:00"
        )
    if not even_taken_back and (back := _gone(kept[-1], target)):
        raise RestoreRefusedError(
            f"the output of checkpoint {target.number} after step {back.step} was taken back, when region"
            f" {region!r} was restored to checkpoint {back.to}"
        )
    return target


def _gone(last: Checkpoint, checkpoint: Checkpoint) -> Rewind | None:
    """Return the restore that took back output of a retained checkpoint, None if there is none."""
    return taken_back(last, checkpoint.line, checkpoint.step)


def _of_number(kept: Sequence[Checkpoint], name: str, region: str) -> Checkpoint:
    for checkpoint in kept:
        if str(checkpoint.number) == name:
            return checkpoint
    numbers = ", ".join(str(checkpoint.number) for checkpoint in kept)
    raise RestoreRefusedError(f"region {region!r} does not retain checkpoint {name!r}; retained: {numbers}")


def _of_savepoint(kept: Sequence[Checkpoint], name: str, region: str) -> Checkpoint:
    found = kept[-1].savepoints.get(name)
    if found is None:
        known = ", ".join(sorted(kept[-1].savepoints)) or "none"
        raise RestoreRefusedError(f"region {region!r} has no savepoint {name!r}; it has {known}")
    return next(checkpoint for checkpoint in kept if checkpoint.number == found)


def _of_time(kept: Sequence[Checkpoint], ms: str, region: str) -> Checkpoint:
    earlier = [checkpoint for checkpoint in kept if checkpoint.wall_time_ms <= int(ms)]
    if not earlier:
        raise RestoreRefusedError(
            f"region {region!r} retains no checkpoint that is as old as that time; the oldest one is"
            f" {kept[0].number}"
        )
    return max(earlier, key=lambda checkpoint: checkpoint.wall_time_ms)


def republished(last: Checkpoint, target: Checkpoint) -> dict[str, str]:
    """Return the sinks that have shown rows since `target` which a restore cannot take back, so that they
    come again -> why. `last`: the region's last checkpoint.
    """
    if target.step >= last.step:
        return {}
    if last.irrevocable is not msgspec.UNSET:
        return last.irrevocable
    sinks = {name for part in last.workers.values() for name in part.sinks}
    return dict.fromkeys(sorted(sinks), "the checkpoint does not state that its rows can be taken back")


def refuse_republishing(last: Checkpoint, target: Checkpoint) -> None:
    """Raise RestoreRefusedError if rows would come again that were shown."""
    if stay := republished(last, target):
        listed = "; ".join(f"{sink!r}: {why}" for sink, why in stay.items())
        raise RestoreRefusedError(
            f"rows that these sinks have shown since checkpoint {target.number} stay and come again:"
            f" {listed}",
            remedy="confirm that this is wanted: allow_republish=True, or --allow-republish",
        )


def restored(kept: Sequence[Checkpoint], target: Checkpoint, incarnation: int, *, by: str = "") -> Checkpoint:
    """Return the record that restores `target`, one of the retained checkpoints `kept`, oldest first.

    by: as `Rewind.by`. Everything that is retained stays retained, savepoints too. Workers that only later
    checkpoints have become former workers without output.
    """
    last, number = kept[-1], kept[-1].number + 1
    known = target.outputs().keys()
    orphans = sorted({worker for checkpoint in kept for worker in checkpoint.outputs()} - known)
    rewind = Rewind(
        line=last.line + 1,
        to=target.voted_as,
        step=target.step,
        of=target.line,
        by=by,
        outputs=log_sizes(target),
    )
    checkpoint = msgspec.structs.replace(
        target,
        number=number,
        parent=last.number,
        incarnation=incarnation,
        rolled_back_to=target.voted_as,
        retained=(*(one.number for one in kept), number),
        savepoints=last.savepoints,
        notes=last.notes,
        declared=last.workers_declared if last.workers_declared != len(target.workers) else 0,
        phases_s={},
        line=rewind.line,
        rewinds=(*last.rewinds, rewind)[-limits.rewinds_kept_max :],
        rewound=True,
        orphans=tuple(orphans),
        edit=None,
        retired={**target.retired, **{worker: _without_output(kept, worker) for worker in orphans}},
    )
    return in_its_version(checkpoint)


def log_sizes(checkpoint: Checkpoint) -> dict[int, dict[str, int]]:
    """Return worker -> output log -> its size in the checkpoint, of all workers with output."""
    found = {}
    for worker, part in checkpoint.outputs().items():
        logs = {name for name in part.sinks if f"{OUTPUT_CHAIN_PREFIX}{name}" in part.floors}
        if logs:
            found[worker] = {name: int(part.sinks[name]["size"]) for name in sorted(logs)}
    return found


def _without_output(kept: Sequence[Checkpoint], worker: int) -> RetiredWorker:
    """Return a former worker that keeps no output: if it comes back, its logs begin anew."""
    part = next(
        checkpoint.outputs()[worker] for checkpoint in reversed(kept) if worker in checkpoint.outputs()
    )
    logs = {name for name in part.sinks if f"{OUTPUT_CHAIN_PREFIX}{name}" in part.floors}
    return RetiredWorker(sinks={name: msgspec.to_builtins(ORIGIN) for name in sorted(logs)})


def taken_back(checkpoint: Checkpoint, line: int, step: int) -> Rewind | None:
    """Return the restore that took back output up to `step` that was read on a line, None if it is all valid.

    Of several, the one that goes back furthest; see `parting`. `line` is at most the line of the checkpoint.
    """
    parted = parting(checkpoint, line)
    return parted if parted is not None and parted.step < step else None


def parting(checkpoint: Checkpoint, line: int, later: int | None = None) -> Rewind | None:
    """Return where an earlier line and a later one (None: that of the checkpoint) part: after `step` and the
    sizes `outputs`, with the restore because of which they do. None if they are the same.

    If the checkpoint states too few lines to know, a restore to the beginning, without sizes of logs.
    """
    here = checkpoint.line if later is None else later
    assert line <= here <= checkpoint.line, f"line {line} is not before line {here}, or that not known"
    known, read_on = {rewind.line: rewind for rewind in checkpoint.rewinds}, line
    found: Rewind | None = None
    outputs: dict[int, dict[str, int]] = {}
    while here != line:
        rewind = known.get(max(here, line))
        if rewind is None:
            return Rewind(line=max(here, line), to=0, step=0)
        outputs = rewind.outputs if found is None else _smaller(outputs, rewind.outputs)
        if found is None or (rewind.line > read_on and rewind.step < found.step):
            found = rewind
        else:  # a line that began before one of the two: the restore is a later one, which left it
            found = msgspec.structs.replace(found, step=min(found.step, rewind.step))
        here, line = (rewind.of, line) if here > line else (here, rewind.of)
    return None if found is None else msgspec.structs.replace(found, outputs=outputs)


def _smaller(one: dict[int, dict[str, int]], other: dict[int, dict[str, int]]) -> dict[int, dict[str, int]]:
    """Return the smaller size of each log that both have: a log without a size begins anew."""
    return {
        worker: {name: min(size, other[worker][name]) for name, size in logs.items() if name in other[worker]}
        for worker, logs in one.items()
        if worker in other
    }
