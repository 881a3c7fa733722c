"""Where the sources of a region begin whose first state is given.

| given for a source | meaning |
|---|---|
| `"begin"` | the beginning of each split, as a region without a checkpoint begins |
| `"end"` | of an input handle: after everything that is recorded now |
| split -> position | of an input handle: the end of a part, as `read_output` states it |
| split -> `SplitPosition` | of any source: as a checkpoint has it, with the digest |

Positions have the digest of everything before them, so an input handle is read up to the position. It is
registered as a consumer first: nothing that the region will read is trimmed.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import msgspec

from checkpoint import SplitPosition
from checkpoint.errors import EditRefusedError
from dataflow.errors import nearest
from dataflow.graph.plan import GraphPlan
from dataflow.sources.base import Positions, SourceSpec
from dataflow.sources.prefetched import Reading
from dataflow.sources.stored import InputSource
from dos_client import Store

BEGIN: Final = "begin"
END: Final = "end"
Begins: TypeAlias = "str | Mapping[str, Any]"


def _refuse(source: str, rule: str, remedy: str) -> EditRefusedError:
    return EditRefusedError(f"source {source!r}: {rule}", remedy=remedy)


async def first_positions(
    store: Store, region: str, application: str, plan: GraphPlan, given: Mapping[str, Begins], workers: int
) -> list[dict[str, Positions]]:
    """Return for each worker where its sources begin. Raises EditRefusedError unless every source of the
    graph is given, with positions that exist; and what reading an input raises.
    """
    sources = {name: spec for name, spec in plan.specs.items() if isinstance(spec, SourceSpec)}
    for name in given:
        if name not in sources:
            raise _refuse(
                name,
                f"the graph has no such source{nearest(name, sources)}; it has {', '.join(sources)}",
                "give the positions of the sources of the graph",
            )
    for name in sources:
        if name not in given:
            raise _refuse(
                name,
                "it is not stated where it begins",
                f"add {{{name!r}: 'begin'}} if the state contains nothing of its input",
            )
    found: list[dict[str, Positions]] = [{} for _ in range(workers)]
    for name, spec in sources.items():
        all_positions = await _positions(store, region, application, name, spec, given[name])
        if all_positions:
            for worker in range(workers):
                found[worker][name] = spec.redeal([all_positions], worker, workers)
    return found


async def _positions(
    store: Store, region: str, application: str, name: str, spec: SourceSpec, given: Begins
) -> Positions:
    if given == BEGIN:
        return {}
    if isinstance(spec, InputSource):
        return await _of_input(store, region, application, name, spec, given)
    if isinstance(given, str):
        raise _refuse(
            name,
            f"{given!r} is not a position of a {type(spec).__name__}",
            "give 'begin', or the position of each split as a checkpoint has it",
        )
    return {split: _as_stored(name, split, at) for split, at in given.items()}


def _as_stored(source: str, split: str, at: Any) -> SplitPosition:
    try:
        return at if isinstance(at, SplitPosition) else msgspec.convert(at, SplitPosition)
    except msgspec.ValidationError as error:
        raise _refuse(
            source,
            f"the position of split {split!r} is {at!r}, without its digest ({error})",
            "give a SplitPosition, as `dos checkpoint show --json` has it",
        ) from error


async def _of_input(
    store: Store, region: str, application: str, name: str, spec: InputSource, given: Begins
) -> Positions:
    origin = spec.origin(store, Reading(application))
    await origin.register(region, name)
    splits = await origin.splits()
    if isinstance(given, str) and given != END:
        raise _refuse(
            name, f"{given!r} is no position", "give 'begin', 'end', or the position of each producer"
        )
    wanted = dict.fromkeys(splits, None) if isinstance(given, str) else given
    _check_splits(name, splits, wanted)
    found = {}
    for split, at in wanted.items():
        if at is None or isinstance(at, int):
            if (position := await _reach(store, application, spec, name, split, at)) is not None:
                found[split] = position
        else:
            found[split] = _as_stored(name, split, at)
    return found


def _check_splits(name: str, splits: Sequence[str], wanted: Mapping[str, Any]) -> None:
    if missing := sorted(set(splits) - wanted.keys()):
        raise _refuse(
            name, f"producer {missing[0]!r} has no position", "give the position of each producer, 0 to begin"
        )
    if unknown := sorted(wanted.keys() - set(splits)):
        known = ", ".join(splits) or "none"
        raise _refuse(name, f"it has no producer {unknown[0]!r}; it has {known}", "correct the name")


async def _reach(
    store: Store, application: str, spec: InputSource, name: str, split: str, at: int | None
) -> SplitPosition | None:
    """Return the position at the end of a committed part: `at`, or the last one for None. None: there is
    nothing before it.
    """
    if at == 0:
        return None
    retained = InputSource(spec.name, spec.schema, begin="retained").origin(store, Reading(application))
    follower = retained.follower(split, SplitPosition(0))
    last: SplitPosition | None = None
    try:
        async with aclosing(follower.poll()) as pieces:
            async for piece in pieces:
                last = SplitPosition(piece.end, piece.digest)
                if piece.end == at:
                    return last
    finally:
        follower.close()
    if at is not None:
        end = 0 if last is None else last.position
        raise _refuse(
            name,
            f"no part of producer {split!r} ends at position {at}; what is recorded ends at {end}",
            "give a position that a region or a producer has stated",
        )
    return last
