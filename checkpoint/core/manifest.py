"""Cuts, and their records in the manifest chain: what a consistent global state is, in bytes.

Rules of this file: structs, encode, decode, checks. No journal, no I/O; the keeper of the chain is
`manifest_store.py`.

A cut is a vector of positions: for each worker the position of its state chain and of its steps chain, the
position of every input split, and what each sink needs to cut its output back. Its append to the manifest,
synced on the quorum, IS the commit. One record:

    op CUT, flags see CutFlag, ints = [cut, step, incarnation], strings = [JSON of Cut]

The ints repeat fields of the JSON, so that a dump and a scan need no JSON; a record in which the two differ
is refused. Cut numbers rise by at least one from record to record and are never used twice, also not by a
rollback: going back by hand is a NEW cut, flagged ROLLBACK, whose positions are those of the cut returned
to (`rolled_back_to`), acknowledged before any order. So the last cut of the chain is always the one to
restore.
"""

import json
import re
from collections.abc import Iterable, Mapping
from enum import IntFlag
from typing import Any, Final, NamedTuple

import msgspec

from checkpoint import limits
from checkpoint.core.layout import Layout, check_layout
from checkpoint.errors import ManifestError
from journal.core.position import Position
from journal.core.trimming import Floor

CUT_VERSION: Final = 2
SAVEPOINTS_VERSION: Final = 3
DIRECTORIES_VERSION: Final = 4
_READABLE: Final = (1, 2, 3, 4)
"""Version 1 says nothing of what is retained, nor of what a cut needs of its chains. Version 3 is version 2
with pins: who does not know them must not go on from it, because it would release what they hold.
Version 4 has the positions of operators' directories, and perhaps pins: who does not know them would lose
the files.
"""
_PIN: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.savepoint_name_chars_max - 1}}}", re.ASCII)


class CutFlag(IntFlag):
    """Bits of the record's flags."""

    FINAL = 1
    """All sources were exhausted: nothing follows unless an input grows."""
    ROLLBACK = 2
    """Made by hand: positions of an older cut."""


class SplitPosition(msgspec.Struct, frozen=True):
    """How far one split is read: `position` in the source's own unit, the digest of what was read, whether
    it ended.
    """

    position: int
    digest: int = 0
    done: bool = False


