"""Whether a region can be restored to a checkpoint, and whether one can follow another. Pure."""

from checkpoint import limits
from checkpoint.core.records.even_layout import check_layout
from checkpoint.core.records.manifest import (
    DIRECTORIES_VERSION,
    LAYOUTS_VERSION,
    LINES_VERSION,
    ORIGINS_VERSION,
    SAVEPOINTS_VERSION,
    TERMS_VERSION,
    Checkpoint,
    WorkerCheckpoint,
    savepoint_name_problem,
)
from checkpoint.errors import ManifestError
from dos_protocol.digests import ResumePoint
from dos_protocol.limits import digest_block_bytes


def check_checkpoint(checkpoint: Checkpoint, *, before: Checkpoint | None = None, gap: bool = False) -> None:
    """Raise ManifestError with the reason if a region cannot be restored to `checkpoint`.

    - `before`: the checkpoint before it in the chain, which it is compared with.
    - `gap`: released checkpoints may have been between the two, as in a snapshot of the manifest with a
      savepoint.
    """
    if checkpoint.number < 1 or checkpoint.step < 0 or checkpoint.incarnation < 1:
        raise ManifestError(
            f"it has step {checkpoint.step} and incarnation {checkpoint.incarnation}: numbers begin at 1,"
            f" steps at 0",
            checkpoint=checkpoint.number,
        )
    workers = max(checkpoint.workers, default=0) + 1
    missing = sorted(set(range(workers)) - checkpoint.workers.keys())
    if missing:
        raise ManifestError(
            f"it has no part of worker {missing[0]} of {workers}", checkpoint=checkpoint.number
        )
    for worker, part in checkpoint.workers.items():
        # With local recovery, a worker that was taken over has a term above the incarnation.
        terms = limits.terms_per_incarnation if checkpoint.version >= TERMS_VERSION else 1
        # The epochs of another region's chains have nothing to do with this region's incarnations.
        highest = None if checkpoint.in_origin else checkpoint.incarnation + terms - 1
        _check_worker(checkpoint.number, worker, part, checkpoint.incarnation, highest)
    if checkpoint.version < DIRECTORIES_VERSION and any(
        part.directories for part in checkpoint.workers.values()
    ):
        raise ManifestError(
            f"it has directories, which version {checkpoint.version} does not allow",
            checkpoint=checkpoint.number,
        )
    _check_retired(checkpoint)
    _check_line(checkpoint)
    _check_origin(checkpoint, before)
    check_layout(checkpoint.layout, workers, checkpoint=checkpoint.number)
    if idle := sorted(checkpoint.workers.keys() - set(checkpoint.layout.workers)):
        raise ManifestError(f"worker {idle[0]} owns no shards", checkpoint=checkpoint.number)
    _check_retained(checkpoint, before)
    _check_savepoints(checkpoint)
    if before is not None:
        _check_order(checkpoint, before, gap=gap)


def _check_retired(checkpoint: Checkpoint) -> None:
    if checkpoint.version < LAYOUTS_VERSION and (checkpoint.retired or checkpoint.declared):
        raise ManifestError(
            f"it states former workers, which version {checkpoint.version} does not allow",
            checkpoint=checkpoint.number,
        )
    if both := sorted(checkpoint.retired.keys() & checkpoint.workers.keys()):
        raise ManifestError(
            f"worker {both[0]} has a part and is a former worker", checkpoint=checkpoint.number
        )
    if min(checkpoint.retired, default=0) < 0 or not 0 <= checkpoint.declared <= limits.workers_max:
        raise ManifestError(
            f"invalid former workers {sorted(checkpoint.retired)}, or number of workers"
            f" {checkpoint.declared}",
            checkpoint=checkpoint.number,
        )


def _check_line(checkpoint: Checkpoint) -> None:
    if checkpoint.version < LINES_VERSION and (
        checkpoint.line or checkpoint.rewinds or checkpoint.rewound or checkpoint.orphans
    ):
        raise ManifestError(
            f"it has line {checkpoint.line}, which version {checkpoint.version} does not allow",
            checkpoint=checkpoint.number,
        )
    lines = [rewind.line for rewind in checkpoint.rewinds]
    kept = limits.rewinds_kept_max
    if lines != list(range(max(1, checkpoint.line - kept + 1), checkpoint.line + 1)):
        raise ManifestError(
            f"it is of line {checkpoint.line}, but states the lines {lines}", checkpoint=checkpoint.number
        )
    if any(
        rewind.step < 0 or not 0 < rewind.to < checkpoint.number or not 0 <= rewind.of < rewind.line
        for rewind in checkpoint.rewinds
    ):
        raise ManifestError(
            "a line of it begins with an invalid checkpoint or step", checkpoint=checkpoint.number
        )
    if (checkpoint.rewound or checkpoint.orphans) and not (
        checkpoint.rewound and checkpoint.rolled_back_to and checkpoint.line
    ):
        raise ManifestError(
            "it states a restore, and no checkpoint that was restored", checkpoint=checkpoint.number
        )
    if both := sorted(set(checkpoint.orphans) & checkpoint.workers.keys()):
        raise ManifestError(
            f"worker {both[0]} has a part, and its output is taken back", checkpoint=checkpoint.number
        )


