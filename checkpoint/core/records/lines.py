"""Records of checkpoints that repeat another one: a restore, an edit, a savepoint, a fork; and lines of
history. Pure.

| field | vote | savepoint, stopped | restore, edit, fall back | fork | backup |
|---|---|---|---|---|---|
| number, parent | after the last | after the last | after the last | 1, 0 | after its own |
| workers, step, layout | voted | of the last | of the target; rows of an edit | without output | its own |
| rolled_back_to | 0 | `voted_as` | `voted_as` of the target | 0 | `voted_as` |
| retained | by the rule | all | all | itself | itself |
| savepoints, notes | in force | changed | of the last | none | none |
| retired | of the last, and who leaves | of the last | of the target, and orphans | none | its own |
| declared | asked for last | of the last | of the last | 0 | its own |
| irrevocable | of the program | of the last | of the target | none | its own |
| former_sinks | of the last, and who goes | of the last | of the last, and who goes | none | its own |
| line, rewinds | of the last | of the last | one more | 0 | one more |
| rewound, orphans | no | of the last | yes | no | yes |
| origin, in_origin | of the last, no | of the last | of the target | the original, yes | its own |
| identity | of the last | of the last | of the target | none | the owner's, or none |
| batch | of the last, or voted with it | of the last; none: released | of the target | none | its own |
| ended | of the last, and what goes | of the last | of the target, and what it lacks | none | its own |
| application | of the program | of the last | of the target | none | its own |
| operators | of the program | of the last | of the target | the original | its own |
| uids | of the last, and who comes | of the last | of the target | the original | its own |
| replaced | of the last, and its graph | of the last | of the last, and its graph | none | its own |
| shows_on | of the program; no: it stops, paused | of the last | of the target | no | its own |
| edit, phases_s | none, voted | none | none, or the edit | none | none |

A vote is built by `PendingCheckpoint.build`, also the one with which a layout changes. `repeated` writes all
records that are no vote, but for the first one of a fork.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from checkpoint import limits
from checkpoint.core.graph_change import (
    NO_OPTIONS,
    UPGRADE_PREFIX,
    GraphChange,
    GraphOptions,
    OperatorNote,
    Operators,
    born_with,
    check_compatible,
    compare,
    stored_under,
    upgrade_savepoint,
)
from checkpoint.core.graph_change import fingerprint as fingerprint_of
from checkpoint.core.records.layout import Layout
from checkpoint.core.records.manifest import (
    Checkpoint,
    Edit,
    EndedLog,
    ForkOrigin,
    FormerSink,
    ReplacedGraph,
    RetiredWorker,
    Rewind,
    SavepointNote,
    WorkerCheckpoint,
    savepoint_name_problem,
    savepoint_why_problem,
)
from checkpoint.core.records.outputs import OUTPUT_CHAIN_PREFIX
from checkpoint.errors import (
    EditRefusedError,
    ForkRefusedError,
    GraphChangeRefusedError,
    ManifestError,
    RestoreRefusedError,
    SavepointRefusedError,
)
from journal import ORIGIN, Position


def repeated(source: Checkpoint, after: Checkpoint, incarnation: int, **changes: Any) -> Checkpoint:
    """Return the record that follows `after` and repeats the positions of `source`, with these changes.

    It is no vote: it has no phases, and states which voted checkpoint its positions are of. The table of this
    module says which fields change for which use.
    """
    return msgspec.structs.replace(
        source,
        number=after.number + 1,
        parent=after.number,
        incarnation=incarnation,
        rolled_back_to=source.voted_as,
        phases_s={},
        edit=None,
        **changes,
    )


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
    if target.step >= last.step and last.is_quiet:
        return {}
    # A sink that went before the target has shown nothing since.
    former = {sink: one.why for sink, one in last.former_sinks.items() if target.number < one.until}
    return {**former, **last.irrevocable}


def former_sinks(
    last: Checkpoint,
    number: int,
    retained: Collection[int],
    irrevocable: Mapping[str, str],
    uids: Mapping[str, str],
) -> dict[str, FormerSink]:
    """Return `Checkpoint.former_sinks` of the record after `last`, which has this number and `irrevocable`.

    uids: of its operators, if they are not their names.
    """
    names = {uids.get(sink, sink) for sink in irrevocable}
    gone = {
        sink: FormerSink(why, number)
        for sink, why in last.irrevocable.items()
        if last.uid_of(sink) not in names
    }
    oldest = min(retained)
    return {sink: one for sink, one in {**last.former_sinks, **gone}.items() if oldest < one.until}


def refuse_republishing(last: Checkpoint, target: Checkpoint) -> None:
    """Raise RestoreRefusedError if rows would come again that were shown."""
    if stay := republished(last, target):
        listed = "; ".join(f"{sink!r}: {why}" for sink, why in stay.items())
        raise RestoreRefusedError(
            f"rows that these sinks have shown since checkpoint {target.number} stay and come again:"
            f" {listed}",
            remedy="confirm that this is wanted: allow_republish=True, or --allow-republish",
        )


# A restore appends one record to the manifest: the positions of the older checkpoint under the next number
# (`restored`). Its acknowledgement is the commit; no order is sent before. It begins a new *line*: chains
# continue at the positions of the record, beside what they hold of the earlier line, which nothing reads any
# more and retention deletes. No chain is truncated. But files are, so a checkpoint of the earlier line whose
# output was taken back cannot be restored any more.
def restored(
    kept: Sequence[Checkpoint],
    target: Checkpoint,
    incarnation: int,
    *,
    by: str = "",
    graph: Operators | None = None,
) -> Checkpoint:
    """Return the record that restores `target`, one of the retained checkpoints `kept`, oldest first.

    by: as `Rewind.by`. graph: of the program that continues; None: that of the target, which replaces the
    present one. Everything that is retained stays retained, savepoints too. Workers that only later
    checkpoints have become former workers without output.
    """
    last = kept[-1]
    known, retained = {*target.workers, *target.retired}, (*(one.number for one in kept), last.number + 1)
    orphans = sorted({worker for one in kept for worker in (*one.workers, *one.retired)} - known)
    ended = _ended_on(kept, target)
    rewind = Rewind(
        line=last.line + 1,
        to=target.voted_as,
        step=target.step,
        of=target.line,
        by=by,
        outputs=log_sizes(target),
    )
    return repeated(
        target,
        last,
        incarnation,
        retained=retained,
        former_sinks=former_sinks(last, last.number + 1, retained, target.irrevocable, target.uids),
        savepoints=last.savepoints,
        notes=last.notes,
        replaced=replaced_graphs(last, target.operators if graph is None else graph),
        declared=last.workers_declared if last.workers_declared != len(target.workers) else 0,
        line=rewind.line,
        rewinds=(*last.rewinds, rewind)[-limits.rewinds_kept_max :],
        rewound=True,
        orphans=tuple(orphans),
        retired={
            **target.retired,
            **{worker: _without_output(kept, worker, ended) for worker in orphans},
        },
        ended=ended,
    )


def _ended_on(kept: Sequence[Checkpoint], target: Checkpoint) -> dict[str, EndedLog]:
    """Return `Checkpoint.ended` of the record that restores a target: its own, and all other logs that a
    retained checkpoint has, which are taken back as a whole.
    """
    found = dict(target.ended)
    present = {*_logs_of(target), *stored_under(target.operators, target.uids).values()}
    for checkpoint in kept:
        later = {uid: log.sink for uid, log in checkpoint.ended.items()} | _logs_of(checkpoint)
        for uid in sorted(later.keys() - present - found.keys()):
            found[uid] = EndedLog(sink=later[uid], checkpoint=kept[-1].number + 1)
    return _limited(found)


def ended_after(parent: Checkpoint, stored: Collection[str], number: int) -> dict[str, EndedLog]:
    """Return `Checkpoint.ended` of the vote after a checkpoint, of a graph that stores its operators under
    these uids. Logs of sinks that it does not have end where all workers of the parent, also former ones, and
    those that leave with this vote, have them.
    """
    found, outputs = dict(parent.ended), parent.outputs()
    for uid, sink in sorted(_logs_of(parent).items()):
        if uid in stored:
            continue
        chain = f"{OUTPUT_CHAIN_PREFIX}{uid}"
        parts = {
            worker: part for worker, part in outputs.items() if uid in part.sinks and chain in part.floors
        }
        found[uid] = EndedLog(
            sink=sink,
            checkpoint=number,
            ends={worker: msgspec.convert(part.sinks[uid], Position) for worker, part in parts.items()},
            floors={worker: part.floors[chain] for worker, part in parts.items()},
        )
    return _limited(found)


def _logs_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return uid -> sink, of the output logs that a checkpoint continues."""
    parts: list[WorkerCheckpoint | RetiredWorker] = [*checkpoint.retired.values()]
    parts += checkpoint.workers.values()
    logs = {uid for part in parts for uid in part.sinks if f"{OUTPUT_CHAIN_PREFIX}{uid}" in part.floors}
    names = {uid: name for name, uid in stored_under(checkpoint.operators, checkpoint.uids).items()}
    return {uid: names.get(uid, uid) for uid in logs}


