"""The meaning of disk errors: maps OSError to what the core and the log understand. The only such table."""

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import Final

from dos_server.core.failures import DiskFailure

logger = logging.getLogger("dos.server")

_MEANING: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), DiskFailure.NO_SPACE),
    # no free descriptor, no memory, a signal
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR), DiskFailure.TEMPORARY
    ),
    # a missing permission, which a person can restore; a file server that does not answer now
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ETIMEDOUT, errno.ESTALE), DiskFailure.TEMPORARY),
}
"""Every other error is the disk's: FAILED."""

_BEFORE_SYNC: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM})
"""Errors that opening a folder can raise and syncing it cannot."""


_DAMAGE_AT_OPEN: Final = frozenset(
    {
        *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.EBADMSG, errno.ENODATA),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
        getattr(errno, "EUCLEAN", errno.EIO),  # Linux: the file system is damaged
    }
)
"""Errors of an open that say something about the file. Any other one is of the system or of its settings."""


def proves_damage(error: OSError) -> bool:
    """Whether an error that was raised when a file was opened says that the file is lost or damaged."""
    return error.errno in _DAMAGE_AT_OPEN


def failure_of(error: OSError) -> DiskFailure:
    """Return what a disk error means for the core."""
    return _MEANING.get(error.errno or 0, DiskFailure.FAILED)


def is_temporary(error: OSError) -> bool:
    """Whether an error proves no damage and ends with its cause: the next try may succeed."""
    return failure_of(error) is DiskFailure.TEMPORARY


def preceded_sync(error: OSError) -> bool:
    """Whether a folder was not even opened for its sync. Such a sync may be retried; a failed one never."""
    return error.errno in _BEFORE_SYNC


@contextlib.contextmanager
def log_errors(what: str) -> Iterator[None]:
    """Log disk errors and suppress them, for work that no guarantee depends on."""
    try:
        yield
    except OSError as error:
        logger.warning("%s: %s", what, error)
