"""`dos journal follow`: print the records of a file or a chain as they are appended, until cancelled.

Of a chain only committed records are printed, each once.
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
from journal.inspecting import open_chain
from journal.limits import follow_poll_s, scratch_read_bytes_max
from journal.local_store import LocalStore
from journal.watching import ChainWatch

Show = Callable[[Located], None]


async def follow_chain(url: str, token: bytes, begin: int | None, show: Show) -> None:
    """Call `show` with each committed record that ends above the logical offset `begin`, then with new ones.

    begin: None for the current end of the chain. Only for chains that are never rolled back: inputs, outputs,
    files, a manifest. Of a journal on the local disk, records are read from its files, synced or not. Never
    returns. Raises NotFoundError, LocalProtocolError for the URL of an object, LostBytesError if the chain no
    longer holds the next record, and the errors of the client.
    """
    async with open_chain(url, token) as (store, directory, state):
        if not isinstance(store, Store | LocalStore):
            raise LocalProtocolError(
                f"{url} is an archive or the disk of a server, which does not grow",
                remedy="pass the URL of the servers",
            )
        assert state.end is not None, "something of it is committed"
        at = state.end.size if begin is None else begin
        follower = ChainFollower(store, directory, state.chain, at=at, skip_lost=begin == 0)
        watch = ChainWatch(store, follower) if isinstance(store, Store) else None
        try:
            while True:
                at = follower.at
                async with aclosing(follower.poll()) as records:
                    async for end, record in records:
                        show(Located(state.chain, at, end, VERSION_1, record))
                        at = end
                if watch is not None:
                    await watch.wait(follow_poll_s)
                else:
                    await trio.sleep(follow_poll_s)
        finally:
            if watch is not None:
                watch.close()


async def follow_file(path: Path, begin: int | None, show: Show) -> None:
    """Call `show` with each record of a journal file that ends above `begin`, then with new ones.

    begin: an offset in the file; None for its current end. Never returns. Raises OSError; LostBytesError if
    the file became shorter; CorruptRecordError and UnknownRecordError for bytes that are no record.
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
            inspector.feed(b"")  # a fault is raised by the call after the one that returned the good records
            if inspector.fault is not None:
                raise inspector.fault
            await trio.sleep(follow_poll_s)
            now = os.fstat(file.fileno()).st_size
            if now < done:
                text = f"{path} was truncated from {done} to {now} bytes"
                raise LostBytesError(text, remedy="run the command again to read it from the start")
