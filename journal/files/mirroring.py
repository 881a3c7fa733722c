"""Mirror a growing local journal to a store, in the background, as the original service did.

A mirror reads the file and appends the new bytes to one object, under a claim. It never changes the file. It
appends only if the object is a prefix of the file, so the object on the servers always is one.
"""

from pathlib import Path

import trio

from dos_client import Quorums
from dos_client.live_store import Store
from dos_client.writing.claim import Claim, resume
from dos_client.writing.object_writer import ObjectWriter
from dos_protocol.digests import PrefixDigest
from dos_protocol.limits import payload_bytes_max
from journal.core.errors import MirrorDiffersError
from journal.limits import mirror_poll_s


class Mirror:
    """The mirror of a local file that only grows, in an object of a claimed directory.

        async with await store.claim("worker3", epoch, writer_id) as claim, trio.open_nursery() as nursery:
            mirror = await Mirror.open(path, store, claim, "my_app.journal")
            nursery.start_soon(mirror.run)

    Create it with `open`. `synced`: the bytes of the file that a quorum has on stable storage.
    """

    def __init__(self, path: Path, writer: ObjectWriter) -> None:
        self._path = path
        self._writer = writer
        self._grown = trio.Event()

    @classmethod
    async def open(cls, path: Path, store: Store, claim: Claim, name: str) -> "Mirror":
        """Continue at the end of the object.

        Raises MirrorDiffersError if the object is not a prefix of the file, CorruptError if members hold
        different bytes, FencedError.
        """
        writer = await resume(store, claim, name)
        found = await trio.to_thread.run_sync(_digest_of, path, writer.size)
        if found.size != writer.size:
            raise MirrorDiffersError(
                f"{claim.directory}/{name} has {writer.size} bytes, {path} has only {found.size}",
                remedy=f"copy the object to {path} with `dos get`, and continue with that file",
            )
        if found.value != writer.digest:
            raise MirrorDiffersError(
                f"the first {writer.size} bytes of {path} are not those of {claim.directory}/{name}",
                remedy="mirror to another name, or restore the file that was mirrored before",
            )
        return cls(path, writer)

    @property
    def size(self) -> int:
        """The bytes of the file that were appended to the object, synced or not."""
        return self._writer.size

    @property
    def synced(self) -> int:
        return self._writer.synced

    @property
    def digest(self) -> int:
        """The prefix digest of the appended bytes."""
        return self._writer.digest

    async def run(self) -> None:
        """Mirror the file until cancelled.

        Raises FencedError; MirrorDiffersError if the file became shorter; OSError.
        """
        while True:
            if not await self.pass_on():
                await trio.sleep(mirror_poll_s)

    async def pass_on(self, upto: int | None = None) -> int:
        """Append the new bytes of the file to the object, and return their number.

        upto: the size of the object at which to end; None for all that the file has.
        """
        before = self.size
        with self._path.open("rb", buffering=0) as file:
            if file.seek(0, 2) < before:
                raise MirrorDiffersError(f"{self._path} has fewer than the {before} bytes that were mirrored")
            file.seek(before)
            while data := await trio.to_thread.run_sync(file.read, self._next_bytes(upto)):
                self._writer.append(data)
                await self._writer.wait_room()
        self._grown.set()
        self._grown = trio.Event()
        return self.size - before

    def seal(self) -> None:
        """Note that the file is complete and copied. The memory is freed when a quorum has everything."""
        self._writer.seal()

    def _next_bytes(self, upto: int | None) -> int:
        return payload_bytes_max if upto is None else min(payload_bytes_max, max(upto - self.size, 0))

    async def wait_synced(self, size: int) -> None:
        """Wait until `size` bytes of the file are synced on a quorum. Raises FencedError.

        Another task must call `run` or `pass_on` meanwhile.
        """
        while self.size < size:
            await self._grown.wait()
        await self._writer.wait_synced(size)


async def verify_copy(store: Store, directory: str, name: str, size: int, digest: int) -> None:
    """Check that a quorum holds an object whose first `size` bytes have this prefix digest.

    Raises MirrorDiffersError.
    """
    found = await store.stat(directory, name, size)
    held = {
        member: size
        for member, result in found.items()
        if result.info.synced >= size and result.digest == digest
    }
    if Quorums(store.record).watermark(held) < size:
        raise MirrorDiffersError(
            f"{len(held)} members hold {size} bytes of {directory}/{name} with the digest {digest:016x} of"
            " the local file, fewer than a quorum",
            remedy="check the members with `dos store status` and `dos store verify`",
        )


def _digest_of(path: Path, size: int) -> PrefixDigest:
    """Return the digest of the first `size` bytes of a file, or of all bytes if it is shorter."""
    digest = PrefixDigest()
    with path.open("rb") as file:
        while data := file.read(min(payload_bytes_max, size - digest.size)):
            digest.update(data)
    return digest
