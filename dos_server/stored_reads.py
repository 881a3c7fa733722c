"""Verified reads of stored data: for GET and STAT, and for the scrub.

This module also decides which disk errors are damage; `core.reads` and `core.scrub` act on the results.
"""

import logging
from collections.abc import Callable
from functools import partial

from dos_server.core import vocabulary as v
from dos_server.core.files.extent import object_seed
from dos_server.core.files.scan import DamagedExtentError, ReadAt, prefix_fold, read_part
from dos_server.core.layout import OBJECTS
from dos_server.core.scrub_reads import ScrubRead, ScrubReadDone
from dos_server.core.verify import verify_part
from dos_server.disk import Disk
from dos_server.disk_errors import is_temporary
from dos_server.limits import read_extents_max, scrub_part_bytes, scrub_part_extents_max
from dos_server.open_files import OpenFiles

logger = logging.getLogger("dos.server")


def _meaning(place: str, error: OSError, offset: int) -> tuple[int | None, str]:
    """Return the offset from which an error means damage, or None and the reason why it proves none."""
    logger.error("read of %s: %s", place, error)
    return (None, str(error)) if is_temporary(error) else (offset, "")


class StoredReads:
    """Verified reads. Thread-safe; changes nothing and raises no disk error.

    `yield_to_loop` is called regularly during long reads.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files = OpenFiles(disk)
        self.yield_to_loop: Callable[[], None] = lambda: None

    def reader(self, handle: int) -> ReadAt:
        """Return a read function for walks over up to a million headers; it calls `yield_to_loop`."""
        yield_to_loop, read = self.yield_to_loop, self._disk.read

        def read_on(position: int, count: int) -> bytes:
            yield_to_loop()
            return read(handle, position, count)

        return read_on

    def read(self, effect: v.ReadData) -> v.GotData:
        """Return verified content, or where it is damaged."""
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                read, seed = partial(self._disk.read, file.handle), object_seed(effect.directory, effect.name)
                part = read_part(read, seed, effect.extent, effect.start, effect.end, read_extents_max)
                return v.GotData(effect, part.data, after=part.after)
        except DamagedExtentError as damage:
            logger.error("%s/%s: %s", effect.directory, effect.name, damage)
            return v.GotData(effect, b"", damage.offset)
        except OSError as error:
            at, missed = _meaning(f"{effect.directory}/{effect.name}", error, effect.start)
            return v.GotData(effect, b"", at, missed)

    def digest(self, effect: v.ReadDigest) -> v.GotDigest:
        """Return the prefix digest at a size, or where the data it needs is damaged."""
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                read, seed = self.reader(file.handle), object_seed(effect.directory, effect.name)
                return v.GotDigest(effect, prefix_fold(read, seed, effect.extents, effect.size).value)
        except DamagedExtentError as damage:
            logger.error("%s/%s: %s", effect.directory, effect.name, damage)
            return v.GotDigest(effect, 0, damage.offset)
        except OSError as error:
            at, missed = _meaning(f"{effect.directory}/{effect.name}", error, effect.extents.first.offset)
            return v.GotDigest(effect, 0, at, missed)

    def scrub_read(self, effect: ScrubRead, clock: Callable[[], float]) -> ScrubReadDone:
        """Verify the next part of an object for the scrub, reading from the device if possible."""
        began = clock()
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                chain = verify_part(
                    partial(self._disk.read_stored, file.handle),
                    object_seed(effect.directory, effect.name),
                    effect.chain,
                    effect.goal,
                    scrub_part_bytes,
                    scrub_part_extents_max,
                )
        except DamagedExtentError as damage:
            return ScrubReadDone(effect, None, damage.offset, damage.what, clock() - began)
        except OSError as error:
            at, _ = _meaning(f"{effect.directory}/{effect.name}", error, effect.chain.offset)
            return ScrubReadDone(effect, None, at, str(error), clock() - began)
        return ScrubReadDone(effect, chain, None, "", clock() - began)
