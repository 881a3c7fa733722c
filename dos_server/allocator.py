"""Memory that is used again. The C library gives blocks of 128 KiB and more back to the kernel as soon as
they are free, and gets them as fresh pages the next time; an answer of 1 MiB costs more in page faults then
than in copying. Here it is told to keep them. What the server may hold is bounded by `limits`, so what is
kept is too.

Rules of this file: settings of the C library, for a whole process: only a program of our own may call this.
"""

import ctypes
import logging
from typing import Final

from dos_protocol.limits import MIB

log = logging.getLogger("dos.server")

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEPT_BYTES: Final = 64 * MIB
_FROM_HEAP_BYTES: Final = 4 * MIB


def keep_large_blocks() -> None:
    """Take blocks up to 4 MiB from one heap that threads share, and keep 64 MiB of it when it is free.

    Where the C library is not glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    settings = (
        (_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_ARENA_MAX, 1),
    )
    if mallopt is None or not all(mallopt(name, value) for name, value in settings):
        log.info("this C library does not say how it keeps memory: large answers are slower")