def _limited(ended: dict[str, EndedLog]) -> dict[str, EndedLog]:
    gone = [uid for uid, log in ended.items() if not log.floors][: -limits.gone_logs_max]
    return {uid: log for uid, log in ended.items() if uid not in gone}


def log_sizes(checkpoint: Checkpoint) -> dict[int, dict[str, int]]:
    """Return worker -> output log -> its size in the checkpoint, of all workers with output."""
    found = {}
    for worker, part in checkpoint.outputs().items():
        logs = {name for name in part.sinks if f"{OUTPUT_CHAIN_PREFIX}{name}" in part.floors}
        if logs:
            found[worker] = {name: int(part.sinks[name]["size"]) for name in sorted(logs)}
    return found


def _without_output(kept: Sequence[Checkpoint], worker: int, ended: Collection[str]) -> RetiredWorker:
    """Return a former worker that keeps no output: if it comes back, its logs begin anew."""
    parts = [one.workers.get(worker) or one.retired.get(worker) for one in reversed(kept)]
    part = next(part for part in parts if part is not None)
    logs = {name for name in part.sinks if f"{OUTPUT_CHAIN_PREFIX}{name}" in part.floors} - set(ended)
    return RetiredWorker(sinks={name: msgspec.to_builtins(ORIGIN) for name in sorted(logs)})


