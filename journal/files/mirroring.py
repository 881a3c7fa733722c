"""Mirroring a growing local journal to a store, in the background: the original's way of outliving a machine.

Rules of this file: it reads the file and appends to one object what that does not have yet, under a claim. It
never changes the file, and it never appends behind bytes that differ from the file's: what is on the servers
is a prefix of the file, always.
"""

from pathlib import Path

import trio

from dos_client.live_store import Store
from dos_client.writing.claim import Claim
from dos_client.writing.object_writer import ObjectWriter
from dos_client.writing.resuming import resume
from dos_protocol.digests import PrefixDigest
from dos_protocol.limits import payload_bytes_max
from journal.core.errors import MirrorDiffersError
from journal.limits import mirror_poll_s


class Mirror:
    """Keeps an object of a claimed directory the same as a local file that only grows.

        async with await store.claim("worker3", epoch, writer_id) as claim, trio.open_nursery() as nursery:
            mirror = await Mirror.open(path, store, claim, "my_app.journal")
            nursery.start_soon(mirror.run)

    Make it with `open`. `synced`: bytes of the file that a quorum has on stable storage.
    """

    def __init__(self, path: Path, writer: ObjectWriter) -> None:
        self._path = path
        self._writer = writer
        self._grown = trio.Event()

    @classmethod
    async def open(cls, path: Path, store: Store, claim: Claim, name: str) -> "Mirror":
        """Go on where the object ends. Raises MirrorDiffersError if it is no prefix of the file; CorruptError
        if members hold different bytes; FencedError.
        """
        writer = await resume(store, claim, name)
        found = await trio.to_thread.run_sync(_digest_of, path, writer.size)
        if found.size != writer.size:
            raise MirrorDiffersError(
                f"{claim.directory}/{name} has {writer.size} bytes, {path} only {found.size}",
                remedy=f"`dos get` the object to {path}, and go on with that",
            )
        if found.value != writer.digest:
            raise MirrorDiffersError(
                f"the first {writer.size} bytes of {path} are not those of {claim.directory}/{name}",
                remedy="mirror to another name, or get back the file that was mirrored before",
            )
        return cls(path, writer)

    @property
    def size(self) -> int:
        """Bytes of the file that were handed on."""
        return self._writer.size

    @property
    def synced(self) -> int:
        return self._writer.synced

    async def run(self) -> None:
        """Follow the file until cancelled. Raises FencedError; MirrorDiffersError if the file became shorter;
        OSError.
        """
        while True:
            if not await self.pass_on():
                await trio.sleep(mirror_poll_s)

    async def pass_on(self) -> int:
        """Hand on what the file has now; how much that was."""
        before = self.size
        with self._path.open("rb", buffering=0) as file:
            if file.seek(0, 2) < before:
                raise MirrorDiffersError(f"{self._path} has fewer than the {before} bytes that were mirrored")
            file.seek(before)
            while data := await trio.to_thread.run_sync(file.read, payload_bytes_max):
                self._writer.append(data)
                await self._writer.wait_room()
        self._grown.set()
        self._grown = trio.Event()
        return self.size - before

    async def wait_synced(self, size: int) -> None:
        """Until so many bytes of the file are on a quorum; needs `run` or `pass_on` beside it. Raises
        FencedError.
        """
        while self.size < size:
            await self._grown.wait()
        await self._writer.wait_synced(size)


def _digest_of(path: Path, size: int) -> PrefixDigest:
    """Of the first `size` bytes, or of fewer if there are fewer."""
    digest = PrefixDigest()
    with path.open("rb") as file:
        while data := file.read(min(payload_bytes_max, size - digest.size)):
            digest.update(data)
    return digest
