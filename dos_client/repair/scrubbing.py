"""Begin the scrub of all members now, and wait until each has verified everything that it stores.

Unlike `verifying`, this reads the disks and not what servers have in memory, and no byte crosses the network.
"""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from dos_client.limits import scrub_poll_s
from dos_client.live_store import Store
from dos_client.repair.walking import StoreWalk, open_walk
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member


@dataclass(slots=True)
class MemberScrub:
    """The round of one member. `damaged`: objects that it found damaged. `error`: why it did not complete."""

    objects: int = 0
    bytes: int = 0
    damaged: int = 0
    directories_left: int = 0
    done: bool = False
    error: str = ""


ScrubReport = dict[str, MemberScrub]
"""By address of the member, in the order of the record."""


async def scrub_store(
    store: Store,
    *,
    bytes_per_s: int = 0,
    wait: bool = True,
    on_progress: Callable[[ScrubReport], None] | None = None,
) -> ScrubReport:
    """Begin a round of the scrub on each member that answers. `wait`: until all rounds are complete.

    `bytes_per_s`: the rate of each member; 0: its own. Errors of members are in the report. A cancellation
    ends the waiting, not the rounds.
    """
    report: ScrubReport = {one.address: MemberScrub() for one in store.record.members}

    async def scrub(walk: StoreWalk, member: Member) -> None:
        try:
            await _scrub_member(walk, member, report[member.address], bytes_per_s, wait=wait, show=show)
        except DosError as error:
            report[member.address].error = str(error)

    def show() -> None:
        if on_progress is not None:
            on_progress(report)

    async with open_walk(store) as walk, trio.open_nursery() as nursery:
        for member in walk.record.members:
            if member.server_id in walk.sessions:
                nursery.start_soon(scrub, walk, member)
            else:
                report[member.address].error = walk.errors[member.address]
    return report


async def _scrub_member(
    walk: StoreWalk,
    member: Member,
    result: MemberScrub,
    bytes_per_s: int,
    *,
    wait: bool,
    show: Callable[[], None],
) -> None:
    session = walk.session(member.server_id)
    before = now = await session.scrub(begin=True, bytes_per_s=bytes_per_s)
    while True:
        result.objects, result.bytes = now.objects - before.objects, now.bytes - before.bytes
        result.damaged, result.directories_left = now.damaged - before.damaged, now.directories_left
        result.done = now.rounds > before.rounds
        show()
        if result.done or not wait:
            return
        await trio.sleep(scrub_poll_s)
        now = await session.scrub()
