"""Files of this machine: on stable storage, and warnings of secrets that every user can read.

A synced file is lost with a power cut if its name is not on stable storage, and so is all that lies in a
directory whose own name is not.
"""

import errno
import logging
import os
import resource
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final


def replace_durably(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file: after a power cut it is the old or the new one, whole; after this call, the new one.
    One writer. mode: its permissions, less the process's mask; by default only the owner reads it. Raises
    OSError, also if the path is no file, such as the device /dev/null.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file, and is not replaced by one", str(path))
    new = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def make_durable_folders(folder: Path, mode: int = 0o777) -> None:
    folder = folder.absolute()
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    # Also the name of the lowest folder that exists: a process that was killed at this point may have made
    # it.
    with suppress(PermissionError):  # a folder that cannot be read was not written by this user
        sync_folder(folder.parent)
    for one in reversed(missing):
        one.mkdir(mode=mode, exist_ok=True)
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Put created, renamed and removed names of a folder on stable storage. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


logger: Final = logging.getLogger("dos.tls")
_warned: Final[set[str]] = set()


def warn_if_open(path: str | Path, what: str) -> None:
    """Log once for each file if others than the owner and the group can read it. A group is how `fsGroup`
    shares a secret. what: names the secret.
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


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of open files of this process, as far as it may. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted if soft == unlimited else soft
    allowed = wanted if hard == unlimited else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
