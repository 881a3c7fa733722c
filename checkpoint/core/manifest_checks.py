"""Whether a region can be restored to a checkpoint, and whether one can follow another. Pure."""

from checkpoint import limits
from checkpoint.core.layout import check_layout
from checkpoint.core.manifest import (
    DIRECTORIES_VERSION,
    LAYOUTS_VERSION,
    LINES_VERSION,
    ORIGINS_VERSION,
    SAVEPOINTS_VERSION,
    TERMS_VERSION,
    Cut,
    WorkerCut,
    savepoint_name_problem,
)
from checkpoint.errors import ManifestError
from dos_protocol.digests import ResumePoint
from dos_protocol.limits import digest_block_bytes


def check_cut(cut: Cut, *, before: Cut | None = None, gap: bool = False) -> None:
    """Raise ManifestError with the reason if a region cannot be restored to `cut`.

    - `before`: the checkpoint before it in the chain, which it is compared with.
    - `gap`: released checkpoints may have been between the two, as in a snapshot of the manifest with a
      savepoint.
    """
    if cut.cut < 1 or cut.step < 0 or cut.incarnation < 1:
        raise ManifestError(
            f"it has step {cut.step} and incarnation {cut.incarnation}: numbers begin at 1, steps at 0",
            cut=cut.cut,
        )
    workers = max(cut.workers, default=0) + 1
    missing = sorted(set(range(workers)) - cut.workers.keys())
    if missing:
        raise ManifestError(f"it has no part of worker {missing[0]} of {workers}", cut=cut.cut)
    for worker, part in cut.workers.items():
        # With local recovery, a worker that was taken over has a term above the incarnation.
        terms = limits.terms_per_incarnation if cut.version >= TERMS_VERSION else 1
        # The epochs of another region's chains have nothing to do with this region's incarnations.
        highest = None if cut.in_origin else cut.incarnation + terms - 1
        _check_worker(cut.cut, worker, part, cut.incarnation, highest)
    if cut.version < DIRECTORIES_VERSION and any(part.directories for part in cut.workers.values()):
        raise ManifestError(f"it has directories, which version {cut.version} does not allow", cut=cut.cut)
    _check_retired(cut)
    _check_line(cut)
    _check_origin(cut, before)
    check_layout(cut.layout, workers, cut=cut.cut)
    if idle := sorted(cut.workers.keys() - set(cut.layout.workers)):
        raise ManifestError(f"worker {idle[0]} owns no shards", cut=cut.cut)
    _check_retained(cut, before)
    _check_savepoints(cut)
    if before is not None:
        _check_order(cut, before, gap=gap)


def _check_retired(cut: Cut) -> None:
    if cut.version < LAYOUTS_VERSION and (cut.retired or cut.declared):
        raise ManifestError(
            f"it states former workers, which version {cut.version} does not allow", cut=cut.cut
        )
    if both := sorted(cut.retired.keys() & cut.workers.keys()):
        raise ManifestError(f"worker {both[0]} has a part and is a former worker", cut=cut.cut)
    if min(cut.retired, default=0) < 0 or not 0 <= cut.declared <= limits.workers_max:
        raise ManifestError(
            f"invalid former workers {sorted(cut.retired)}, or number of workers {cut.declared}", cut=cut.cut
        )


def _check_line(cut: Cut) -> None:
    if cut.version < LINES_VERSION and (cut.line or cut.rewinds or cut.rewound or cut.orphans):
        raise ManifestError(
            f"it has line {cut.line}, which version {cut.version} does not allow", cut=cut.cut
        )
    lines = [rewind.line for rewind in cut.rewinds]
    kept = limits.rewinds_kept_max
    if lines != list(range(max(1, cut.line - kept + 1), cut.line + 1)):
        raise ManifestError(f"it is of line {cut.line}, but states the lines {lines}", cut=cut.cut)
    if any(
        rewind.step < 0 or not 0 < rewind.to < cut.cut or not 0 <= rewind.of < rewind.line
        for rewind in cut.rewinds
    ):
        raise ManifestError("a line of it begins with an invalid checkpoint or step", cut=cut.cut)
    if (cut.rewound or cut.orphans) and not (cut.rewound and cut.rolled_back_to and cut.line):
        raise ManifestError("it states a restore, and no checkpoint that was restored", cut=cut.cut)
    if both := sorted(set(cut.orphans) & cut.workers.keys()):
        raise ManifestError(f"worker {both[0]} has a part, and its output is taken back", cut=cut.cut)