def taken_back(checkpoint: Checkpoint, line: int, step: int) -> Rewind | None:
    """Return the restore that took back output up to `step` that was read on a line, None if it is all valid.

    Of several, the one that goes back furthest; see `parting`. `line` is at most the line of the checkpoint.
    """
    parted = parting(checkpoint, line)
    return parted if parted is not None and parted.step < step else None


# A line has the steps of the line of the restored checkpoint (`Rewind.of`) up to `Rewind.step`, and its own
# steps after that. So two lines have in common what they had where they parted (`parting`), and output that
# was read on one of them after that was taken back on the other (`taken_back`).
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


def savepoint_problem(
    name: str, checkpoint: int | None, savepoints: Mapping[str, int], retained: Collection[int]
) -> str:
    """Return why the savepoint cannot be made, empty if it can. `checkpoint` None: why it cannot be dropped.

    `savepoints` are the savepoints in force, `retained` the checkpoints that can still be kept.
    """
    if checkpoint is None:
        return (
            ""
            if name in savepoints
            else f"savepoint {name!r} does not exist; existing: {_listed(savepoints)}"
        )
    # Reserved names are refused where a person names a savepoint: the project's own come here, too.
    if (problem := savepoint_name_problem(name, reserved=True)) != "":
        return problem
    if savepoints.get(name, checkpoint) != checkpoint:
        return f"savepoint {name!r} holds checkpoint {savepoints[name]}: drop it first, or use another name"
    if name not in savepoints and len(savepoints) >= limits.savepoints_max:
        return f"there are already {limits.savepoints_max} savepoints: drop one first"
    if checkpoint not in retained:
        kept = ", ".join(map(str, retained)) or "none"
        return f"checkpoint {checkpoint} is not retained; retained: {kept}"
    return ""


def recorded_again(
    kept: tuple[Checkpoint, ...],
    incarnation: int,
    savepoints: dict[str, int],
    notes: Mapping[str, SavepointNote] = MappingProxyType({}),
    *,
    released: bool = False,
    dropped: Mapping[str, str] = MappingProxyType({}),
) -> Checkpoint:
    """Return the last of these checkpoints again, under the next number and with other savepoints.

    Restoring it restores the positions of the last one. Everything that is retained stays retained. released:
    no query drives the region any more, and the next one begins with its batch 0. dropped: uid of a log that
    has ended -> who dropped it.
    """
    last = kept[-1]
    return repeated(
        last,
        last,
        incarnation,
        retained=(*(checkpoint.number for checkpoint in kept), last.number + 1),
        savepoints=savepoints,
        notes={name: note for name, note in {**last.notes, **notes}.items() if name in savepoints},
        batch=None if released else last.batch,
        replaced=replaced_graphs(last, last.operators),
        ended=_limited(
            {
                uid: msgspec.structs.replace(log, floors={}, dropped_by=dropped[uid])
                if uid in dropped
                else log
                for uid, log in last.ended.items()
            }
        ),
    )


def _listed(savepoints: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{name!r} (checkpoint {checkpoint})" for name, checkpoint in sorted(savepoints.items()))
        or "none"
    )


