"""What errors of the disk mean, said in one place.

Rules of this file: OSError in, words of the core or of the log out.
"""

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import Final

from dos_server.core.endings import Trouble

log = logging.getLogger("dos.server")

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


_ELSEWHERE: Final = frozenset(
    {
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR),
        *(errno.EACCES, errno.EPERM, errno.ETIMEDOUT, errno.ESTALE),
    }
)


def says_nothing_of_the_disk(error: OSError) -> bool:
    """Whether a file could not be read for want of something else: descriptors, memory, the right to."""
    return error.errno in _ELSEWHERE


def trouble_of(error: OSError) -> Trouble:
    """What an error of the disk means to the core."""
    return Trouble.NO_SPACE if error.errno in _NO_SPACE else Trouble.FAILED


@contextlib.contextmanager
def noted(what: str) -> Iterator[None]:
    """For what nothing depends on: an error of the disk goes to the log, and no further."""
    try:
        yield
    except OSError as error:
        log.warning("%s: %s", what, error)
