"""O7 and O8: every checkpoint of a region is consistent and can be restored, and each row is in its output
once.

A checkpoint is consistent if its outputs and its state are made of exactly the rows that its sources had read
up to it: nothing was received that was not sent, and nothing in flight is missing from the channel state.
"""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from checkpoint.core.consumers import need_of
from checkpoint.core.lines import taken_back
from checkpoint.core.manifest import Cut
from checkpoint.key_hash import hash_keys
from tests.sim.history import ViolationError
from tests.sim.regions.audit import Auditor, retained_of
from tests.sim.regions.editing import edits_in
from tests.sim.regions.output import counts_of
from tests.sim.regions.record import same
from tests.sim.regions.region import Region
from tests.sim.regions.trimmer import SOURCES

if TYPE_CHECKING:
    from tests.sim.run import Cluster


def check(cluster: "Cluster") -> None:
    """Raises ViolationError."""
    if cluster.region is None:
        return
    check_output(cluster.region)


def check_output(region: Region) -> None:
    """Check that the output of a finished region is that of a run without failures."""
    before = [] if region.first is None else region.given.upto(_read_in(region.first))
    rows = _without(region.given.rows, before)
    _same_rows("O8", "the output", Counter(map(tuple, region.output.rows("rows"))), rows)
    last_counts: dict[str, int] = dict(Counter(word for word, _ in before))
    shown = region.output.rows("counts")
    if region.scales:  # the parts of workers that had a word one after the other are in no order
        shown.sort(key=lambda row: int(row[1]))
    for word, count in shown:
        if int(count) <= last_counts.get(word, 0):
            raise ViolationError("O8", f"{word!r} is counted {count} after {last_counts[word]}")
        last_counts[word] = int(count)
    expected = Counter(word for word, _ in region.given.rows)
    allowed = {word: {count} for word, count in expected.items()}
    for word, added in region.edits_shown():
        allowed[word] |= {count + added for count in allowed[word]}
    if last_counts.keys() != allowed.keys() or any(last_counts[one] not in allowed[one] for one in allowed):
        raise ViolationError("O8", f"the last counts are {last_counts}, not {dict(expected)}")


def check_cuts(region: Region, audit: Auditor) -> None:
    """Check the manifest and the states that an auditor has read."""
    chain = audit.cuts
    for before, cut in pairwise(chain):
        # A manifest that begins with a snapshot has savepoints, and not what was released after them.
        follows = cut.parent == before.cut or (cut.parent > before.cut and _released(cut.parent, chain))
        if cut.cut <= before.cut or not follows or cut.incarnation < before.incarnation:
            raise ViolationError(
                "O7", f"checkpoint {cut.cut} of incarnation {cut.incarnation} follows checkpoint {before.cut}"
            )
    by_number = {cut.cut: cut for cut in chain}
    lost = [
        cut.cut
        for cut in region.record.reported.values()
        if (not same(cut, by_number[cut.cut]) if cut.cut in by_number else not _released(cut.cut, chain))
    ]
    if lost:
        raise ViolationError(
            "O7", f"checkpoints {lost} were committed, the manifest has {[one.cut for one in chain]}"
        )
    if chain:
        _check_retained(region, audit)
    for cut in chain:
        votes = region.record.votes.get((cut.incarnation, cut.cut))
        if votes != cut.workers and not cut.rewound and not cut.in_origin:
            raise ViolationError(
                "O7", f"checkpoint {cut.cut} of incarnation {cut.incarnation} differs from its votes (R12)"
            )
        if taken_back(chain[-1], cut.line, cut.step) is None:
            _check_cut(region, cut)
    for (number, worker), counts in audit.counts.items():
        cut = next(one for one in chain if one.cut == number)
        expected = counts_owned(region, chain[-1], cut, worker)
        if Counter(counts) != expected:
            raise ViolationError(
                "O7",
                f"checkpoint {number} restores worker {worker} with {counts}, not {dict(expected)}",
            )


def counts_owned(region: Region, newest: Cut, cut: Cut, worker: int) -> Counter[str]:
    """Return the last count of each word that belongs to a worker, whichever worker has shown it. If the
    output of the checkpoint was taken back since: as its input demands.
    """
    last: Counter[str] = Counter()
    if region.first is not None or region.edits or taken_back(newest, cut.line, cut.step) is not None:
        last.update(word for word, _ in region.given.upto(_read_in(cut)))
        for word, added in edits_in(cut) if region.edits else []:
            last[word] += added
    else:
        for one in cut.outputs():
            last |= counts_of(region.output.upto(cut, one, "counts"))
    words = pa.array(sorted(last), pa.string())
    owners = [cut.layout.worker_of(int(one)) for one in hash_keys([words])] if last else []
    owned = [word for word, one in zip(sorted(last), owners, strict=True) if one == worker]
    return Counter({word: last[word] for word in owned})


def _released(number: int, chain: list[Cut]) -> bool:
    """Return whether the manifest's last checkpoint has released this one."""
    return bool(chain) and number < chain[-1].cut and number not in chain[-1].retained


def _check_retained(region: Region, audit: Auditor) -> None:
    """Check that the last `retain` committed checkpoints exist and were restored."""
    last, retain = audit.cuts[-1], region.spec.retain
    if region.makes_savepoints:
        region.savepoints.check(last)
    committed = sorted(cut.cut for cut in region.record.reported.values())
    missing = set(committed[-retain:]) - {cut.cut for cut in retained_of(audit.cuts)}
    if missing or len(last.retained) > retain + len(last.savepoints):
        raise ViolationError(
            "O7",
            f"checkpoints {committed[-retain:]} must be kept, {last.cut} retains {list(last.retained)}",
        )
    read = {number for number, _ in audit.counts}
    for cut in retained_of(audit.cuts):
        for split in region.given.splits:
            region.given.check_there(split, need_of([cut], SOURCES, split), f"checkpoint {cut.cut}")
    if read != set(last.retained):
        raise ViolationError(
            "O7", f"of the retained checkpoints {list(last.retained)} only {sorted(read)} exist"
        )


def _read_in(cut: Cut) -> dict[str, int]:
    """Return split -> how far a checkpoint has read it."""
    return {
        split: at.position
        for part in cut.workers.values()
        for splits in part.sources.values()
        for split, at in splits.items()
    }


def _check_cut(region: Region, cut: Cut) -> None:
    read = _read_in(cut)
    if read.keys() != region.given.splits.keys():
        raise ViolationError("O7", f"checkpoint {cut.cut} has splits {sorted(read)}")
    rows: Counter[tuple[str, ...]] = Counter()
    for worker in cut.outputs():
        rows.update(map(tuple, region.output.upto(cut, worker, "rows")))
    before = [] if region.first is None else region.given.upto(_read_in(region.first))
    _same_rows("O7", f"checkpoint {cut.cut}", rows, _without(region.given.upto(read), before))


def _without(rows: list[tuple[str, int]], before: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the rows that a fork shows: those after the checkpoint from which it began."""
    return [*(Counter(rows) - Counter(before)).elements()]


def _same_rows(oracle: str, what: str, found: Counter[tuple[str, ...]], read: list[tuple[str, int]]) -> None:
    expected = Counter((word, str(number)) for word, number in read)
    if found != expected:
        twice, missing = found - expected, expected - found
        raise ViolationError(
            oracle,
            f"{what} has {sum(twice.values())} rows too many ({sorted(twice)[:3]}), lacks "
            f"{sum(missing.values())} ({sorted(missing)[:3]}) of {len(read)} read",
        )
