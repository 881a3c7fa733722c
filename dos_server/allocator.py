"""Settings of the C library's allocator, so that freed memory is reused.

glibc returns blocks of 128 KiB and more to the kernel as soon as they are free, and the next allocation gets
fresh pages. For an answer of 1 MiB the page faults then cost more than the copying. These settings keep such
blocks in the process. `limits` bounds what the server may hold, so it also bounds what is kept.

The settings hold for the whole process: call this only from a program that is started for the server.
"""

import ctypes
import logging
from typing import Final

from dos_protocol.limits import MIB

logger = logging.getLogger("dos.server")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 64 * MIB
_FROM_HEAP_BYTES: Final = 4 * MIB


def keep_large_blocks() -> None:
    """Take blocks up to 4 MiB from one heap shared by all threads, and keep 64 MiB of it when it is free.

    Without glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = (
        (_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_ARENA_MAX, 1),
    )
    if mallopt is None or not all(mallopt(name, value) for name, value in settings):
        logger.info("the C library has no mallopt: large answers are slower")
