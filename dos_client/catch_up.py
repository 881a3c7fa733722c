"""Filling one member's copy of one object from another member.

Rules of this file: two tasks of a link's session, both ending with the session. At most one chunk is in
hand and a few are under way, so a member costs under 1 MiB here however far behind it is.

The bytes come from a *source*: a member whose copy is known to be a prefix of the same history, and longer.
Before the first byte is appended the digest of what is there is compared with the source's; every append
names the prefix digest, so nothing can land behind other bytes. A source that breaks is replaced by the
next.
"""

import logging
import random
from typing import TYPE_CHECKING, Final

import trio

from dos_client.core.backoff import backoff_s
from dos_client.core.replica import ReplicaEvent, ReplicaState
from dos_client.core.window import Chunk, append_head
from dos_client.limits import catch_up_chunk_bytes, catch_up_in_flight_bytes_max
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import CorruptDataError, DosError, LocalProtocolError
from dos_protocol.limits import digest_block_bytes
from dos_protocol.vocabulary import ObjectInfo

if TYPE_CHECKING:
    from dos_client.connection import Connection
    from dos_client.link import Link, Replica

log: Final = logging.getLogger("dos.client")


async def compare_there(link: "Link", replica: "Replica") -> None:
    """The member has more than the goal: ask it for the digest at the goal. What is past it does not exist
    (R6)."""
    target, connection = replica.target, link.connection
    assert connection is not None
    try:
        result = await connection.stat(target.name, target.goal_size)
    except DosError as error:
        if link.connection is connection and connection.failure is None:
            link.broken(replica, str(error.args[0]))
        return
    if result.digest == target.goal_digest:
        link.agreed(replica, target.goal_size, target.goal_size)
    else:
        link.broken(replica, f"another content below byte {target.goal_size}")


async def fill(link: "Link", replica: "Replica", info: ObjectInfo | None) -> None:
    """Bring a copy up to where the window begins, or to its goal. With `info`, its digest is still to be
    compared."""
    attempt = 0
    while replica.state in (ReplicaState.COMPARING, ReplicaState.CATCHING_UP):
        if _reached(link, replica):
            return
        before = _offset(replica, info)
        source = link.claim.source_for(replica.target, before + 1, link)
        if source is None:
            await link.claim.wait_changed(1.0)
            continue
        try:
            await _fill_from(source, link, replica, info)
        except LocalProtocolError:
            raise
        except DosError as error:
            log.debug("%s from %s: %s", replica.target.name, source.address, error)
            attempt = 1 if _offset(replica, info) > before else attempt + 1
            await trio.sleep(backoff_s(attempt, random.random()))  # noqa: S311 - jitter is no secret


def _offset(replica: "Replica", info: ObjectInfo | None) -> int:
    if replica.state is ReplicaState.COMPARING:
        assert info is not None
        return info.synced
    return replica.sent


def _reached(link: "Link", replica: "Replica") -> bool:
    """Whether the copy is where it needs no source any more; moves it on if so."""
    window = replica.target.window
    if replica.state is not ReplicaState.CATCHING_UP:
        return replica.state is not ReplicaState.COMPARING
    if window is not None and replica.sent >= window.base:
        link.follow(replica)
        return True
    if window is None and replica.sent >= replica.target.goal_size:
        replica.move(ReplicaEvent.IN_WINDOW)
        return True
    return False


async def _fill_from(source: "Connection", link: "Link", replica: "Replica", info: ObjectInfo | None) -> None:
    """Fill as far as this source goes."""
    fold = await fold_at(source, replica.target.name, _offset(replica, info))
    if replica.state is ReplicaState.COMPARING:
        assert info is not None
        if fold.value != info.digest:
            link.broken(replica, f"another content below byte {info.synced}")
            return
        link.agreed(replica, info.synced, info.synced, filling=True)
    while not _reached(link, replica):
        if replica.sent - replica.received >= catch_up_in_flight_bytes_max:
            replica.moved = trio.Event()
            await replica.moved.wait()
        else:
            await _copy_chunk(source, link, replica, fold)


async def _copy_chunk(source: "Connection", link: "Link", replica: "Replica", fold: PrefixDigest) -> None:
    target = replica.target
    data = await source.get(target.name, fold.size, min(catch_up_chunk_bytes, target.size - fold.size))
    if not data:
        await link.claim.wait_changed(0.1)  # the source's own sync is still on its way
        return
    chunk = Chunk(fold.size, fold.value, data)
    fold.update(data)
    expected = target.digest_at(fold.size)
    if expected is not None and expected != fold.value:
        raise CorruptDataError(
            f"{target.name} of {source.address}", fold.size, f"{expected:016x}", f"{fold.value:016x}"
        )
    if link.connection is None:
        return
    link.connection.post(append_head(target.name, target.tag, chunk), data)
    replica.sent = chunk.end


async def fold_at(source: "Connection", name: str, size: int) -> PrefixDigest:
    """The prefix digest of an object up to `size`, ready to be carried on: a digest and less than a block
    are read."""
    block = size - size % digest_block_bytes
    digest = (await source.stat(name, block)).digest if block else 0
    fold = PrefixDigest(block, digest)
    while fold.size < size:
        data = await source.get(name, fold.size, size - fold.size)
        if not data:
            raise CorruptDataError(f"{name} of {source.address}", fold.size, f"{size} durable bytes", "fewer")
        fold.update(data)
    return fold
