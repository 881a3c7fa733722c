"""Verified reads of stored data: for GET and STAT, and for the scrub.

This module also decides which disk errors are damage; `core.reads` and `core.scrub` act on the results.
"""

import logging
from collections.abc import Callable
from functools import partial

from dos_server.core import vocabulary as v
from dos_server.core.extent import object_seed
from dos_server.core.layout import OBJECTS
from dos_server.core.scan import DamagedExtentError, ReadAt, prefix_fold, read_part
from dos_server.core.scrub_reads import ScrubRead, ScrubReadDone
from dos_server.core.verify import verify_part
from dos_server.disk import Disk
from dos_server.limits import read_extents_max, scrub_part_bytes, scrub_part_extents_max
from dos_server.open_files import OpenFiles
from dos_server.troubles import says_nothing_of_the_disk

logger = logging.getLogger("dos.server")


def _meaning(place: str, error: OSError, offset: int) -> tuple[int | None, str]:
    """Return the offset from which an error means damage, or None and the reason why it proves none."""
    logger.error("read of %s: %s", place, error)
    return (None, str(error)) if says_nothing_of_the_disk(error) else (offset, "")


class StoredReads:
    """Verified reads. Thread-safe; changes nothing and raises no disk error.

    `give_way` is called regularly during long reads.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files = OpenFiles(disk)
        self.give_way: Callable[[], None] = lambda: None

    def reader(self, handle: int) -> ReadAt:
        """Return a read function for walks over up to a million headers; it calls `give_way`."""
        give_way, read = self.give_way, self._disk.read

        def read_on(position: int, count: int) -> bytes:
            give_way()
            return read(handle, position, count)

        return read_on

    def read(self, effect: v.ReadData) -> v.GotData:
        """Return verified content, or where it is damaged."""
        try:
            with self._files.use(f"{OBJECTS}/{effect.directory}/{effect.name}") as file:
                read, seed = partial(self._disk.read, file.handle), object_seed(effect.directory, effect.name)
                part = read_part(read, seed, effect.place, effect.start, effect.end, read_extents_max)
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
                return v.GotDigest(effect, prefix_fold(read, seed, effect.places, effect.size).value)
        except DamagedExtentError as damage:
            logger.error("%s/%s: %s", effect.directory, effect.name, damage)
            return v.GotDigest(effect, 0, damage.offset)
        except OSError as error:
            at, missed = _meaning(f"{effect.directory}/{effect.name}", error, effect.places.first.offset)
            return v.GotDigest(effect, 0, at, missed)

    def inspect(self, asked: ScrubRead, clock: Callable[[], float]) -> ScrubReadDone:
        """Verify the next part of an object for the scrub, reading from the device if possible."""
        began = clock()
        try:
            with self._files.use(f"{OBJECTS}/{asked.directory}/{asked.name}") as file:
                chain = verify_part(
                    partial(self._disk.read_stored, file.handle),
                    object_seed(asked.directory, asked.name),
                    asked.chain,
                    asked.goal,
                    scrub_part_bytes,
                    scrub_part_extents_max,
                )
        except DamagedExtentError as damage:
            return ScrubReadDone(asked, None, damage.offset, damage.what, clock() - began)
        except OSError as error:
            at, _ = _meaning(f"{asked.directory}/{asked.name}", error, asked.chain.offset)
            return ScrubReadDone(asked, None, at, str(error), clock() - began)
        return ScrubReadDone(asked, chain, None, "", clock() - began)