class WorkerCut(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part of a cut. Its positions were synced on the quorum before it voted."""

    state: Position
    steps: Position
    sources: dict[str, dict[str, SplitPosition]] = {}
    sinks: dict[str, Any] = {}
    """Sink name -> JSON of its own making (for a file: bytes and digest)."""
    floors: dict[str, Floor] = {}
    """Chain -> the lowest segment, (epoch, base), that a restore of this cut reads: it begins with a snapshot
    whose end is acknowledged, or is the chain's first. Of a chain that is not named all may be needed.
    """
    directories: dict[str, Position] = {}
    """Operator that keeps files -> the position of their chain."""

    def positions(self) -> dict[str, Position]:
        """All that is of this worker's incarnation, by name."""
        files = {f"directory of {name!r}": at for name, at in self.directories.items()}
        return {"state": self.state, "steps": self.steps, **files}

    def epochs(self) -> set[int]:
        """Of all its positions: those that voted them must be one incarnation (R12)."""
        return {at.epoch for at in self.positions().values()}


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A consistent state of the whole region: everything up to the end of `step`, nothing after it."""

    cut: int
    step: int
    incarnation: int
    final: bool
    wall_time_ms: int
    """For people, and for 'as of' queries by the clock; orders nothing."""
    workers: dict[int, WorkerCut]
    layout: Layout
    fingerprint: str
    operators: dict[str, str]
    parent: int = 0
    """The cut this one goes on from, 0 for the first."""
    retained: tuple[int, ...] = ()
    """The cuts that are retained from this one on, itself included; acknowledged, it releases all others, for
    ever (R14). Empty in version 1: it does not say.
    """
    savepoints: dict[str, int] = msgspec.field(default_factory=dict, name="pins")
    """Name -> the cut that is retained until the pin of that name is let go. From version 3 on."""
    rolled_back_to: int = 0
    """For a rollback: the cut whose positions these are; 0 for a cut that was voted."""
    phases_s: dict[int, dict[str, float]] = {}
    """Worker -> phase (align, drain, write, sync) -> seconds. For people."""
    driver: str = ""
    """host:pid of the driver that committed it. For people."""
    version: int = CUT_VERSION


def version_with(savepoints: dict[str, int], workers: Mapping[int, WorkerCut]) -> int:
    """The version of a cut with these pins and directories: whoever reads version 2 alone may go on where
    there are none.
    """
    if any(part.directories for part in workers.values()):
        return DIRECTORIES_VERSION
    return SAVEPOINTS_VERSION if savepoints else CUT_VERSION


def savepoint_name_problem(name: str) -> str:
    """'' or why a pin cannot have that name."""
    if _PIN.fullmatch(name):
        return ""
    return (
        f"a pin's name has 1 to {limits.savepoint_name_chars_max} letters, digits, '.', '_' or '-', the first no"
        f" sign: {name[: 2 * limits.savepoint_name_chars_max]!r}"
    )


class CutRecord(NamedTuple):
    """The arguments of the journal record of a cut; op is CUT."""

    flags: int
    ints: tuple[int, int, int]
    text: bytes


def encode_cut(cut: Cut) -> CutRecord:
    """The record of a cut. Raises ManifestError above `manifest_record_bytes_max`."""
    text = msgspec.json.encode(cut)
    if len(text) > limits.manifest_record_bytes_max:
        raise ManifestError(
            f"its record has {len(text)} bytes, at most {limits.manifest_record_bytes_max} are allowed",
            cut=cut.cut,
            remedy="use fewer or larger input splits",
        )
    flags = (CutFlag.FINAL if cut.final else 0) | (CutFlag.ROLLBACK if cut.rolled_back_to else 0)
    return CutRecord(flags, (cut.cut, cut.step, cut.incarnation), text)


def decode_cut(flags: int, ints: Iterable[int], text: bytes) -> Cut:
    """The cut of a record, its own fields checked (`check_cut` checks it against the region). Raises
    ManifestError.
    """
    numbers = tuple(ints)
    cut_number = numbers[0] if numbers else 0
    if len(text) > limits.manifest_record_bytes_max:
        raise ManifestError(f"its record has {len(text)} bytes", cut=cut_number)
    _refuse_duplicates(text, cut_number)
    try:
        cut = msgspec.json.decode(text, type=Cut)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ManifestError(f"its record does not decode: {error}", cut=cut_number) from error
    if cut.version not in _READABLE:
        raise ManifestError(f"version {cut.version} of cuts, {max(_READABLE)} is known here", cut=cut.cut)
    if numbers != (cut.cut, cut.step, cut.incarnation):
        raise ManifestError(
            f"the record says {list(numbers)}, its text {[cut.cut, cut.step, cut.incarnation]}", cut=cut.cut
        )
    if flags != encode_cut(cut).flags:
        raise ManifestError(f"flags {flags:#x} do not go with its text", cut=cut.cut)
    return cut


def _refuse_duplicates(text: bytes, cut: int) -> None:
    """A JSON object with a key twice would silently drop a worker or a split."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        if len(set(keys)) != len(keys):
            twice = sorted(key for key in set(keys) if keys.count(key) > 1)
            raise ManifestError(f"named twice in its record: {', '.join(twice)}", cut=cut)
        return dict(items)

    try:
        json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"its record is no JSON: {error}", cut=cut) from error


