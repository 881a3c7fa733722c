"""What the parts of a client use of the store that they belong to.

A part receives the store (`live_store.Store`) and names here what it uses, so that it can be imported, read
and tested without the store. `sessions.members` and `reading.member_queries` add their own parts.
"""

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Protocol

import trio

from dos_client.core.hedging import Pace
from dos_client.core.status import StoreCounters
from dos_client.reading.damage import Damage
from dos_protocol.store_record import StoreRecord


class SharedStore(Protocol):
    """An open store: its record, its credentials, and what all parts share.

    `located`: addresses, by server id, of members that are not at the address in the record.
    """

    record: StoreRecord
    located: Mapping[bytes, str]
    token: bytes
    client: str
    rng: Random
    run_token: trio.lowlevel.TrioToken
    counts: StoreCounters
    damage: Damage
    pace: Pace

    @property
    def of_one_server(self) -> bool:
        """Whether it is a single server (`connect`)."""
        ...

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task that ends with the store."""
        ...

    def member_moved(self) -> None:
        """Wake the tasks in `wait_moved`: a member connected or disconnected."""
        ...

    async def wait_moved(self, timeout_s: float) -> None:
        """Wait until a member connects or disconnects, or the time is up."""
        ...

    def reread_membership(self) -> None:
        """Request a membership update, because a server reported a newer record."""
        ...
