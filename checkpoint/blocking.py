"""Forks and deletes regions from plain threads. Each call opens the store, waits until it is done, and closes
it.
"""

from collections.abc import Collection, Sequence

import trio

from checkpoint.maintenance.deleting import delete_region as _delete_region
from checkpoint.maintenance.forking import Forked, Forking, fork_region
from dos_client import open_store


def fork(
    url: str,
    region: str,
    new: str,
    *,
    at: str = "",
    same_place: Sequence[str] = (),
    why: str = "",
    stopped: bool = False,
    token: bytes = b"",
) -> Forked:
    """Fork a region: the first `run` of a graph with the name `new` begins with its state and input
    positions.

        dos.fork("dos://h1,h2,h3", "wordcount", "wordcount-test", at="savepoint:good")

    at, same_place, why, stopped: as the fields of `Forking`. Raises NoRegionError,
    ForkRefusedError, with nothing changed; RegionFencedError if another process claimed one of the two
    regions: the fork may exist then, as when this is interrupted.
    """
    wanted = Forking(
        region=region,
        new=new,
        at=at,
        same_place=same_place,
        why=why,
        stopped=stopped,
    )

    async def work() -> Forked:
        async with open_store(url, token=token, client=f"fork of {region}") as store:
            return await fork_region(store, wanted)

    return trio.run(work)


def delete_region(
    url: str, region: str, *, broken: Collection[str] = (), stopped: bool = False, token: bytes = b""
) -> bool:
    """Delete a region that does not run, permanently; its inputs stay. Returns False if a server has not
    deleted all yet: call it again.

    broken: forks and readers of its output that may break. stopped: no driver runs the region of which it is
    a fork. Raises NoRegionError; DeletionRefusedError, with nothing deleted. If it is interrupted, a part is
    deleted, and the region cannot be run until it was deleted again.
    """

    async def work() -> bool:
        async with open_store(url, token=token, client=f"deletion of {region}") as store:
            return await _delete_region(store, region, broken=broken, stopped=stopped)

    return trio.run(work)