def check_cut(cut: Cut, *, workers: int, before: Cut | None = None, gap: bool = False) -> None:
    """Whether a region of `workers` workers can be restored to this cut. Raises ManifestError with the
    reason. gap: cuts that were released may have stood between it and `before`, as in a snapshot of the
    manifest where one of them is pinned.
    """
    if cut.cut < 1 or cut.step < 0 or cut.incarnation < 1:
        raise ManifestError(
            f"step {cut.step}, incarnation {cut.incarnation}: numbers begin at 1 (steps at 0)",
            cut=cut.cut,
        )
    made_by = max(cut.workers, default=0) + 1
    missing = sorted(set(range(made_by)) - cut.workers.keys())
    if missing:
        raise ManifestError(f"worker {missing[0]} of {max(made_by, workers)} is missing", cut=cut.cut)
    if made_by != workers:
        raise ManifestError(
            f"it was made by {_counted(made_by)}, the region has {_counted(workers)}",
            cut=cut.cut,
            remedy="run the region with as many workers as made the cut: their number cannot change yet",
        )
    for worker, part in cut.workers.items():
        _check_worker(cut.cut, worker, part, cut.incarnation)
    if cut.version < DIRECTORIES_VERSION <= version_with({}, cut.workers):
        raise ManifestError(f"it has directories, which version {cut.version} does not know", cut=cut.cut)
    check_layout(cut.layout, workers, cut=cut.cut)
    _check_retained(cut, before)
    _check_savepoints(cut)
    if before is not None:
        _check_order(cut, before, gap=gap)


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _check_worker(cut: int, worker: int, part: WorkerCut, incarnation: int) -> None:
    for chain, position in part.positions().items():
        if position.size < 0 or position.epoch < 1 or not 0 <= position.digest < 1 << 64:
            raise ManifestError(f"worker {worker}: its {chain} position is {position}", cut=cut)
        if position.epoch > incarnation:
            raise ManifestError(
                f"worker {worker}: its {chain} position is of epoch {position.epoch}, "
                f"after incarnation {incarnation}",
                cut=cut,
            )
    for chain, (epoch, base) in part.floors.items():
        if not 1 <= epoch <= incarnation or base < 0:
            raise ManifestError(f"worker {worker}: its chain {chain!r} begins at {epoch}, {base}", cut=cut)
    for source, splits in part.sources.items():
        for split, at in splits.items():
            if at.position < 0 or not 0 <= at.digest < 1 << 64:
                raise ManifestError(
                    f"worker {worker}: split {split!r} of {source!r} is at {at.position}", cut=cut
                )


def _check_savepoints(cut: Cut) -> None:
    if len(cut.savepoints) > limits.savepoints_max:
        raise ManifestError(
            f"it has {len(cut.savepoints)} pins, at most {limits.savepoints_max}", cut=cut.cut
        )
    if cut.savepoints and cut.version < SAVEPOINTS_VERSION:
        raise ManifestError(f"it has pins, which version {cut.version} does not know", cut=cut.cut)
    for name, pinned in cut.savepoints.items():
        if (problem := savepoint_name_problem(name)) != "":
            raise ManifestError(problem, cut=cut.cut)
        if pinned not in cut.retained:
            raise ManifestError(f"pin {name!r} holds cut {pinned}, which it does not retain", cut=cut.cut)


def _check_retained(cut: Cut, before: Cut | None) -> None:
    kept = cut.retained
    if not kept:
        return
    if kept[-1] != cut.cut or kept[0] < 1 or list(kept) != sorted(set(kept)):
        raise ManifestError(f"it retains {list(kept)}: numbers rise, and the last is its own", cut=cut.cut)
    if before is not None and before.retained:
        again = sorted({number for number in kept if number <= before.cut} - set(before.retained))
        if again:
            raise ManifestError(f"it retains {again}, which cut {before.cut} has released", cut=cut.cut)


def _check_order(cut: Cut, before: Cut, *, gap: bool) -> None:
    if cut.cut <= before.cut:
        raise ManifestError(f"it stands after cut {before.cut}; numbers are never used twice", cut=cut.cut)
    if cut.incarnation < before.incarnation:
        raise ManifestError(
            f"of incarnation {cut.incarnation} after cut {before.cut} of incarnation {before.incarnation}",
            cut=cut.cut,
        )
    if cut.parent != before.cut and not (gap and cut.parent > before.cut):
        raise ManifestError(
            f"it goes on from cut {cut.parent}, the one before it is {before.cut}", cut=cut.cut
        )
    if not cut.rolled_back_to and cut.step < before.step:
        raise ManifestError(f"at step {cut.step}, cut {before.cut} before it at {before.step}", cut=cut.cut)
