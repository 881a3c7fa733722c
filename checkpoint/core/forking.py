"""Forks: a new region that begins with a checkpoint of another one. Pure.

A fork takes two records, and copies nothing:

1. A savepoint of the original, named `fork-` and random digits, holds the checkpoint. Its note names the new
   region.
2. The first record in the manifest of the new region has the positions of that checkpoint, which are in the
   chains of the original (`Checkpoint.in_origin`). **Its acknowledgement is the commit.**

The first incarnation of the new region restores from the chains of the original, and opens its own at their
beginning. Before any step runs, all workers vote for the next checkpoint, which contains the state
completely. From then on the new region depends on the original only as long as it retains its first record
(`needs_original`). After that the driver of the original drops the savepoint: what is released stays released
(R14), so this can be known too late, but never too early.

The output of the new region is its own: its logs and sinks begin anew, and steps are numbered on. It reads
the inputs of the original, from the positions of the checkpoint.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from checkpoint.core.records.graphs import check_fingerprint
from checkpoint.core.records.manifest import Checkpoint, ForkOrigin, SavepointNote, in_its_version
from checkpoint.errors import ForkRefusedError, ManifestError


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
    unknown = sorted(set(origin.dropped) - source.operators.keys())
    known = sorted(set(origin.added) & source.operators.keys())
    if unknown or known:
        name = (unknown or known)[0]
        raise ForkRefusedError(
            f"operator {name!r} cannot be {'dropped' if unknown else 'new'}: region {origin.region!r}"
            f" {'has no such operator' if unknown else 'has it'}; its operators are"
            f" {', '.join(sorted(source.operators))}"
        )
    workers = {
        worker: msgspec.structs.replace(part, sinks={}, floors={}) for worker, part in source.workers.items()
    }
    first = Checkpoint(
        number=1,
        step=source.step,
        incarnation=incarnation,
        final=source.final,
        wall_time_ms=source.wall_time_ms,
        workers=workers,
        layout=source.layout,
        fingerprint=source.fingerprint,
        operators=source.operators,
        retained=(1,),
        origin=origin,
        in_origin=True,
    )
    return in_its_version(first)


def check_graph(
    checkpoint: Checkpoint,
    present: Mapping[str, str],
    *,
    region: str,
    older: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Raise FingerprintMismatchError unless a graph with these operators can continue from a checkpoint.
    The first graph of a fork may also lack operators of the original, or have others: those that were named.
    Its sinks begin anew, so their place and settings may differ.
    """
    stored = checkpoint.operators
    if checkpoint.in_origin and checkpoint.origin is not None:
        stored = _in_fork(stored, checkpoint.origin.dropped)
        present = _in_fork(present, checkpoint.origin.added)
    check_fingerprint(stored, present, region=region, checkpoint=checkpoint.number, older=older)


def _in_fork(operators: Mapping[str, str], named: Collection[str]) -> dict[str, str]:
    """Return what counts of the descriptions of operators: of a sink, only what it reads."""
    return {
        name: text.partition(")")[0] if text.startswith("sink ") else text
        for name, text in operators.items()
        if name not in named
    }


def check_places(checkpoint: Checkpoint, unchecked: Mapping[str, str]) -> None:
    """Raise ManifestError if a sink of a fork that begins may write where the original writes.

    unchecked: sink -> why that is not noticed. All other sinks refuse the place of another region.
    """
    if not checkpoint.in_origin or checkpoint.origin is None:
        return
    if doubtful := {sink: why for sink, why in unchecked.items() if sink not in checkpoint.origin.same_place}:
        listed = "; ".join(f"{sink!r}: {why}" for sink, why in doubtful.items())
        raise ManifestError(
            f"the region is a fork of {checkpoint.origin.region!r}, and these sinks may write to the same"
            f" place"
            f" unnoticed: {listed}",
            checkpoint=checkpoint.number,
            remedy="delete the fork, and fork again with --same-place SINK for each, if that is right",
        )


def check_log(checkpoint: Checkpoint | None, source: str, reads: str) -> None:
    """Raise ManifestError if a source of a fork reads the output of another region than in the original:
    its positions are in the logs of that one. reads: the region whose output it reads.
    """
    if checkpoint is None or checkpoint.origin is None:
        return
    expected = checkpoint.origin.logs.get(source, reads)
    if expected != reads:
        raise ManifestError(
            f"the region is a fork of {checkpoint.origin.region!r}, whose source {source!r} reads the"
            f" output of"
            f" region {expected!r}; here it reads that of {reads!r}, in which its position means nothing",
            checkpoint=checkpoint.number,
            remedy=f"read LogSource(..., region={expected!r}), in an application of its own",
        )


def made_for_forks(checkpoint: Checkpoint | None) -> dict[str, SavepointNote]:
    """Return the savepoints in the last checkpoint of a region that were made for forks, with their notes."""
    notes = {} if checkpoint is None else checkpoint.notes
    return {
        name: note
        for name, note in notes.items()
        if note.fork and checkpoint and name in checkpoint.savepoints
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
