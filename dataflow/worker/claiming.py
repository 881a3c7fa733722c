"""The claim of a worker's directory, also if the directory has damaged segments.

The claim is not granted while too few members are without damage (R4). Then one of these is the case:

- The damaged segments are needed: the checkpoint cannot be restored, which is an error, not a wait.
- They are not: a restore to an older checkpoint has left them behind (decision 0240). Then the claim is made
  without them.
- Members are missing, and nothing is known: the claim waits.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from checkpoint import Restore, worker_directory
from checkpoint.chains.whole_checkpoints import read_part
from checkpoint.errors import CheckpointDamagedError
from dataflow import limits
from dos_client import Claim, Store, randomness
from dos_client.errors import QuorumUnavailableError
from dos_protocol.errors import BrokenConnectionError

logger = logging.getLogger("dos.dataflow")


@asynccontextmanager
async def claimed(store: Store, order: Restore) -> AsyncGenerator[Claim]:
    """Claim the directory of the ordered worker. Waits while too few members are available.

    Raises CheckpointDamagedError if the claim waits because what must be restored is damaged on too many
    members, and what `Store.claim` raises.
    """
    disregard = frozenset[str]()
    writer_id = randomness.fresh_id()  # the same for a second claim: one epoch has one writer
    while True:
        claim = await _claim_unless_damaged(store, order, writer_id, disregard)
        if isinstance(claim, Claim):
            break
        disregard = claim
    async with claim:
        yield claim


async def _claim_unless_damaged(
    store: Store, order: Restore, writer_id: bytes, disregard: frozenset[str]
) -> Claim | frozenset[str]:
    """Return the claim, or damaged segments that it must disregard, and did not."""
    directory = worker_directory(order.job, order.worker)
    found: list[frozenset[str] | Claim] = []

    async def look(scope: trio.CancelScope) -> None:
        waits = ""
        while True:
            await trio.sleep(limits.damage_look_s)
            try:
                unneeded = await unneeded_damage(store, order)
            except (QuorumUnavailableError, BrokenConnectionError) as error:
                if waits != (waits := str(error.args[0])):
                    logger.warning("the claim of %s waits: %s", directory, waits)
                continue
            if not unneeded <= disregard:
                found.append(unneeded | disregard)
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, nursery.cancel_scope)
        found.append(await store.claim(directory, order.epoch, writer_id, disregard=disregard))
        nursery.cancel_scope.cancel()
    return found[-1]


async def unneeded_damage(store: Store, order: Restore) -> frozenset[str]:
    """Return the damaged segments in the directory of the ordered worker that its restore does not need.

    Raises CheckpointDamagedError if it needs segments that are damaged on too many members,
    QuorumUnavailableError or BrokenConnectionError while that is not known.
    """
    part = None if order.restore is None or order.forks else order.restore.workers.get(order.worker)
    if order.restore is None or part is None:
        return frozenset()
    rewound = order.restore.rewound
    reading = await read_part(store, order.job, order.worker, part, rewound=rewound, records=False)
    if reading.damage:
        raise CheckpointDamagedError("; ".join(map(str, reading.damage)))
    return reading.disregarded
