"""Taking away, on every member of a claim, what its owner says nobody needs any more.

Rules of this file: it performs what `core.collecting` says, one object at a time on each member, in a task
of the session; nobody waits for it. A member that is away is swept when it comes back, because it tells then
what it holds; one that had an object mended into it (`dos store repair`, which knows no releases) likewise.
What is collected stops being an object of the claim first: nothing of it is sent, filled or waited for any
more, so no append of ours can bring it back behind its DELETE.
"""

import logging
from typing import TYPE_CHECKING, Final

import trio

from dos_client.core.collecting import Garbage
from dos_client.limits import collect_pause_s
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

if TYPE_CHECKING:
    from dos_client.writing.claim import Claim
    from dos_client.writing.copies import MemberCopies

log: Final = logging.getLogger("dos.client")


def collect(claim: "Claim", garbage: Garbage) -> None:
    """From now on, until the claim ends, take away what `garbage` says. Raises LocalProtocolError for an
    object that is being written; nothing has changed then."""
    going = [target for target in claim.targets.values() if garbage(target.name)]
    for target in going:
        if target.window is not None:
            raise LocalProtocolError(f"{claim.directory}/{target.name} is being written: it is no garbage")
    claim.garbage = garbage
    for target in going:
        target.count(claim.store.counts)
        del claim.targets[target.name]
    for link in claim.links():
        for target in going:
            link.copies.drop(target)
        link.copies.collectable.set()


async def delete(claim: "Claim", name: str) -> None:
    """One object of a server that is in no store, now. See `Claim.delete`."""
    if not claim.store.of_one_server:
        raise LocalProtocolError(
            f"{claim.directory}/{name} is of a store: a copy that is gone looks like one that is missing",
            remedy="`collect` what an acknowledged record says nobody needs",
        )
    if name in claim.targets or name in claim.deleting:
        raise LocalProtocolError(f"{name} is in use by this claim of {claim.directory}")
    (link,) = claim.links()
    if link.connection is None:
        raise BrokenConnectionError(f"no session with {link.member.address} now: {link.error}")
    claim.deleting.add(name)
    try:
        await link.connection.delete(name)
        claim.answers.get(link.server_id, {}).pop(name, None)
        claim.reads.drop_ahead()
        link.copies.forget(name)
    finally:
        claim.deleting.discard(name)


async def wait_collected(claim: "Claim", timeout_s: float) -> bool:
    """See `Claim.wait_collected`."""

    def left() -> bool:
        links = (link for link in claim.links() if link.connection is not None)
        return any(link.copies.held.next(claim.garbage) is not None for link in links)

    with trio.move_on_after(timeout_s):
        while left():
            claim.check()
            await claim.wait_changed(1.0)
    return not left()


async def sweep(copies: "MemberCopies") -> None:
    """One member, as long as its session lives."""
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
            held.gone(name)
        except (BusyError, BeingAppendedError) as error:
            log.debug("%s/%s cannot go yet: %s", claim.directory, name, error)
            await trio.sleep(collect_pause_s)
        except (PoisonedError, UnsupportedError) as error:
            log.info("%s/%s stays on %s: %s", claim.directory, name, connection.address, error)
            held.put_off(name)
        except RefusedError as error:
            log.debug("%s/%s: %s", claim.directory, name, error)
            return  # fenced: the session hears so itself
        except DosError:
            return  # the session is over; the next one tells what is there
        else:
            held.gone(name)
            copies.forget(name)
            claim.answers.get(copies.server_id, {}).pop(name, None)
            claim.reads.drop_ahead()
            claim.store.counts.collected_objects += 1
            log.debug("%s/%s is gone on %s", claim.directory, name, connection.address)
        claim.changed()
