"""Detect damage that no read has found: a server's scrub finds it in objects that are never read.

In its list of directories, a server marks those with a damaged copy. A store that is written through requests
that list from each member at intervals, opens the marked directories, and notes the damage that their servers
report. From there `auto_repair` repairs it, as if a reader had found it.

Members that are unavailable are queried again at the next interval.
"""

import logging
from typing import Final

import trio

from dos_client.limits import damage_watch_s
from dos_client.live_store import Store
from dos_client.reading.damage import CopyFault
from dos_protocol.errors import DosError
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


async def watch_for_damage(store: Store) -> None:
    """Query members for damage. Runs as a task: begins when the store is first claimed for writing, and ends
    with the store.

    The pauses are random, so that many clients of one store do not repair the same copy at the same time.
    """
    await store.wrote.wait()
    while True:
        for member in store.record.members:
            try:
                await _check_member(store, member)
            except DosError as error:
                log.debug("%s was not queried for damage: %s", member.address, error)
        await trio.sleep(damage_watch_s * (0.5 + store.rng.random()))


async def _check_member(store: Store, member: Member) -> None:
    known = store.record.member(member.server_id)
    connection = store.idle(member.server_id)
    if known is None or known.state != "in" or connection is None:
        return
    for directory in await connection.list_all():
        if directory.corrupt:
            await _check_directory(store, member, directory.name)


async def _check_directory(store: Store, member: Member, directory: str) -> None:
    try:
        opened = await store.reopened(member, directory)
    except DosError as error:
        log.info("%s on %s has damage, but cannot be opened: %s", directory, member.address, error)
        return
    for entry in opened.entries:
        if entry.corrupt or entry.poisoned:
            why = CopyFault.POISONED if entry.poisoned else CopyFault.DAMAGED
            store.damage.note(member.server_id, directory, entry.name, 0, why)
