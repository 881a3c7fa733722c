"""Drops the savepoints that were made for forks, once their regions need them no more.

The driver of the original does that: it reads the manifests of the forks, and asks nobody. A fork that does
not exist keeps its savepoint, because it may be about to be made (`maintenance/forking.py`).
"""

import logging
from collections.abc import Callable

import trio

from checkpoint import limits
from checkpoint.core.coordination.vocabulary import SavepointWanted
from checkpoint.core.records.lines import made_for_forks
from checkpoint.core.records.manifest import Checkpoint, SavepointNote
from checkpoint.maintenance.forking import fork_needs
from dos_client import Store
from dos_protocol.errors import DosError

logger = logging.getLogger("dos.checkpoint")


async def watch_forks(
    store: Store, region: str, last: Callable[[], Checkpoint | None], post: Callable[[SavepointWanted], None]
) -> None:
    """Post the end of each savepoint that its fork needs no more. Runs until it is cancelled.

    last: returns the last checkpoint of the region.
    """
    while True:
        await trio.sleep(limits.forks_poll_s)
        for name, note in made_for_forks(last()).items():
            if await _is_over(store, region, name, note):
                post(SavepointWanted(name, on=False))


async def _is_over(store: Store, region: str, savepoint: str, note: SavepointNote) -> bool:
    """Return whether the fork needs the savepoint no more. What cannot be read now is asked again later."""
    try:
        return await fork_needs(store, region, savepoint, note) is False
    except DosError as error:
        logger.info("region %s keeps savepoint %s: %s", region, savepoint, error)
        return False
