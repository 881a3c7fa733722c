"""Read-only access to the data directory of a server that is not running.

Nothing here changes a byte, a name or a modification time. It works on a read-only mount.
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
    """The kind of a directory entry, links not followed. `odd`: why it is no plain file, or ''."""

    odd: str
    is_folder: bool
    file_bytes: int


class ReadOnlyDisk(RealDisk):
    """A data directory opened read-only. Raises OSError, FileNotFoundError if it is missing."""

    file_flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

    def __init__(self, root: Path) -> None:
        self._open_root(root)

    def lock_existing(self, name: str) -> int:
        """Exclude servers as `lock` does, but without creating a lock file. Raises BlockingIOError if one
        runs.

        Without a lock file, a server of a release before 0.1 can start meanwhile: check for the file again at
        the end.
        """
        return self._lock_both(lambda: self.open(name, create=False))

    def entries(self, folder: str) -> dict[str, PathSeen]:
        """Return the entries of a folder by name, sorted."""
        with self._folder(folder) as descriptor:
            found = {}
            for name in sorted(os.listdir(descriptor)):  # noqa: PTH208 - by descriptor: no link is followed
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                odd = _KINDS.get(stat.S_IFMT(about.st_mode), "")
                if not odd and about.st_nlink != 1:
                    odd = f"a file with {about.st_nlink} names (hard links)"
                found[name] = PathSeen(odd, stat.S_ISDIR(about.st_mode), about.st_size)
            return found
