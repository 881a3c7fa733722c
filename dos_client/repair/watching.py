"""Hearing of damage that nobody has read: a server's scrub finds rot in objects that are never asked for.

A server marks, in its list of directories, those in which a copy is damaged. A store that is written
through asks each member for that list now and then, looks into the marked ones, and notes what their servers
say; from there on `self_repair` mends it, as if a reader had met it.

Rules of this file: asking, and noting what servers say of themselves. Members that are away are asked again
next time.
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
    """The task. Begins when the store is first claimed for writing; lives as long as the store.

    The pauses are uneven, so that many stores of one record do not mend the same copy at once."""
    await store.wrote.wait()
    while True:
        for member in store.record.members:
            try:
                await _look(store, member)
            except DosError as error:
                log.debug("%s was not asked for damage: %s", member.address, error)
        await trio.sleep(damage_watch_s * (0.5 + store.rng.random()))


async def _look(store: Store, member: Member) -> None:
    known = store.record.member(member.server_id)
    if known is None or known.state != "in" or not store.is_connected(member.server_id):
        return
    connection = store.watch(member).connection
    for directory in await connection.list_all() if connection is not None else ():
        if directory.corrupt:
            await _look_into(store, member, directory.name)


async def _look_into(store: Store, member: Member, directory: str) -> None:
    try:
        opened = await store.reopened(member, directory)
    except DosError as error:
        log.info("%s on %s has damage that cannot be looked into: %s", directory, member.address, error)
        return
    for entry in opened.entries:
        if entry.corrupt or entry.poisoned:
            why = CopyFault.POISONED if entry.poisoned else CopyFault.DAMAGED
            store.damage.note(member.server_id, directory, entry.name, 0, why)