# A fork takes two records, and copies nothing:
#
# 1. A savepoint of the original, named `fork-` and random digits, holds the checkpoint. Its note names the
#    new region.
# 2. The first record in the manifest of the new region has the positions of that checkpoint, which are in the
#    chains of the original (`Checkpoint.in_origin`). **Its acknowledgement is the commit.**
#
# The first incarnation of the new region restores from the chains of the original, and opens its own at their
# beginning. Before any step runs, all workers vote for the next checkpoint, which contains the state
# completely. From then on the new region depends on the original only as long as it retains its first record
# (`needs_original`). After that the driver of the original drops the savepoint: what is released stays
# released (R14), so this can be known too late, but never too early.
#
# The output of the new region is its own: its logs and sinks begin anew, and steps are numbered on. It reads
# the inputs of the original, from the positions of the checkpoint.
def forked(source: Checkpoint, origin: ForkOrigin, incarnation: int) -> Checkpoint:
    """Return the first record of the region that begins with this checkpoint of the original.

    Raises ForkRefusedError if the chains of the original do not have the checkpoint.
    """
    if source.in_origin:
        assert source.origin is not None
        raise ForkRefusedError(
            f"checkpoint {source.number} of region {origin.region!r} is still in the chains of region"
            f" {source.origin.region!r}, of which it is a fork",
            remedy=f"run {origin.region!r} until its next checkpoint, or fork {source.origin.region!r}",
        )
    workers = {
        worker: msgspec.structs.replace(part, sinks={}, floors={}) for worker, part in source.workers.items()
    }
    return Checkpoint(
        number=1,
        step=source.step,
        incarnation=incarnation,
        final=source.final,
        wall_time_ms=source.wall_time_ms,
        workers=workers,
        layout=source.layout,
        operators=source.operators,
        uids=source.uids,
        retained=(1,),
        irrevocable={},
        origin=origin,
        in_origin=True,
    )


def replaced_graphs(last: Checkpoint, graph: Operators) -> dict[str, ReplacedGraph]:
    """Return `Checkpoint.replaced` of the record after `last`, with which a region has this graph."""
    known = {
        # The driver of a record is only known when it is written.
        fingerprint: note if note.by else ReplacedGraph(note.checkpoint, last.driver)
        for fingerprint, note in last.replaced.items()
    }
    if last.operators != graph and not last.in_origin:
        known.pop(fingerprint_of(graph), None)
        known.pop(before := fingerprint_of(last.operators), None)
        known[before] = ReplacedGraph(last.number + 1)
    return dict(list(known.items())[-limits.replaced_graphs_max :])


def refuse_replaced(checkpoint: Checkpoint, graph: Operators, region: str) -> None:
    """Raise GraphChangeRefusedError if another graph has replaced this one, and is that of the checkpoint."""
    if graph == checkpoint.operators or (note := checkpoint.replaced.get(fingerprint_of(graph))) is None:
        return
    savepoint, back = upgrade_savepoint(region, note.checkpoint - 1), ""
    if savepoint in checkpoint.savepoints:
        command = f"dos region restore URL {region} --to savepoint:{savepoint} --stopped"
        back = f"; to take back what followed: {command}"
    raise GraphChangeRefusedError(
        f"the graph of this program, {fingerprint_of(graph)}, was replaced in region {region!r} at checkpoint"
        f" {note.checkpoint} by {note.by or checkpoint.driver or 'a driver'} (dos checkpoint ls shows when)",
        operators=tuple(sorted(graph)),
        remedy="run the program that replaced it. To use this graph again with the present state:"
        f" graph_back=True{back}",
    )


def graph_change(
    checkpoint: Checkpoint,
    present: Mapping[str, OperatorNote],
    *,
    region: str,
    options: GraphOptions = NO_OPTIONS,
) -> GraphChange:
    """Return what a graph with these operators changes that continues from a checkpoint. Raises
    GraphChangeRefusedError if it cannot. In a fork, all sinks begin anew.
    """
    if not options.graph_back:
        refuse_replaced(checkpoint, present, region)
    change = compared_with(checkpoint, present, region=region, options=options)
    check_compatible(change, region=region, checkpoint=checkpoint.number)
    return change


