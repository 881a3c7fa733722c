"""O7 and O8: every checkpoint of a region is consistent and can be restored, and each row is in its output
once.

A checkpoint is consistent if its outputs and its state are made of exactly the rows that its sources had read
up to it: nothing was received that was not sent, and nothing in flight is missing from the channel state.
"""

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from checkpoint.core.records.consumers import need_of
from checkpoint.core.records.lines import taken_back
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.key_hash import hash_keys
from tests.sim.history import ViolationError
from tests.sim.regions.audit import Auditor, retained_of
from tests.sim.regions.base import SOURCES, edits_in
from tests.sim.regions.output import counts_of
from tests.sim.regions.record import same
from tests.sim.regions.region import Region

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


def check_checkpoints(region: Region, audit: Auditor) -> None:
    """Check the manifest and the states that an auditor has read."""
    chain = audit.checkpoints
    for before, checkpoint in pairwise(chain):
        # A manifest that begins with a snapshot has savepoints, and not what was released after them.
        follows = checkpoint.parent == before.number or (
            checkpoint.parent > before.number and _released(checkpoint.parent, chain)
        )
        if checkpoint.number <= before.number or not follows or checkpoint.incarnation < before.incarnation:
            raise ViolationError(
                "O7",
                f"checkpoint {checkpoint.number} of incarnation {checkpoint.incarnation} follows"
                f" checkpoint {before.number}",
            )
    by_number = {checkpoint.number: checkpoint for checkpoint in chain}
    lost = [
        checkpoint.number
        for checkpoint in region.record.reported.values()
        if (
            not same(checkpoint, by_number[checkpoint.number])
            if checkpoint.number in by_number
            else not _released(checkpoint.number, chain)
        )
    ]
    if lost:
        raise ViolationError(
            "O7", f"checkpoints {lost} were committed, the manifest has {[one.number for one in chain]}"
        )
    if chain:
        _check_retained(region, audit)
    for checkpoint in chain:
        votes = region.record.votes.get((checkpoint.incarnation, checkpoint.number))
        if votes != checkpoint.workers and not checkpoint.rewound and not checkpoint.in_origin:
            raise ViolationError(
                "O7",
                f"checkpoint {checkpoint.number} of incarnation {checkpoint.incarnation} differs from its"
                f" votes (R12)",
            )
        if taken_back(chain[-1], checkpoint.line, checkpoint.step) is None:
            _check_checkpoint(region, checkpoint)
    for (number, worker), counts in audit.counts.items():
        checkpoint = next(one for one in chain if one.number == number)
        expected = counts_owned(region, chain[-1], checkpoint, worker)
        if Counter(counts) != expected:
            raise ViolationError(
                "O7", f"checkpoint {number} restores worker {worker} with {counts}, not {dict(expected)}"
            )


def counts_owned(region: Region, newest: Checkpoint, checkpoint: Checkpoint, worker: int) -> Counter[str]:
    """Return the last count of each word that belongs to a worker, whichever worker has shown it. If the
    output of the checkpoint was taken back since: as its input demands.
    """
    last: Counter[str] = Counter()
    if (
        region.first is not None
        or region.edits
        or taken_back(newest, checkpoint.line, checkpoint.step) is not None
    ):
        last.update(word for word, _ in region.given.upto(_read_in(checkpoint)))
        for word, added in edits_in(checkpoint) if region.edits else []:
            last[word] += added
    else:
        for one in checkpoint.outputs():
            last |= counts_of(region.output.upto(checkpoint, one, "counts"))
    words = pa.array(sorted(last), pa.string())
    owners = [checkpoint.layout.worker_of(int(one)) for one in hash_keys([words])] if last else []
    owned = [word for word, one in zip(sorted(last), owners, strict=True) if one == worker]
    return Counter({word: last[word] for word in owned})


def _released(number: int, chain: list[Checkpoint]) -> bool:
    """Return whether the manifest's last checkpoint has released this one."""
    return bool(chain) and number < chain[-1].number and number not in chain[-1].retained


def _check_retained(region: Region, audit: Auditor) -> None:
    """Check that the last `retain` committed checkpoints exist and were restored."""
    last, retain = audit.checkpoints[-1], region.spec.retain
    if region.makes_savepoints:
        region.savepoints.check(last)
    committed = sorted(checkpoint.number for checkpoint in region.record.reported.values())
    missing = set(committed[-retain:]) - {checkpoint.number for checkpoint in retained_of(audit.checkpoints)}
    if missing or len(last.retained) > retain + len(last.savepoints):
        raise ViolationError(
            "O7",
            f"checkpoints {committed[-retain:]} must be kept, {last.number} retains {list(last.retained)}",
        )
    read = {number for number, _ in audit.counts}
    for checkpoint in retained_of(audit.checkpoints):
        for split in region.given.splits:
            region.given.check_there(
                split, need_of([checkpoint], SOURCES, split), f"checkpoint {checkpoint.number}"
            )
    if read != set(last.retained):
        raise ViolationError(
            "O7", f"of the retained checkpoints {list(last.retained)} only {sorted(read)} exist"
        )


def _read_in(checkpoint: Checkpoint) -> dict[str, int]:
    """Return split -> how far a checkpoint has read it."""
    return {
        split: at.position
        for part in checkpoint.workers.values()
        for splits in part.sources.values()
        for split, at in splits.items()
    }


def _check_checkpoint(region: Region, checkpoint: Checkpoint) -> None:
    read = _read_in(checkpoint)
    if read.keys() != region.given.splits.keys():
        raise ViolationError("O7", f"checkpoint {checkpoint.number} has splits {sorted(read)}")
    rows: Counter[tuple[str, ...]] = Counter()
    for worker in checkpoint.outputs():
        rows.update(map(tuple, region.output.upto(checkpoint, worker, "rows")))
    before = [] if region.first is None else region.given.upto(_read_in(region.first))
    _same_rows("O7", f"checkpoint {checkpoint.number}", rows, _without(region.given.upto(read), before))


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
