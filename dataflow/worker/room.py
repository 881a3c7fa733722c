"""Back-pressure on the sources of a worker: by the store, and by what it retains for other workers."""

from collections.abc import Awaitable, Callable

import trio

from dataflow import limits
from dataflow.limits import WorkerLimits
from dataflow.worker.messages import Inbox, Shared, Woken
from dataflow.worker.peer_exchange import PeerExchange
from dos_client import Claim


async def watch_room(
    claim: Claim,
    exchange: PeerExchange,
    shared: Shared,
    inbox: Inbox,
    worker_limits: WorkerLimits,
    wants_checkpoint: Callable[[int], Awaitable[None]],
) -> None:
    """Stop the sources while the store accepts no data, or too much is retained, which only a checkpoint
    releases: it is requested. Steps that peers or a checkpoint need are made nevertheless. Never returns.
    """
    wanted = 0
    while True:
        full = exchange.retained_bytes > 2 * worker_limits.retained_bytes_max
        if full and shared.step > wanted:
            wanted = shared.step
            await wants_checkpoint(wanted)
        room = not claim.waiting and not full
        if room != shared.room:
            shared.room = room
            inbox.put(Woken())
        await trio.sleep(limits.store_poll_s)
