"""Delete, on every member of a claim, the objects that its owner no longer needs.

This module performs the decisions of `core.collecting`, one object at a time per member, in a task of the
session. Nothing waits for it. A member that was unavailable is swept when it reconnects, because it lists its
objects then. The same applies to a member on which `dos store repair`, which knows no releases, restored a
deleted object.

An object stops being an object of the claim before it is deleted. From then on nothing of it is sent, filled
or waited for, so that no append of this claim can recreate it after its DELETE.
"""

import logging
from typing import Final

import trio

from dos_client.core.collecting import Garbage
from dos_client.limits import collect_pause_s
from dos_client.writing.views import ClaimView, CopiesView
from dos_protocol.errors import (
    BeingAppendedError,
    BrokenConnectionError,
    BusyError,
    DosError,
    LocalProtocolError,
    NotFoundError,
    PoisonedError,
    RefusedError,
    UnsupportedError,
)

log: Final = logging.getLogger("dos.client")


def collect(claim: ClaimView, garbage: Garbage) -> None:
    """Delete what `garbage` selects, from now on until the claim ends.

    Raises LocalProtocolError for an object that is being written; nothing has changed then.
    """
    selected = [target for target in claim.targets.values() if garbage(target.name)]
    for target in selected:
        if target.window is not None:
            raise LocalProtocolError(
                f"{claim.directory}/{target.name} is being written and cannot be deleted"
            )
    claim.garbage = garbage
    for target in selected:
        target.count(claim.store.counts)
        del claim.targets[target.name]
    for link in claim.links():
        for target in selected:
            link.copies.drop(target)
        link.copies.collectable.set()


async def delete(claim: ClaimView, name: str) -> None:
    """Delete one object of a server that is in no store. Implements `Claim.delete`."""
    if not claim.store.of_one_server:
        raise LocalProtocolError(
            f"{claim.directory}/{name} belongs to a store, where a deleted copy would count as missing",
            remedy="use collect() for objects that an acknowledged record releases",
        )
    if name in claim.targets or name in claim.deleting:
        raise LocalProtocolError(f"{name} is in use by this claim of {claim.directory}")
    (link,) = claim.links()
    if link.connection is None:
        raise BrokenConnectionError(f"no session with {link.member.address}: {link.error}")
    claim.deleting.add(name)
    try:
        await link.connection.delete(name)
        claim.answers.get(link.server_id, {}).pop(name, None)
        claim.reads.drop_ahead()
        link.copies.forget(name)
    finally:
        claim.deleting.discard(name)


async def wait_collected(claim: ClaimView, timeout_s: float) -> bool:
    """Implement `Claim.wait_collected`."""

    def remaining() -> bool:
        links = (link for link in claim.links() if link.connection is not None)
        return any(link.copies.held.next(claim.garbage) is not None for link in links)

    with trio.move_on_after(timeout_s):
        while remaining():
            claim.check()
            await claim.wait_changed(1.0)
    return not remaining()


async def sweep(copies: CopiesView) -> None:
    """Delete the garbage on one member during its session."""
    connection, claim, held = copies.connection, copies.claim, copies.held
    assert connection is not None
    while True:
        name = held.next(claim.garbage)
        if name is None:
            copies.collectable = trio.Event()
            await copies.collectable.wait()
            continue
        try:
            await connection.delete(name)
        except NotFoundError:
            copies.gone(name)
        except (BusyError, BeingAppendedError) as error:
            log.debug("%s/%s cannot be deleted yet: %s", claim.directory, name, error)
            await trio.sleep(collect_pause_s)
        except (PoisonedError, UnsupportedError) as error:
            log.info("%s/%s cannot be deleted on %s: %s", claim.directory, name, connection.address, error)
            held.postpone(name)
        except RefusedError as error:
            log.debug("%s/%s: %s", claim.directory, name, error)
            return  # fenced: the session receives the same error
        except DosError:
            return  # the session is over; the next one lists the objects again
        else:
            copies.gone(name)
            copies.forget(name)
            claim.answers.get(copies.server_id, {}).pop(name, None)
            claim.reads.drop_ahead()
            claim.store.counts.collected_objects += 1
            log.debug("%s/%s deleted on %s", claim.directory, name, connection.address)
        claim.changed()
