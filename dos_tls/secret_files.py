"""Files with secrets that every user of the machine can read: a warning with the remedy.

A file is used all the same. A container or a Secret of Kubernetes often has such a mode, where nobody else is
on the machine. A group that can read the file is no reason for a warning: it is how `fsGroup` and service
users share one.
"""

import logging
import os
import stat
from pathlib import Path
from typing import Final

logger: Final = logging.getLogger("dos.tls")
_warned: Final[set[str]] = set()


def warn_if_open(path: str | Path, what: str) -> None:
    """Log a warning if others than the owner and the group can read the file, once for each file in this
    process.

    what: names the secret, for the message. A missing file and a pipe are not reported: reading them shows
    what is wrong.
    """
    name = os.path.realpath(path)
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116 - as in `contexts`
    except OSError:
        return
    if stat.S_ISREG(mode) and mode & stat.S_IROTH and name not in _warned:
        _warned.add(name)
        logger.warning(
            "%s %s can be read by every user of this machine (mode %04o): chmod 600 %s",
            what,
            path,
            stat.S_IMODE(mode),
            path,
        )
