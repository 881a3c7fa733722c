"""Which regions of a store the parts of an application continue, and whether all of them can begin. Pure.

A part is named by its first operator, and the names of operators change: so a part continues the region that
has its operators, under the name of that region. Regions are neither merged nor divided.
"""

from collections.abc import Collection, Mapping
from typing import Final

from checkpoint.core.graph_change import NO_OPTIONS, GraphOptions, Operators
from checkpoint.core.records.manifest import Checkpoint
from checkpoint.core.region import (
    RegionSpec,
    check_continues,
    check_may_begin,
    rows_to_add,
    when_handed_over,
)
from checkpoint.errors import GraphChangeRefusedError

Regions = Mapping[str, Checkpoint]
"""Region -> its last checkpoint, of each region of a store that `belongs_to` an application and has one."""

_MERGED: Final = "regions are neither merged nor divided"


def belongs_to(application: str, region: str) -> bool:
    """Return whether an application of that name may have given a region its name."""
    return bool(application) and (region == application or region.startswith(f"{application}."))


def _is_part(application: str, region: str, last: Checkpoint) -> bool:
    """Return whether a region that `belongs_to` an application is one of its parts, and no fork."""
    return bool(application) and last.origin is None and application in (region, last.application)


def continued_regions(
    application: str,
    parts: Mapping[str, Operators],
    regions: Regions,
    options: GraphOptions = NO_OPTIONS,
) -> dict[str, str]:
    """Return part -> the region of another name that it continues. parts: by the names that their first
    operators give them.

    Raises GraphChangeRefusedError if another part has that name. Whether the part fits is decided by
    `check_application`.
    """
    stored = {name: last for name, last in regions.items() if _is_part(application, name, last)}
    pairs = [
        (region != part, -shared, part, region)
        for region, last in stored.items()
        for part, operators in parts.items()
        if (shared := _shared(last.operators, operators, options.renamed))
    ]
    found: dict[str, str] = {}
    for _, _, part, region in sorted(pairs):  # its own name first, then most operators
        if part not in found and region not in found.values():
            found[part] = region
    for part in parts.keys() - found.keys():
        if part in found.values():
            (other,) = (one for one, region in found.items() if region == part)
            raise GraphChangeRefusedError(
                f"region {part!r} of the store has operators of the part that begins with"
                f" {_first(application, other)!r}, and another part has its name",
                operators=(_first(application, part),),
                remedy=f"rename operator {_first(application, part)!r}, the first one of that part",
            )
    return {part: region for part, region in found.items() if part != region}


def _first(application: str, part: str) -> str:
    return part.removeprefix(f"{application}.")


def _shared(stored: Operators, present: Operators, renamed: Mapping[str, str]) -> int:
    """Return how many operators of a region a part has: states, and sources and sinks of the same place."""
    number = 0
    for name, old in stored.items():
        new = present.get(renamed.get(name, name))
        if new is not None and new.kind == old.kind and not old.is_stateless:
            number += old.has_state or (old.kind != "event_time" and new.detail == old.detail)
    return number


def check_application(spec: RegionSpec, regions: Regions) -> None:
    """Raise ManifestError or GraphChangeRefusedError if any region of the application cannot continue, would
    begin without a state that the store has, or if no part continues one: then none is claimed.

    regions: also of forks, and of other applications whose names begin like this one.
    """
    all_of_it = (spec, *spec.beside)
    parts = {one.name for one in all_of_it}
    for one in all_of_it:
        last = regions.get(one.name)
        if one.without_checkpoints:
            continue
        if last is None:
            check_may_begin(one)
            check_begins(one, regions, parts)
            continue
        check_continues(one, when_handed_over(one, last), rows_to_add(one, last).values())
        for name, other in sorted(regions.items()):
            mine = one.operators.keys() - last.operators.keys()
            moved = sorted(mine & {of for of, note in other.operators.items() if not note.is_stateless})
            if moved and name != one.name and _is_part(spec.application, name, other):
                raise GraphChangeRefusedError(
                    f"the state of {', '.join(map(repr, moved))} is in region {name!r}, and this program has"
                    f" these operators in region {one.name!r}: {_MERGED}",
                    operators=tuple(moved),
                    remedy=f"leave them in region {name!r}, or use other names, with which their state begins"
                    " anew",
                )
    _check_left(spec, regions, parts)


def _check_left(spec: RegionSpec, regions: Regions, parts: Collection[str]) -> None:
    removed = spec.graph_options.removed_regions
    for name, last in sorted(regions.items()):
        if name in parts or name in removed or not _is_part(spec.application, name, last):
            continue
        with_state = sorted(of for of, note in last.operators.items() if not note.is_stateless)
        raise GraphChangeRefusedError(
            f"no part of this program continues region {name!r} of application {spec.application!r}, which"
            f" has the operators {', '.join(map(repr, with_state))}",
            operators=tuple(with_state),
            remedy=f'if it is not needed any more: removed_regions=("{name}",). It stays in the store, and'
            f" holds what it has not read, until dos region delete URL {name}",
        )


def check_begins(spec: RegionSpec, regions: Regions, parts: Collection[str]) -> None:
    """Raise GraphChangeRefusedError if a region would begin empty although another one has its operators.

    regions: see `check_application`. parts: the names of all regions of the application.
    """
    for name, last in sorted(regions.items()):
        shared = sorted(last.operators.keys() & spec.operators.keys())
        allowed = name in parts or name in spec.graph_options.removed_regions
        if allowed or not shared or not _is_part(spec.application, name, last):
            continue
        raise GraphChangeRefusedError(
            f"region {spec.name!r} would begin without state, although region {name!r} has its operators"
            f" {', '.join(map(repr, shared))}, and this program has no region {name!r}: {_MERGED}",
            operators=tuple(shared),
            remedy=f"leave these operators in a region of their own; or, if that state may go:"
            f' removed_regions=("{name}",)',
        )
