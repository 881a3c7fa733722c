"""Rebuild a tree of files from records, in a temporary directory, and move it to the target when complete.

Until `put`, all files are written to a directory next to the target, so a target that exists is complete. If
a crash leaves that directory, the next rebuilding of the same target deletes it.
"""

import os
import shutil
from pathlib import Path

from journal.core.file_ops import Paths, ReplayStop
from journal.files.replaying import TO_THE_END, FilesReplay
from journal.files.tree import FileTree
from journal.limits import file_gather_bytes


class Rebuilding:
    """A tree that is being rebuilt: `replay` takes the records. A context manager.

    Leaving it without `put` deletes the temporary directory. `replay.take` raises UnsafePathError and
    FileConflictError for operations that the journal should not hold, OSError.
    """

    def __init__(
        self, target: Path, *, stop: ReplayStop = TO_THE_END, only: str | None = None, paths: Paths = "safe"
    ) -> None:
        self.target = target.absolute()
        self._temporary = self.target.parent / f".{self.target.name}.rebuilding"
        self._old = self.target.parent / f".{self.target.name}.replaced"
        self._delete_temporary()
        self._temporary.mkdir(parents=True)
        self._tree = FileTree(self._temporary, gather_bytes=file_gather_bytes)
        self.replay = FilesReplay(self._tree, stop=stop, only=only, paths=paths)

    def __enter__(self) -> "Rebuilding":
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.close()
        self._delete_temporary()

    def has_file(self, path: str) -> bool:
        """Return whether the file exists after the records so far."""
        self._tree.flush()
        return (self._temporary / path).is_file()

    def put(self) -> None:
        """Move the tree to the target, replacing whatever is there."""
        self._tree.flush()
        self._tree.close()
        # A crash between the two renames leaves no target; the next rebuilding creates it again.
        if os.path.lexists(self.target):
            self.target.rename(self._old)
        self._temporary.rename(self.target)
        self._delete_temporary()

    def _delete_temporary(self) -> None:
        for path in (self._temporary, self._old):
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
