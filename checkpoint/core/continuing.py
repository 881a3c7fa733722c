"""Whether the region of a program can continue from a checkpoint. Pure.

It is decided before anything is claimed, so that a program that does not fit fences no driver, and again
under the claim, by the checkpoint that is the last one then. A restore decides it for its target before its
record.
"""

from collections.abc import Mapping

from checkpoint.core.forking import check_graph, check_places
from checkpoint.core.manifest_checks import check_checkpoint
from checkpoint.core.records.even_layout import workers_text
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import RegionSpec
from checkpoint.errors import FingerprintMismatchError, ManifestError


def workers_wanted(spec: RegionSpec, checkpoint: Checkpoint) -> int:
    """Return the number of workers after a checkpoint: its own, unless the program asks for another one.

    A program that asks for the same number as before does not undo that the region was scaled since.
    """
    asked = spec.workers
    return len(checkpoint.workers) if asked is None or asked == checkpoint.workers_declared else asked


def check_continues(spec: RegionSpec, checkpoint: Checkpoint) -> None:
    """Raise ManifestError or FingerprintMismatchError unless this region can continue from a checkpoint: with
    its graph, its sinks and its number of workers.
    """
    check_checkpoint(checkpoint)
    if spec.keeps_workers and (wanted := workers_wanted(spec, checkpoint)) != len(checkpoint.workers):
        raise ManifestError(
            f"it was made by {workers_text(len(checkpoint.workers))}, the region has {workers_text(wanted)}:"
            f" {spec.keeps_workers}",
            checkpoint=checkpoint.number,
            remedy="run the region with as many workers as made the checkpoint",
        )
    check_places(checkpoint, spec.unchecked_places)
    check_graph(checkpoint, spec.operators, region=spec.name, older=spec.older_operators)


def belongs_to(application: str, region: str) -> bool:
    """Return whether an application of that name may have given a region its name."""
    return bool(application) and (region == application or region.startswith(f"{application}."))


def check_begins(spec: RegionSpec, regions: Mapping[str, Checkpoint]) -> None:
    """Raise FingerprintMismatchError if a region of an application would begin empty, although another region
    has its operators: a part of several is named by its first operator, so another name is another region.

    regions: the last checkpoint of each other region of the store that `belongs_to` the application.
    """
    for name, last in sorted(regions.items()):
        shared = sorted(last.operators.keys() & spec.operators.keys())
        first = name.removeprefix(f"{spec.application}.")
        is_part = name == spec.application or first in last.operators
        if name in spec.parts or last.origin is not None or not is_part or not shared:
            continue
        raise FingerprintMismatchError(
            f"region {spec.name!r} would begin without state, although region {name!r} has its operators"
            f" {', '.join(map(repr, shared))}, and this program has no region {name!r}",
            operators=tuple(shared),
            remedy=f"give the first operator of the region, which names it, the name that it had in {name!r};"
            f" or, if that state may go, dos region delete URL {name}",
        )
