"""Fill one member's copy of one object, from the writer's local copy or from another member.

Two tasks run in a link's session and end with it. Only one chunk is in memory. The next one is read after the
kernel has taken it. So a member costs less than 1 MiB here, however far it lags and however slow it is.

Local bytes come first if there are any: they do not load the other members, and are available if no other
member is. They are sent only after they are verified (`local_copy`). Otherwise the bytes come from a
*source*: a member whose copy is known to be a longer prefix of the same history.

Before the first byte is appended, the digest of the member's content is compared. Every append carries the
prefix digest, so no byte can follow wrong content. If a source fails, the next one is used.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from dos_client import randomness
from dos_client.core.backoff import backoff_s
from dos_client.core.milestones import milestone_range
from dos_client.core.replica import ReplicaAgreed, ReplicaDiffered, ReplicaReached, ReplicaState
from dos_client.core.window import Chunk, append_head
from dos_client.limits import catch_up_in_flight_bytes_max, catch_up_read_bytes
from dos_client.sessions.connection import Connection
from dos_client.writing.views import CopiesView, ObjectCopy
from dos_protocol.digests import PrefixDigest
from dos_protocol.errors import CorruptDataError, CorruptError, DosError, LocalProtocolError, PoisonedError
from dos_protocol.limits import digest_block_bytes

log: Final = logging.getLogger("dos.client")

Work = Callable[[CopiesView, ObjectCopy], Awaitable[None]]

_FILLING: Final = (ReplicaState.DISCOVER_REMOTE_SIZE, ReplicaState.CATCH_UP)


async def compare_at_goal(copies: CopiesView, copy: ObjectCopy) -> None:
    """Ask a member that has more than the goal for its digest at the goal. Bytes after the goal do not exist
    (R6).
    """
    target, connection = copy.target, copies.connection
    assert connection is not None
    try:
        result = await connection.stat(target.name, target.goal_size)
    except DosError as error:
        if connection.failure is None and copy.replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
            spoiled = isinstance(error, CorruptError | PoisonedError)
            copies.handle(copy, ReplicaDiffered(str(error.args[0]), spoiled))
        return
    if copy.replica.state is not ReplicaState.DISCOVER_REMOTE_SIZE:
        return
    if result.digest == target.goal_digest:
        copies.handle(copy, ReplicaAgreed(target.goal_size, target.view))
    else:
        copies.handle(copy, ReplicaDiffered(f"different content before byte {target.goal_size}"))


async def fill(copies: CopiesView, copy: ObjectCopy) -> None:
    """Fill a copy up to where the memory begins, or to its goal. Compares its digest first if necessary."""
    attempt = 0
    while not _reached(copies, copy):
        if await _fill_locally(copies, copy):
            continue
        before = _offset(copy)
        source = copies.claim.source_for(copy.target, before + 1, copies.link)
        if source is None and _no_source_possible(copies, copy, before + 1):
            went_back = copy.had > before
            had = f", after it had acknowledged {copy.had}" if went_back else ""
            why = f"{before} bytes{had}; no other member has the rest"
            copies.handle(copy, ReplicaDiffered(why, spoiled=went_back))
            return
        if source is None:
            await copies.claim.wait_changed(1.0)
            continue
        try:
            await _fill_from(source, copies, copy)
        except LocalProtocolError:
            raise
        except DosError as error:
            log.debug("%s from %s: %s", copy.target.name, source.address, error)
            attempt = 1 if _offset(copy) > before else attempt + 1
            await trio.sleep(backoff_s(attempt, randomness.jitter()))


def _no_source_possible(copies: CopiesView, copy: ObjectCopy, size: int) -> bool:
    """Return whether every other member is connected and none has that much."""
    others = [link for link in copies.claim.links() if link is not copies.link]
    return not any(link.copies.may_have(copy.target.name, size) for link in others)


def _offset(copy: ObjectCopy) -> int:
    """Return where the copy ends, as far as is known."""
    replica = copy.replica
    if replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
        assert replica.claimed is not None
        return replica.claimed.synced
    return replica.sent


def _reached(copies: CopiesView, copy: ObjectCopy) -> bool:
    """Return whether the copy needs no more filling, and if so let it follow the window."""
    if copy.replica.state not in _FILLING:
        return True
    if copy.replica.state is ReplicaState.CATCH_UP and copy.replica.sent >= copy.target.base:
        copies.handle(copy, ReplicaReached(copy.target.view))
        return True
    return False


async def _fill_locally(copies: CopiesView, copy: ObjectCopy) -> bool:
    """Send one range from the local copy. Returns False if it is not available there."""
    await _wait_room(copies, copy)
    if copy.target.local.size() <= _offset(copy):
        return False
    proved = await copy.target.local.proved(_offset(copy))
    if proved is None:
        return False
    if _compared(copies, copy, proved.digest) and proved.data:
        _append(copies, copy, Chunk(proved.start, proved.digest, proved.data), "local")
    return True


def _compared(copies: CopiesView, copy: ObjectCopy, digest: int) -> bool:
    """Compare a digest found elsewhere with the member's, if necessary. Returns whether to continue
    filling.
    """
    replica = copy.replica
    if replica.state is ReplicaState.DISCOVER_REMOTE_SIZE:
        claimed = replica.claimed
        assert claimed is not None
        if digest != claimed.digest:
            copies.handle(copy, ReplicaDiffered(f"different content before byte {claimed.synced}"))
        else:
            copies.handle(copy, ReplicaAgreed(claimed.synced, copy.target.view), filling=True)
    return replica.state is ReplicaState.CATCH_UP


async def _fill_from(source: Connection, copies: CopiesView, copy: ObjectCopy) -> None:
    """Fill as far as this source has bytes."""
    fold = await fold_at(source, copy.target.name, _offset(copy))
    if not _compared(copies, copy, fold.value):
        return
    while not _reached(copies, copy):
        await _wait_room(copies, copy)
        if not await _copy_chunk(source, copies, copy, fold):
            return


async def _wait_room(copies: CopiesView, copy: ObjectCopy) -> None:
    """Wait until the copy's bytes have left this process and there is room in flight for one more chunk."""
    if copies.connection is not None:
        await copies.connection.wait_sent()
    while copy.replica.sent - copy.replica.received >= catch_up_in_flight_bytes_max:
        copy.moved = trio.Event()
        await copy.moved.wait()