def compared_with(
    checkpoint: Checkpoint, present: Operators, *, region: str, options: GraphOptions
) -> GraphChange:
    """Return what `graph_change` does, also if something is refused."""
    change = compare(
        checkpoint.operators,
        present,
        options=options,
        uids=checkpoint.uids,
        born=born_with(region, checkpoint.number),
        outputs_begin=checkpoint.in_origin,
        checkpoint=checkpoint.number,
    )
    refused = dict(change.refused)
    stored = stored_under(present, change.uids)
    for name, uid in stored.items():
        if uid in checkpoint.ended:
            refused[name] = f"would be stored as {uid!r}, as a log that has ended is: rename it"
    if (why := _too_many_end(checkpoint, set(stored.values()), region)) and change.removed:
        refused[change.removed[-1]] = why
    return dataclasses.replace(change, refused=tuple(sorted(refused.items())))


def _too_many_end(checkpoint: Checkpoint, stored: Collection[str], region: str) -> str:
    """Return why no more logs may end: each record states their ends. Empty if they may."""
    logs = [log for log in ended_after(checkpoint, stored, checkpoint.number + 1).values() if log.floors]
    ends = sum(len(log.ends) for log in logs)
    if len(logs) <= limits.ended_logs_max and ends <= limits.ended_log_ends_max:
        return ""
    most = f"{limits.ended_logs_max} with {limits.ended_log_ends_max}"
    return (
        f"would be the last of {len(logs)} removed logs that stay readable, with {ends} ends, and at most"
        f" {most} may: drop one that nobody reads, dos output drop URL {region} SINK"
    )


def check_places(checkpoint: Checkpoint, unchecked: Mapping[str, str]) -> None:
    """Raise ManifestError if a sink of a fork may write where the original writes. unchecked: sink -> why
    that is not noticed.
    """
    if not checkpoint.in_origin or checkpoint.origin is None:
        return
    if doubtful := {sink: why for sink, why in unchecked.items() if sink not in checkpoint.origin.same_place}:
        listed = "; ".join(f"{sink!r}: {why}" for sink, why in doubtful.items())
        raise ManifestError(
            f"the region is a fork of {checkpoint.origin.region!r}, and these sinks may write to the same"
            f" place unnoticed: {listed}",
            checkpoint=checkpoint.number,
            remedy="delete the fork, and fork again with --same-place SINK for each, if that is right",
        )


def made_for_forks(checkpoint: Checkpoint | None) -> dict[str, SavepointNote]:
    """Return the savepoints in the last checkpoint of a region that were made for forks, with their notes."""
    notes = {} if checkpoint is None else checkpoint.notes
    return {
        name: note
        for name, note in notes.items()
        if note.fork and checkpoint and name in checkpoint.savepoints
    }


def upgrades_over(last: Checkpoint | None, now_ms: int, keep_s: float, full: Sequence[str]) -> dict[str, str]:
    """Return the savepoints of checkpoints before changes of the graph that are to be dropped -> why.

    full: members whose disk is full: then what these savepoints hold goes first. The note of one has no time
    until the vote after that of its change.
    """
    if last is None:
        return {}
    made = {name: note for name, note in last.notes.items() if name.startswith(UPGRADE_PREFIX)}
    if full:
        return dict.fromkeys(made, f"the disk of {', '.join(full)} is full")
    return {
        name: f"{keep_s:g} s are over, see keep_before"
        for name, note in made.items()
        if note.wall_time_ms and now_ms - note.wall_time_ms >= keep_s * 1000
    }


def needs_original(kept: Collection[Checkpoint], original: str, savepoint: str) -> bool | None:
    """Return whether a region still needs the savepoint of the region of which it is a fork. None: it is no
    such fork, or has no checkpoint. kept: its retained checkpoints.
    """
    origins = [
        (checkpoint.origin.region, checkpoint.origin.savepoint)
        for checkpoint in kept
        if checkpoint.origin is not None
    ]
    if (original, savepoint) not in origins:
        return None
    return any(checkpoint.in_origin for checkpoint in kept)


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


# An edit is a restore whose state has other rows: the record E has the positions of checkpoint X, except for
# the state chains of the workers that got rows. These chains continue at their positions in X, and their rows
# in E are blocks with the number of E. **The acknowledgement of E is the commit.** Before it, no record names
# the blocks, so they are what a worker left that died before its vote.
#
# A region whose first state is given (`first_record`) has E as its checkpoint 1, at step 0.
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
    return record


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
    operators: dict[str, OperatorNote],
    irrevocable: Mapping[str, str],
    edit: Edit,
) -> Checkpoint:
    """Return checkpoint 1 of a region that begins with a given state, at step 0."""
    return Checkpoint(
        number=1,
        step=0,
        incarnation=incarnation,
        final=False,
        wall_time_ms=0,
        workers=dict(parts),
        layout=layout,
        operators=operators,
        retained=(1,),
        irrevocable=dict(irrevocable),
        edit=edit,
    )
