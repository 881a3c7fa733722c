"""What errors of the disk mean, said in one place.

Rules of this file: OSError in, words of the core or of the log out.
"""

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import Final

from dos_server.core.failures import DiskFailure

log = logging.getLogger("dos.server")

_MEANING: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), DiskFailure.NO_SPACE),
    # want of descriptors or of memory, a signal
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR), DiskFailure.PASSES
    ),
    # want of a right, which a person gives back; a server of files that does not answer now
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ETIMEDOUT, errno.ESTALE), DiskFailure.PASSES),
}
"""Everything else is the disk's: FAILED."""

_BEFORE_SYNC: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM})
"""Errors of opening a folder, and never of syncing it."""


def trouble_of(error: OSError) -> DiskFailure:
    """What an error of the disk means to the core."""
    return _MEANING.get(error.errno or 0, DiskFailure.FAILED)


def says_nothing_of_the_disk(error: OSError) -> bool:
    """Whether an error proves no damage and ends when its cause does: the next try may work."""
    return trouble_of(error) is DiskFailure.PASSES


def came_before_sync(error: OSError) -> bool:
    """Whether a folder was not even opened to be synced: the sync may be tried again, a failed one never."""
    return error.errno in _BEFORE_SYNC


@contextlib.contextmanager
def noted(what: str) -> Iterator[None]:
    """For what nothing depends on: an error of the disk goes to the log, and no further."""
    try:
        yield
    except OSError as error:
        log.warning("%s: %s", what, error)
