"""The data directory of a server that does not run, to look at.

Rules of this file: nothing here changes a byte, a name or a time of modification, also when the file system
could not: it works on a read-only mount.
"""

import fcntl
import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from dos_server.disk import RealDisk

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Seen(NamedTuple):
    """What a name is, without following it. `odd`: what it is instead of a regular file with one name."""

    odd: str
    is_folder: bool
    file_bytes: int


class LookingDisk(RealDisk):
    """See the module. Raises OSError; FileNotFoundError or NotADirectoryError when there is none."""

    file_flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def lock_if_there(self, name: str) -> int | None:
        """Keep servers away, without making a lock file. None: there is no such file, so no server runs.

        Raises BlockingIOError when one does.
        """
        try:
            handle = os.open(name, self.file_flags, dir_fd=self._root)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def entries(self, folder: str) -> dict[str, Seen]:
        """What a folder holds."""
        with self._folder(folder) as descriptor:
            found = {}
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - by descriptor: no link is followed
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                odd = _KINDS.get(stat.S_IFMT(about.st_mode), "")
                if not odd and about.st_nlink != 1:
                    odd = f"a file with {about.st_nlink} names (hard links)"
                found[name] = Seen(odd, stat.S_ISDIR(about.st_mode), about.st_size)
            return found