def _check_origin(checkpoint: Checkpoint, before: Checkpoint | None) -> None:
    if checkpoint.version < ORIGINS_VERSION and (
        checkpoint.origin or checkpoint.in_origin or checkpoint.identity
    ):
        raise ManifestError(
            f"it states where the region comes from, which version {checkpoint.version} does not allow",
            checkpoint=checkpoint.number,
        )
    if checkpoint.in_origin and checkpoint.origin is None:
        raise ManifestError(
            "its positions are in another region, which it does not name", checkpoint=checkpoint.number
        )
    if checkpoint.in_origin and before is not None and not checkpoint.rolled_back_to:
        raise ManifestError(
            "only the first checkpoint of a fork is in another region", checkpoint=checkpoint.number
        )
    if before is not None and checkpoint.origin != before.origin:
        raise ManifestError(
            f"it states another origin of the region than checkpoint {before.number}",
            checkpoint=checkpoint.number,
        )


def _check_worker(
    checkpoint: int, worker: int, part: WorkerCheckpoint, incarnation: int, highest: int | None
) -> None:
    for chain, position in part.chains().items():
        if position.size < 0 or position.epoch < 1 or not 0 <= position.digest < 1 << 64:
            raise ManifestError(
                f"worker {worker}: invalid {chain} position {position}", checkpoint=checkpoint
            )
        if highest is not None and position.epoch > highest:
            raise ManifestError(
                f"worker {worker}: its {chain} position has epoch {position.epoch}, "
                f"which is above incarnation {incarnation}",
                checkpoint=checkpoint,
            )
    for chain, (epoch, base) in part.floors.items():
        if epoch < 1 or (highest is not None and epoch > highest) or base < 0:
            raise ManifestError(
                f"worker {worker}: invalid floor of chain {chain!r}: epoch {epoch}, base {base}",
                checkpoint=checkpoint,
            )
    for source, splits in part.sources.items():
        for split, at in splits.items():
            if at.position < 0 or not 0 <= at.digest < 1 << 64:
                raise ManifestError(
                    f"worker {worker}: invalid position {at.position} of split {split!r} of {source!r}",
                    checkpoint=checkpoint,
                )
            if at.resume and not _can_resume(at.resume, at.position):
                raise ManifestError(
                    f"worker {worker}: the digest of split {split!r} of {source!r} at {at.position} cannot"
                    f" be resumed at {at.resume.size}",
                    checkpoint=checkpoint,
                )


def _can_resume(point: ResumePoint, position: int) -> bool:
    aligned = point.size % digest_block_bytes == 0
    return aligned and 0 <= point.size <= position and 0 <= point.digest < 1 << 64


def _check_savepoints(checkpoint: Checkpoint) -> None:
    if len(checkpoint.savepoints) > limits.savepoints_max:
        raise ManifestError(
            f"it has {len(checkpoint.savepoints)} savepoints, the limit is {limits.savepoints_max}",
            checkpoint=checkpoint.number,
        )
    if checkpoint.savepoints and checkpoint.version < SAVEPOINTS_VERSION:
        raise ManifestError(
            f"it has savepoints, which version {checkpoint.version} does not allow",
            checkpoint=checkpoint.number,
        )
    for name, held in checkpoint.savepoints.items():
        if (problem := savepoint_name_problem(name, reserved=True)) != "":
            raise ManifestError(problem, checkpoint=checkpoint.number)
        if held not in checkpoint.retained:
            raise ManifestError(
                f"savepoint {name!r} holds checkpoint {held}, which it does not retain",
                checkpoint=checkpoint.number,
            )


def _check_retained(checkpoint: Checkpoint, before: Checkpoint | None) -> None:
    kept = checkpoint.retained
    if not kept:
        return
    if kept[-1] != checkpoint.number or kept[0] < 1 or list(kept) != sorted(set(kept)):
        raise ManifestError(
            f"it retains {list(kept)}: expected rising numbers that end with its own",
            checkpoint=checkpoint.number,
        )
    if before is not None and before.retained:
        again = sorted({number for number in kept if number <= before.number} - set(before.retained))
        if again:
            raise ManifestError(
                f"it retains {again}, which checkpoint {before.number} released", checkpoint=checkpoint.number
            )


def _check_order(checkpoint: Checkpoint, before: Checkpoint, *, gap: bool) -> None:
    if checkpoint.number <= before.number:
        raise ManifestError(
            f"it follows checkpoint {before.number}; numbers rise and are never used twice",
            checkpoint=checkpoint.number,
        )
    if checkpoint.incarnation < before.incarnation:
        raise ManifestError(
            f"its incarnation {checkpoint.incarnation} is below {before.incarnation} of checkpoint"
            f" {before.number}",
            checkpoint=checkpoint.number,
        )
    if checkpoint.parent != before.number and not (gap and checkpoint.parent > before.number):
        raise ManifestError(
            f"its parent is checkpoint {checkpoint.parent}, the one before it is {before.number}",
            checkpoint=checkpoint.number,
        )
    expected = (before.line, before.line + 1) if checkpoint.rewound else (before.line,)
    if checkpoint.line not in expected and not (gap and checkpoint.line > before.line):
        raise ManifestError(
            f"it is of line {checkpoint.line}, and checkpoint {before.number} of line {before.line}",
            checkpoint=checkpoint.number,
        )
    if not checkpoint.rolled_back_to and checkpoint.line == before.line and checkpoint.step < before.step:
        raise ManifestError(
            f"its step {checkpoint.step} is below step {before.step} of checkpoint {before.number}",
            checkpoint=checkpoint.number,
        )
