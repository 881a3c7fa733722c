"""Write and read the history of a store: who changed it, when and why. Entries are in `core.change_log`."""

import getpass
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import trio

from dos_client.core.change_log import CHANGES, Change, merge
from dos_client.limits import change_beat_s, change_end_s
from dos_client.live_store import Store
from dos_client.membership.record_log import RecordLog, read_log
from dos_client.tasks import background_tasks
from dos_protocol.errors import DosError
from dos_protocol.names import id_text
from dos_protocol.store_record import Member

log: Final = logging.getLogger("dos.client")


def named(*members: Member | None) -> str:
    """Return the members for the history, as addresses with server ids."""
    return ", ".join(names_of(one for one in members if one is not None))


def names_of(members: Iterable[Member]) -> list[str]:
    """Format members for people and for the logs."""
    return [f"{one.address} ({id_text(one.server_id)})" for one in members]


def this_user() -> str:
    """Return who runs this program, and on which host."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def now_text() -> str:
    """Return the current time for the logs."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def change_now(
    store: Store, what: str, *, old: str = "", new: str = "", why: str = "", automatic: bool = False
) -> Change:
    """Return the first entry of a change that begins now."""
    by = f"{this_user()}, {store.client or 'dos'}"
    return Change(what, now_text(), by, store.record.generation, old, new, why, automatic)


@asynccontextmanager
async def recorded(store: Store, records: RecordLog, change: Change) -> AsyncIterator[None]:
    """Write the entries of a change before and after the block, and beats during it.

    If the block raises, the second entry has the error. If it is canceled, there is no second entry.
    """
    await records.record_change(change)
    failure: Exception | None = None
    try:
        async with background_tasks() as nursery:
            nursery.start_soon(_beat, records)
            yield
    except Exception as error:  # raised below, after it is in the history
        failure = error
    outcome = "done" if failure is None else f"failed: {failure.args[0] if failure.args else failure!r}"
    end = replace(change, at=now_text(), generation=store.record.generation, outcome=outcome)
    try:
        with trio.move_on_after(change_end_s):
            await records.record_change(end)
    except DosError as error:
        log.warning("the end of the change is not in the history: %s", error)
    if failure is not None:
        raise failure


async def _beat(records: RecordLog) -> None:
    while True:
        await trio.sleep(change_beat_s)
        try:
            records.beat()
        except DosError as error:
            log.info("this run no longer changes the store: %s", error)
            return


async def read_history(store: Store) -> list[Change]:
    """Return the changes of the store, oldest first.

    Raises QuorumUnavailableError, or BrokenConnectionError if members repeatedly disconnect during the read.
    """
    return merge(await read_log(store, CHANGES))