async def _copy_chunk(source: Connection, copies: CopiesView, copy: ObjectCopy, fold: PrefixDigest) -> bool:
    """Send the next chunk. Returns False if the source has no more at the moment.

    Its sync may follow or may never come; `fill` finds out.
    """
    target = copy.target
    _, end = milestone_range(fold.size, target.size)
    data = await source.get(target.name, fold.size, min(end - fold.size, catch_up_read_bytes))
    if not data:
        await copies.claim.wait_changed(0.1)
        return False
    chunk = Chunk(fold.size, fold.value, data)
    fold.update(data)
    expected = target.digest_at(fold.size)
    if expected is not None and expected != fold.value:
        raise CorruptDataError(
            f"{target.name} of {source.address}", fold.size, f"{expected:016x}", f"{fold.value:016x}"
        )
    _append(copies, copy, chunk, "member")
    return True


def _append(copies: CopiesView, copy: ObjectCopy, chunk: Chunk, source: str) -> None:
    """Send a chunk, unless the copy broke or the session ended while its bytes were read."""
    if copies.connection is None or copy.replica.state is not ReplicaState.CATCH_UP:
        return
    copies.count_sent(len(chunk.payload), source)
    copies.connection.post(append_head(copy.target.name, copy.target.tag, chunk), chunk.payload)
    copy.replica.sent_to(chunk.end)


async def fold_at(source: Connection, name: str, size: int) -> PrefixDigest:
    """Return the prefix digest of an object up to `size`, ready to be continued. Reads a digest and less than
    a block.
    """
    block = size - size % digest_block_bytes
    digest = (await source.stat(name, block)).digest if block else 0
    fold = PrefixDigest(block, digest)
    while fold.size < size:
        data = await source.get(name, fold.size, size - fold.size)
        if not data:
            raise CorruptDataError(f"{name} of {source.address}", fold.size, f"{size} durable bytes", "fewer")
        fold.update(data)
    return fold
