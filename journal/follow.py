"""`dos journal follow`: records as they come, of a file or a chain.

Rules of this file: it waits and hands on, until it is cancelled. Of a chain only what is committed is shown,
each record once.
"""

import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import trio

from dos_client.store import Store
from dos_protocol.errors import LocalProtocolError
from journal.core.errors import LostBytesError
from journal.core.inspection import Inspector, Located
from journal.core.record_layout import VERSION_1
from journal.following import ChainFollower
from journal.inspecting import chain_in_store
from journal.limits import follow_poll_s, scratch_read_bytes_max
from journal.watching import ChainWatch

Show = Callable[[Located], None]


async def follow_chain(url: str, token: bytes, begin: int | None, show: Show) -> None:
    """Show the committed records that end above the logical offset `begin` (None: the chain's present end),
    and those that come.

    For chains that are never rolled back: inputs, outputs, files, a manifest. Raises NotFoundError,
    LocalProtocolError for the URL of an object, LostBytesError when the chain does not reach to where it was
    read, and what the client raises.
    """
    async with chain_in_store(url, token) as (store, directory, state):
        if not isinstance(store, Store):
            raise LocalProtocolError(
                f"{url} is read from an archive or a disk, which does not grow", remedy="follow the servers"
            )
        assert state.end is not None, "something of it is committed"
        at = state.end.size if begin is None else begin
        follower = ChainFollower(store, directory, state.chain, at=at, skip_lost=begin == 0)
        watch = ChainWatch(store, follower)
        try:
            while True:
                at = follower.at
                async with aclosing(follower.poll()) as records:
                    async for end, record in records:
                        show(Located(state.chain, at, end, VERSION_1, record))
                        at = end
                await watch.wait(follow_poll_s)
        finally:
            watch.close()


async def follow_file(path: Path, begin: int | None, show: Show) -> None:
    """The same of a journal file that grows. Raises OSError; LostBytesError if it became shorter;
    CorruptRecordError and UnknownRecordError for what is no record.
    """
    inspector, done = Inspector(path.name), 0
    with path.open("rb", buffering=0) as file:
        if begin is None:
            begin = os.fstat(file.fileno()).st_size
        while True:
            while chunk := file.read(scratch_read_bytes_max):
                done += len(chunk)
                for located in inspector.feed(chunk):
                    if located.end > inspector.logical_base + begin:
                        show(located)
            inspector.feed(b"")  # a fault is told by the call after the one that gave what is good before it
            if inspector.fault is not None:
                raise inspector.fault
            await trio.sleep(follow_poll_s)
            now = os.fstat(file.fileno()).st_size
            if now < done:
                words = f"{path} had {done} bytes and has {now}"
                raise LostBytesError(words, remedy="begin again: it was cut off")