def _check_origin(cut: Cut, before: Cut | None) -> None:
    if cut.version < ORIGINS_VERSION and (cut.origin or cut.in_origin or cut.identity):
        raise ManifestError(
            f"it states where the region comes from, which version {cut.version} does not allow", cut=cut.cut
        )
    if cut.in_origin and cut.origin is None:
        raise ManifestError("its positions are in another region, which it does not name", cut=cut.cut)
    if cut.in_origin and before is not None and not cut.rolled_back_to:
        raise ManifestError("only the first checkpoint of a fork is in another region", cut=cut.cut)
    if before is not None and cut.origin != before.origin:
        raise ManifestError(
            f"it states another origin of the region than checkpoint {before.cut}", cut=cut.cut
        )


def _check_worker(cut: int, worker: int, part: WorkerCut, incarnation: int, highest: int | None) -> None:
    for chain, position in part.chains().items():
        if position.size < 0 or position.epoch < 1 or not 0 <= position.digest < 1 << 64:
            raise ManifestError(f"worker {worker}: invalid {chain} position {position}", cut=cut)
        if highest is not None and position.epoch > highest:
            raise ManifestError(
                f"worker {worker}: its {chain} position has epoch {position.epoch}, "
                f"which is above incarnation {incarnation}",
                cut=cut,
            )
    for chain, (epoch, base) in part.floors.items():
        if epoch < 1 or (highest is not None and epoch > highest) or base < 0:
            raise ManifestError(
                f"worker {worker}: invalid floor of chain {chain!r}: epoch {epoch}, base {base}", cut=cut
            )
    for source, splits in part.sources.items():
        for split, at in splits.items():
            if at.position < 0 or not 0 <= at.digest < 1 << 64:
                raise ManifestError(
                    f"worker {worker}: invalid position {at.position} of split {split!r} of {source!r}",
                    cut=cut,
                )
            if at.resume and not _can_resume(at.resume, at.position):
                raise ManifestError(
                    f"worker {worker}: the digest of split {split!r} of {source!r} at {at.position} cannot"
                    f" be resumed at {at.resume.size}",
                    cut=cut,
                )


def _can_resume(point: ResumePoint, position: int) -> bool:
    aligned = point.size % digest_block_bytes == 0
    return aligned and 0 <= point.size <= position and 0 <= point.digest < 1 << 64


def _check_savepoints(cut: Cut) -> None:
    if len(cut.savepoints) > limits.savepoints_max:
        raise ManifestError(
            f"it has {len(cut.savepoints)} savepoints, the limit is {limits.savepoints_max}", cut=cut.cut
        )
    if cut.savepoints and cut.version < SAVEPOINTS_VERSION:
        raise ManifestError(f"it has savepoints, which version {cut.version} does not allow", cut=cut.cut)
    for name, held in cut.savepoints.items():
        if (problem := savepoint_name_problem(name, reserved=True)) != "":
            raise ManifestError(problem, cut=cut.cut)
        if held not in cut.retained:
            raise ManifestError(
                f"savepoint {name!r} holds checkpoint {held}, which it does not retain", cut=cut.cut
            )


def _check_retained(cut: Cut, before: Cut | None) -> None:
    kept = cut.retained
    if not kept:
        return
    if kept[-1] != cut.cut or kept[0] < 1 or list(kept) != sorted(set(kept)):
        raise ManifestError(
            f"it retains {list(kept)}: expected rising numbers that end with its own", cut=cut.cut
        )
    if before is not None and before.retained:
        again = sorted({number for number in kept if number <= before.cut} - set(before.retained))
        if again:
            raise ManifestError(f"it retains {again}, which checkpoint {before.cut} released", cut=cut.cut)


def _check_order(cut: Cut, before: Cut, *, gap: bool) -> None:
    if cut.cut <= before.cut:
        raise ManifestError(
            f"it follows checkpoint {before.cut}; numbers rise and are never used twice", cut=cut.cut
        )
    if cut.incarnation < before.incarnation:
        raise ManifestError(
            f"its incarnation {cut.incarnation} is below {before.incarnation} of checkpoint {before.cut}",
            cut=cut.cut,
        )
    if cut.parent != before.cut and not (gap and cut.parent > before.cut):
        raise ManifestError(
            f"its parent is checkpoint {cut.parent}, the one before it is {before.cut}", cut=cut.cut
        )
    expected = (before.line, before.line + 1) if cut.rewound else (before.line,)
    if cut.line not in expected and not (gap and cut.line > before.line):
        raise ManifestError(
            f"it is of line {cut.line}, and checkpoint {before.cut} of line {before.line}", cut=cut.cut
        )
    if not cut.rolled_back_to and cut.line == before.line and cut.step < before.step:
        raise ManifestError(
            f"its step {cut.step} is below step {before.step} of checkpoint {before.cut}",
            cut=cut.cut,
        )
