"""Files with secrets: how they are written, and a warning with the remedy if every user can read one.

An open file is used all the same. A container or a Secret of Kubernetes often has such a mode, where nobody
else is on the machine. A group that can read the file is no reason for a warning: it is how `fsGroup` and
service users share one.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

logger: Final = logging.getLogger("dos.tls")
_warned: Final[set[str]] = set()


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file, which only its owner can read: after a power cut it is whole, the old one or the new
    one; after this call, the new one. Raises OSError.
    """
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
