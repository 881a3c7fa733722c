"""The data directory of a server that does not run, to look at.

Rules of this file: nothing here changes a byte, a name or a time of modification, also when the file system
could not: it works on a read-only mount.
"""

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


class PathSeen(NamedTuple):
    """What a name is, without following it. `odd`: what it is instead of a regular file with one name."""

    odd: str
    is_folder: bool
    file_bytes: int


class ReadOnlyDisk(RealDisk):
    """See the module. Raises OSError; FileNotFoundError or NotADirectoryError when there is none."""

    file_flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

    def __init__(self, root: Path) -> None:
        self._open_root(root)

    def lock_what_is_there(self, name: str) -> int:
        """Keep servers away as `lock` does, without making a lock file. Raises BlockingIOError if one runs.

        Where there is no lock file, a server of a release before 0.1 can start meanwhile: look for the file
        again at the end.
        """
        return self._lock_both(lambda: self.open(name, create=False))

    def entries(self, folder: str) -> dict[str, PathSeen]:
        """What a folder holds."""
        with self._folder(folder) as descriptor:
            found = {}
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - by descriptor: no link is followed
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                odd = _KINDS.get(stat.S_IFMT(about.st_mode), "")
                if not odd and about.st_nlink != 1:
                    odd = f"a file with {about.st_nlink} names (hard links)"
                found[name] = PathSeen(odd, stat.S_ISDIR(about.st_mode), about.st_size)
            return found
